package shortdir

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestNew(t *testing.T) {
	t.Setenv("TMPDIR", filepath.Join(t.TempDir(), strings.Repeat("x", 150)))
	var dir string
	t.Run("use", func(t *testing.T) {
		dir = New(t)
		l, err := net.Listen("unix", filepath.Join(dir, strings.Repeat("s", 50)))
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
	})
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("%s is left: %v", dir, err)
	}
}
