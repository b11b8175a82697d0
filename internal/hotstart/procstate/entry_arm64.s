#include "textflag.h"

// premix_entry is the first instruction of a program. Every start is cold here.
TEXT premix_entry(SB),NOSPLIT|NOFRAME,$0
	B	_rt0_arm64_linux(SB)
