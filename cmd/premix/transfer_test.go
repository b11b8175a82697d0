package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"premix/internal/netrelay"
	"premix/internal/workbench"
	"premix/transfer"
)

// bed is a link between two hosts, with an sshd on the second.
type bed struct {
	t    *testing.T
	link *netrelay.Link
	ssh  *workbench.SSH
	dir  string
}

func newBed(t *testing.T, o netrelay.Options) *bed {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("namespaces and captures need root")
	}
	for _, p := range []string{"ssh", "ssh-keygen", "/usr/sbin/sshd"} {
		if _, err := exec.LookPath(p); err != nil {
			t.Skipf("%s is missing", p)
		}
	}
	l, err := netrelay.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	b := &bed{t: t, link: l, dir: t.TempDir()}
	if err := os.Mkdir(b.path("ssh"), 0o755); err != nil {
		t.Fatal(err)
	}
	if b.ssh, err = workbench.StartSSH(t.Context(), b.path("ssh"), l.B); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.ssh.Stop)
	return b
}

func (b *bed) path(name string) string { return filepath.Join(b.dir, name) }

// write writes a link file with some lines of its own.
func (b *bed) write(lines string) string {
	b.t.Helper()
	text := fmt.Sprintf("name: bed\nhost: %s\nport: %d\nuser: root\nidentity: %s\nknown_hosts: %s\ndirectory: %s\npeer_directory: %s\n%s",
		b.ssh.Host, b.ssh.Port, b.ssh.Identity, b.ssh.KnownHosts, b.path("here"), b.path("there"), lines)
	if err := os.WriteFile(b.path("link.yaml"), []byte(text), 0o644); err != nil {
		b.t.Fatal(err)
	}
	return b.path("link.yaml")
}

// command is a premix on the first host.
func (b *bed) command(args ...string) *exec.Cmd {
	cmd := exec.Command(binary, args...)
	cmd.Env = append(os.Environ(), "PREMIX_HOME="+b.path("home"))
	cmd.Dir = b.dir
	return cmd
}

// premix runs one, and returns its status and what it prints.
func (b *bed) premix(args ...string) (status int, stdout, stderr string) {
	b.t.Helper()
	cmd := b.command(args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := b.link.A.Run(cmd)
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		b.t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// empty fails where something has been left behind.
func (b *bed) empty(dirs ...string) {
	b.t.Helper()
	for _, d := range dirs {
		entries, err := os.ReadDir(b.path(d))
		if err != nil {
			b.t.Error(err)
		}
		for _, e := range entries {
			b.t.Errorf("%s/%s was left behind", d, e.Name())
		}
	}
	var left []string
	if !comes(func() bool { left = b.processes(); return len(left) == 0 }) {
		b.t.Errorf("processes were left behind: %q", left)
	}
	if !comes(func() bool { return b.ssh.Sessions() == 0 }) {
		b.t.Errorf("%d connections were left open", b.ssh.Sessions())
	}
}

// processes are those that name this bed, other than its sshd.
func (b *bed) processes() (list []string) {
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		b.t.Fatal(err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f) // it may have gone
		if line := strings.ReplaceAll(string(text), "\x00", " "); err == nil && strings.Contains(line, b.dir) && !strings.Contains(line, "sshd") {
			list = append(list, line)
		}
	}
	return list
}

func copies(t *testing.T, dir string) []transfer.Copy {
	t.Helper()
	list, err := transfer.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// Real programs over a real link: every copy is captured, verified and recorded.
func TestTransferBench(t *testing.T) {
	b := newBed(t, netrelay.Options{Rate: 200e6, Delay: time.Millisecond})
	protocols := []string{"scp", "scp-legacy", "sftp", "tar"}
	for name, program := range map[string]string{"rsync": "rsync", "rsyncd": "rsync", "curl": "nginx", "curl-h2": "nginx", "aria2": "aria2c"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Logf("%s is missing: %s is left out", program, name)
			continue
		}
		protocols = append(protocols, name)
	}
	const what = "sizes: [300K]\nrepeat: 1\nseed: 4\nquiet: {for: 10ms}\n"
	for _, text := range []string{
		what + "protocols: [" + strings.Join(slices.DeleteFunc(slices.Clone(protocols), func(p string) bool { return p == "tar" }), ", ") + "]\n",
		what + "trees: [{files: 30, size: 1K}]\ndirections: [put]\nprotocols: [scp, tar]\n",
	} {
		status, stdout, stderr := b.premix("transfer", "bench", b.write(text), "--out", b.path("out"), "--packets", "--pcap")
		if status != 0 {
			t.Fatalf("status %d\n%s\n%s", status, stdout, stderr)
		}
	}
	seen := map[string]int{}
	for _, c := range copies(t, b.path("out")) {
		seen[c.Protocol]++
		if !c.OK || c.Cause != "" || c.Exit != 0 {
			t.Errorf("%s %s %s: %s: %s", c.Protocol, c.Direction, c.Data(), c.Cause, c.Error)
		}
		data, acks := c.PayloadDown, c.PayloadUp
		if c.Direction == transfer.Put {
			data, acks = acks, data
		}
		if data < c.Size || acks <= 0 || c.Ratio <= 1 || c.BytesDown <= c.PayloadDown || c.TCP != c.PacketsDown+c.PacketsUp || c.UDP != 0 {
			t.Errorf("%s %s: %+v", c.Protocol, c.Direction, c)
		}
		var all int64
		for _, n := range c.Histogram {
			all += n
		}
		if all != c.TCP || c.First <= 0 || c.Flowing > c.Seconds || c.Drops != 0 || c.CPU <= 0 || c.Congestion == "" || c.CongestionPeer == "" ||
			c.Interface != "link0" || c.MTU != 1500 || c.Speed <= 0 || c.Connections == 0 {
			t.Errorf("%s %s: %+v", c.Protocol, c.Direction, c)
		}
		if c.CPUPeerSource != "server" {
			t.Errorf("%s: CPU at the peer from %q", c.Protocol, c.CPUPeerSource)
		}
		for _, f := range []string{c.Packets, "pcap/" + c.ID + ".pcap"} {
			if info, err := os.Stat(filepath.Join(b.path("out"), f)); err != nil || info.Size() < 1000 {
				t.Errorf("%s: %v", f, err)
			}
		}
	}
	for _, p := range protocols {
		want := 1
		if p == "scp" {
			want = 3
		}
		if seen[p] != want {
			t.Errorf("%s was measured %d times, want %d", p, seen[p], want)
		}
	}
	b.empty("here", "there")
}
