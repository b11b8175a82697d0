package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/record"
	"premix/internal/testkit/netrelay"
	"premix/internal/transfer"
	"premix/internal/transfer/choose"
	"premix/internal/transfer/link"
)

// ownProtocol returns the link file entry for premix's own protocol, with the test binary at both
// ends.
func ownProtocol() string {
	return "  - use: premix\n    set: {premix_peer: " + binary + "}\n"
}

// TestTransferOwn measures premix's own protocol over a real link. It is then chosen for copies, is
// killed, and continues its copy.
func TestTransferOwn(t *testing.T) {
	b := newBed(t, netrelay.Options{Rate: 100e6, Delay: 2 * time.Millisecond})
	b.write("sizes: [700K]\ntrees: [{files: 40, size: 1K}]\ndirections: [get, put]\nrepeat: 1\nquiet: {for: 10ms}\nprotocols:\n" + ownProtocol() + "  - scp\n")
	if status, out, errs := b.premix("transfer", "bench", b.path("link.yaml"), "--out", b.path("out"), "--only", "premix"); status != 0 {
		t.Fatalf("bench: status %d\n%s%s", status, out, errs)
	}
	for _, c := range copies(t, b.path("out")) {
		if !c.OK || c.TCP == 0 || c.Connections < 2 || c.Drops != 0 {
			t.Errorf("%s %s: %+v", c.Direction, c.Data(), c)
		}
	}
	data := bytes.Repeat([]byte("premix, and no other "), 600_000)
	for i := range data {
		data[i] ^= byte(i >> 11)
	}
	if err := os.WriteFile(b.path("there/source"), data, 0o640); err != nil {
		t.Fatal(err)
	}
	half := func() bool {
		part, err := filepath.Glob(b.path(".premix-part-*/copy"))
		var s unix.Stat_t
		return err == nil && len(part) == 1 && unix.Stat(part[0], &s) == nil && s.Blocks*512 > int64(len(data))/3
	}
	get := []string{"transfer", "get", "bed:" + b.path("there/source"), b.path("copy"), "--protocol", "premix"}
	cmd := b.command(get...)
	if err := b.link.A.Start(cmd); err != nil {
		t.Fatal(err)
	}
	if !comes(half) {
		t.Error("the copy never got half way")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
	var left []string
	if !comes(func() bool { left = b.processes(); return len(left) == 0 }) {
		t.Fatalf("processes were left behind: %q", left)
	}
	if !half() {
		t.Error("what had arrived is gone")
	}
	status, out, errs := b.premix(get...)
	if got, err := os.ReadFile(b.path("copy")); status != 0 || err != nil || !bytes.Equal(got, data) {
		t.Errorf("status %d, %v\n%s%s", status, err, out, errs)
	}
	if !strings.Contains(errs, "sent ") || strings.Contains(errs, fmt.Sprintf("sent %s of", transfer.Short(int64(len(data))))) {
		t.Errorf("everything was sent again:\n%s", errs)
	}
	// A copy makes one ssh connection only: premix sends no query before it.
	before := b.accepted()
	for _, c := range []struct {
		name   string
		status int
		want   string
	}{{"there/none", 2, "no such file"}, {"there/source", 0, ""}} {
		status, _, errs := b.premix("transfer", "get", "bed:"+b.path(c.name), b.path("direct"))
		if status != c.status || !strings.Contains(errs, c.want) {
			t.Errorf("%s: status %d\n%s", c.name, status, errs)
		}
	}
	if n := b.accepted() - before; n != 2 {
		t.Errorf("two copies made %d connections of ssh", n)
	}
	// Data that the destination has under another name is not sent.
	status, out, errs = b.premix("transfer", "get", "bed:"+b.path("there/source"), b.path("again"), "--have", b.path("copy"))
	if got, err := os.ReadFile(b.path("again")); status != 0 || err != nil || !bytes.Equal(got, data) || !strings.Contains(errs, "sent 0 of") || !strings.Contains(out, "by premix") {
		t.Errorf("status %d, %v\n%s%s", status, err, out, errs)
	}
	// After the death of sshd and its sessions the received data is kept, and no process waits.
	if err := os.Remove(b.path("copy")); err != nil {
		t.Fatal(err)
	}
	cmd = b.command(get...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := b.link.A.Start(cmd); err != nil {
		t.Fatal(err)
	}
	if !comes(half) {
		t.Error("the copy never got half way")
	}
	b.ssh.Stop()
	if err := cmd.Wait(); err == nil || !strings.Contains(stderr.String(), "hint: ") || !half() {
		t.Errorf("%v\n%s", err, stderr.String())
	}
	if !comes(func() bool { left = b.processes(); return len(left) == 0 }) {
		t.Errorf("processes were left behind: %q", left)
	}
}

// premix starts with its own protocol without a query, and leaves a file to another protocol that
// was measured to be faster for its size. Nothing of it counts as a failure.
func TestTransferElsewhere(t *testing.T) {
	b := newBed(t, netrelay.Options{})
	l, err := link.Load(b.write("sizes: [1K]\nprotocols:\n" + ownProtocol() + "  - scp\n"))
	if err != nil {
		t.Fatal(err)
	}
	if err := (choose.Home{Dir: b.path("home")}).Remember(l, b.path("out")); err != nil {
		t.Fatal(err)
	}
	rows, err := transfer.Create(b.path("out"), record.Header{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []transfer.Copy{
		{Protocol: "premix", Size: 1 << 10, Seconds: 0.3}, {Protocol: "scp", Size: 1 << 10, Seconds: 0.3},
		{Protocol: "premix", Size: 1 << 20, Seconds: 100}, {Protocol: "scp", Size: 1 << 20, Seconds: 20},
	} {
		c.Link, c.Direction, c.Files, c.OK = "bed", transfer.Get, 1, true
		if err := rows.Commit(c); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(rows.Close(), os.Mkdir(b.path("there"), 0o755)); err != nil {
		t.Fatal(err)
	}
	for size, by := range map[int]string{1 << 10: "premix", 1 << 20: "scp"} {
		data := bytes.Repeat([]byte{byte(size >> 10), 1}, size/2)
		if err := os.WriteFile(b.path("there/source"), data, 0o644); err != nil {
			t.Fatal(err)
		}
		status, out, errs := b.premix("transfer", "get", "bed:"+b.path("there/source"), b.path(by))
		if got, err := os.ReadFile(b.path(by)); status != 0 || err != nil || !bytes.Equal(got, data) || !strings.Contains(out, "by "+by+" (") || strings.Contains(errs, "fail") {
			t.Errorf("%d bytes: status %d, %v\n%s%s", size, status, err, out, errs)
		}
	}
	b.empty()
}

// accepted returns the number of connections that sshd has accepted.
func (b *bed) accepted() int {
	b.t.Helper()
	text, err := os.ReadFile(b.path("ssh/sshd.log"))
	if err != nil {
		b.t.Fatal(err)
	}
	return bytes.Count(text, []byte("Accepted publickey"))
}

// A peer without premix is reported, and another protocol copies the file.
func TestTransferWithout(t *testing.T) {
	b := newBed(t, netrelay.Options{})
	b.write("sizes: [64K]\nquiet: {for: 10ms}\nprotocols:\n  - use: premix\n    set: {premix_peer: /nowhere/premix}\n  - scp\n")
	if status, out, errs := b.premix("transfer", "bench", b.path("link.yaml"), "--out", b.path("out"), "--capture", "none", "--repeat", "1"); status != 0 || !strings.Contains(errs, "/nowhere/premix is not at the peer") {
		t.Fatalf("bench: status %d\n%s%s", status, out, errs)
	}
	if err := os.WriteFile(b.path("there/source"), []byte("data"), 0o644); err != nil {
		t.Fatal(err)
	}
	status, out, errs := b.premix("transfer", "get", "bed:"+b.path("there/source"), b.path("copy"))
	if status != 0 || !strings.Contains(out, "by scp") {
		t.Errorf("status %d\n%s%s", status, out, errs)
	}
	status, _, errs = b.premix("transfer", "get", "bed:"+b.path("there/source"), b.path("copy2"), "--protocol", "premix")
	if status != 1 || !strings.Contains(errs, "premix is left out: /nowhere/premix is not installed at the peer") {
		t.Errorf("status %d\n%s", status, errs)
	}
	status, out, errs = b.premix("transfer", "get", "bed:"+b.path("there/source"), b.path("copy3"), "--peer-premix", binary)
	if status != 0 || !strings.Contains(out+errs, "by scp") { // it was measured; premix was not
		t.Errorf("status %d\n%s%s", status, out, errs)
	}
	if status, out, errs := b.premix("transfer", "get", "bed:"+b.path("there/source"), b.path("copy4"), "--peer-premix", binary, "--protocol", "premix"); status != 0 || !strings.Contains(out, "by premix") {
		t.Errorf("status %d\n%s%s", status, out, errs)
	}
}

// Only premix's own protocol keeps owners, hard links, extended attributes and ACLs on request.
func TestTransferKeep(t *testing.T) {
	b := newBed(t, netrelay.Options{})
	l, err := link.Load(b.write("sizes: [1K]\nprotocols:\n" + ownProtocol() + "  - rsync\n"))
	if err != nil {
		t.Fatal(err)
	}
	tool := b.path("there/tree/tool")
	if err := errors.Join((choose.Home{Dir: b.path("home")}).Remember(l, b.path("out")), os.MkdirAll(b.path("there/tree"), 0o755), os.Mkdir(b.path("to"), 0o755),
		os.WriteFile(tool, []byte("tool"), 0o755), os.Link(tool, b.path("there/tree/again")), os.Chown(tool, stranger, stranger), os.Chmod(tool, 0o755|os.ModeSetuid)); err != nil {
		t.Fatal(err)
	}
	keep := []string{"--owners", "--hard-links", "--xattrs", "--acls"}
	for _, args := range [][]string{
		{"transfer", "get", "bed:" + b.path("there/tree"), b.path("to/get")},
		{"transfer", "put", b.path("there/tree"), "bed:" + b.path("to/put")},
	} {
		status, _, errs := b.premix(append(args, keep...)...)
		dst := filepath.Join(b.path("to"), args[1])
		var a, z unix.Stat_t
		if err := errors.Join(unix.Lstat(filepath.Join(dst, "tool"), &a), unix.Lstat(filepath.Join(dst, "again"), &z)); err != nil || status != 0 {
			t.Fatalf("%s: status %d, %v\n%s", args[1], status, err, errs)
		}
		if a.Uid != stranger || a.Gid != stranger || a.Mode&0o7777 != 0o4755 || a.Ino != z.Ino {
			t.Errorf("%s: owner %d:%d, mode %o, inodes %d and %d", args[1], a.Uid, a.Gid, a.Mode, a.Ino, z.Ino)
		}
		status, _, errs = b.premix(append(append(args[:2:2], args[2], b.path("to/rsync"), "--protocol", "rsync"), keep...)...)
		if args[1] == "put" {
			status, _, errs = b.premix(append([]string{"transfer", "put", args[2], "bed:" + b.path("to/rsync"), "--protocol", "rsync"}, keep...)...)
		}
		if status != 1 || !strings.Contains(errs, "are kept by premix's own protocol alone") {
			t.Errorf("%s by rsync: status %d\n%s", args[1], status, errs)
		}
	}
}

// TestTransferRights checks copies by a root user without some of its capabilities.
func TestTransferRights(t *testing.T) {
	if _, err := exec.LookPath("setpriv"); err != nil {
		t.Skip("setpriv is missing")
	}
	b := newBed(t, netrelay.Options{})
	b.write("sizes: [64K]\nquiet: {for: 10ms}\nprotocols:\n" + ownProtocol() + "  - scp\n")
	without := func(rights string, args ...string) (int, string) {
		t.Helper()
		cmd := b.command(args...)
		cmd.Args = append([]string{"setpriv", "--bounding-set=" + rights, "--inh-caps=" + rights}, cmd.Args...)
		var err error
		if cmd.Path, err = exec.LookPath("setpriv"); err != nil {
			t.Fatal(err)
		}
		var errs bytes.Buffer
		cmd.Stderr = &errs
		var exit *exec.ExitError
		if err := b.link.A.Run(cmd); err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		return cmd.ProcessState.ExitCode(), errs.String()
	}
	status, errs := without("-net_raw", "transfer", "bench", b.path("link.yaml"), "--out", b.path("out"))
	if status != 3 || !strings.Contains(errs, "hint: ") {
		t.Errorf("capture: status %d\n%s", status, errs)
	}
	if entries, err := os.ReadDir(b.path("here")); err == nil && len(entries) > 0 {
		t.Errorf("%v was left behind", entries)
	}
	if status, out, errs := b.premix("transfer", "bench", b.path("link.yaml"), "--out", b.path("out"), "--capture", "none", "--repeat", "1"); status != 0 {
		t.Fatalf("status %d\n%s%s", status, out, errs)
	}
	tree := b.path("tree")
	if err := errors.Join(os.MkdirAll(tree, 0o755), os.WriteFile(filepath.Join(tree, "closed"), []byte("x"), 0)); err != nil {
		t.Fatal(err)
	}
	const unread = "-dac_override,-dac_read_search"
	status, errs = without(unread, "transfer", "put", filepath.Join(tree, "closed"), "bed:"+b.path("there/x"))
	if status != 2 || !strings.Contains(errs, "permission denied") || !strings.Contains(errs, "hint: ") {
		t.Errorf("unreadable: status %d\n%s", status, errs)
	}
	// premix's own protocol copies the readable rest of a tree. Other protocols copy nothing.
	if err := errors.Join(os.MkdirAll(filepath.Join(tree, "sub/shut"), 0o755), os.Chmod(filepath.Join(tree, "sub/shut"), 0o311),
		os.WriteFile(filepath.Join(tree, "sub/open"), []byte("y"), 0o644)); err != nil {
		t.Fatal(err)
	}
	status, errs = without(unread, "transfer", "put", tree, "bed:"+b.path("there/x"), "--protocol", "scp")
	if status != 1 || !strings.Contains(errs, "is unreadable") {
		t.Errorf("unreadable, by scp: status %d\n%s", status, errs)
	}
	for _, args := range [][]string{
		{"transfer", "put", tree, "bed:" + b.path("there/x")},
		{"transfer", "stream", "put", tree, b.path("there/y"), "--whole", "--", binary, "transfer", "serve"},
	} {
		status, errs = without(unread, args...)
		for _, want := range []string{`left out: "closed": permission denied`, `left out: "sub/shut": permission denied`, "error: 2 files or directories could not be read: the rest is copied", "hint: "} {
			if status != 1 || !strings.Contains(errs, want) {
				t.Errorf("%q: status %d, want %q in\n%s", args, status, want, errs)
			}
		}
	}
	for _, to := range []string{"x", "y"} {
		if got, err := os.ReadFile(b.path("there/" + to + "/sub/open")); err != nil || string(got) != "y" {
			t.Errorf("%s: %q, %v", to, got, err)
		}
		if _, err := os.Lstat(b.path("there/" + to + "/closed")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s has what could not be read: %v", to, err)
		}
	}
	// The far end runs with all rights of root; the near end cannot write.
	if err := errors.Join(os.WriteFile(b.path("there/source"), []byte("data"), 0o644), os.Mkdir(b.path("closed"), 0o555)); err != nil {
		t.Fatal(err)
	}
	status, errs = without("-dac_override,-dac_read_search", "transfer", "stream", "get", b.path("closed/x"), b.path("there/source"), "--", binary, "transfer", "serve")
	if status != 4 || !strings.Contains(errs, "permission denied") || !strings.Contains(errs, "hint: ") {
		t.Errorf("unwritable: status %d\n%s", status, errs)
	}
}
