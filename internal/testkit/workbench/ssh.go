package workbench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/testkit/netrelay"
)

// SSH is an sshd with keys of its own, on one host of a link.
type SSH struct {
	Host       string // address
	Port       int
	Identity   string // private key that sshd accepts
	KnownHosts string

	here, there string // directories with files that replace files of /etc at the two hosts
	cmd         *exec.Cmd
}

// Command returns a command for the other, first host of the link, with names for both
// hosts in /etc/hosts: no name server can be reached from there, and some programs need a
// name for each address.
func (s *SSH) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	return named(ctx, s.here, name, args...)
}

// named returns a command that runs in a mount namespace of its own, where the files in
// the directory etc replace files of /etc, and where the user's ~/.bashrc is empty: bash
// reads it for every command that comes by ssh, and a slow one (a second of pyenv) would
// distort a measurement.
func named(ctx context.Context, etc, name string, args ...string) *exec.Cmd {
	script := `for f in "$0"/*; do mount --bind "$f" "/etc/${f##*/}" || exit; done
rc=$(getent passwd "$(id -u)" | cut -d: -f6)/.bashrc
[ ! -e "$rc" ] || mount --bind /dev/null "$rc" || exit
exec "$@"`
	return exec.CommandContext(ctx, "unshare", append([]string{"--mount", "sh", "-c", script, etc, name}, args...)...)
}

// Guest is an ordinary user for whom sshd accepts the same key: some servers refuse to run
// as root, or as a user without a password. It exists at the second host only.
const Guest = "guest"

// accounts writes passwd(5) and shadow(5) for the second host: the users of this machine,
// and the guest. The passwords of guest and root match no text.
func accounts(etc string) error {
	users, err := os.ReadFile("/etc/passwd")
	if err != nil {
		return err
	}
	users = append(users, Guest+":x:65432:65534::/:/bin/sh\n"...)
	const shadow = "root:*:19000:0:99999:7:::\n" + Guest + ":$6$none$none:19000:0:99999:7:::\n"
	return errors.Join(os.WriteFile(filepath.Join(etc, "passwd"), users, 0o644), os.WriteFile(filepath.Join(etc, "shadow"), []byte(shadow), 0o600))
}

// sshPort is free, since the host is a network namespace of its own.
const sshPort = 22

// StartSSH starts an sshd on a host, with its files in dir. A client with its key logs in
// as the user of this process, which must be root.
func StartSSH(ctx context.Context, dir string, h *netrelay.Host) (*SSH, error) {
	s := &SSH{Host: h.Addr.String(), Port: sshPort, Identity: filepath.Join(dir, "identity"), KnownHosts: filepath.Join(dir, "known_hosts")}
	s.here, s.there = filepath.Join(dir, "hosts.here"), filepath.Join(dir, "hosts.there")
	machine, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	const names = "127.0.0.1 localhost\n10.99.0.1 here.link %s\n10.99.0.2 there.link %s\n"
	hostKey := filepath.Join(dir, "host_key")
	for _, key := range []string{s.Identity, hostKey} {
		if err := Run(nil, Command(ctx, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key)); err != nil {
			return nil, err
		}
	}
	public, err := os.ReadFile(hostKey + ".pub")
	if err != nil {
		return nil, err
	}
	config := fmt.Sprintf(`ListenAddress %s:%d
HostKey %s
AuthorizedKeysFile %s.pub
PidFile none
StrictModes no
UsePAM no
PermitRootLogin yes
PasswordAuthentication no
MaxStartups 200
MaxSessions 200
UseDNS no
PrintMotd no
Subsystem sftp internal-sftp
`, s.Host, s.Port, hostKey, s.Identity)
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "sshd_config"), []byte(config), 0o644),
		os.Mkdir(s.here, 0o755), os.WriteFile(filepath.Join(s.here, "hosts"), fmt.Appendf(nil, names, machine, ""), 0o644),
		os.Mkdir(s.there, 0o755), os.WriteFile(filepath.Join(s.there, "hosts"), fmt.Appendf(nil, names, "", machine), 0o644), accounts(s.there),
		os.WriteFile(s.KnownHosts, []byte(s.Host+" "+string(public)), 0o644), os.MkdirAll("/run/sshd", 0o755)); err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(dir, "sshd.log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	// sshd executes itself again for each connection, and needs its absolute path.
	// It runs until Stop, also after ctx has ended.
	s.cmd = named(context.WithoutCancel(ctx), s.there, "/usr/sbin/sshd", "-D", "-e", "-f", filepath.Join(dir, "sshd_config"))
	s.cmd.Stderr = log
	if err := h.Start(s.cmd); err != nil {
		return nil, err
	}
	at := net.JoinHostPort(s.Host, strconv.Itoa(s.Port))
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		c, err := h.Dial(ctx, "tcp", at)
		if err == nil {
			return s, c.Close()
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			text, _ := os.ReadFile(log.Name())
			s.Stop()
			return nil, fmt.Errorf("sshd does not answer: %w\n%s", err, text)
		}
	}
}

// Stop ends sshd and the processes of its connections.
func (s *SSH) Stop() {
	all := []int{s.cmd.Process.Pid}
	for i := 0; i < len(all); i++ {
		all = append(all, children(all[i])...)
	}
	for _, p := range all {
		_ = unix.Kill(p, unix.SIGKILL) // it may have ended
	}
	_ = s.cmd.Wait() // the error is that it was killed
}

// Sessions returns the number of open connections.
func (s *SSH) Sessions() int { return len(children(s.cmd.Process.Pid)) }

// children returns the child processes of a process, from /proc.
func children(pid int) (list []int) {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid)) // the pattern is well-formed
	for _, t := range tasks {
		text, err := os.ReadFile(t)
		if err != nil {
			continue // it has ended
		}
		for _, f := range strings.Fields(string(text)) {
			if n, err := strconv.Atoi(f); err == nil {
				list = append(list, n)
			}
		}
	}
	return list
}
