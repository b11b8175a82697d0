package figures

import (
	"fmt"
	"os"
	"premix/internal/kit/units"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// The functions below print with three significant digits.

// Seconds prints a time in seconds.
func Seconds(v float64) string {
	switch {
	case v < 0.001:
		return fmt.Sprintf("%.3g us", v*1e6)
	case v < 1:
		return fmt.Sprintf("%.3g ms", v*1e3)
	case v < 100:
		return fmt.Sprintf("%.3g s", v)
	}
	return fmt.Sprintf("%.0f s", v)
}

// Times prints a ratio; 0 means that there is none.
func Times(v float64) string {
	if v == 0 {
		return "-"
	}
	return fmt.Sprintf("%.3gx", v)
}

// Machine describes the machine, for a benchmark that works in dir.
func Machine(dir string) string {
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	thp, _ := os.ReadFile("/sys/kernel/mm/transparent_hugepage/enabled")
	model := "unknown"
	info, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(info)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			model = strings.TrimSpace(value)
			break
		}
	}
	var mem unix.Sysinfo_t
	var fs unix.Statfs_t
	memory, kind := 0.0, "unknown"
	if unix.Sysinfo(&mem) == nil {
		memory = float64(mem.Totalram) * float64(mem.Unit)
	}
	if unix.Statfs(dir, &fs) == nil {
		kind = map[int64]string{unix.EXT4_SUPER_MAGIC: "ext4", unix.XFS_SUPER_MAGIC: "xfs", unix.TMPFS_MAGIC: "tmpfs",
			unix.BTRFS_SUPER_MAGIC: "btrfs"}[fs.Type]
	}
	return fmt.Sprintf("%d x %s, %s of memory, Linux %s, work directory on %s, transparent huge pages %s",
		runtime.NumCPU(), model, units.Size(int64(memory)), strings.TrimSpace(string(kernel)), kind, strings.TrimSpace(string(thp)))
}
