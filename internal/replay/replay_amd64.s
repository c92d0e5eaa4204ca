#include "textflag.h"

// Offsets of op and state: see op.go.
#define op_nr 0
#define op_args 8
#define op_slots 56
#define op_save 62
#define op_flags 63
#define op_tolerate 64
#define op_skip 72
#define op_expect 80
#define op_result 88
#define op_size 96

#define st_all 0
#define st_saved 8
#define st_failed 16
#define st_errno 24
#define st_retries 40
#define st_marked 48
#define st_slots 56

#define SYS_rt_sigprocmask 14
#define SYS_exit_group 231
#define SYS_clone3 435
#define EINTR 4
#define EAGAIN 11

// ARG loads argument i into a register, from the operation or from a slot.
// Slot 0 is none: bit tests are cheaper than a branch table here.
#define ARG(i, reg) \
	MOVQ    (op_args+8*i)(BX), reg    \
	MOVBLZX (op_slots+i)(BX), CX      \
	TESTL   CX, CX                    \
	JZ      2(PC)                     \
	MOVQ    st_slots(R12)(CX*8), reg

// func start(args *cloneArgs, size uintptr, prog *op, st *state) (pid uintptr)
//
// Every signal is blocked around clone3, so that the child, which starts with
// the caller's mask, can never run a handler of the Go runtime. The child keeps
// all in BX and R12, which the kernel preserves (syscall(2)); it never touches
// the stack and never returns.
TEXT ·start(SB), NOSPLIT|NOFRAME, $0-40
	MOVQ prog+16(FP), BX
	MOVQ st+24(FP), R12

	MOVQ $SYS_rt_sigprocmask, AX
	MOVQ $2, DI // SIG_SETMASK
	LEAQ st_all(R12), SI
	LEAQ st_saved(R12), DX
	MOVQ $8, R10
	SYSCALL

	MOVQ $SYS_clone3, AX
	MOVQ args+0(FP), DI
	MOVQ size+8(FP), SI
	SYSCALL
	TESTQ AX, AX
	JZ    next
	MOVQ  AX, R13

	MOVQ $SYS_rt_sigprocmask, AX
	MOVQ $2, DI
	LEAQ st_saved(R12), SI
	XORL DX, DX
	MOVQ $8, R10
	SYSCALL
	MOVQ R13, pid+32(FP)
	RET

next:
	MOVBLZX op_flags(BX), R15
	TESTL   $16, R15 // flagMark
	JNZ     mark
	ARG(0, DI)
	ARG(1, SI)
	ARG(2, DX)
	ARG(3, R10)
	ARG(4, R8)
	ARG(5, R9)
	MOVQ    op_nr(BX), AX
	SYSCALL
	MOVQ    AX, op_result(BX)

	TESTL $2, R15 // flagFork
	JZ    notfork
	TESTQ AX, AX
	JNZ   notfork
	MOVQ  op_expect(BX), BX
	JMP   next

notfork:
	CMPQ    AX, $-4095
	JCC     error
	TESTL   $32, R15 // flagStore
	JZ      check
	MOVQ    op_expect(BX), CX
	MOVL    AX, (CX)

check:
	TESTL   $1, R15 // flagCheck
	JZ      save
	CMPQ    AX, op_expect(BX)
	JEQ     save
	XORL    AX, AX
	JMP     fail

save:
	MOVBLZX op_save(BX), CX
	TESTL   CX, CX
	JZ      advance
	MOVQ    AX, st_slots(R12)(CX*8)

advance:
	ADDQ $op_size, BX
	JMP  next

mark:
	MOVQ $1, st_marked(R12)
	CMPQ st_failed(R12), $0 // of the fork's child
	JEQ  advance
	JMP  exit

error:
	NEGQ    AX
	TESTL   $4, R15 // flagRetry
	JZ      tolerated
	CMPQ    AX, $EAGAIN
	JEQ     again
	CMPQ    AX, $EINTR
	JEQ     again

tolerated:
	TESTL   $8, R15 // flagTolerant
	JNZ     skip
	MOVWLZX (op_tolerate+0)(BX), CX
	CMPQ    AX, CX
	JEQ     skip
	MOVWLZX (op_tolerate+2)(BX), CX
	CMPQ    AX, CX
	JEQ     skip
	MOVWLZX (op_tolerate+4)(BX), CX
	CMPQ    AX, CX
	JEQ     skip
	MOVWLZX (op_tolerate+6)(BX), CX
	CMPQ    AX, CX
	JEQ     skip

fail:
	MOVQ AX, st_errno(R12)
	MOVQ BX, st_failed(R12)

exit:
	MOVQ $127, DI
	MOVQ $SYS_exit_group, AX
	SYSCALL
	INT  $3

again:
	DECQ st_retries(R12)
	JNZ  next
	JMP  tolerated

skip:
	MOVL  op_skip(BX), CX
	INCQ  CX
	IMULQ $op_size, CX
	ADDQ  CX, BX
	JMP   next
