package mountinfo

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Mount is a line of the table.
type Mount struct {
	ID      int      // as mnt_id in /proc/PID/fdinfo
	Dev     string   // "major:minor" of the file system, equal for all its bind mounts
	Root    string   // the directory of the file system that is mounted
	Path    string   // the mount point
	Type    string   // "erofs", "fuse.premix", ...
	Source  string   // the source argument of mount(2)
	Options []string // of the file system; of a cgroup of version 1 its controllers
}

// Cgroup reports whether a hierarchy of cgroups is mounted, of either version.
func (m *Mount) Cgroup() bool { return m.Type == "cgroup" || m.Type == "cgroup2" }

// Shows returns the path at which a directory of the mount's file system is visible. If the
// path does not lie in the root of the mount, as in a container, Shows joins it to the mount
// point.
func (m *Mount) Shows(path string) string {
	if rel, ok := strings.CutPrefix(path+"/", strings.TrimSuffix(m.Root, "/")+"/"); ok {
		return filepath.Join(m.Path, rel)
	}
	return filepath.Join(m.Path, path)
}

// Read lists the mounts of this process's namespace, in the order of the kernel's table: a
// later one may cover an earlier one.
func Read() ([]Mount, error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	return Parse(string(text))
}

// Parse reads the text of a table. It skips lines of another form, and returns an error for
// them with the others.
func Parse(text string) (list []Mount, err error) {
	for line := range strings.Lines(text) {
		// 36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue
		f := strings.Split(strings.TrimSuffix(line, "\n"), " ")
		sep := slices.Index(f, "-")
		if sep < 6 || len(f) < sep+4 {
			err = fmt.Errorf("mountinfo: cannot read %q", line)
			continue
		}
		id, bad := strconv.Atoi(f[0])
		if bad != nil {
			err = fmt.Errorf("mountinfo: cannot read %q: %w", line, bad)
			continue
		}
		list = append(list, Mount{id, f[2], Unescape(f[3]), Unescape(f[4]), f[sep+1], Unescape(f[sep+2]), strings.Split(strings.Join(f[sep+3:], " "), ",")})
	}
	return list, err
}

// Unescape replaces the octal escapes that the kernel writes for space, tab, newline and
// backslash in lists of mounts (proc_pid_mounts(5)).
func Unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// Top returns the mount that is visible at path, or nil if path is not a mount point.
func Top(list []Mount, path string) *Mount {
	for i := len(list) - 1; i >= 0; i-- {
		if list[i].Path == path {
			return &list[i]
		}
	}
	return nil
}

// Under returns the mounts at or below dir, the last mounted first, which is the order to
// unmount them.
func Under(list []Mount, dir string) []Mount {
	var under []Mount
	for i := len(list) - 1; i >= 0; i-- {
		if list[i].Path == dir || strings.HasPrefix(list[i].Path, dir+"/") {
			under = append(under, list[i])
		}
	}
	return under
}
