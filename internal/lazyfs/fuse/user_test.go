package fuse_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"premix/internal/testkit/testtree"
)

// open makes the directories of a test, which t.TempDir creates for root only, accessible
// to all users.
func open(t *testing.T, dir string) {
	t.Helper()
	for d := dir; len(d) > len(os.TempDir()); d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// runAs starts a test server as another user.
func runAs(t *testing.T, s setup, prepare func(*exec.Cmd)) *server {
	t.Helper()
	srv := launch(t, s, func(cmd *exec.Cmd) {
		// The path of the test binary is accessible only to root.
		prepare(cmd)
		cmd.Path = "/proc/self/exe"
	})
	return srv
}

// An ordinary user can mount with fusermount3, for this user alone, and unmount.
func TestOrdinaryUser(t *testing.T) {
	needRoot(t)
	if _, err := exec.LookPath("fusermount3"); err != nil {
		t.Skip(err)
	}
	if st, err := os.Stat("/dev/fuse"); err != nil || st.Mode().Perm() != 0o666 {
		t.Skip("/dev/fuse is not for everybody here")
	}
	src := t.TempDir()
	if err := os.WriteFile(filepath.Join(src, "file"), []byte("text"), 0o644); err != nil {
		t.Fatal(err)
	}
	image, mnt := imageOf(t, src), t.TempDir()
	open(t, image)
	open(t, mnt)
	var as syscall.Credential
	srv := runAs(t, setup{Dir: mnt, File: image, Tree: true}, func(cmd *exec.Cmd) {
		asNobody(t, cmd)
		as = *cmd.SysProcAttr.Credential
		if err := os.Chown(mnt, int(as.Uid), int(as.Gid)); err != nil {
			t.Fatal(err)
		}
	})
	if srv.Err != "" {
		t.Fatal(srv.Err)
	}
	cat := exec.Command("cat", filepath.Join(mnt, "file"))
	cat.SysProcAttr = &syscall.SysProcAttr{Credential: &as}
	if out, err := cat.CombinedOutput(); err != nil || string(out) != "text" {
		t.Errorf("%q, %v", out, err)
	}
	if _, err := os.ReadFile(filepath.Join(mnt, "file")); !errors.Is(err, unix.EACCES) {
		t.Errorf("another user, root: %v, want EACCES", err)
	}
	srv.stop(t)
	if mounts() != 0 {
		t.Error("still mounted")
	}
}

// If fusermount3 is missing, the error and its hint name it.
func TestNoHelper(t *testing.T) {
	needRoot(t)
	src := t.TempDir()
	image, mnt := imageOf(t, src), t.TempDir()
	open(t, image)
	open(t, mnt)
	srv := runAs(t, setup{Dir: mnt, File: image}, func(cmd *exec.Cmd) {
		asNobody(t, cmd)
		cmd.Env = append(cmd.Env, "PATH=/nowhere")
	})
	if !strings.Contains(srv.Err, "fusermount3") || !strings.Contains(srv.Hint, "fuse3") {
		t.Errorf("error %q, hint %q", srv.Err, srv.Hint)
	}
	_ = srv.cmd.Wait()
}

func pidOf(s *server) string { return strconv.Itoa(s.cmd.Process.Pid) }

// The root of a user namespace can mount as root does.
func TestUserNamespace(t *testing.T) {
	needRoot(t)
	src := t.TempDir()
	if err := os.WriteFile(filepath.Join(src, "file"), []byte("text"), 0o644); err != nil {
		t.Fatal(err)
	}
	image, mnt := imageOf(t, src), t.TempDir()
	srv := launch(t, setup{Dir: mnt, File: image, Tree: true}, func(cmd *exec.Cmd) {
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS,
			UidMappings: []syscall.SysProcIDMap{{Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{Size: 1}},
		}
	})
	if srv.Err != "" {
		if unix.Errno(srv.No) == unix.EPERM || strings.Contains(srv.Err, "permission denied") {
			t.Skipf("no mounts in user namespaces here: %s", srv.Err)
		}
		t.Fatal(srv.Err)
	}
	defer srv.stop(t)
	// The mount exists only in the mount namespace of the server.
	root := filepath.Join("/proc", pidOf(srv), "root", mnt, "file")
	if out, err := os.ReadFile(root); err != nil && !errors.Is(err, unix.EACCES) || err == nil && string(out) != "text" {
		t.Errorf("%q, %v", out, err)
	}
	cat := exec.Command("nsenter", "--preserve-credentials", "-U", "-m", "-t", pidOf(srv), "cat", filepath.Join(mnt, "file"))
	if out, err := cat.CombinedOutput(); err != nil || string(out) != "text" {
		t.Errorf("%q, %v", out, err)
	}
}

// Modes, owners and ACLs decide which users may read a file.
func TestPermissions(t *testing.T) {
	needRoot(t)
	src := t.TempDir()
	for name, mode := range map[string]os.FileMode{"all": 0o644, "none": 0o600, "acl": 0o640} {
		if err := os.WriteFile(filepath.Join(src, name), []byte(name), mode); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("cat")
	asNobody(t, cmd)
	uid := byte(cmd.SysProcAttr.Credential.Uid)
	// user::rw-, user:UID:r--, group::---, mask::r--, other::--- (acl(5), version 2)
	entry := func(tag, perm byte, id ...byte) []byte {
		if id == nil {
			id = []byte{0xff, 0xff, 0xff, 0xff}
		}
		return append([]byte{tag, 0, perm, 0}, id...)
	}
	acl := []byte{2, 0, 0, 0}
	acl = append(acl, entry(1, 6)...)
	acl = append(acl, entry(2, 4, uid, byte(cmd.SysProcAttr.Credential.Uid>>8), 0, 0)...)
	acl = append(acl, entry(4, 0)...)
	acl = append(acl, entry(0x10, 4)...)
	acl = append(acl, entry(0x20, 0)...)
	if err := unix.Setxattr(filepath.Join(src, "acl"), "system.posix_acl_access", acl, 0); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(src, 0o755); err != nil {
		t.Fatal(err)
	}
	mnt := t.TempDir()
	image := imageOf(t, src)
	open(t, mnt)
	serve(t, setup{Dir: mnt, File: image, Tree: true})
	for name, may := range map[string]bool{"all": true, "none": false, "acl": true} {
		cmd := exec.Command("cat", filepath.Join(mnt, name))
		asNobody(t, cmd)
		out, err := cmd.Output()
		if may && (err != nil || string(out) != name) || !may && err == nil {
			t.Errorf("%s: %q, %v", name, out, err)
		}
	}
}

// A directory that cannot be mounted on, or a file that is not an image, is refused with a
// reason.
func TestMountRefuses(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, make([]byte, 1<<16), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, s := range map[string]setup{
		"no directory": {Dir: filepath.Join(dir, "none"), File: file},
		"a file":       {Dir: file, File: file},
		"no image":     {Dir: dir, File: file, Tree: true},
	} {
		srv := launch(t, s, nil)
		if srv.Err == "" {
			t.Errorf("%s: mounted", name)
			srv.stop(t)
			continue
		}
		_ = srv.cmd.Wait()
	}
	if mounts() != 0 {
		t.Error("something is mounted")
	}
}

// Two mounts of one image have two servers, and both show all awkward names.
func TestTwice(t *testing.T) {
	needRoot(t)
	src := t.TempDir()
	if err := testtree.Build(src, 1); err != nil {
		t.Fatal(err)
	}
	image, a, b := imageOf(t, src), t.TempDir(), t.TempDir()
	serve(t, setup{Dir: a, File: image, Tree: true})
	serve(t, setup{Dir: b, File: image, Tree: true})
	if diffs, err := testtree.Compare(a, b); err != nil || len(diffs) > 0 {
		t.Error(diffs, err)
	}
}
