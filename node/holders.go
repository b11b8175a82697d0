package node

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/mountinfo"
)

// holdersWithin bounds the search for holders. A process that hangs in the kernel
// can make whoever looks at it hang too, and must not keep a mount from its end.
const holdersWithin = 5 * time.Second

// glance is how long a mount may be in use that no process holds: premix watch and df(1)
// ask each mount for its size, and a file that was closed goes a moment later.
const glance = time.Second

// outwait repeats what unmounts m while it is in use for no longer than that, and no
// process holds it.
func outwait(m mountinfo.Mount, within time.Duration, unmount func() error) error {
	err := unmount()
	for begun := time.Now(); errors.Is(err, unix.EBUSY) && time.Since(begun) < within && len(holders(m)) == 0; {
		time.Sleep(glance / 50)
		err = unmount()
	}
	return err
}

// holders finds the processes that hold a mount, by what /proc tells: it never
// looks into the mount, which may be dead. Processes of others are invisible to
// an ordinary user.
func holders(m mountinfo.Mount) []Holder {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil
	}
	found := make(chan Holder, len(dirs)) // room for all: nobody waits to send
	var all sync.WaitGroup
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil || pid == os.Getpid() {
			continue
		}
		all.Go(func() {
			if how := holds(dir, m); how != "" {
				name, _ := os.ReadFile(filepath.Join(dir, "comm")) // it may have ended since
				found <- Holder{pid, strings.TrimSpace(string(name)), how}
			}
		})
	}
	done := make(chan struct{})
	go func() {
		all.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(holdersWithin):
	}
	var list []Holder
	for len(found) > 0 {
		list = append(list, <-found)
	}
	slices.SortFunc(list, func(a, b Holder) int { return a.PID - b.PID })
	return list
}

// holds tells how the process with the given directory of /proc holds m, "" where
// it doesn't.
func holds(proc string, m mountinfo.Mount) string {
	inside := func(path string) bool { return path == m.Path || strings.HasPrefix(path, m.Path+"/") }
	for _, l := range []struct{ name, how string }{{"cwd", "working directory"}, {"root", "root"}, {"exe", "executable"}} {
		if to, err := os.Readlink(filepath.Join(proc, l.name)); err == nil && inside(to) {
			return l.how
		}
	}
	fds, _ := os.ReadDir(filepath.Join(proc, "fdinfo")) // of a process that may have ended
	want := []byte(fmt.Sprintf("\nmnt_id:\t%d\n", m.ID))
	for _, fd := range fds {
		if info, err := os.ReadFile(filepath.Join(proc, "fdinfo", fd.Name())); err == nil && bytes.Contains(info, want) {
			return "open file"
		}
	}
	maps, err := os.Open(filepath.Join(proc, "maps"))
	if err != nil {
		return ""
	}
	defer maps.Close()
	for s := bufio.NewScanner(maps); s.Scan(); {
		// address perms offset dev inode path
		if i := strings.IndexByte(s.Text(), '/'); i >= 0 && inside(s.Text()[i:]) {
			return "mapped file"
		}
	}
	return ""
}
