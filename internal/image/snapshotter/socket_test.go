package snapshotter_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"premix/internal/node"
)

// Only root can connect to the socket, whatever the umask is, because clients decide which
// files containers see.
func TestSocketMode(t *testing.T) {
	needRoot(t)
	root := filepath.Join(t.TempDir(), "root")
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	defer syscall.Umask(syscall.Umask(0))
	_, end := start(t, root, func(string) node.MountRequest { return node.MountRequest{} })
	defer func() {
		if err := end(); err != nil {
			t.Error(err)
		}
	}()
	var st os.FileInfo
	if !wait(func() (there bool) {
		var err error
		st, err = os.Lstat(filepath.Join(root, "socket"))
		return err == nil
	}) {
		t.Fatal("there is no socket")
	}
	if st.Mode() != fs.ModeSocket|0o600 {
		t.Errorf("its mode is %v", st.Mode())
	}
}
