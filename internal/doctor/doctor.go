package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/hotstart"
	"premix/internal/kit/units"
)

// Check is one thing that this machine can or cannot do.
type Check = hotstart.Check

// Run makes all checks: of starts, and of the other features.
func Run(ctx context.Context) []Check {
	list := hotstart.Doctor(ctx)
	release := kernel()
	list = append(list,
		userNamespaces(),
		fuse(),
		since("FUSE, read by the kernel alone", release, 6, 9, "reads of cached data pass through premix"),
		erofs(release),
		blast(),
		memory(),
		program("Slurm", "sbatch", "--engine slurm", "slurm-client"),
		packets(),
	)
	for _, p := range []struct{ verb, port string }{{"store serve", "8400"}, {"blast serve", "8080"}, {"watch", "8090"}, {"transfer serve", "8470"}} {
		list = append(list, port(p.verb, p.port))
	}
	return list
}

// check returns a check; without an error it has no hint.
func check(name string, err error, ok, hint string) Check {
	if err != nil {
		return Check{Name: name, Detail: err.Error(), Hint: hint}
	}
	return Check{Name: name, OK: true, Detail: ok}
}

// kernel returns the release of the kernel.
func kernel() string {
	var u unix.Utsname
	_ = unix.Uname(&u) // it fails for a bad address only
	return unix.ByteSliceToString(u.Release[:])
}

// atLeast reports whether a release is that version or a later one.
func atLeast(release string, major, minor int) bool {
	var a, b int
	if n, _ := fmt.Sscanf(release, "%d.%d", &a, &b); n < 2 {
		return false
	}
	return a > major || a == major && b >= minor
}

func since(name, release string, major, minor int, otherwise string) Check {
	switch {
	case !atLeast(release, major, minor):
		return check(name, fmt.Errorf("it needs Linux %d.%d, and this is %s: %s", major, minor, release, otherwise), "", "a newer kernel is faster here; nothing else changes")
	case os.Geteuid() != 0:
		return check(name, errors.New("it needs root: "+otherwise), "", "root's mounts are faster; nothing else changes")
	}
	return check(name, nil, "Linux "+release, "")
}

func userNamespaces() Check {
	cmd := exec.Command("/proc/self/exe", "version")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER}
	err := cmd.Run()
	if err != nil {
		err = fmt.Errorf("a process may not make one: %w", err)
	}
	return check("user namespaces", err, "a process may make one", "premix does without them; rootless containers, in which it may run, need kernel.unprivileged_userns_clone or user.max_user_namespaces")
}

func fuse() Check {
	const hint = "modprobe fuse, or --device /dev/fuse for a container; premix store pull copies trees without it"
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		return check("trees by FUSE", err, "", hint)
	}
	f.Close()
	if os.Geteuid() != 0 {
		if _, err := exec.LookPath("fusermount3"); err != nil {
			return check("trees by FUSE", errors.New("/dev/fuse is there, and fusermount3 is not on PATH"), "", "sudo apt-get install -y --no-install-recommends fuse3")
		}
	}
	return check("trees by FUSE", nil, "/dev/fuse", "")
}

func erofs(release string) Check {
	c := since("trees by EROFS", release, 6, 12, "trees are served by FUSE")
	if !c.OK {
		return c
	}
	known, err := os.ReadFile("/proc/filesystems")
	if err == nil && !strings.Contains(string(known), "\terofs\n") {
		// A module that is not loaded yet is not in the list.
		if err = exec.Command("modinfo", "erofs").Run(); err != nil {
			err = errors.New("this kernel has no EROFS: trees are served by FUSE")
		}
	}
	return check(c.Name, err, "Linux "+release, "a kernel with CONFIG_EROFS_FS is faster here; nothing else changes")
}

func program(name, file, use, packet string) Check {
	path, err := exec.LookPath(file)
	if err != nil {
		err = fmt.Errorf("%s is not on PATH: %s is refused", file, use)
	}
	return check(name, err, path, "sudo apt-get install -y --no-install-recommends "+packet)
}

func blast() Check {
	for _, file := range []string{"blastn", "makeblastdb"} {
		if c := program("BLAST+", file, "premix blast", "ncbi-blast+"); !c.OK {
			return c
		}
	}
	text, err := exec.Command("blastn", "-version").Output()
	first, _, _ := strings.Cut(string(text), "\n")
	return check("BLAST+", err, first, "reinstall BLAST+: blastn -version failed")
}

// memory checks the place of databases that are kept in memory.
func memory() Check {
	const dir = "/dev/shm"
	const hint = "mount -t tmpfs tmpfs /dev/shm, or --shm-size=SIZE for a container"
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return check("memory for BLAST", fmt.Errorf("%s: %w", dir, err), "", hint)
	}
	if fs.Type != unix.TMPFS_MAGIC {
		return check("memory for BLAST", errors.New(dir+" is not on a tmpfs"), "", hint)
	}
	locked := "any amount may be locked"
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err == nil && limit.Cur != unix.RLIM_INFINITY {
		locked = units.Size(int64(limit.Cur)) + " may be locked"
	}
	return check("memory for BLAST", nil, fmt.Sprintf("%s, %s free; %s", dir, units.Size(int64(fs.Bavail)*fs.Bsize), locked), "")
}

func packets() Check {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		unix.Close(fd)
	} else {
		err = fmt.Errorf("packets may not be captured: %w", err)
	}
	return check("packets", err, "packets may be captured", "run premix transfer bench --packets as root; without --packets it needs nothing")
}

// port checks whether a program uses the usual port of a service on the loopback address.
func port(verb, number string) Check {
	c, err := net.DialTimeout("tcp", "127.0.0.1:"+number, time.Second)
	if err == nil {
		c.Close()
		return check("port of "+verb, errors.New("127.0.0.1:"+number+" is in use"), "", "another program has it, or the service runs: give --listen another port")
	}
	return check("port of "+verb, nil, "127.0.0.1:"+number+" is free", "")
}
