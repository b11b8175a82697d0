#include "textflag.h"

// func vfork(args *cloneArgs, size uintptr, prog *call, failed *failure) int
//
// The child shares memory and stack with the parent, which stands still until the
// child has executed a program or ended. The child uses registers only: R12 is the
// next call, R13 is where failures go.
TEXT ·vfork(SB), NOSPLIT, $0-40
	MOVQ args+0(FP), DI
	MOVQ size+8(FP), SI
	MOVQ prog+16(FP), R12
	MOVQ failed+24(FP), R13
	MOVQ $435, AX // clone3
	SYSCALL
	TESTQ AX, AX
	JZ    next
	MOVQ  AX, ret+32(FP)
	RET

next:
	MOVQ 0(R12), AX
	CMPQ AX, $-1
	JEQ  end
	MOVQ 8(R12), DI
	MOVQ 16(R12), SI
	MOVQ 24(R12), DX
	MOVQ 32(R12), R10
	MOVQ 40(R12), R8
	MOVQ 48(R12), R9
	MOVQ R12, 16(R13) // a program that is executed says no more
	SYSCALL
	MOVQ 56(R12), BX // what becomes of the result
	CMPQ BX, $2
	JEQ  equal
	TESTQ AX, AX
	JGE  done
	CMPQ BX, $1
	JEQ  alternative
	MOVQ AX, 0(R13)
	JMP  end

equal:
	CMPQ AX, 48(R12)
	JEQ  done
	MOVQ $-3, 0(R13) // ESRCH: the parent is gone
	JMP  end

alternative:
	CMPQ AX, $-2 // ENOENT tells least
	JEQ  done
	MOVQ AX, 8(R13)
	CMPQ AX, $-8 // ENOEXEC: a script for the shell, no reason to look further
	JNE  done
	MOVQ 48(R12), R12
	JMP  next

done:
	ADDQ $64, R12
	JMP  next

end:
	MOVQ R12, 16(R13)
	MOVQ $1, 24(R13)
	MOVQ $127, DI
	MOVQ $231, AX // exit_group
	SYSCALL
	JMP  end
