package spawn

import (
	"bufio"
	"os"
	"runtime/debug"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// shrink releases the parts of the binary and the heap that this process no longer needs, and
// resets the kernel's record of its largest size: see exact. It is only an improvement, so it
// ignores errors.
func shrink() {
	debug.FreeOSMemory()
	f, err := os.Open("/proc/self/maps")
	if err != nil {
		return
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		// from-to permissions offset device inode path
		fields := strings.Fields(s.Text())
		if len(fields) < 6 || fields[4] == "0" || fields[1] != "r-xp" {
			continue // only code is the same as in the file: data may have been relocated
		}
		a, b, _ := strings.Cut(fields[0], "-")
		from, err1 := strconv.ParseUint(a, 16, 64)
		to, err2 := strconv.ParseUint(b, 16, 64)
		if err1 != nil || err2 != nil {
			continue
		}
		_, _, _ = unix.RawSyscall(unix.SYS_MADVISE, uintptr(from), uintptr(to-from), unix.MADV_DONTNEED)
	}
	// 5: reset the peak (proc_pid_clear_refs(5)).
	_ = os.WriteFile("/proc/self/clear_refs", []byte("5"), 0)
}

// exact returns a task's largest resident set, from the kernel's figure. A child begins its
// life in the memory of its parent, and the kernel counts this memory as the child's own: for
// a task that was smaller than the spawner nothing is known, and exact returns 0.
func (t *slot) exact(peak int64) int64 {
	if peak > 64<<20 {
		return peak
	}
	if peak <= t.peak {
		return 0
	}
	var own unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &own) != nil {
		return 0
	}
	t.peak = own.Maxrss << 10
	if peak <= t.peak {
		return 0
	}
	return peak
}
