package packdir

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// A note determines which tree is unpacked, with its owners and its set-user-ID bits. A note that
// another user has written, or has replaced by a link, is refused.
func TestAttackNote(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, whom a second user attacks")
	}
	top := t.TempDir()
	if err := errors.Join(os.Chmod(filepath.Dir(top), 0o755), os.Chmod(top, 0o777)); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(top, "data")
	text, err := json.Marshal(Note{Name: "data", Ref: "evil@0", Tree: "0", Store: filepath.Join(top, "store"), State: packed})
	if err != nil {
		t.Fatal(err)
	}
	asStranger := func(script string) {
		t.Helper()
		cmd := exec.Command("sh", "-c", script, "sh", notePath(dir), string(text))
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	for _, script := range []string{
		`printf %s "$2" >"$1"`,
		`rm "$1"; printf %s "$2" >"$1.to"; ln -s "$1.to" "$1"`,
		`rm "$1"; mkfifo "$1"`,
	} {
		asStranger(script)
		done := make(chan error, 2)
		go func() {
			_, err := ReadNote(dir)
			done <- err
			done <- Unpack(t.Context(), dir)
		}()
		for range cap(done) {
			select {
			case err := <-done:
				if err == nil {
					t.Errorf("%s: root believes it", script)
				}
			case <-time.After(time.Minute):
				t.Fatalf("%s: root waits for it", script)
			}
		}
	}
	// A note of root's own is accepted.
	asStranger(`rm "$1"`)
	want := Note{Name: "data", State: packed}
	if err := want.write(dir); err != nil {
		t.Fatal(err)
	}
	if n, err := ReadNote(dir); err != nil || *n != want {
		t.Errorf("%+v, %v", n, err)
	}
	// It is refused if others may have changed it.
	if err := os.Chmod(notePath(dir), 0o666); err != nil {
		t.Fatal(err)
	}
	var bad *Error
	if _, err := ReadNote(dir); !errors.As(err, &bad) {
		t.Errorf("%v, want an Error", err)
	}
}
