package doctor

import (
	"net"
	"os"
	"strings"
	"testing"
)

func TestAtLeast(t *testing.T) {
	for _, c := range []struct {
		release string
		want    bool
	}{
		{"6.12.0", true}, {"6.12-rc1", true}, {"7.0.1", true}, {"6.18.44-fc-v669", true}, {"10.1", true},
		{"6.1.0-28-amd64", false}, {"6.9.1", false}, {"5.15.0", false}, {"", false}, {"x", false},
	} {
		if got := atLeast(c.release, 6, 12); got != c.want {
			t.Errorf("%q: %v", c.release, got)
		}
	}
}

// The kernel of Debian 12 serves trees with FUSE, and the check reports it.
func TestOldKernel(t *testing.T) {
	c := erofs("6.1.0-28-amd64")
	if c.OK || !strings.Contains(c.Detail, "FUSE") || !strings.Contains(c.Detail, "6.12") || c.Hint == "" {
		t.Errorf("%+v", c)
	}
}

func TestPort(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, number, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if c := port("watch", number); c.OK || !strings.Contains(c.Detail, "in use") {
		t.Errorf("a port in use: %+v", c)
	}
	l.Close()
	if c := port("watch", number); !c.OK {
		t.Errorf("a free port: %+v", c)
	}
}

func TestMissingProgram(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	for _, c := range []Check{blast(), program("Slurm", "sbatch", "--engine slurm", "slurm-client")} {
		if c.OK || !strings.Contains(c.Detail, "is not on PATH") || !strings.Contains(c.Hint, "apt-get install") {
			t.Errorf("%+v", c)
		}
	}
}

// TestFeatures compares the table with the one in the documentation.
func TestFeatures(t *testing.T) {
	page, err := os.ReadFile("../../docs/features.md")
	if err != nil || !strings.Contains(string(page), Table()) {
		t.Errorf("docs/features.md does not have this table (%v):\n%s", err, Table())
	}
}

// Each check has a text, and a hint only if it failed.
func TestRun(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range Run(t.Context()) {
		if c.Detail == "" || c.Name == "" || seen[c.Name] || c.OK == (c.Hint != "") {
			t.Errorf("%+v", c)
		}
		seen[c.Name] = true
	}
	for _, name := range []string{"hot start", "trees by FUSE", "trees by EROFS", "BLAST+", "Slurm", "packets", "user namespaces", "memory for BLAST", "port of watch"} {
		if !seen[name] {
			t.Errorf("there is no check of %s", name)
		}
	}
}
