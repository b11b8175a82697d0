package frozen

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"premix/internal/kit/proc"
)

// mapping is one VMA as /proc/PID/smaps shows it.
type mapping struct {
	Range
	prot   int
	shared bool
	offset int64
	inode  uint64
	path   string
	// Bytes.
	rss, anonymous, swap uint64
	key                  int // protection key
	flags                []string
}

func (m *mapping) has(flag string) bool {
	for _, f := range m.flags {
		if f == flag {
			return true
		}
	}
	return false
}

// readMappings reads /proc/PID/smaps.
func readMappings(pid int) ([]mapping, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps", pid))
	if err != nil {
		return nil, err
	}
	var all []mapping
	for line := range strings.Lines(string(b)) {
		line = strings.TrimSuffix(line, "\n")
		key, value, _ := strings.Cut(line, " ")
		if strings.HasSuffix(key, ":") {
			if len(all) == 0 {
				continue
			}
			m := &all[len(all)-1]
			value = strings.TrimSpace(value)
			kilobytes := func() uint64 {
				n, _ := strconv.ParseUint(strings.TrimSuffix(value, " kB"), 10, 64)
				return n << 10
			}
			switch key {
			case "Rss:":
				m.rss = kilobytes()
			case "Anonymous:":
				m.anonymous = kilobytes()
			case "Swap:":
				m.swap = kilobytes()
			case "ProtectionKey:":
				m.key, _ = strconv.Atoi(value)
			case "VmFlags:":
				m.flags = strings.Fields(value)
			}
			continue
		}
		m, err := parseMapping(line)
		if err != nil {
			return nil, fmt.Errorf("maps of process %d: %w", pid, err)
		}
		all = append(all, m)
	}
	return all, nil
}

// readLayout reads /proc/PID/maps, which takes less time than smaps.
func readLayout(pid int) ([]mapping, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return nil, err
	}
	var all []mapping
	for line := range strings.Lines(string(b)) {
		m, err := parseMapping(strings.TrimSuffix(line, "\n"))
		if err != nil {
			return nil, fmt.Errorf("maps of process %d: %w", pid, err)
		}
		all = append(all, m)
	}
	return all, nil
}

// parseMapping reads the first line of an entry (proc_pid_maps(5)).
func parseMapping(line string) (mapping, error) {
	var m mapping
	f := strings.SplitN(line, " ", 6)
	if len(f) < 5 {
		return m, fmt.Errorf("malformed line %q", line)
	}
	lo, hi, _ := strings.Cut(f[0], "-")
	var err error
	number := func(text string, base int) uint64 {
		n, e := strconv.ParseUint(text, base, 64)
		if e != nil && err == nil {
			err = e
		}
		return n
	}
	m.Start, m.End = number(lo, 16), number(hi, 16)
	m.offset, m.inode = int64(number(f[2], 16)), number(f[4], 10)
	for i, c := range []byte("rwx") {
		if f[1][i] == c {
			m.prot |= 1 << i // PROT_READ, PROT_WRITE, PROT_EXEC
		}
	}
	m.shared = f[1][3] == 's'
	if len(f) == 6 {
		// The kernel writes a newline within a name as \012.
		m.path = strings.ReplaceAll(strings.TrimLeft(f[5], " "), `\012`, "\n")
	}
	return m, err
}

// statFields returns the fields of /proc/PID/stat, the state at index 3 as in
// proc_pid_stat(5).
func statFields(path string) ([]string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return append([]string{"", "", ""}, proc.Fields(string(b))...), nil
}

// status returns the lines of /proc/PID/status by their names.
func status(path string) (map[string]string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	all := map[string]string{}
	for line := range strings.Lines(string(b)) {
		key, value, _ := strings.Cut(line, ":")
		all[key] = strings.TrimSpace(value)
	}
	return all, nil
}
