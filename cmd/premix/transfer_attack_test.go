package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"premix/internal/testkit/netrelay"
	"premix/internal/transfer/choose"
	"premix/internal/transfer/link"
)

// stranger is the user and group that attacks root in these tests.
const stranger = 65534

// asStranger runs a shell script as the user stranger.
func asStranger(t *testing.T, script string, args ...string) {
	t.Helper()
	cmd := exec.Command("sh", append([]string{"-c", script, "sh"}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: stranger, Gid: stranger}}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// attackBed makes a bed whose link has the given protocols. Each end has a directory "open" that
// every user can write to.
func attackBed(t *testing.T, protocols string) *bed {
	t.Helper()
	b := newBed(t, netrelay.Options{})
	l, err := link.Load(b.write("sizes: [1K]\nprotocols:\n" + protocols))
	if err != nil {
		t.Fatal(err)
	}
	if err := (choose.Home{Dir: b.path("home")}).Remember(l, b.path("out")); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"here", "there", "open"} {
		if err := errors.Join(os.Mkdir(b.path(d), 0o755), os.Chmod(b.path(d), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Chmod(b.path("open"), 0o777), os.Chmod(b.dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	return b
}

// tool makes a program of the user stranger with the set-user-ID and set-group-ID bits.
func tool(t *testing.T, path string) {
	t.Helper()
	program, err := os.ReadFile("/bin/true")
	if err == nil {
		err = errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, program, 0o755), os.Chown(path, stranger, stranger),
			os.Chmod(path, 0o755|fs.ModeSetuid|fs.ModeSetgid))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// plain fails the test if a path, or a file below it, has one of the special mode bits.
func plain(t *testing.T, path string) {
	t.Helper()
	err := filepath.WalkDir(path, func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		if info.Mode()&(fs.ModeSetuid|fs.ModeSetgid|fs.ModeSticky) != 0 && info.Mode()&fs.ModeSymlink == 0 {
			t.Errorf("%s has mode %v and owner %d", p, info.Mode(), info.Sys().(*syscall.Stat_t).Uid)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// A set-user-ID program of a user does not become one of root, by any protocol with which root
// copies it.
func TestAttackSetuid(t *testing.T) {
	shipped := map[string]string{"rsync": "rsync", "rsyncd": "rsync", "scp": "scp", "scp-legacy": "scp", "sftp": "sftp", "tar": "tar", "premix": "sh"}
	list := ownProtocol()
	for name := range shipped {
		if name != "premix" {
			list += "  - " + name + "\n"
		}
	}
	b := attackBed(t, list)
	tool(t, b.path("there/tool"))
	tool(t, b.path("there/tree/sub/tool"))
	tool(t, b.path("there/tree/other"))
	if err := os.Chmod(b.path("there/tree/sub"), 0o777|fs.ModeSetgid|fs.ModeSticky); err != nil {
		t.Fatal(err)
	}
	for name, program := range shipped {
		t.Run(name, func(t *testing.T) {
			if _, err := exec.LookPath(program); err != nil {
				t.Skipf("%s is missing: scripts/setup.sh test", program)
			}
			for _, source := range []string{"tool", "tree"} {
				if name == "tar" && source == "tool" {
					continue // tar copies only trees
				}
				got, sent := b.path("here/"+name+"-"+source), b.path("here/put-"+name+"-"+source)
				for _, args := range [][]string{{"get", "bed:" + b.path("there/"+source), got}, {"put", b.path("there/" + source), "bed:" + sent}} {
					status, _, errs := b.premix(append([]string{"transfer"}, append(args, "--protocol", name, "--allow-open")...)...)
					if status != 0 {
						t.Errorf("%s %s: status %d\n%s", args[0], source, status, errs)
					}
				}
				plain(t, got)
				plain(t, sent)
			}
		})
	}
	if left, err := filepath.Glob(b.path("*/.premix-part-*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %q, %v", left, err)
	}
}

// Other users cannot reach the files that a protocol writes before their special bits are removed.
func TestAttackSetuidWindow(t *testing.T) {
	if _, err := exec.LookPath("setpriv"); err != nil {
		t.Skip("setpriv is missing: scripts/setup.sh test")
	}
	b := attackBed(t, `  - name: install
    about: a protocol after which a second user tries to execute the copy at once
    get: |
      install -m 6755 "${remote}" "${local}"
      setpriv --reuid=65534 --regid=65534 --clear-groups sh -c 'for f in "$1"/.premix-part-*/copy "$1"/copy*; do "$f" 2>/dev/null && touch "$1/executed"; done; :' sh "${temp%/home/*}"
`)
	// ${temp} is not in the bed: replace it in the script by the open directory.
	text, err := os.ReadFile(b.path("link.yaml"))
	if err == nil {
		err = os.WriteFile(b.path("link.yaml"), bytes.ReplaceAll(text, []byte("${temp%/home/*}"), []byte(b.path("open"))), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	tool(t, b.path("there/tool"))
	status, _, errs := b.premix("transfer", "get", "bed:"+b.path("there/tool"), b.path("open/copy"), "--protocol", "install")
	if status != 0 {
		t.Errorf("status %d\n%s", status, errs)
	}
	if _, err := os.Lstat(b.path("open/executed")); !errors.Is(err, fs.ErrNotExist) {
		t.Error("another user has executed the copy while it had set-user-ID")
	}
	plain(t, b.path("open/copy"))
}

// victim makes a directory of root with one file, and returns a function that fails the test if the
// directory has changed.
func victim(t *testing.T, dir string) (unchanged func()) {
	t.Helper()
	secret := filepath.Join(dir, "secret")
	if err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(secret, []byte("kept"), 0o600)); err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		list, err := os.ReadDir(dir)
		if err != nil || len(list) != 1 {
			t.Errorf("the directory of root has %v, %v", list, err)
		}
		info, err := os.Stat(secret)
		if err != nil {
			t.Fatal(err)
		}
		if text, err := os.ReadFile(secret); err != nil || string(text) != "kept" || info.Mode() != 0o600 {
			t.Errorf("the file of root has %q, mode %v, %v", text, info.Mode(), err)
		}
	}
}

// root does not follow links that wait at the destination of a copy.
func TestAttackWaitingLink(t *testing.T) {
	b := attackBed(t, ownProtocol()+"  - rsync\n  - scp\n  - sftp\n  - curl\n  - aria2\n")
	unchanged := victim(t, b.path("victim"))
	if err := os.WriteFile(b.path("there/source"), bytes.Repeat([]byte("new "), 1<<10), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, program := range map[string]string{"premix": "sh", "rsync": "rsync", "scp": "scp", "sftp": "sftp", "curl": "nginx", "aria2": "aria2c"} {
		t.Run(name, func(t *testing.T) {
			if _, err := exec.LookPath(program); err != nil {
				if _, err := os.Stat("/usr/sbin/" + program); err != nil {
					t.Skipf("%s is missing: scripts/setup.sh test", program)
				}
			}
			copied := b.path("open/" + name)
			asStranger(t, `ln -s "$2" "$1.premix-part"; ln -s "$2" "$1.premix-part.aria2"`, copied, b.path("victim/secret"))
			status, _, errs := b.premix("transfer", "get", "bed:"+b.path("there/source"), copied, "--protocol", name, "--allow-open")
			if status != 0 {
				t.Errorf("status %d\n%s", status, errs)
			}
			unchanged()
			if info, err := os.Lstat(copied); err != nil || !info.Mode().IsRegular() || info.Size() != 4<<10 {
				t.Errorf("%v, %v", info, err)
			}
		})
	}
}

// A user who swaps the directory in which root makes a copy, during the copy, cannot redirect root.
// The protocol makes the swap at the worst moment.
func TestAttackSwap(t *testing.T) {
	if _, err := exec.LookPath("setpriv"); err != nil {
		t.Skip("setpriv is missing: scripts/setup.sh test")
	}
	const attack = `d=$1 v=$2
for p in "$d"/.premix-part-*; do [ -e "$p" ] && mv "$p" "$d/moved" && ln -s "$v" "$p"; done
ln -s "$v/secret" "$d/copy.premix-part"
:
`
	b := newBed(t, netrelay.Options{})
	script := fmt.Sprintf("setpriv --reuid=%d --regid=%d --clear-groups sh %s %s %s\n", stranger, stranger, b.path("attack.sh"), b.path("open"), b.path("victim"))
	l, err := link.Load(b.write("sizes: [1K]\nprotocols:\n  - name: swap\n    about: a copy whose directory is swapped\n    get: |\n      " + script +
		"      cp \"${remote}\" \"${local}\"\n    put: |\n      " + script + "      cp \"${local}\" \"${remote}\"\n"))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join((choose.Home{Dir: b.path("home")}).Remember(l, b.path("out")), os.Mkdir(b.path("open"), 0o777), os.Chmod(b.path("open"), 0o777),
		os.Mkdir(b.path("there"), 0o755), os.WriteFile(b.path("there/source"), []byte("new"), 0o644), os.WriteFile(b.path("attack.sh"), []byte(attack), 0o644)); err != nil {
		t.Fatal(err)
	}
	unchanged := victim(t, b.path("victim"))
	status, _, errs := b.premix("transfer", "get", "bed:"+b.path("there/source"), b.path("open/copy"), "--protocol", "swap")
	unchanged()
	if got, err := os.ReadFile(b.path("open/copy")); status != 0 || err != nil || string(got) != "new" {
		t.Errorf("status %d, %q, %v\n%s", status, got, err, errs)
	}
	// At the peer programs write by path. Root refuses to copy into a directory that others can
	// rename.
	if err := errors.Join(os.RemoveAll(b.path("open")), os.Mkdir(b.path("open"), 0o777), os.Chmod(b.path("open"), 0o777)); err != nil {
		t.Fatal(err)
	}
	status, _, errs = b.premix("transfer", "put", b.path("there/source"), "bed:"+b.path("open/copy"), "--protocol", "swap")
	unchanged()
	if status != 1 || !strings.Contains(errs, "which other users may change") {
		t.Errorf("status %d\n%s", status, errs)
	}
}
