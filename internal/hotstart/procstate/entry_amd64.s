#include "textflag.h"

// premix_entry is the first instruction of a program. It asks for the action of each
// signal (rt_sigaction(2)), notes those that are ignored, the limit of open files
// (prlimit(2)) and the standard streams that are closed (fcntl(2)), and goes on to the runtime of Go, which finds the stack as it was. All
// registers are free here.
TEXT premix_entry(SB),NOSPLIT|NOFRAME,$0
	SUBQ	$32, SP
	MOVQ	$1, BX
	XORQ	R12, R12
next:
	MOVQ	$13, AX
	MOVQ	BX, DI
	XORQ	SI, SI
	MOVQ	SP, DX
	MOVQ	$8, R10
	SYSCALL
	TESTQ	AX, AX
	JNE	other
	CMPQ	(SP), $1 // SIG_IGN
	JNE	other
	MOVQ	BX, CX
	DECQ	CX
	MOVQ	$1, AX
	SHLQ	CX, AX
	ORQ	AX, R12
other:
	INCQ	BX
	CMPQ	BX, $64
	JLE	next
	MOVQ	R12, ·atEntry(SB)
	MOVQ	$302, AX
	XORQ	DI, DI
	MOVQ	$7, SI // RLIMIT_NOFILE
	XORQ	DX, DX
	MOVQ	SP, R10
	SYSCALL
	TESTQ	AX, AX
	JNE	done
	MOVQ	(SP), AX
	MOVQ	AX, ·filesAtEntry(SB)
done:
	XORQ	BX, BX
	XORQ	R12, R12
stream:
	MOVQ	$72, AX
	MOVQ	BX, DI
	MOVQ	$1, SI // F_GETFD
	XORQ	DX, DX
	SYSCALL
	CMPQ	AX, $-9 // EBADF
	JNE	open
	MOVQ	BX, CX
	MOVQ	$1, AX
	SHLQ	CX, AX
	ORQ	AX, R12
open:
	INCQ	BX
	CMPQ	BX, $2
	JLE	stream
	MOVQ	R12, ·closedAtEntry(SB)
	ADDQ	$32, SP
	JMP	_rt0_amd64_linux(SB)
