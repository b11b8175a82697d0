package inplace

import (
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// kindAt returns the kind of the file at a path: "missing", "file", "empty", "dir" or
// "other". It follows symlinks.
func kindAt(path string) string {
	st, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if _, err := os.Lstat(path); err == nil {
			return "other" // a dangling symlink
		}
		return "missing"
	case err != nil:
		return "other"
	case st.IsDir():
		return "dir"
	case st.Mode()&fs.ModeNamedPipe != 0:
		return "pipe"
	case st.Mode().IsRegular() && st.Size() == 0:
		return "empty"
	case st.Mode().IsRegular() && unix.Access(path, unix.R_OK) == nil:
		return "file"
	}
	return "other"
}
