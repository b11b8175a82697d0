package spare

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Memory returns the memory of the machine, in bytes: MemAvailable and MemTotal of
// /proc/meminfo (proc_meminfo(5)).
func Memory() (available, total int64, err error) {
	info, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, 0, err
	}
	available, total = meminfo(string(info), "MemAvailable"), meminfo(string(info), "MemTotal")
	if total == 0 {
		return 0, 0, fmt.Errorf("/proc/meminfo has no MemTotal")
	}
	return available, total, nil
}

// meminfo returns a field of /proc/meminfo in bytes.
func meminfo(text, field string) int64 {
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) >= 2 && f[0] == field+":" {
			n, _ := strconv.ParseInt(f[1], 10, 64) // the kernel writes numbers
			return n << 10
		}
	}
	return 0
}

// Cgroup returns the memory that is free within the limits of this process's cgroups; ok is
// false without a limit. Page cache that could be dropped does not count as used.
func Cgroup() (room int64, ok bool) {
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return 0, false // a kernel without cgroups
	}
	for line := range strings.Lines(string(own)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 {
			continue
		}
		base, limitName, usedName, inactive := "", "", "", ""
		switch {
		case f[0] == "0" && f[1] == "":
			base, limitName, usedName, inactive = "/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"
			if info, err := os.Stat(base + "/unified"); err == nil && info.IsDir() {
				base += "/unified"
			}
		case strings.Contains(","+f[1]+",", ",memory,"):
			base, limitName, usedName, inactive = "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
		default:
			continue
		}
		for dir := filepath.Join(base, f[2]); len(dir) >= len(base); dir = filepath.Dir(dir) {
			// A missing file, and "max", give no number: no limit.
			limit, err := number(filepath.Join(dir, limitName))
			if err != nil || limit >= 1<<60 {
				continue
			}
			used, err := number(filepath.Join(dir, usedName))
			if err != nil {
				continue
			}
			if stat, err := os.ReadFile(filepath.Join(dir, "memory.stat")); err == nil {
				for line := range strings.Lines(string(stat)) {
					if f := strings.Fields(line); len(f) == 2 && f[0] == inactive {
						n, _ := strconv.ParseInt(f[1], 10, 64) // the kernel writes numbers
						used -= n
					}
				}
			}
			if free := max(0, limit-used); !ok || free < room {
				room, ok = free, true
			}
		}
	}
	return room, ok
}

func number(path string) (int64, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
}
