#include "textflag.h"

// PID 1 of every sandbox. The code below is copied into an executable of its
// own (initelf.go), so it refers to nothing but its stack and its descriptors
//
//	0 a signalfd of all signals   1 the outcome file
//	2 the wall clock's timerfd    3 a pidfd of the launcher
//	4 the terminal's master, or   5 the log that gets what comes
//	  the Worker's stdout
//	7 the Worker's stderr         8 its log
//	25 and 26 what its control group has counted (counterFD)
//
// of which all but the first two may be closed. 4 and 7 do not block. 6 is the
// terminal's other side, held open so that the master never hangs up. The first
// variable of its environment is the limit of a log in decimal, or is not there: of a
// longer one the first half stays, and as much of the end as there is room for, at the
// offsets at which it was written (logs.go).
//
// All signals are blocked when it starts, and stay so. It has no filter of its
// own: it reads nothing that the Worker writes but signal numbers, and the
// kernel needs longer for a second filter than for the whole init.
//
// Stack: 0 five struct pollfd, 48 struct signalfd_siginfo, 176 wait status,
// 192 the outcome record (outcome.go), 400 and 424 a stream (from, to, bytes written,
// end of the hole), 448 what stays of a log's beginning and 456 of its end, 512 what
// a stream said.

#define SYS_read 0
#define SYS_write 1
#define SYS_pwrite64 18
#define SYS_wait4 61
#define SYS_kill 62
#define SYS_prctl 157
#define SYS_clock_gettime 228
#define SYS_exit_group 231
#define SYS_ppoll 271
#define SYS_fallocate 285

#define WORKER 2
#define POLLIN 1
#define POLLNVAL 32
#define SIGKILL 9
#define SIGCHLD 17
#define CARRIER 64 // SIGRTMAX with SI_QUEUE: the signal is in its value

#define SIGINFO 48
#define STATUS 176
#define RECORD 192
#define STDOUT 400
#define STDERR 424
#define HEAD 448
#define TAIL 456
#define BUFFER 512
#define BUFFERED 16384

// Of a stream.
#define FROM 0
#define TO 4 // -1: nothing is written any more
#define WRITTEN 8
#define HOLE 16

#define RECORDED 192 // bytes of the record, behind which the counters stand
#define COUNTER 512

#define BLOCK 65536 // of what is given back to the file system at once, at least
#define SLACK 262144

TEXT ·initText(SB), NOSPLIT|NOFRAME, $0
	MOVQ SP, R8
	SUBQ $(BUFFER+BUFFERED), SP
	ANDQ $-16, SP
	MOVQ SP, R12
	XORL R13, R13 // 1: timed out

	// The limit: argc, argv[0], NULL, envp[0].
	MOVQ  24(R8), SI
	XORL  AX, AX
	TESTQ SI, SI
	JZ    limit

digit:
	MOVBLZX (SI), CX
	TESTL   CX, CX
	JZ      limit
	SUBL    $48, CX
	LEAQ    (AX)(AX*4), AX
	ADDQ    AX, AX
	ADDQ    CX, AX
	INCQ    SI
	JMP     digit

limit:
	MOVQ AX, CX
	SHRQ $1, CX
	ANDQ $-BLOCK, CX
	MOVQ CX, HEAD(R12) // 0: there is no limit
	SUBQ CX, AX
	SUBQ $SLACK, AX
	MOVQ AX, TAIL(R12)
	XORL AX, AX
	MOVL $4, (STDOUT+FROM)(R12)
	MOVL $5, (STDOUT+TO)(R12)
	MOVQ AX, (STDOUT+WRITTEN)(R12)
	MOVQ CX, (STDOUT+HOLE)(R12)
	MOVL $7, (STDERR+FROM)(R12)
	MOVL $8, (STDERR+TO)(R12)
	MOVQ AX, (STDERR+WRITTEN)(R12)
	MOVQ CX, (STDERR+HOLE)(R12)

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
	MOVL $7, 32(R12)
	MOVL $POLLIN, 36(R12)

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
	MOVQ $5, SI
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

	// What is said goes to the logs, whoever looks: a Worker whose output nobody takes
	// would stand still.
console:
	MOVWLZX 30(R12), AX
	TESTL   $POLLIN, AX
	JZ      noconsole
	LEAQ    STDOUT(R12), R15
	XORL    BX, BX
	JMP     copy

noconsole:
	TESTL AX, AX // it was never there, or nobody can write to it any more
	JZ    stderr
	MOVL  $-1, 24(R12)

stderr:
	MOVWLZX 38(R12), AX
	TESTL   $POLLIN, AX
	JZ      nostderr
	LEAQ    STDERR(R12), R15
	MOVL    $1, BX
	JMP     copy

nostderr:
	TESTL AX, AX
	JZ    signal
	MOVL  $-1, 32(R12)

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

	// The last words.
	LEAQ STDOUT(R12), R15
	MOVL $2, BX
	JMP  copy

drained:
	// What the control group has counted is gone with us. It comes before the record,
	// which says that all is there.
	MOVQ $25, BX
	MOVQ $RECORDED, R14

counter:
	XORL AX, AX // SYS_read
	MOVQ BX, DI
	LEAQ BUFFER(R12), SI
	MOVQ $COUNTER, DX
	SYSCALL
	CMPQ AX, $0
	JLE  counted
	MOVQ AX, DX
	MOVQ $SYS_pwrite64, AX
	MOVQ $1, DI
	LEAQ BUFFER(R12), SI
	MOVQ R14, R10
	SYSCALL

counted:
	ADDQ $COUNTER, R14
	INCQ BX
	CMPQ BX, $27
	JLT  counter
	MOVQ $0x0a3154554f494f59, AX // "YOIOUT1\n"
	MOVQ AX, RECORD(R12)
	MOVL STATUS(R12), AX
	MOVL AX, (RECORD+8)(R12)
	MOVL R13, (RECORD+12)(R12)
	MOVQ $SYS_pwrite64, AX
	MOVQ $1, DI
	LEAQ RECORD(R12), SI
	MOVQ $RECORDED, DX
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

	// copy reads once from the stream at R15 and writes that to its log. BX says where
	// to go on: to stderr after 0, to the signals after 1; 2 and 3 are stdout's and
	// stderr's last words, which are read to their end.
copy:
	XORL AX, AX // SYS_read
	MOVL FROM(R15), DI
	LEAQ BUFFER(R12), SI
	MOVQ $BUFFERED, DX
	SYSCALL
	MOVQ AX, R14
	CMPQ AX, $0
	JLE  copied
	CMPL TO(R15), $0
	JLT  copied
	MOVQ AX, DX
	MOVQ $SYS_write, AX
	MOVL TO(R15), DI
	SYSCALL
	CMPQ AX, $0
	JLE  copied // the disk is full
	ADDQ AX, WRITTEN(R15)
	CMPQ HEAD(R12), $0
	JEQ  copied

	// What lies between the beginning and the end goes back to the file system.
	MOVQ WRITTEN(R15), R10
	SUBQ TAIL(R12), R10
	MOVQ R10, AX
	SUBQ HOLE(R15), AX
	CMPQ AX, $SLACK
	JLE  copied
	ANDQ $-BLOCK, R10
	SUBQ HOLE(R15), R10
	MOVQ $SYS_fallocate, AX
	MOVL TO(R15), DI
	MOVQ $3, SI // FALLOC_FL_PUNCH_HOLE|FALLOC_FL_KEEP_SIZE
	MOVQ HOLE(R15), DX
	SYSCALL
	TESTQ AX, AX
	JNZ   full
	ADDQ  R10, HOLE(R15)
	JMP   copied

full:
	MOVL $-1, TO(R15) // this file system cannot: the beginning is all that stays

copied:
	CMPL BX, $1
	JLT  stderr
	JEQ  signal
	CMPQ R14, $0
	JGT  copy
	CMPL BX, $3
	JEQ  drained
	LEAQ STDERR(R12), R15
	MOVL $3, BX
	JMP  copy

	// The end, for initelf.go to find.
	BYTE $0x79; BYTE $0x6f; BYTE $0x69; BYTE $0x2d; BYTE $0x65; BYTE $0x6e; BYTE $0x64; BYTE $0x21
	BYTE $0xf1; BYTE $0xf2; BYTE $0xf3; BYTE $0xf4; BYTE $0xf5; BYTE $0xf6; BYTE $0xf7; BYTE $0xf8

// func initAddr() unsafe.Pointer
TEXT ·initAddr(SB), NOSPLIT, $0-8
	LEAQ ·initText(SB), AX
	MOVQ AX, ret+0(FP)
	RET
