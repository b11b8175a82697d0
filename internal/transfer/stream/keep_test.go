package stream

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// ordinary is the id of a user other than root.
const ordinary = 65534

// serveAs returns the command of a far end that runs as another user. It needs root.
func serveAs(t *testing.T, uid int) []string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, for a far end of another user")
	}
	if _, err := exec.LookPath("setpriv"); err != nil {
		t.Skip("setpriv is missing: scripts/setup.sh test")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	// Other users cannot enter the directory of a test binary.
	copied := filepath.Join(open(t), "far")
	if err := os.WriteFile(copied, text, 0o755); err != nil {
		t.Fatal(err)
	}
	id := strconv.Itoa(uid)
	return []string{"setpriv", "--reuid=" + id, "--regid=" + id, "--clear-groups", "--no-new-privs", "env", far + "=" + reachable, copied, RequestMark}
}

// open returns a temporary directory that other users may enter and write to.
func open(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := errors.Join(os.Chmod(dir, 0o777), os.Chmod(filepath.Dir(dir), 0o755)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// details lists the optional properties of a copy, which look does not list.
func details(t *testing.T, root string) string {
	t.Helper()
	var b strings.Builder
	names := map[uint64]string{}
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(p, &st); err != nil {
			return err
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "%s %o %d:%d", rel, st.Mode, st.Uid, st.Gid)
		if first, ok := names[st.Ino]; ok {
			b.WriteString(" is " + first)
		} else {
			names[st.Ino] = rel
		}
		list := make([]byte, 64<<10)
		n, err := unix.Llistxattr(p, list)
		if err != nil {
			return err
		}
		attributes := strings.Split(strings.Trim(string(list[:n]), "\x00"), "\x00")
		slices.Sort(attributes)
		for _, a := range attributes {
			if a == "" || a == "security.selinux" {
				continue
			}
			value := make([]byte, 64<<10)
			n, err := unix.Lgetxattr(p, a, value)
			if err != nil {
				return err
			}
			fmt.Fprintf(&b, " %s=%x", a, value[:n])
		}
		b.WriteByte('\n')
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// acl is an access control list for user 12 with a mask, in the form of the kernel; see
// acl(5).
var acl = []byte("\x02\x00\x00\x00" + "\x01\x00\x06\x00\xff\xff\xff\xff" + "\x02\x00\x04\x00\x0c\x00\x00\x00" + "\x04\x00\x00\x00\xff\xff\xff\xff" + "\x10\x00\x04\x00\xff\xff\xff\xff" + "\x20\x00\x00\x00\xff\xff\xff\xff")

// decorated returns a tree with everything that a copy can keep, in a file system that
// supports it.
func decorated(t *testing.T) string {
	t.Helper()
	root := filepath.Join(open(t), "tree")
	write(t, filepath.Join(root, "a"), random(1, 3*minPiece))
	write(t, filepath.Join(root, "sub/b"), []byte("b"))
	write(t, filepath.Join(root, "sub/tool"), []byte("tool"))
	write(t, filepath.Join(root, "empty"), nil)
	err := errors.Join(os.Symlink("a", filepath.Join(root, "link")),
		os.Link(filepath.Join(root, "a"), filepath.Join(root, "sub/a again")), os.Link(filepath.Join(root, "a"), filepath.Join(root, "z")),
		os.Link(filepath.Join(root, "empty"), filepath.Join(root, "empty too")),
		unix.Setxattr(filepath.Join(root, "sub/b"), "user.origin", []byte("lane 7"), 0), unix.Setxattr(filepath.Join(root, "sub"), "user.empty", nil, 0))
	if err != nil {
		t.Fatal(err)
	}
	for name, at := range map[string]string{"sub/b": "system.posix_acl_access", "sub": "system.posix_acl_default"} {
		if err := unix.Setxattr(filepath.Join(root, name), at, acl, 0); errors.Is(err, unix.ENOTSUP) {
			t.Skip("the file system of temporary files has no access control lists")
		} else if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

var everything = Keep{Owners: true, HardLinks: true, Attributes: true, ACLs: true}

// As root, a copy keeps everything that is requested, in both directions, and again if the
// destination exists. It does not keep anything else.
func TestKeep(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give files to others")
	}
	source := decorated(t)
	for i, name := range []string{"a", "sub/b", "sub", "empty", "link", "."} {
		if err := os.Lchown(filepath.Join(source, name), 1000+i, 2000+i); err != nil {
			t.Fatal(err)
		}
	}
	// The capability is CAP_NET_RAW, permitted and effective; see capabilities(7).
	capability := []byte("\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00")
	if err := errors.Join(unix.Setxattr(filepath.Join(source, "sub/b"), "trusted.premix.test", []byte("x"), 0),
		unix.Setxattr(filepath.Join(source, "sub/tool"), "security.capability", capability, 0),
		os.Chmod(filepath.Join(source, "empty"), 0o751|fs.ModeSetuid), os.Chmod(filepath.Join(source, "sub"), 0o711|fs.ModeSticky|fs.ModeSetgid)); err != nil {
		t.Fatal(err)
	}
	want := details(t, source)
	for _, send := range []bool{false, true} {
		dst := filepath.Join(t.TempDir(), "copy")
		j := Copy{Command: serve(t, reachable), Send: send, Local: dst, Remote: source, Keep: everything}
		if send {
			j.Local, j.Remote = source, dst
		}
		for range 2 {
			if d := run(t, j); len(d.Lost) > 0 {
				t.Errorf("%+v", d)
			}
			if got := details(t, dst); got != want {
				t.Errorf("send %v: source:\n%s\ncopy:\n%s", send, want, got)
			}
			same(t, source, dst)
			if err := errors.Join(unix.Setxattr(filepath.Join(dst, "a"), "user.other", nil, 0), os.Chown(filepath.Join(dst, "sub/b"), 5, 5)); err != nil {
				t.Fatal(err)
			}
		}
	}
	// A copy of attributes without owners has only attributes that every user can set.
	dst := filepath.Join(t.TempDir(), "copy")
	run(t, Copy{Command: serve(t, reachable), Local: dst, Remote: source, Keep: Keep{Attributes: true}})
	got := details(t, dst)
	for _, word := range []string{"trusted", "security.cap", "posix_acl", " is "} {
		if strings.Contains(got, word) {
			t.Errorf("%q has arrived:\n%s", word, got)
		}
	}
	if !strings.Contains(got, "user.origin=") || !strings.Contains(got, "user.empty=") {
		t.Errorf("attributes are missing:\n%s", got)
	}
	plain := filepath.Join(t.TempDir(), "plain")
	run(t, Copy{Command: serve(t, reachable), Local: plain, Remote: source})
	for line := range strings.Lines(details(t, plain)) {
		if strings.Contains(line, "=") || strings.Contains(line, " is ") || !strings.Contains(line, " 0:0") {
			t.Errorf("it was not asked for: %s", line)
		}
	}
}

// An ordinary user can keep everything that needs no privilege, and gets an error for
// owners that they cannot set.
func TestKeepOrdinary(t *testing.T) {
	source := decorated(t)
	into := open(t)
	j := Copy{Command: serve(t, reachable), Send: true, Local: source, Remote: filepath.Join(into, "copy"), Keep: Keep{HardLinks: true, Attributes: true, ACLs: true}}
	uid := os.Geteuid()
	if uid == 0 {
		j.Command, uid = serveAs(t, ordinary), ordinary
	}
	run(t, j)
	mine := func(s string) string {
		lines := slices.Collect(strings.Lines(s))
		for i, l := range lines {
			f := strings.Fields(l)
			owner := slices.IndexFunc(f, func(w string) bool { return strings.Contains(w, ":") })
			lines[i] = strings.Replace(l, f[owner], "owner", 1)
		}
		return strings.Join(lines, "")
	}
	if want, got := mine(details(t, source)), mine(details(t, filepath.Join(into, "copy"))); want != got {
		t.Errorf("source:\n%s\ncopy:\n%s", want, got)
	}
	if os.Geteuid() != 0 {
		j.Keep.Owners, j.Remote = true, filepath.Join(into, "mine") // the user owns all of it
		run(t, j)
		if want, got := details(t, source), details(t, filepath.Join(into, "mine")); want != got {
			t.Errorf("source:\n%s\ncopy:\n%s", want, got)
		}
		return
	}
	j.Keep.Owners, j.Remote = true, filepath.Join(into, "owners")
	var target *TargetError
	if _, err := j.Run(t.Context()); !errors.As(err, &target) || !strings.Contains(err.Error(), "only root can give files to others") {
		t.Errorf("%v, want a TargetError", err)
	}
	// Files that this user owns do not need root, but set-user-ID bits do.
	if err := filepath.WalkDir(source, func(p string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(p, uid, uid))
	}); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(source, "sub/tool"), 0o755|fs.ModeSetuid); err != nil {
		t.Fatal(err)
	}
	j.Remote = filepath.Join(into, "mine")
	run(t, j)
	if got := details(t, j.Remote); strings.Contains(got, " 1047") || !strings.Contains(got, fmt.Sprintf(" %d:%d", uid, uid)) {
		t.Errorf("%s", got)
	}
}

// A writable server does not let clients create files with other owners, unless it is
// configured to.
func TestKeepServer(t *testing.T) {
	source := filepath.Join(t.TempDir(), "tree")
	write(t, filepath.Join(source, "a"), []byte("a"))
	dir := t.TempDir()
	k, key := keys(t)
	closed, _ := stand(t, &Server{Dir: dir, Keys: k, Write: true})
	j := Copy{Server: closed, Key: key, Send: true, Whole: true, Local: source, Remote: "x", Keep: Keep{Owners: true}}
	var target *TargetError
	if _, err := j.Run(t.Context()); !errors.As(err, &target) {
		t.Errorf("%v, want a TargetError", err)
	}
	if list, err := os.ReadDir(dir); err != nil || len(list) > 0 {
		t.Errorf("%v, %v", list, err)
	}
	j.Server, _ = stand(t, &Server{Dir: dir, Keys: k, Write: true, Owners: true})
	run(t, j)
	same(t, source, filepath.Join(dir, "x"))
}

// If the sender cannot read some files, or a whole directory, all other files arrive.
func TestUnreadable(t *testing.T) {
	source := filepath.Join(open(t), "tree")
	for i := range 40 {
		write(t, filepath.Join(source, fmt.Sprintf("d%d/f%d", i%3, i)), random(uint64(i), 1+i*4000))
	}
	bad := map[string]bool{"d0/f39": true, "d1/f1": true, "shut": true, "d2/large": true, "d2/name of f1": true}
	write(t, filepath.Join(source, "shut/in it"), []byte("x"))
	write(t, filepath.Join(source, "d2/large"), random(7, 3<<20))
	if err := errors.Join(os.Link(filepath.Join(source, "d1/f1"), filepath.Join(source, "d2/name of f1")),
		os.Chmod(filepath.Join(source, "d0/f39"), 0), os.Chmod(filepath.Join(source, "d1/f1"), 0), os.Chmod(filepath.Join(source, "d2/large"), 0), os.Chmod(filepath.Join(source, "shut"), 0o311)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Chmod(filepath.Join(source, "shut"), 0o755) })
	command := serve(t, reachable)
	if os.Geteuid() == 0 {
		command = serveAs(t, ordinary)
	}
	check := func(how string, d *Result, dst string) {
		t.Helper()
		for _, l := range d.Lost {
			if !bad[l.Path] || l.Reason == "" {
				t.Errorf("%s: %+v", how, l)
			}
		}
		if len(d.Lost) != len(bad) || d.Files != 38 || d.More != 0 {
			t.Errorf("%s: %+v", how, d)
		}
		for i := range 40 {
			name := fmt.Sprintf("d%d/f%d", i%3, i)
			got, err := os.ReadFile(filepath.Join(dst, name))
			if bad[name] != errors.Is(err, fs.ErrNotExist) || err == nil && string(got) != string(random(uint64(i), 1+i*4000)) {
				t.Errorf("%s: %s: %d bytes, %v", how, name, len(got), err)
			}
		}
		for name, want := range map[string]bool{"shut": true, "shut/in it": false, "d2/large": false, "d2/name of f1": false} {
			if _, err := os.Lstat(filepath.Join(dst, name)); (err == nil) != want {
				t.Errorf("%s: %s: %v", how, name, err)
			}
		}
	}
	for _, have := range []string{"", source} {
		dst := filepath.Join(t.TempDir(), "copy")
		j := Copy{Command: command, Local: dst, Remote: source, Keep: Keep{HardLinks: true}}
		if have != "" {
			j.Have = []string{open(t)} // chunks then end at positions that the content determines, and are offered
		}
		for range 2 { // the second copy finds the files of the first one
			check("get"+have, run(t, j), dst)
		}
	}
	if os.Geteuid() != 0 {
		dst := filepath.Join(t.TempDir(), "copy")
		check("put", run(t, Copy{Command: command, Send: true, Local: source, Remote: dst, Keep: Keep{HardLinks: true}}), dst)
	}
	// A copy of a single unreadable file fails, and so does a copy of a missing file.
	for _, name := range []string{"d0/f39", "none"} {
		j := Copy{Command: command, Local: filepath.Join(t.TempDir(), "copy"), Remote: filepath.Join(source, name)}
		var cannot *SourceError
		if _, err := j.Run(t.Context()); !errors.As(err, &cannot) {
			t.Errorf("%s: %v, want a SourceError", name, err)
		}
	}
}

// Files of sysfs have fewer bytes than their size, like files that change while they are
// read.
func TestChanging(t *testing.T) {
	source := "/sys/class/net/lo/statistics"
	list, err := os.ReadDir(source)
	if err != nil || len(list) == 0 {
		t.Skipf("%s is missing: %v", source, err)
	}
	for _, send := range []bool{false, true} {
		dst := filepath.Join(t.TempDir(), "copy")
		j := Copy{Command: serve(t, reachable), Send: send, Local: dst, Remote: source}
		if send {
			j.Local, j.Remote = source, dst
		}
		for range 2 {
			d := run(t, j)
			if left, err := os.ReadDir(dst); err != nil || len(left) != 0 || len(d.Lost) != len(list) || d.Files != 0 || d.Bytes != 0 {
				t.Errorf("send %v: %d left, %v, %+v", send, len(left), err, d)
			}
		}
	}
}
