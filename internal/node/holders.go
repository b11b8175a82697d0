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

	"premix/internal/kit/mountinfo"
)

// holdersWithin bounds the search for holders. Reading about a process that hangs in
// the kernel can hang too, and must not delay the end of a mount.
const holdersWithin = 5 * time.Second

// busyGrace is how long a mount may be in use without a process that holds it: premix
// watch and df(1) query each mount's size, and closing a file takes effect a moment
// later.
const busyGrace = time.Second

// retryBusy repeats unmount while m is in use, but not longer than within, and not if a
// process holds it.
func retryBusy(m mountinfo.Mount, within time.Duration, unmount func() error) error {
	err := unmount()
	for started := time.Now(); errors.Is(err, unix.EBUSY) && time.Since(started) < within && len(holders(m)) == 0; {
		time.Sleep(busyGrace / 50)
		err = unmount()
	}
	return err
}

// holders finds the processes that use a mount, from /proc: it does not access the
// mount, which may be dead. An unprivileged user does not see processes of others.
func holders(m mountinfo.Mount) []Holder {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil
	}
	found := make(chan Holder, len(dirs)) // enough for all: senders do not block
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

// holds returns how the process with the given directory of /proc uses m, or "" if it
// does not.
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
