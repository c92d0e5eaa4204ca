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

#define SYS_mmap 9
#define SYS_rt_sigprocmask 14
#define SYS_pread64 17
#define SYS_prctl 157
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
	JNZ   parent
	JMP   ·interpret(SB)

parent:
	MOVQ AX, R13
	MOVQ $SYS_rt_sigprocmask, AX
	MOVQ $2, DI
	LEAQ st_saved(R12), SI
	XORL DX, DX
	MOVQ $8, R10
	SYSCALL
	MOVQ R13, pid+32(FP)
	RET

// The interpreter: BX is the operation, R12 the state. It refers to nothing else,
// because it is copied into an executable of its own, too (stage.go).
TEXT ·interpret(SB), NOSPLIT|NOFRAME, $0
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

	// "yoi-stage": where that executable begins.
	BYTE $0x79; BYTE $0x6f; BYTE $0x69; BYTE $0x2d; BYTE $0x73; BYTE $0x74; BYTE $0x61; BYTE $0x67
	BYTE $0x65; BYTE $0xf1; BYTE $0xf2; BYTE $0xf3; BYTE $0xf4; BYTE $0xf5; BYTE $0xf6; BYTE $0xf7

	// Nobody reads or traces what is about to be done, from the first call on: the
	// memory is of the user namespace that we were executed in.
	MOVQ $SYS_prctl, AX
	MOVQ $4, DI // PR_SET_DUMPABLE
	XORL SI, SI
	SYSCALL

	// Descriptor 0 is the program's memory. Its header says where it has to lie.
	SUBQ $64, SP
	MOVQ SP, R14
	MOVQ $SYS_pread64, AX
	XORL DI, DI
	MOVQ R14, SI
	MOVQ $32, DX
	XORL R10, R10
	SYSCALL
	CMPQ AX, $32
	JNE  exit
	MOVQ $SYS_mmap, AX
	MOVQ 0(R14), DI
	MOVQ 8(R14), SI
	MOVQ $3, DX         // PROT_READ|PROT_WRITE
	MOVQ $0x100001, R10 // MAP_SHARED|MAP_FIXED_NOREPLACE
	XORL R8, R8
	XORL R9, R9
	SYSCALL
	CMPQ AX, 0(R14)
	JNE  exit
	MOVQ 16(R14), BX
	MOVQ 24(R14), R12
	JMP  next

	// The end, for stage.go to find.
	BYTE $0x79; BYTE $0x6f; BYTE $0x69; BYTE $0x2d; BYTE $0x65; BYTE $0x6e; BYTE $0x64; BYTE $0x2e
	BYTE $0xf1; BYTE $0xf2; BYTE $0xf3; BYTE $0xf4; BYTE $0xf5; BYTE $0xf6; BYTE $0xf7; BYTE $0xf8

// func interpretAddr() unsafe.Pointer
TEXT ·interpretAddr(SB), NOSPLIT, $0-8
	LEAQ ·interpret(SB), AX
	MOVQ AX, ret+0(FP)
	RET
