package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"premix/internal/kit/exit"
	"strings"
	"testing"
	"time"
)

// attackPlace makes a directory that belongs to root, with a victim in it, and a subdirectory that
// every user can write to.
func attackPlace(t *testing.T) (dir, open string, unchanged func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, whom a second user attacks")
	}
	dir = t.TempDir()
	open = filepath.Join(dir, "open")
	if err := errors.Join(os.Chmod(filepath.Dir(dir), 0o755), os.Chmod(dir, 0o755), os.Mkdir(open, 0o777), os.Chmod(open, 0o777)); err != nil {
		t.Fatal(err)
	}
	return dir, open, victim(t, filepath.Join(dir, "victim"))
}

// asRoot runs premix and returns its status and its standard error.
func asRoot(t *testing.T, dir string, args ...string) (int, string) {
	t.Helper()
	cmd := exec.Command(binary, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PREMIX_HOME="+filepath.Join(dir, "home"), "SUDO_UID=", "SUDO_GID=")
	var errs bytes.Buffer
	cmd.Stderr = &errs
	late := time.AfterFunc(2*time.Minute, func() { _ = cmd.Process.Kill() })
	defer late.Stop()
	var finished *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &finished) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), errs.String()
}

// refused fails the test unless premix has refused with the error want and a hint.
func refused(t *testing.T, status int, errs string, want string) {
	t.Helper()
	if status != int(exit.Directory) || !strings.Contains(errs, want) || !strings.Contains(errs, "\nhint: ") {
		t.Errorf("status %d, want %d and %q\n%s", status, int(exit.Directory), want, errs)
	}
}

// Root begins no run and submits no tasks in a directory that another user has prepared.
func TestAttackRunDirectory(t *testing.T) {
	dir, open, unchanged := attackPlace(t)
	for name, text := range map[string]string{"tasks.txt": "true\n", "reads": "text\n", "samples.csv": "sample,r1\nA,reads\n",
		"recipe.yaml": "name: cat\ncommand: cat ${r1}\ninputs: [r1]\noutputs: {stdout: \"${sample}.txt\"}\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	asStranger(t, `mkdir "$1/run" && ln -s "$2" "$1/run/.premix"`, open, filepath.Join(dir, "victim"))
	status, errs := asRoot(t, dir, "task", "submit", "tasks.txt", "--out", filepath.Join(open, "run"))
	refused(t, status, errs, open+" can be written to by other users")
	unchanged()
	status, errs = asRoot(t, dir, "run", "recipe.yaml", "samples.csv", "--out", filepath.Join(open, "run"), "--start", "cold")
	refused(t, status, errs, open+" can be written to by other users")
	unchanged()
	// The directory belongs to root, and every user can write there.
	asStranger(t, `rm -r "$1/run"`, open)
	if err := errors.Join(os.Mkdir(filepath.Join(open, "run"), 0o777), os.Chmod(filepath.Join(open, "run"), 0o777)); err != nil {
		t.Fatal(err)
	}
	asStranger(t, `ln -s "$2" "$1/run/.premix"`, open, filepath.Join(dir, "victim"))
	status, errs = asRoot(t, dir, "task", "run", "tasks.txt", "--out", filepath.Join(open, "run"))
	refused(t, status, errs, "can be written to by other users")
	unchanged()
	// Only root can write to the directory, but other users can rename it.
	for _, uid := range []int{0, stranger} {
		run := filepath.Join(open, "above", "run")
		if err := errors.Join(os.MkdirAll(run, 0o755), os.Chown(filepath.Dir(run), uid, uid)); err != nil {
			t.Fatal(err)
		}
		for _, args := range [][]string{{"task", "run", "tasks.txt"}, {"run", "recipe.yaml", "samples.csv", "--start", "cold"}} {
			status, errs = asRoot(t, dir, append(args, "--out", run)...)
			refused(t, status, errs, open+" can be written to by other users")
		}
	}
	unchanged()
	if err := os.Chmod(open, 0o777|os.ModeSticky); err != nil {
		t.Fatal(err)
	}
	status, errs = asRoot(t, dir, "task", "run", "tasks.txt", "--out", filepath.Join(open, "above", "run"))
	refused(t, status, errs, "above belongs to user 65534")
	unchanged()
	// The tables are links.
	asStranger(t, `mkdir -p "$1/tasks/.premix/queue" && ln -s "$2/made" "$1/tasks/.premix/queue/orders.jsonl"; ln -s "$2/made" "$1/tasks/.premix/queue/tasks.jsonl"`, open, filepath.Join(dir, "victim"))
	if status, errs = asRoot(t, dir, "task", "ls", filepath.Join(open, "tasks")); status == int(exit.OK) {
		t.Errorf("status %d\n%s", status, errs)
	}
	unchanged()
}

// Root publishes nothing in a store of another user, because that user can replace its directories
// by links.
func TestAttackStore(t *testing.T) {
	dir, open, unchanged := attackPlace(t)
	// A user who can rename the store can put another one in its place.
	status, errs := asRoot(t, dir, "store", "init", filepath.Join(open, "store"))
	refused(t, status, errs, "can be written to by other users")
	if err := os.Chmod(open, 0o777|os.ModeSticky); err != nil {
		t.Fatal(err)
	}
	if status, errs := asRoot(t, dir, "store", "init", filepath.Join(open, "store")); status != int(exit.OK) {
		t.Fatalf("status %d\n%s", status, errs)
	}
	if err := os.Mkdir(filepath.Join(dir, "data"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(filepath.Join(open, "store"), stranger, stranger); err != nil {
		t.Fatal(err)
	}
	asStranger(t, `mv "$1/store/tags" "$1/store/moved" && ln -s "$2" "$1/store/tags"`, open, filepath.Join(dir, "victim"))
	status, errs = asRoot(t, dir, "store", "publish", "--store", filepath.Join(open, "store"), "data", "x")
	refused(t, status, errs, "belongs to user 65534")
	unchanged()
}

// Root does not follow links that wait under the final or the temporary name of a table or a page.
func TestAttackTable(t *testing.T) {
	dir, open, unchanged := attackPlace(t)
	secret := filepath.Join(dir, "victim/secret")
	table := filepath.Join(open, "scan.parquet")
	asStranger(t, `ln -s "$2" "$1.tmp"`, table, secret)
	if status, errs := asRoot(t, dir, "files", "scan", filepath.Join(dir, "victim"), "-o", table); status != int(exit.OK) {
		t.Errorf("status %d\n%s", status, errs)
	}
	unchanged()
	page := filepath.Join(open, "page.html")
	asStranger(t, `ln -s "$2" "$1"`, page, secret)
	if status, errs := asRoot(t, dir, "files", "report", table, "--html", page); status != int(exit.Usage) || !strings.Contains(errs, "is not a page that premix wrote") {
		t.Errorf("status %d\n%s", status, errs)
	}
	unchanged()
	status, errs := asRoot(t, dir, "files", "report", table, "--html", page, "--force")
	refused(t, status, errs, "is a symbolic link of another user (65534)")
	unchanged()
}
