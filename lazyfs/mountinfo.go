package lazyfs

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

// MountPoint is a line of /proc/self/mountinfo (proc_pid_mountinfo(5)).
type MountPoint struct {
	ID     int    // of the mount; the same number is in /proc/PID/fdinfo
	Dev    string // "major:minor" of the file system: equal for all bind mounts of one
	Root   string // the directory of the file system that is seen
	Path   string // where
	Type   string // "erofs", "fuse.premix", ...
	Source string // what was mounted, as mount(2) was told
}

// Mounts lists the mounts of this process's namespace, in the order of the
// kernel's table: a later one may cover an earlier one. It asks no file system.
func Mounts() ([]MountPoint, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return parseMounts(f)
}

func parseMounts(r io.Reader) ([]MountPoint, error) {
	var list []MountPoint
	s := bufio.NewScanner(r)
	s.Buffer(nil, 1<<20) // overlayfs writes long lines
	for s.Scan() {
		// 36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue
		f := strings.Split(s.Text(), " ")
		sep := -1
		for i := 6; i < len(f); i++ {
			if f[i] == "-" {
				sep = i
				break
			}
		}
		if sep < 0 || len(f) < sep+3 {
			return nil, fmt.Errorf("mountinfo: cannot read %q", s.Text())
		}
		id, err := strconv.Atoi(f[0])
		if err != nil {
			return nil, fmt.Errorf("mountinfo: cannot read %q: %w", s.Text(), err)
		}
		list = append(list, MountPoint{id, f[2], Unescape(f[3]), Unescape(f[4]), f[sep+1], Unescape(f[sep+2])})
	}
	return list, s.Err()
}

// Unescape undoes the octal forms that the kernel gives blank, tab, newline and backslash
// in lists of mounts (proc_pid_mounts(5)).
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

// Top returns the mount that is seen at path, nil where nothing is mounted there.
func Top(list []MountPoint, path string) *MountPoint {
	for i := len(list) - 1; i >= 0; i-- {
		if list[i].Path == path {
			return &list[i]
		}
	}
	return nil
}

// Under returns the mounts at or below dir, the last mounted first: the order in
// which they come off.
func Under(list []MountPoint, dir string) []MountPoint {
	var under []MountPoint
	for i := len(list) - 1; i >= 0; i-- {
		if list[i].Path == dir || strings.HasPrefix(list[i].Path, dir+"/") {
			under = append(under, list[i])
		}
	}
	return under
}
