package proc

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// Indexes of fields in the result of [Stat].
const (
	Parent  = 1
	Group   = 2
	Session = 3
	User    = 11 // processor time, in ticks
	System  = 12
	start   = 19
)

// Fields returns the fields in the content of /proc/PID/stat from the third one on, the state.
// The second one is a name in parentheses that may hold anything.
func Fields(stat string) []string {
	return strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
}

// Stat returns the fields of a process or thread, as Fields does.
func Stat(pid int) ([]string, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return Fields(string(text)), err
}

// State returns the letter of the state of a process or thread, or 0 if it does not exist.
func State(pid int) byte {
	if f, err := Stat(pid); err == nil && len(f) > 0 {
		return f[0][0]
	}
	return 0
}

// StartTime returns when a process began, in clock ticks since boot. It returns 0 if the
// process does not exist, or is a zombie, which process 1 may be slow to reap.
func StartTime(pid int) uint64 {
	f, err := Stat(pid)
	if err != nil || len(f) <= start || f[0] == "Z" {
		return 0
	}
	ticks, _ := strconv.ParseUint(f[start], 10, 64) // the kernel writes a number
	return ticks
}

// tick is the unit of times in /proc, USER_HZ.
const tick = time.Second / 100

// Used returns the processor time that a process has used with all of its threads. It returns 0
// if the process does not exist.
func Used(pid int) time.Duration {
	f, err := Stat(pid)
	if err != nil || len(f) <= System {
		return 0
	}
	user, _ := strconv.ParseInt(f[User], 10, 64) // the kernel writes numbers
	system, _ := strconv.ParseInt(f[System], 10, 64)
	return time.Duration(user+system) * tick
}

// Queued returns the time for which a thread could have run and had to wait for a processor. It
// returns 0 if the thread does not exist, or the kernel does not count it.
func Queued(tid int) time.Duration {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", tid))
	f := strings.Fields(string(text))
	if err != nil || len(f) < 2 {
		return 0
	}
	n, _ := strconv.ParseInt(f[1], 10, 64) // the kernel writes a number
	return time.Duration(n)
}

// All returns the processes that there are.
func All() []int { return numbers("/proc") }

// Threads returns the threads of a process; none if it does not exist.
func Threads(pid int) []int { return numbers(fmt.Sprintf("/proc/%d/task", pid)) }

// Strings reads a file of strings that each end with a zero byte, such as /proc/PID/cmdline.
func Strings(path string) ([]string, error) {
	text, err := os.ReadFile(path)
	if err != nil || len(text) == 0 {
		return nil, err
	}
	return strings.Split(strings.TrimSuffix(string(text), "\x00"), "\x00"), nil
}

// numbers returns the names in a directory that are numbers.
func numbers(path string) (list []int) {
	dir, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1) // after an error, the names before it
	for _, name := range names {
		if n, err := strconv.Atoi(name); err == nil {
			list = append(list, n)
		}
	}
	return list
}
