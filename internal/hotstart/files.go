package hotstart

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// prefixName is the file of a snapshot with the bytes that the tool had written to a
// streamed stdout before the stop.
const prefixName = "stdout.prefix"

// copyDir copies the content of the template's directory into a task's directory, in
// which the inputs and streams already exist.
func copyDir(from, to string, inputs []string) error {
	skip := map[string]bool{".": true}
	for _, name := range inputs {
		skip[name] = true
	}
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		if skip[rel] {
			return nil
		}
		dst := filepath.Join(to, rel)
		info, err := d.Info()
		if err != nil {
			return err
		}
		if err := copyEntry(path, dst, info); err != nil {
			return err
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok && os.Geteuid() == 0 {
			return os.Lchown(dst, int(st.Uid), int(st.Gid))
		}
		return nil
	})
}

// copyEntry copies one file, or makes a directory.
func copyEntry(path, dst string, info fs.FileInfo) error {
	switch mode := info.Mode(); {
	case mode.IsDir():
		if err := os.Mkdir(dst, mode.Perm()); err != nil && !os.IsExist(err) {
			return err
		}
		return nil
	case mode&fs.ModeSymlink != 0:
		target, err := os.Readlink(path)
		if err != nil {
			return err
		}
		return os.Symlink(target, dst)
	case mode&fs.ModeNamedPipe != 0:
		if err := unix.Mkfifo(dst, uint32(mode.Perm())); err != nil && err != unix.EEXIST {
			return &os.PathError{Op: "mkfifo", Path: dst, Err: err}
		}
		return nil
	case mode.IsRegular():
		return copyFile(path, dst, mode.Perm())
	}
	return fmt.Errorf("%s: the tool made a file of an unsupported type (%v)", path, info.Mode().Type())
}

func copyFile(from, to string, perm fs.FileMode) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, perm)
	if err != nil {
		return err
	}
	defer out.Close()
	if _, err := io.Copy(out, in); err != nil {
		return err
	}
	return out.Close()
}

// writePrefix puts b into a FIFO that has a reader, all at once: the pipe is
// made large enough first.
func writePrefix(path string, b []byte) error {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	if len(b) > 64<<10 {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETPIPE_SZ, maxPrefix); err != nil {
			return fmt.Errorf("enlarge pipe %s: %w", path, err)
		}
	}
	if n, err := unix.Write(fd, b); err != nil || n != len(b) {
		return fmt.Errorf("write %d bytes to pipe %s: wrote %d: %w", len(b), path, n, err)
	}
	return nil
}
