package whole

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Write makes the file at path of what write writes. Until it is whole it has the name
// PATH.PID.tmp, which is removed when write, or the disk, fails. A link is followed. What
// is there and no regular file, such as a pipe or /dev/stdout, is written to as it is.
func Write(path string, write func(io.Writer) error) error {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	return Via(fmt.Sprintf("%s.%d.tmp", path, os.Getpid()), path, 0o666, write)
}

// Via is Write with a name for the file until it is whole, in the same file system, and
// with the mode of a new file, before the umask.
func Via(unfinished, path string, mode os.FileMode, write func(io.Writer) error) error {
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		return errors.Join(write(f), f.Close())
	}
	f, err := os.OpenFile(unfinished, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	if err = errors.Join(write(f), f.Close()); err == nil {
		err = os.Rename(unfinished, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(unfinished))
	}
	return nil
}

// Text makes what Write takes of a text.
func Text(text []byte) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := w.Write(text)
		return err
	}
}
