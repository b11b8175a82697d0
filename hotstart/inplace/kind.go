package inplace

import (
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// kindAt is the kind of what stands at a path: "missing", "file", "empty", "dir" or
// "other"; links are followed.
func kindAt(path string) string {
	st, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if _, err := os.Lstat(path); err == nil {
			return "other" // a link that leads nowhere
		}
		return "missing"
	case err != nil:
		return "other"
	case st.IsDir():
		return "dir"
	case st.Mode().IsRegular() && st.Size() == 0:
		return "empty"
	case st.Mode().IsRegular() && unix.Access(path, unix.R_OK) == nil:
		return "file"
	}
	return "other"
}
