package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/testkit/netrelay"
	"premix/internal/testkit/workbench"
)

// startCase is a command that is started in a root.
type startCase struct {
	name string
	args []string
}

var startCases = []startCase{
	{"numpy", []string{"python3", "-c", "import numpy"}},
	{"samtools", []string{"samtools", "--version"}},
	{"r", []string{"Rscript", "-e", "1"}},
}

// startIn does the start of this name in the root dir, on a host or, if h is nil, here.
func startIn(ctx context.Context, h *netrelay.Host, dir, name string) (time.Duration, error) {
	for _, c := range startCases {
		if c.name != name {
			continue
		}
		cmd := workbench.Command(ctx, os.Args[0], append([]string{"start", dir}, c.args...)...)
		var out bytes.Buffer
		cmd.Stdout = &out
		if err := workbench.Run(h, cmd); err != nil {
			return 0, err
		}
		var seconds float64
		err := json.Unmarshal(out.Bytes(), &seconds)
		return time.Duration(seconds * float64(time.Second)), err
	}
	return 0, fmt.Errorf("there is no start %q", name)
}

// startMain is `start DIR COMMAND...`. It runs a command with DIR as its root directory,
// in a mount namespace with a writable /tmp and working /dev and /proc, and prints the
// time of the command in seconds.
func startMain(args []string) error {
	if len(args) < 2 {
		return errors.New("usage: start DIR COMMAND [ARGUMENT]")
	}
	dir := args[0]
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return os.NewSyscallError("unshare", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return os.NewSyscallError("mount", err)
	}
	begin := time.Now()
	for _, m := range []struct{ source, target, kind string }{{"tmpfs", "tmp", "tmpfs"}, {"tmpfs", "dev", "tmpfs"}, {"proc", "proc", "proc"}} {
		if err := unix.Mount(m.source, filepath.Join(dir, m.target), m.kind, 0, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	for _, d := range []struct {
		name  string
		minor uint32
	}{{"null", 3}, {"zero", 5}, {"random", 8}, {"urandom", 9}} {
		if err := unix.Mknod(filepath.Join(dir, "dev", d.name), unix.S_IFCHR|0o666, int(unix.Mkdev(1, d.minor))); err != nil {
			return fmt.Errorf("mknod %s: %w", d.name, err)
		}
	}
	// Look the program up in the root, as exec.LookPath would in the root of this
	// process.
	program := ""
	for _, bin := range []string{"usr/bin", "bin"} {
		if _, err := os.Lstat(filepath.Join(dir, bin, args[1])); err == nil {
			program = filepath.Join("/", bin, args[1])
			break
		}
	}
	cmd := &exec.Cmd{Path: program, Args: args[1:], Dir: "/", Env: []string{"PATH=/usr/bin:/bin", "HOME=/tmp", "LC_ALL=C.UTF-8"},
		Stderr: os.Stderr, SysProcAttr: &unix.SysProcAttr{Chroot: dir}}
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s in %s: %w", strings.Join(args[1:], " "), dir, err)
	}
	return json.NewEncoder(os.Stdout).Encode(time.Since(begin).Seconds())
}

// touched returns the path of a list of the files that a start opens, in order, one a
// line. fanotify(7) records them while the start runs in the tree itself.
func (l *lab) touched(ctx context.Context, t tree, name string) (string, error) {
	return l.Once("trees/"+t.name+"."+name, func(path string) error {
		names := map[uint64]string{} // by inode, because the start has its own mounts and so different paths
		err := filepath.WalkDir(t.dir, func(path string, e fs.DirEntry, err error) error {
			if err != nil || !e.Type().IsRegular() {
				return err
			}
			var st unix.Stat_t
			if err := unix.Lstat(path, &st); err != nil {
				return &os.PathError{Op: "lstat", Path: path, Err: err}
			}
			names[st.Ino] = strings.TrimPrefix(path, t.dir+"/")
			return nil
		})
		if err != nil {
			return err
		}
		opened, err := watchOpens(t.dir, func() error {
			_, err := startIn(ctx, nil, t.dir, name)
			return err
		})
		if err != nil {
			return err
		}
		var list strings.Builder
		for _, inode := range opened {
			if name, ok := names[inode]; ok {
				fmt.Fprintln(&list, name)
			}
		}
		return os.WriteFile(path, []byte(list.String()), 0o666)
	})
}

// watchOpens returns the inodes of the files that f opens in the file system of dir, each
// once, in order.
func watchOpens(dir string, f func() error) ([]uint64, error) {
	fd, err := unix.FanotifyInit(unix.FAN_CLASS_NOTIF|unix.FAN_CLOEXEC|unix.FAN_NONBLOCK|unix.FAN_UNLIMITED_QUEUE, unix.O_RDONLY|unix.O_LARGEFILE|unix.O_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("fanotify_init", err)
	}
	watch := os.NewFile(uintptr(fd), "fanotify")
	if err := unix.FanotifyMark(fd, unix.FAN_MARK_ADD|unix.FAN_MARK_FILESYSTEM, unix.FAN_OPEN, unix.AT_FDCWD, dir); err != nil {
		watch.Close()
		return nil, os.NewSyscallError("fanotify_mark", err)
	}
	var order []uint64
	var reader sync.WaitGroup
	reader.Go(func() {
		seen := map[uint64]bool{}
		buf := make([]byte, 64<<10)
		for {
			n, err := watch.Read(buf)
			if err != nil {
				return // watchOpens has closed it
			}
			for _, inode := range eventInodes(buf[:n]) {
				if !seen[inode] {
					seen[inode] = true
					order = append(order, inode)
				}
			}
		}
	})
	err = f()
	// The kernel queues an event when the open is done: all events of the start are
	// readable now. Leave the reader the time to read them.
	time.Sleep(100 * time.Millisecond)
	watch.Close()
	reader.Wait()
	return order, err
}
