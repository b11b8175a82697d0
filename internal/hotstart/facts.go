package hotstart

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"github.com/zeebo/blake3"
	"golang.org/x/sys/unix"

	"premix/internal/hotstart/tracer"
)

// How facts are compared.
//
// A tool asks for properties of the machine and of its process, such as the name of the
// machine, the number of processors or a limit, and keeps them in its memory. Those that it
// has asked for are part of the fingerprint. Files below /proc and /sys belong to them. A
// file there that changes while the tool is prepared does not: the comparison of the two
// memories shows whether the tool keeps something of it.

// factSize is the number of bytes of a file below /proc or /sys that count.
const factSize = 64 << 10

// procFacts are the files of /proc, besides /proc/sys, that are facts.
var procFacts = []string{"/proc/version", "/proc/filesystems", "/proc/cmdline", "/proc/self/oom_score_adj"}

// sameFacts are files that have the same information as another fact, and further
// information that always changes.
var sameFacts = map[string]string{
	"/proc/meminfo": tracer.FactMemory, "/proc/stat": factProcessor, "/proc/cpuinfo": factProcessor, "/proc/self/limits": factLimits,
	"/proc/sys/kernel/hostname": tracer.FactHost, "/proc/sys/kernel/domainname": tracer.FactHost,
}

const (
	factProcessor = "the processors of the machine"
	factLimits    = "its limits"
)

// factOf returns the fact that a look at a file below /proc or /sys asks for, or "".
func factOf(path string, process int) string {
	if rest, ok := strings.CutPrefix(path, fmt.Sprintf("/proc/%d/", process)); ok {
		path = "/proc/self/" + rest
	}
	if same, ok := sameFacts[path]; ok {
		return same
	}
	switch {
	case below(path, "/sys/fs/cgroup"): // each task has its own
		return ""
	case below(path, "/proc/sys"), below(path, "/sys"), slices.Contains(procFacts, path):
		return path
	}
	return ""
}

// isFact reports whether a look asks for a fact.
func isFact(l access) bool {
	return l.Op == tracer.AccessFact || l.Op == tracer.AccessOpen && factOf(l.Path, l.Process) != ""
}

// asFact returns a look for which isFact is true as a look for the fact.
func asFact(l access) access {
	if l.Op != tracer.AccessFact {
		l = access{Process: l.Process, Op: tracer.AccessFact, Path: factOf(l.Path, l.Process)}
	}
	return l
}

// factValue returns the present value of a fact.
func factValue(name string) (string, error) {
	if resource, ok := strings.CutPrefix(name, tracer.FactLimit); ok {
		return limitValue(resource)
	}
	switch name {
	case tracer.FactHost:
		var u unix.Utsname
		err := unix.Uname(&u)
		return unix.ByteSliceToString(u.Nodename[:]) + "\n" + unix.ByteSliceToString(u.Domainname[:]), err
	case tracer.FactProcessors:
		var set unix.CPUSet
		err := unix.SchedGetaffinity(0, &set)
		return fmt.Sprint(set), err
	case tracer.FactNice:
		nice, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
		return strconv.Itoa(nice), err
	case tracer.FactIO:
		const process = 1 // IOPRIO_WHO_PROCESS
		v, _, e := unix.Syscall(unix.SYS_IOPRIO_GET, process, 0, 0)
		if e != 0 {
			return "", os.NewSyscallError("ioprio_get", e)
		}
		return strconv.Itoa(int(v)), nil
	case tracer.FactPolicy:
		v, err := unix.SchedGetAttr(0, 0)
		if err != nil {
			return "", os.NewSyscallError("sched_getattr", err)
		}
		return fmt.Sprint(v.Policy, v.Flags, v.Nice, v.Priority), nil
	case tracer.FactInherited:
		return tracer.InheritedProperties()
	case tracer.FactMemory:
		var s unix.Sysinfo_t
		err := unix.Sysinfo(&s)
		return fmt.Sprint(uint64(s.Totalram)*uint64(s.Unit), uint64(s.Totalswap)*uint64(s.Unit)), err
	case factProcessor:
		b, err := os.ReadFile("/proc/cpuinfo")
		return cpuLines(b), err
	case factLimits:
		var all []string
		for resource := range unix.RLIMIT_RTTIME + 1 {
			v, err := limitValue(strconv.Itoa(resource))
			if err != nil {
				return "", err
			}
			all = append(all, v)
		}
		return strings.Join(all, "\n"), nil
	}
	return fileFact(name)
}

// fileFact returns the content of a file or the names in a directory.
func fileFact(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return err.Error(), nil
	}
	defer f.Close()
	if st, err := f.Stat(); err == nil && st.IsDir() {
		names, _ := f.Readdirnames(-1)
		slices.Sort(names)
		return strings.Join(names, "\n"), nil
	}
	b, err := io.ReadAll(io.LimitReader(f, factSize))
	if err != nil {
		return err.Error(), nil
	}
	return string(b), nil
}

// cpuLines returns the lines of /proc/cpuinfo that do not change with the frequency.
func cpuLines(b []byte) string {
	var left []byte
	for line := range bytes.Lines(b) {
		if !bytes.HasPrefix(line, []byte("cpu MHz")) && !bytes.HasPrefix(line, []byte("bogomips")) {
			left = append(left, line...)
		}
	}
	return string(left)
}

// limitValue returns a limit as a process gets it that premix starts.
func limitValue(resource string) (string, error) {
	n, err := strconv.Atoi(resource)
	if err != nil {
		return "", fmt.Errorf("limit %s: %w", resource, err)
	}
	if n == unix.RLIMIT_NOFILE {
		// The Go runtime has raised its own, and starts processes with the first value.
		b, err := exec.Command("/bin/sh", "-c", "ulimit -Sn; ulimit -Hn").Output()
		return string(b), err
	}
	var l unix.Rlimit
	err = unix.Getrlimit(n, &l)
	if errors.Is(err, unix.EINVAL) {
		return "unknown", nil // there is no such limit
	}
	return fmt.Sprint(l.Cur, l.Max), err
}

// factStamp describes the present value of a fact.
func factStamp(name string) (Stamp, error) {
	v, err := factValue(name)
	sum := blake3.Sum256([]byte(v))
	return Stamp{Path: name, Aspect: AspectFact, Digest: hex.EncodeToString(sum[:])}, err
}

// withoutMoving returns the stamps without the files below /proc and /sys that have changed
// since.
func withoutMoving(all []Stamp) []Stamp {
	return slices.DeleteFunc(all, func(s Stamp) bool {
		if s.Aspect != AspectFact || !strings.HasPrefix(s.Path, "/") {
			return false
		}
		now, err := factStamp(s.Path)
		return err != nil || now != s
	})
}

// attributesOf returns all extended attributes of a file.
func attributesOf(path string) string {
	names := make([]byte, factSize)
	n, err := unix.Listxattr(path, names)
	if err != nil {
		return err.Error()
	}
	var all []string
	for name := range strings.SplitSeq(strings.TrimSuffix(string(names[:n]), "\x00"), "\x00") {
		value := make([]byte, factSize)
		n, err := unix.Getxattr(path, name, value)
		all = append(all, fmt.Sprintf("%q %q %v", name, value[:max(n, 0)], err))
	}
	slices.Sort(all)
	return strings.Join(all, "\n")
}

// systemOf returns the properties of the file system of a file that do not change with its
// use.
func systemOf(path string) string {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return err.Error()
	}
	return fmt.Sprint(st.Type, st.Bsize, st.Blocks, st.Files, st.Namelen, st.Frsize, st.Flags)
}

// ownCredentials returns the umask of this process, and its user ids, groups and
// capabilities in one line, as tools inherit them.
func ownCredentials() (umask int, user string, err error) {
	b, err := os.ReadFile("/proc/thread-self/status")
	if err != nil {
		return 0, "", err
	}
	var all []string
	for line := range strings.Lines(string(b)) {
		key, value, _ := strings.Cut(line, ":")
		switch value = strings.Join(strings.Fields(value), ","); key {
		case "Umask":
			mask, perr := strconv.ParseInt(value, 8, 32)
			umask, err = int(mask), perr
		case "Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapBnd", "CapAmb":
			all = append(all, key+" "+value)
		}
	}
	return umask, strings.Join(all, " "), err
}
