package procstate

import (
	"bytes"
	"encoding/binary"
	"os"
)

// ExecPath returns the path by which this program was executed (AT_EXECFN of getauxval(3)),
// or "" if it is unknown.
func ExecPath() string {
	auxv, err := os.ReadFile("/proc/self/auxv")
	if err != nil {
		return ""
	}
	const atExecfn = 31
	for ; len(auxv) >= 16; auxv = auxv[16:] {
		if binary.NativeEndian.Uint64(auxv) == atExecfn {
			return stringAt(binary.NativeEndian.Uint64(auxv[8:]))
		}
	}
	return ""
}

// stringAt returns the string at an address of this process that ends with a zero byte.
func stringAt(addr uint64) string {
	mem, err := os.Open("/proc/self/mem")
	if err != nil {
		return ""
	}
	defer mem.Close()
	b := make([]byte, 4096)
	n, _ := mem.ReadAt(b, int64(addr)) // up to the end of the stack
	text, _, found := bytes.Cut(b[:n], []byte{0})
	if !found {
		return ""
	}
	return string(text)
}
