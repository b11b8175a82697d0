package proc

import (
	"fmt"
	"os"
	"strconv"
	"strings"
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
