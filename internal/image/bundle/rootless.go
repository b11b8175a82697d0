package bundle

import (
	"fmt"
	"os"
	"strings"
	"syscall"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"premix/internal/image"
)

// Containers of an ordinary user are made in a user namespace, in which the user is root and
// is the only user. There, the kernel refuses some parts of a usual container; see [limit].

// Namespaces returns the attributes of a process that makes containers: it has PID and mount
// namespaces of its own, and ends with its parent. The process of an ordinary user has a user
// namespace too.
func Namespaces() *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL}
	if uid := os.Geteuid(); uid != 0 {
		a.Cloneflags |= unix.CLONE_NEWUSER
		a.UidMappings = []syscall.SysProcIDMap{{HostID: uid, Size: 1}}
		a.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}}
	}
	return a
}

// canBeRoot returns the reason why this user cannot be root in a user namespace.
func canBeRoot() error {
	attr := Namespaces()
	attr.Ptrace = true // it stops before its first instruction, and is killed
	p, err := os.StartProcess("/proc/self/exe", []string{"premix"}, &os.ProcAttr{Sys: attr})
	if err == nil {
		_ = p.Kill() // an unreaped child: this cannot fail
		_, _ = p.Wait()
		return nil
	}
	return &image.Error{Kind: image.Unavailable, Reason: "an ordinary user needs a user namespace for an image, and cannot make one: " + err.Error(), Err: err,
		HintText: "run premix as root; or let the administrator allow user namespaces: sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone=1 and kernel.apparmor_restrict_unprivileged_userns=0, where they exist"}
}

// Mapped returns an error if the containers of this user cannot have an image's user and group:
// root alone is in the user namespace of an ordinary user.
func (a Account) Mapped() error {
	if os.Geteuid() == 0 || a.UID == 0 && a.GID == 0 {
		return nil
	}
	return a.unmapped()
}

func (a Account) unmapped() error {
	return &image.Error{Kind: image.Unavailable, Reason: fmt.Sprintf("the command would run as user %d and group %d of the image, and in containers of an ordinary user there is root alone", a.UID, a.GID),
		HintText: "run premix as root, or use an image whose user is root"}
}

// ttyGroup is the group of terminals.
const ttyGroup = 5

// limited reports whether this process is in a user namespace without the usual groups.
func limited() bool {
	groups, err := os.ReadFile("/proc/self/gid_map")
	return err == nil && !mapped(string(groups), ttyGroup)
}

// mapped reports whether an id is in a map of a user namespace (user_namespaces(7)).
func mapped(ids string, id uint64) bool {
	for line := range strings.Lines(ids) {
		var first, outside, count uint64
		if _, err := fmt.Sscan(line, &first, &outside, &count); err == nil && id >= first && id-first < count {
			return true
		}
	}
	return false
}

// limit removes the parts of a configuration that the kernel refuses in a user namespace that
// is limited. The container sees the machine's /sys. runc tolerates that it may not make cgroups
// only if the configuration does not name them.
func limit(s *specs.Spec) error {
	if a := (Account{UID: s.Process.User.UID, GID: s.Process.User.GID}); a.UID != 0 || a.GID != 0 {
		return a.unmapped()
	}
	s.Linux.CgroupsPath = ""
	s.Process.User.AdditionalGids = nil
	var kept []specs.Mount
	for _, m := range s.Mounts {
		switch m.Destination {
		case "/dev/pts":
			m.Options = withoutGroup(m.Options)
		case "/sys":
			m.Type, m.Source, m.Options = "bind", "/sys", append([]string{"rbind"}, m.Options...)
		case "/sys/fs/cgroup":
			continue
		}
		kept = append(kept, m)
	}
	s.Mounts = kept
	return nil
}

// withoutGroup returns the options of a mount without its group.
func withoutGroup(options []string) []string {
	var kept []string
	for _, o := range options {
		if !strings.HasPrefix(o, "gid=") {
			kept = append(kept, o)
		}
	}
	return kept
}
