package local

import (
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// cores returns the number of cores that this process may use: its affinity mask,
// cut to the quotas of the cgroups it is in.
func cores(hierarchies []hierarchy) int {
	n := runtime.NumCPU()
	for _, h := range hierarchies {
		if quota, ok := h.quota(); ok {
			n = min(n, max(1, int(quota)))
		}
	}
	return n
}

// memory returns the number of bytes that this process may use: physical memory, cut
// to the limits of the cgroups it is in.
func memory(hierarchies []hierarchy) (int64, error) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 0, os.NewSyscallError("sysinfo", err)
	}
	bytes := int64(info.Totalram) * int64(info.Unit)
	for _, h := range hierarchies {
		if limit, ok := h.memory(); ok {
			bytes = min(bytes, limit)
		}
	}
	return bytes, nil
}

// quota returns the hierarchy's limit in cores, of the own cgroup and those above it.
func (h *hierarchy) quota() (cores float64, ok bool) {
	h.up(func(dir string) {
		var quota, period float64
		if h.v2 {
			f := strings.Fields(readString(filepath.Join(dir, "cpu.max")))
			if len(f) == 2 {
				quota, period = number(f[0]), number(f[1])
			}
		} else {
			quota = number(readString(filepath.Join(dir, "cpu.cfs_quota_us")))
			period = number(readString(filepath.Join(dir, "cpu.cfs_period_us")))
		}
		if quota > 0 && period > 0 && (!ok || quota/period < cores) {
			cores, ok = quota/period, true
		}
	})
	return cores, ok
}

// memory returns the hierarchy's limit in bytes, of the own cgroup and those above it.
func (h *hierarchy) memory() (bytes int64, ok bool) {
	name := "memory.limit_in_bytes"
	if h.v2 {
		name = "memory.max"
	}
	h.up(func(dir string) {
		limit := int64(number(readString(filepath.Join(dir, name))))
		if limit > 0 && (!ok || limit < bytes) {
			bytes, ok = limit, true
		}
	})
	return bytes, ok
}

// up calls f for the own cgroup and each one above it, up to the mount point.
func (h *hierarchy) up(f func(dir string)) {
	for dir := h.own; ; dir = filepath.Dir(dir) {
		f(dir)
		if dir == h.mount || len(dir) <= len(h.mount) {
			return
		}
	}
}

// readString returns the trimmed text of a file of a kernel file system, "" where it
// cannot be read: an unreadable limit counts as no limit.
func readString(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// number returns the value of s, 0 where s is not a number, for example "max".
func number(s string) float64 {
	v, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return 0
	}
	return v
}

// Machine returns the cores, and the bytes of memory, that tasks without a recipe may take
// together by default.
func Machine() (int, int64, error) {
	h := thisHierarchies()
	bytes, err := memory(h)
	return cores(h), bytes, err
}
