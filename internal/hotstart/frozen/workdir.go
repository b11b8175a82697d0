package frozen

import (
	"bytes"
	"fmt"
	"strings"
)

// variable is the variable of the environment in which a shell passes the path of the working
// directory on to the tool that it executes.
const variable = "PWD="

// DirPlace is the path of the working directory in a variable of the environment. Start writes
// the path of the new process there.
type DirPlace struct {
	Address uint64
	Room    int // bytes, with the final 0
}

// withoutDir returns an environment in which the variable for the working directory has no
// value, if it has the path dir.
func withoutDir(env []string, dir string) []string {
	all := make([]string, len(env))
	for i, v := range env {
		if all[i] = v; v == variable+dir {
			all[i] = variable
		}
	}
	return all
}

// findDir finds the variable for the working directory around offset off of parts of two
// memories, which begin at address start, and makes b equal to a there. The paths have the same
// length.
func findDir(dirs [2]string, start uint64, a, b []byte, off int) (DirPlace, bool) {
	var texts [2][]byte
	for i, dir := range dirs {
		texts[i] = append([]byte(variable+dir), 0)
	}
	n := len(texts[0])
	if n != len(texts[1]) || dirs[0] == dirs[1] {
		return DirPlace{}, false
	}
	lo, hi := max(0, off+1-n), min(len(a), off+8+n)
	i := bytes.Index(a[lo:hi], texts[0])
	if i < 0 || !bytes.HasPrefix(b[lo+i:], texts[1]) {
		return DirPlace{}, false
	}
	i += lo
	if i > 0 && (a[i-1] != 0 || b[i-1] != 0) {
		return DirPlace{}, false // the end of another variable's name
	}
	copy(b[i:i+n], a[i:])
	return DirPlace{start + uint64(i+len(variable)), n - len(variable)}, true
}

// text returns the bytes to write there for a working directory.
func (p DirPlace) text(dir string) ([]byte, error) {
	if len(dir) >= p.Room || strings.ContainsRune(dir, 0) {
		return nil, fmt.Errorf("the path of the working directory is longer than %d bytes, for which the snapshot has room: %s", p.Room-1, dir)
	}
	b := make([]byte, p.Room)
	copy(b, dir)
	return b, nil
}
