#include "textflag.h"

// PID 1 of every sandbox. The code below is copied into an executable of its
// own (initelf.go), so it refers to nothing but its stack and its descriptors
//
//	0 a signalfd of all signals   1 the outcome file
//	2 the wall clock's timerfd    3 a pidfd of the launcher
//	4 the terminal's master       5 the log that gets its output
//
// of which 2 to 5 may be closed. 6 is the terminal's other side, held open so that
// the master never hangs up.
//
// All signals are blocked when it starts, and stay so. It has no filter of its
// own: it reads nothing that the Worker writes but signal numbers, and the
// kernel needs longer for a second filter than for the whole init.
//
// Stack: 0 four struct pollfd, 32 struct signalfd_siginfo, 176 wait status,
// 192 the outcome record (outcome.go), 512 what the terminal said.

#define SYS_read 0
#define SYS_write 1
#define SYS_pwrite64 18
#define SYS_wait4 61
#define SYS_kill 62
#define SYS_prctl 157
#define SYS_clock_gettime 228
#define SYS_exit_group 231
#define SYS_ppoll 271

#define WORKER 2
#define POLLIN 1
#define POLLNVAL 32
#define SIGKILL 9
#define SIGCHLD 17
#define CARRIER 64 // SIGRTMAX with SI_QUEUE: the signal is in its value

#define SIGINFO 32
#define STATUS 176
#define RECORD 192
#define CONSOLE 512

TEXT ·initText(SB), NOSPLIT|NOFRAME, $0
	SUBQ $5120, SP
	ANDQ $-16, SP
	MOVQ SP, R12
	XORL R13, R13 // 1: timed out

	// The executable is unreadable, which made us non-dumpable already; this holds
	// even where fs.suid_dumpable is 1.
	MOVQ $SYS_prctl, AX
	MOVQ $4, DI // PR_SET_DUMPABLE
	XORL SI, SI
	SYSCALL

	MOVQ $SYS_clock_gettime, AX
	XORL DI, DI // CLOCK_REALTIME
	LEAQ (RECORD+16)(R12), SI
	SYSCALL

	XORL AX, AX
	MOVL AX, 0(R12)
	MOVL $POLLIN, 4(R12)
	MOVL $2, 8(R12)
	MOVL $POLLIN, 12(R12)
	MOVL $3, 16(R12)
	MOVL $POLLIN, 20(R12)
	MOVL $4, 24(R12)
	MOVL $POLLIN, 28(R12)

reap:
	MOVQ $SYS_wait4, AX
	MOVQ $-1, DI
	LEAQ STATUS(R12), SI
	MOVQ $0x40000001, DX // WNOHANG|__WALL
	LEAQ (RECORD+48)(R12), R10
	SYSCALL
	CMPQ AX, $WORKER
	JEQ  ended
	TESTQ AX, AX
	JG   reap
	JL   orphan // ECHILD: there was no Worker

	MOVQ $SYS_ppoll, AX
	MOVQ R12, DI
	MOVQ $4, SI
	XORL DX, DX
	XORL R10, R10
	MOVQ $8, R8
	SYSCALL

	// The launcher is gone: so is everything here, by our own exit.
	MOVWLZX 22(R12), AX
	TESTL   $POLLIN, AX
	JNZ     orphan
	TESTL   $POLLNVAL, AX
	JZ      timer
	MOVL    $-1, 16(R12)

timer:
	MOVWLZX 14(R12), AX
	TESTL   $POLLNVAL, AX
	JNZ     notimer
	TESTL   $POLLIN, AX
	JZ      console
	ORL     $1, R13
	MOVQ    $SYS_kill, AX
	MOVQ    $-1, DI
	MOVQ    $SIGKILL, SI
	SYSCALL

notimer:
	MOVL $-1, 8(R12)

	// What the terminal shows goes to the log, whoever looks: a Worker whose output
	// nobody takes would stand still.
console:
	MOVWLZX 30(R12), AX
	TESTL   $POLLNVAL, AX
	JNZ     noconsole
	TESTL   $POLLIN, AX
	JZ      signal
	XORL    AX, AX // SYS_read
	MOVQ    $4, DI
	LEAQ    CONSOLE(R12), SI
	MOVQ    $4096, DX
	SYSCALL
	CMPQ    AX, $0
	JLE     signal
	MOVQ    AX, DX
	MOVQ    $SYS_write, AX
	MOVQ    $5, DI
	SYSCALL
	JMP     signal

noconsole:
	MOVL $-1, 24(R12)

signal:
	MOVWLZX 6(R12), AX
	TESTL   $POLLIN, AX
	JZ      reap
	MOVQ    $SYS_read, AX
	XORL    DI, DI
	LEAQ    SIGINFO(R12), SI
	MOVQ    $128, DX
	SYSCALL
	CMPQ    AX, $128
	JNE     reap
	MOVL    SIGINFO(R12), SI
	CMPL    SI, $SIGCHLD
	JEQ     reap
	CMPL    (SIGINFO+12)(R12), $0 // ssi_pid: only from outside the sandbox
	JNE     reap
	CMPL    SI, $CARRIER
	JNE     forward
	CMPL    (SIGINFO+8)(R12), $-1 // ssi_code SI_QUEUE
	JNE     forward
	MOVL    (SIGINFO+44)(R12), SI // ssi_int

forward:
	MOVL  SI, R14
	MOVQ  $SYS_kill, AX
	MOVQ  $-WORKER, DI
	SYSCALL
	TESTQ AX, AX
	JZ    reap
	MOVQ  $SYS_kill, AX
	MOVQ  $WORKER, DI
	MOVL  R14, SI
	SYSCALL
	JMP   reap

ended:
	MOVQ $SYS_kill, AX
	MOVQ $-1, DI
	MOVQ $SIGKILL, SI
	SYSCALL
	MOVQ $SYS_clock_gettime, AX
	XORL DI, DI
	LEAQ (RECORD+32)(R12), SI
	SYSCALL

	// The last words. The master does not block.
drain:
	XORL AX, AX // SYS_read
	MOVQ $4, DI
	LEAQ CONSOLE(R12), SI
	MOVQ $4096, DX
	SYSCALL
	CMPQ AX, $0
	JLE  drained
	MOVQ AX, DX
	MOVQ $SYS_write, AX
	MOVQ $5, DI
	SYSCALL
	JMP  drain

drained:
	MOVQ $0x0a3154554f494f59, AX // "YOIOUT1\n"
	MOVQ AX, RECORD(R12)
	MOVL STATUS(R12), AX
	MOVL AX, (RECORD+8)(R12)
	MOVL R13, (RECORD+12)(R12)
	MOVQ $SYS_pwrite64, AX
	MOVQ $1, DI
	LEAQ RECORD(R12), SI
	MOVQ $192, DX
	XORL R10, R10
	SYSCALL

	// 128+n after a signal, as a shell has it.
	MOVL STATUS(R12), DI
	MOVL DI, AX
	ANDL $0x7f, AX
	JZ   exited
	LEAL 128(AX), DI
	JMP  exit

exited:
	SHRL $8, DI
	ANDL $0xff, DI
	JMP  exit

orphan:
	MOVL $137, DI

exit:
	MOVQ $SYS_exit_group, AX
	SYSCALL
	INT  $3

	// The end, for initelf.go to find.
	BYTE $0x79; BYTE $0x6f; BYTE $0x69; BYTE $0x2d; BYTE $0x65; BYTE $0x6e; BYTE $0x64; BYTE $0x21
	BYTE $0xf1; BYTE $0xf2; BYTE $0xf3; BYTE $0xf4; BYTE $0xf5; BYTE $0xf6; BYTE $0xf7; BYTE $0xf8

// func initAddr() unsafe.Pointer
TEXT ·initAddr(SB), NOSPLIT, $0-8
	LEAQ ·initText(SB), AX
	MOVQ AX, ret+0(FP)
	RET
