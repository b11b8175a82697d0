#include "textflag.h"

// func version() [4]uint32
TEXT ·version(SB), NOSPLIT, $0-16
	MOVL $1, AX
	XORL CX, CX
	CPUID
	MOVL AX, ret_0+0(FP)
	MOVL BX, ret_1+4(FP)
	MOVL CX, ret_2+8(FP)
	MOVL DX, ret_3+12(FP)
	RET

// func cycles() uint64
TEXT ·cycles(SB), NOSPLIT, $0-8
	RDTSC
	SHLQ $32, DX
	ORQ DX, AX
	MOVQ AX, ret+0(FP)
	RET

// func component(index uint32) (size, offset uint32)
TEXT ·component(SB), NOSPLIT, $0-16
	MOVL $0xd, AX
	MOVL index+0(FP), CX
	CPUID
	MOVL AX, size+8(FP)
	MOVL BX, offset+12(FP)
	RET
