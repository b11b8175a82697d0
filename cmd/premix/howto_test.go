package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// needsOf matches the comment in which a page lists requirements besides premix: programs, root for
// the root user, fuse for /dev/fuse.
var needsOf = regexp.MustCompile(`(?m)^<!-- check: (.*) -->$`)

// TestHowTo runs each how-to as a new user would: all of its blocks run unchanged in one shell, in
// an empty directory, and no command may fail.
func TestHowTo(t *testing.T) {
	pages, err := filepath.Glob("../../docs/how-to/*.md")
	if err != nil || len(pages) < 12 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	for _, page := range pages {
		t.Run(strings.TrimSuffix(filepath.Base(page), ".md"), func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(page)
			if err != nil {
				t.Fatal(err)
			}
			if m := needsOf.FindSubmatch(text); m != nil {
				for _, need := range strings.Fields(string(m[1])) {
					if lack := lacking(need); lack != "" {
						t.Skip(lack)
					}
				}
			}
			var script strings.Builder
			for _, b := range blocksIn(string(text)) {
				if b.kind == "sh" {
					script.WriteString(b.text)
				}
			}
			if script.Len() == 0 {
				t.Fatal("the page has no block ```sh")
			}
			doHowTo(t, script.String())
		})
	}
}

// lacking returns the reason why this machine does not meet a requirement of a page, or "".
func lacking(need string) string {
	switch need {
	case "root":
		if os.Geteuid() != 0 {
			return "needs root"
		}
		return ""
	case "biopython":
		if biopython() == "" {
			return "Biopython is not installed: scripts/setup.sh test"
		}
		return ""
	case "fuse":
		need = "/dev/fuse"
		if _, err := os.Stat(need); err == nil {
			return ""
		}
	default:
		if _, err := exec.LookPath(need); err == nil {
			return ""
		}
	}
	return need + " is missing"
}

// doHowTo runs a script in an empty directory. If within is not empty, the script is an argument of
// that command.
func doHowTo(t *testing.T, script string, within ...string) {
	dir, err := os.MkdirTemp(filepath.Dir(binary), "howto-") // the short name leaves room for the paths of sockets
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	ram, err := os.MkdirTemp("/dev/shm", "premix-test-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(ram)
	work, home := filepath.Join(dir, "w"), filepath.Join(dir, "h")
	for _, d := range []string{work, home} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	argv := append(within, "bash", "-eu", "-o", "pipefail", "-c", script)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir = work
	cmd.Env = append(os.Environ(), "HOME="+home, "PREMIX_HOME="+filepath.Join(home, "premix"),
		"XDG_RUNTIME_DIR="+home, "PREMIX_BLAST_RAM="+ram, "PATH="+filepath.Dir(binary)+":"+os.Getenv("PATH"))
	// A command that a page leaves in the background keeps the output open.
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	stop := exec.Command(binary, "node", "stop", "--lazy")
	stop.Env = cmd.Env
	_ = stop.Run() // most pages start none
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
}
