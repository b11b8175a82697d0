package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"premix/internal/kit/unmount"
	"premix/internal/testkit/netrelay"
	"premix/internal/testkit/workbench"
	"premix/internal/transfer"
)

// bed is a link between two hosts, with an sshd on the second host.
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
	// Servers that drop root privileges must be able to read the files.
	if err := errors.Join(os.Chmod(filepath.Dir(b.dir), 0o755), os.Mkdir(b.path("ssh"), 0o755)); err != nil {
		t.Fatal(err)
	}
	if b.ssh, err = workbench.StartSSH(t.Context(), b.path("ssh"), l.B); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.ssh.Stop)
	return b
}

func (b *bed) path(name string) string { return filepath.Join(b.dir, name) }

// write writes a link file that contains the given lines.
func (b *bed) write(lines string) string {
	b.t.Helper()
	text := fmt.Sprintf("name: bed\nhost: %s\nport: %d\nuser: root\nidentity: %s\nknown_hosts: %s\ndirectory: %s\npeer_directory: %s\n%s",
		b.ssh.Host, b.ssh.Port, b.ssh.Identity, b.ssh.KnownHosts, b.path("here"), b.path("there"), lines)
	if err := os.WriteFile(b.path("link.yaml"), []byte(text), 0o644); err != nil {
		b.t.Fatal(err)
	}
	return b.path("link.yaml")
}

// command returns a premix command for the first host.
func (b *bed) command(args ...string) *exec.Cmd {
	cmd := exec.Command(binary, args...)
	cmd.Env = append(os.Environ(), "PREMIX_HOME="+b.path("home"))
	cmd.Dir = b.dir
	return cmd
}

// premix runs premix on the first host and returns its status and output.
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

// empty fails the test if files were left behind.
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

// processes returns the command lines that name this bed, except its sshd.
func (b *bed) processes() (list []string) {
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		b.t.Fatal(err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f) // the process may have ended
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

// Real programs copy over a real link. Every copy is captured, verified and recorded.
func TestTransferBench(t *testing.T) {
	b := newBed(t, netrelay.Options{Rate: 200e6, Delay: time.Millisecond})
	protocols := []string{"scp", "scp-legacy", "sftp", "tar"}
	for name, program := range map[string]string{"rsync": "rsync", "rsyncd": "rsync", "curl": "nginx", "curl-h2": "nginx", "aria2": "aria2c",
		"rclone": "rclone", "rclone-http": "rclone", "rclone-s3": "gofakes3", "qcp": "qcp", "xrootd": "xrootd", "bbcp": "bbcp", "hpn-scp": "hpnscp"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Logf("%s is missing: %s is left out", program, name)
			continue
		}
		if _, err := exec.LookPath("rclone"); err != nil && name == "rclone-s3" {
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
		if data < c.Size || acks <= 0 || c.Ratio <= 1 || c.BytesDown <= c.PayloadDown || c.TCP+c.UDP != c.PacketsDown+c.PacketsUp || (c.UDP != 0) != (c.Protocol == "qcp") {
			t.Errorf("%s %s: %+v", c.Protocol, c.Direction, c)
		}
		var all int64
		for _, n := range c.Histogram {
			all += n
		}
		if all != c.TCP+c.UDP || c.First <= 0 || c.Flowing > c.Seconds || c.Drops != 0 || c.CPU <= 0 || c.Congestion == "" || c.CongestionPeer == "" ||
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

// TestTransferChoose measures protocols with a probe, explains the choice, and checks that get and
// put use the fastest protocol and fall back to the next one.
func TestTransferChoose(t *testing.T) {
	b := newBed(t, netrelay.Options{})
	// One protocol always fails after its measurement. Another one is slow on any machine, because
	// it copies several times.
	b.write(`sizes: [64K]
repeat: 1
quiet: {for: 10ms}
protocols:
  - scp
  - tar
  - use: scp
    name: breaks
    get: '[ ! -e ` + b.path("broken") + ` ] || { echo it broke >&2; exit 3; }; scp -q ${scp} "${peer}:${remote}" "${local}"'
    put: '[ ! -e ` + b.path("broken") + ` ] || { echo it broke >&2; exit 3; }; scp -q ${scp} "${local}" "${peer}:${remote}"'
  - name: slow
    get: sleep 1; for i in 1 2 3 4 5 6; do scp -q ${scp} "${peer}:${remote}" "${local}" || exit; done
`)
	if status, out, errs := b.premix("transfer", "bench", b.path("link.yaml"), "--out", b.path("out"), "--capture", "none"); status != 0 {
		t.Fatalf("bench: status %d\n%s%s", status, out, errs)
	}
	status, out, errs := b.premix("transfer", "why", "bed", "--size", "64K")
	lines := strings.Split(out, "\n")
	if status != 0 || len(lines) < 5 || !strings.Contains(lines[3], "3  slow") || !strings.Contains(lines[4], "-  tar") || !strings.Contains(lines[4], "cannot get a file") {
		t.Errorf("why: status %d\n%s%s", status, out, errs)
	}
	hard := `it's a "file" $x`
	data := bytes.Repeat([]byte("premix"), 50_000)
	if err := os.WriteFile(b.path("there/source"), data, 0o640); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(b.path("broken"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	// The failing protocol is requested first here, whichever of the two was faster.
	status, out, errs = b.premix("transfer", "get", "bed:"+b.path("there/source"), b.path(hard))
	if got, err := os.ReadFile(b.path(hard)); status != 0 || err != nil || !bytes.Equal(got, data) || !strings.Contains(out, "by scp (") {
		t.Errorf("get: status %d, %v\n%s%s", status, err, out, errs)
	}
	if left, err := filepath.Glob(b.path(".premix-part-*")); err != nil || len(left) > 0 {
		t.Errorf("a part was left: %q, %v", left, err)
	}
	// A tree of small files is copied as one stream in both directions.
	for i := range 40 {
		name := b.path(fmt.Sprintf("tree/d%d/f %d", i%3, i))
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, fmt.Appendf(nil, "%d", i), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	status, out, errs = b.premix("transfer", "put", b.path("tree"), "bed:"+b.path("there/tree"), "--json")
	if status != 0 || !strings.Contains(out, `"protocol": "tar"`) || !strings.Contains(out, `"files": 40`) {
		t.Errorf("put: status %d\n%s%s", status, out, errs)
	}
	status, out, errs = b.premix("transfer", "get", "bed:"+b.path("there/tree"), b.path("back"), "--json")
	if diff, err := exec.Command("diff", "-r", b.path("tree"), b.path("back")).CombinedOutput(); status != 0 || err != nil {
		t.Errorf("get: status %d\n%s%s%s", status, out, errs, diff)
	}
	for _, c := range []struct {
		name   string
		args   []string
		status int
		want   string
	}{
		{"all fail", []string{"get", "bed:" + b.path("there/source"), b.path("x"), "--protocol", "breaks"}, 1, "error: every protocol failed: breaks: .*it broke"},
		{"it is there", []string{"get", "bed:" + b.path("there/source"), b.path("back")}, 4, "is there already"},
		{"it is at the peer", []string{"put", b.path("tree"), "bed:" + b.path("there/tree")}, 4, "is at the peer already"},
		{"no source", []string{"get", "bed:" + b.path("there/none"), b.path("x")}, 2, "none at root@10.99.0.2 is missing"},
		{"no source here", []string{"put", b.path("none"), "bed:" + b.path("there/none")}, 2, "no such file"},
		{"no path", []string{"get", "bed", b.path("x")}, 2, "names no path at a peer"},
		{"relative", []string{"get", "bed:x", b.path("x")}, 2, "not an absolute path"},
		{"no host", []string{"get", "-oProxyCommand=x:/y", b.path("x")}, 2, "unknown shorthand flag|not the name of a host"},
	} {
		status, out, errs := b.premix(append([]string{"transfer"}, c.args...)...)
		if ok, err := regexp.MatchString(c.want, errs); status != c.status || !ok || err != nil || !strings.Contains(errs, "hint: ") {
			t.Errorf("%s: status %d, want %d\n%s%s", c.name, status, c.status, out, errs)
		}
	}
	// A probe of a link with a link file adds its rows to the known ones. It runs for less than a
	// minute, so it starts with the requested measurements.
	b.write("trees: [{files: 100, size: 4K}]\ndirections: [get]\nrepeat: 1\nquiet: {for: 10ms}\nprotocols: [scp, tar]\n")
	if status, out, errs := b.premix("transfer", "bench", b.path("link.yaml"), "--out", b.path("trees"), "--capture", "none"); status != 0 {
		t.Fatalf("bench of trees: status %d\n%s%s", status, out, errs)
	}
	if status, out, errs := b.premix("transfer", "probe", "bed"); status != 0 || !strings.Contains(out, "tar") {
		t.Errorf("probe: status %d\n%s%s", status, out, errs)
	}
	if status, out, _ := b.premix("transfer", "why", "bed", "--size", "400K", "--files", "100"); status != 0 || !strings.Contains(out, "tar ") || !strings.Contains(out, "s expected") {
		t.Errorf("why of a tree: status %d\n%s", status, out)
	}
	if err := errors.Join(os.Remove(b.path("there/source")), os.RemoveAll(b.path("there/tree"))); err != nil {
		t.Fatal(err)
	}
	b.empty("here", "there")
}

// TestTransferFaults checks that failures are reported, measurements are kept, and no process is
// left.
func TestTransferFaults(t *testing.T) {
	b := newBed(t, netrelay.Options{Rate: 50e6})
	const what = "sizes: [2M]\nrepeat: 1\nquiet: {for: 10ms}\n"
	only := func(t *testing.T, out, cause string) {
		t.Helper()
		for _, c := range copies(t, out) {
			if c.OK || c.Cause != cause || c.Error == "" {
				t.Errorf("%s: cause %q, error %q; want %s", c.Protocol, c.Cause, c.Error, cause)
			}
		}
	}
	t.Run("hangs", func(t *testing.T) {
		b.write(what + "timeout: 2s\nprotocols:\n  - name: hangs\n    get: setsid sleep 1234567 & trap '' TERM; while :; do sleep 1; done\n")
		status, out, errs := b.premix("transfer", "bench", b.path("link.yaml"), "--out", b.path("hangs"))
		if status != 1 || !strings.Contains(out, "killed with all its children") {
			t.Errorf("status %d\n%s%s", status, out, errs)
		}
		only(t, b.path("hangs"), transfer.CauseTimeout)
		// Other tests copy at the same time: count only the processes with the home directory of
		// this bed.
		var left []int
		if !comes(func() bool {
			left = processes(func(_, environ string) bool {
				return strings.Contains(environ, "PREMIX_COPY=") && strings.Contains(environ, "PREMIX_HOME="+b.path("home")+"\x00")
			})
			return len(left) == 0
		}) {
			t.Errorf("processes %v go on", left)
		}
	})
	t.Run("content", func(t *testing.T) {
		b.write(what + "protocols:\n  - name: lies\n    get: head -c 2097152 /dev/zero >\"${local}\"\n")
		if status, out, errs := b.premix("transfer", "bench", b.path("link.yaml"), "--out", b.path("lies")); status != 1 {
			t.Errorf("status %d\n%s%s", status, out, errs)
		}
		only(t, b.path("lies"), transfer.CauseContent)
	})
	t.Run("no UDP", func(t *testing.T) {
		b.write(what + "protocols:\n  - use: scp\n    name: pretends\n    expect: udp\n")
		if status, out, errs := b.premix("transfer", "bench", b.path("link.yaml"), "--out", b.path("udp")); status != 1 {
			t.Errorf("status %d\n%s%s", status, out, errs)
		}
		only(t, b.path("udp"), transfer.CauseWire)
	})
	t.Run("server", func(t *testing.T) {
		b.write(what + "protocols:\n  - name: serverless\n    server: echo it will not >&2; exit 1\n    set: {server_port: 7}\n    get: true\n")
		if status, out, errs := b.premix("transfer", "bench", b.path("link.yaml"), "--out", b.path("server")); status != 1 || !strings.Contains(out, "it will not") {
			t.Errorf("status %d\n%s%s", status, out, errs)
		}
		only(t, b.path("server"), transfer.CauseServer)
	})
	t.Run("host key", func(t *testing.T) {
		good, err := os.ReadFile(b.ssh.KnownHosts)
		if err != nil {
			t.Fatal(err)
		}
		defer os.WriteFile(b.ssh.KnownHosts, good, 0o644)
		other, err := os.ReadFile(b.ssh.Identity + ".pub")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(b.ssh.KnownHosts, append([]byte(b.ssh.Host+" "), other...), 0o644); err != nil {
			t.Fatal(err)
		}
		b.write(what + "protocols: [scp]\n")
		status, _, errs := b.premix("transfer", "bench", b.path("link.yaml"), "--out", b.path("key"))
		if status != 5 || !strings.Contains(errs, "Host key verification failed") || !strings.Contains(errs, "hint: ") {
			t.Errorf("status %d\n%s", status, errs)
		}
		// premix knows the link from earlier benches; its own protocol sends no query first.
		b.write(what + "protocols:\n" + ownProtocol())
		status, _, errs = b.premix("transfer", "get", "bed:/x", b.path("x"))
		if status != 5 || !strings.Contains(errs, "Host key verification failed") || !strings.Contains(errs, "hint: ") {
			t.Errorf("get: status %d\n%s", status, errs)
		}
	})
	t.Run("unreadable", func(t *testing.T) {
		// Root can read everything, but no user can open this path.
		status, _, errs := b.premix("transfer", "put", "/proc/self/stat/none", "root@"+b.ssh.Host+":/x")
		if status == 0 || !strings.Contains(errs, "hint: ") {
			t.Errorf("status %d\n%s", status, errs)
		}
	})
	t.Run("no space", func(t *testing.T) {
		b.write(what + "protocols: [scp]\n")
		// The bench makes the link known, so that get finds keys and known hosts.
		if status, out, errs := b.premix("transfer", "bench", b.path("link.yaml"), "--out", b.path("space"), "--capture", "none"); status != 0 {
			t.Fatalf("status %d\n%s%s", status, out, errs)
		}
		if err := os.WriteFile(b.path("there/large"), make([]byte, 8<<20), 0o644); err != nil {
			t.Fatal(err)
		}
		defer os.Remove(b.path("there/large"))
		small := b.path("small")
		if err := os.Mkdir(small, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := exec.Command("mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", small).Run(); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := unmount.Dir(small); err != nil {
				t.Error(err)
			}
		}()
		status, _, errs := b.premix("transfer", "get", "bed:"+b.path("there/large"), filepath.Join(small, "x"))
		if status != 4 || !strings.Contains(errs, "there is no space for 8 MiB") {
			t.Errorf("status %d\n%s", status, errs)
		}
		b.write(what + "protocols:\n" + ownProtocol())
		status, _, errs = b.premix("transfer", "get", "bed:"+b.path("there/large"), filepath.Join(small, "x"))
		if status != 4 || !strings.Contains(errs, "there is no space for 8 MiB") {
			t.Errorf("by premix: status %d\n%s", status, errs)
		}
	})
	t.Run("peer dies", func(t *testing.T) {
		b.write("sizes: [20M]\nrepeat: 3\nquiet: {for: 10ms}\nprotocols: [scp]\n")
		cmd := b.command("transfer", "bench", b.path("link.yaml"), "--out", b.path("dies"))
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		if err := b.link.A.Start(cmd); err != nil {
			t.Fatal(err)
		}
		half := func() bool {
			files, err := filepath.Glob(b.path("here/premix-bench-*/copy"))
			if err != nil || len(files) == 0 {
				return false
			}
			info, err := os.Stat(files[0])
			return err == nil && info.Size() > 5<<20
		}
		if !comes(half) {
			t.Error("the copy never got half way")
		}
		b.ssh.Stop()
		if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() != 5 {
			t.Errorf("%v\n%s%s", err, out.String(), errs.String())
		}
		list := copies(t, b.path("dies"))
		if len(list) == 0 || list[len(list)-1].OK || list[len(list)-1].BytesDown == 0 {
			t.Errorf("rows: %+v", list)
		}
		if left := b.processes(); len(left) > 0 && !comes(func() bool { left = b.processes(); return len(left) == 0 }) {
			t.Errorf("processes were left behind: %q", left)
		}
	})
}

// TestTransferReport makes the report of the measurements: page, tables and figures.
func TestTransferReport(t *testing.T) {
	b := newBed(t, netrelay.Options{})
	b.write("sizes: [32K, 200K]\nrepeat: 2\nquiet: {for: 10ms}\npeak: [\"00:00-24:00\"]\nprotocols: [scp, scp-legacy]\n")
	if status, out, errs := b.premix("transfer", "bench", b.path("link.yaml"), "--out", b.path("out"), "--packets"); status != 0 {
		t.Fatalf("status %d\n%s%s", status, out, errs)
	}
	status, out, errs := b.premix("transfer", "report", b.path("out"))
	if status != 0 || !strings.Contains(out, "bed get 200K") || !strings.Contains(out, "page: ") {
		t.Fatalf("status %d\n%s%s", status, out, errs)
	}
	page, err := os.ReadFile(b.path("out/report.html"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Speed by size", "Bytes on the wire", "Overhead", "Speed by hour", "Fingerprints", "Against the best", "scp-legacy"} {
		if !bytes.Contains(page, []byte(want)) {
			t.Errorf("the page lacks %q", want)
		}
	}
	for _, not := range []string{"NaN", "src=", "href=", "<script", "ZgotmplZ"} {
		if bytes.Contains(page, []byte(not)) {
			t.Errorf("the page has %q", not)
		}
	}
	for _, f := range []string{"transfers.parquet", "transfers.csv", "report.json", "figures/speed-bed-get.svg", "figures/fingerprint-bed-scp-get.svg", "figures/hour-bed-get-200K.svg"} {
		if info, err := os.Stat(b.path("out/" + f)); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v", f, err)
		}
	}
	if status, _, errs := b.premix("transfer", "report", b.path("here")); status != 2 || !strings.Contains(errs, "hint: premix transfer bench") {
		t.Errorf("status %d\n%s", status, errs)
	}
}

// In a bench whose peer is the same machine, bytes are counted once and no disturbance is reported.
func TestTransferLoopback(t *testing.T) {
	b := newBed(t, netrelay.Options{})
	link := b.write("sizes: [3M]\ndirections: [get, put]\nrepeat: 1\nquiet: {for: 10ms}\nprotocols:\n" + ownProtocol() + "  - scp\n")
	cmd := b.command("transfer", "bench", link, "--out", b.path("out"))
	var stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stderr, &stderr
	if err := b.link.B.Run(cmd); err != nil {
		t.Fatalf("%v\n%s", err, &stderr)
	}
	for _, c := range copies(t, b.path("out")) {
		data, other := c.PayloadDown, c.PayloadUp
		if c.Direction == transfer.Put {
			data, other = other, data
		}
		if !c.OK || c.Disturbed != "" || c.Interface != "lo" || data < c.Size || data > c.Size+c.Size/10 || other > c.Size/10 || c.Others > c.Size/10 {
			t.Errorf("%s %s: %+v", c.Protocol, c.Direction, c)
		}
	}
	if !strings.Contains(stderr.String(), "scp") {
		t.Error(stderr.String())
	}
}
