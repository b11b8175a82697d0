package bundle

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"premix/internal/image"
)

// capabilities are the capabilities of root in a container of docker and containerd.
var capabilities = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_MKNOD", "CAP_NET_RAW", "CAP_SETGID", "CAP_SETUID",
	"CAP_SETFCAP", "CAP_SETPCAP", "CAP_NET_BIND_SERVICE", "CAP_SYS_CHROOT", "CAP_KILL", "CAP_AUDIT_WRITE",
}

// usualPath is the PATH of an image that does not set it.
const usualPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// spec returns the runtime's configuration for a root that is mounted at root.
func (r *Request) spec(root, cgroup string) (*specs.Spec, error) {
	s := &specs.Spec{
		Version: "1.0.2", // of the specification that runc 1.1 supports
		Root:    &specs.Root{Path: root},
		Mounts:  mounts(),
		Linux: &specs.Linux{
			CgroupsPath:   cgroup,
			Namespaces:    []specs.LinuxNamespace{{Type: specs.PIDNamespace}, {Type: specs.IPCNamespace}, {Type: specs.MountNamespace}, {Type: specs.CgroupNamespace}},
			Resources:     &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}},
			MaskedPaths:   []string{"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap"},
			ReadonlyPaths: []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"},
		},
	}
	if r.sharePID {
		s.Linux.Namespaces = s.Linux.Namespaces[1:]
	}
	if err := r.process(s, root); err != nil {
		return nil, err
	}
	if r.Network == NetworkNone {
		s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.NetworkNamespace}, specs.LinuxNamespace{Type: specs.UTSNamespace})
		s.Hostname = "premix"
	} else {
		// Host names are resolved as on the host.
		for _, file := range []string{"/etc/resolv.conf", "/etc/hosts"} {
			if real, err := os.Stat(file); err == nil && real.Mode().IsRegular() {
				s.Mounts = append(s.Mounts, specs.Mount{Destination: file, Type: "bind", Source: file, Options: []string{"bind", "ro", "nosuid", "nodev", "noexec"}})
			}
		}
	}
	for _, b := range r.Binds {
		how := "rw"
		if b.ReadOnly {
			how = "ro"
		}
		s.Mounts = append(s.Mounts, specs.Mount{Destination: b.Target, Type: "bind", Source: b.Source, Options: []string{"rbind", "rprivate", "nosuid", "nodev", how}})
	}
	if limited() {
		if err := limit(s); err != nil {
			return nil, err
		}
	}
	var err error
	if s.Linux.Seccomp, err = seccomp.GetDefaultProfile(s); err != nil {
		return nil, fmt.Errorf("seccomp profile: %w", err)
	}
	return s, nil
}

// process sets the command, its user and its environment.
func (r *Request) process(s *specs.Spec, root string) error {
	set := &r.Image.Settings
	p := &specs.Process{Terminal: r.Terminal, Cwd: "/", Args: r.Command, NoNewPrivileges: r.NoNewPrivileges}
	s.Process = p
	if len(p.Args) == 0 {
		p.Args = slices.Concat(set.Entrypoint, set.Cmd)
	}
	if len(p.Args) == 0 {
		return &image.Error{Kind: image.Usage, Reason: "the image has no default command", HintText: "give a command: premix exec IMAGE -- CMD"}
	}
	who := set.User
	if r.User != "" {
		who = r.User
	}
	var home string
	var err error
	if p.User, home, err = user(root, who); err != nil {
		return err
	}
	p.Env = Merge([]string{usualPath, "HOME=" + home}, set.Env, r.Env)
	if r.Terminal {
		p.Env = append(p.Env, "TERM="+os.Getenv("TERM"))
	}
	for _, dir := range []string{set.WorkingDir, r.Workdir} {
		if dir != "" {
			p.Cwd = path.Join("/", dir)
		}
	}
	p.Capabilities = &specs.LinuxCapabilities{Bounding: capabilities}
	if p.User.UID == 0 {
		p.Capabilities.Effective, p.Capabilities.Permitted = capabilities, capabilities
	}
	_, err = r.findCommand(root, p)
	return err
}

// Merge joins lists of NAME=VALUE. Later values win.
func Merge(lists ...[]string) []string {
	var env []string
	for _, e := range slices.Concat(lists...) {
		name, _, _ := strings.Cut(e, "=")
		env = slices.DeleteFunc(env, func(old string) bool { return strings.HasPrefix(old, name+"=") })
		env = append(env, e)
	}
	return env
}

// Account is the user of an image's commands.
type Account struct {
	UID, GID uint32
	Env      []string // the image's, with PATH and HOME
}

// AccountOf looks up the user of an image whose root is mounted at root.
func AccountOf(im *image.Image, root string) (Account, error) {
	u, home, err := user(root, im.Settings.User)
	if err != nil {
		return Account{}, err
	}
	return Account{u.UID, u.GID, Merge([]string{usualPath, "HOME=" + home}, im.Settings.Env)}, nil
}

// Find returns the path of a command in the image whose root is mounted at root, by the
// PATH of env. The path is empty if only the runtime can find it.
func Find(root, name string, env []string) (string, error) {
	r := Request{}
	return r.findCommand(root, &specs.Process{Args: []string{name}, Env: env, Cwd: "/"})
}

// findCommand returns the path of a command, so that a missing command is reported
// before the runtime fails. It does not look into bind mounts; if there are any, the
// path is empty.
func (r *Request) findCommand(root string, p *specs.Process) (string, error) {
	if len(r.Binds) > 0 {
		return "", nil
	}
	name := p.Args[0]
	var tries []string
	switch {
	case strings.HasPrefix(name, "/"):
		tries = []string{name}
	case strings.Contains(name, "/"):
		tries = []string{path.Join(p.Cwd, name)}
	default:
		for _, e := range p.Env {
			if list, ok := strings.CutPrefix(e, "PATH="); ok {
				for dir := range strings.SplitSeq(list, ":") {
					tries = append(tries, path.Join(p.Cwd, dir, name))
					if path.IsAbs(dir) {
						tries[len(tries)-1] = path.Join(dir, name)
					}
				}
			}
		}
	}
	for _, t := range tries {
		f, err := openIn(root, strings.TrimPrefix(t, "/"), unix.O_PATH)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
			continue
		}
		if err != nil {
			return "", nil // the runtime reports the reason
		}
		st, err := f.Stat()
		f.Close()
		if err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
			return t, nil
		}
	}
	return "", &image.Error{Kind: image.Usage, Reason: fmt.Sprintf("the image has no command %s", name), HintText: "it was searched for in the image, in " + strings.Join(tries, ", ")}
}

// mounts returns the mounts of every container.
func mounts() []specs.Mount {
	return []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", fmt.Sprintf("gid=%d", ttyGroup)}},
		{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: []string{"nosuid", "noexec", "nodev", "mode=1777"}},
		{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
		{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: []string{"nosuid", "noexec", "nodev", "relatime", "ro"}},
	}
}
