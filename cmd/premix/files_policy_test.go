package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"premix/internal/testkit/testtree"
)

// A policy that is killed repeatedly loses and duplicates no file, and completes in the end.
func TestPolicyKilled(t *testing.T) {
	dir := t.TempDir()
	const batch = 400
	for _, pool := range []string{"flash", "disk"} {
		if err := os.Mkdir(filepath.Join(dir, pool), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	content := func(i int) []byte { return bytes.Repeat(fmt.Appendf(nil, "file %d\n", i), 1+i*7%1000) }
	rules := filepath.Join(dir, "rules.sql")
	if err := os.WriteFile(rules, []byte("CREATE POOL flash AT 'flash'; CREATE POOL disk AT 'disk';\nRULE 'move' MIGRATE FROM POOL flash TO POOL disk;"), 0o666); err != nil {
		t.Fatal(err)
	}
	count, kills := 0, 0
	// On a busy machine the kill may come too late: the test then continues with more files.
	for kills < 3 && count < 20*batch {
		for range batch {
			sub := filepath.Join(dir, "flash", fmt.Sprint("sub", count%5))
			if err := errors.Join(os.MkdirAll(sub, 0o777), os.WriteFile(filepath.Join(sub, fmt.Sprint(count)), content(count), 0o666)); err != nil {
				t.Fatal(err)
			}
			count++
		}
		table, journal := filepath.Join(dir, "scan.parquet"), filepath.Join(dir, fmt.Sprint("journal", count))
		if out, err := exec.Command(binary, "files", "scan", filepath.Join(dir, "flash"), "-o", table).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		kills = policyKilled(t, rules, table, journal, kills)
	}
	if kills < 3 {
		t.Errorf("it was killed %d times only", kills)
	}
	seen := make(map[string]int)
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if strings.HasPrefix(e.Name(), ".premix-") {
			t.Errorf("left behind: %s", path)
		}
		if err == nil && !e.IsDir() && (strings.Contains(path, "/flash/") || strings.Contains(path, "/disk/")) {
			seen[e.Name()]++
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := range count {
		got, err := os.ReadFile(filepath.Join(dir, "disk", fmt.Sprint("sub", i%5), fmt.Sprint(i)))
		if err != nil || !bytes.Equal(got, content(i)) || seen[fmt.Sprint(i)] != 1 {
			t.Errorf("file %d is there %d times, or is not what it was: %v", i, seen[fmt.Sprint(i)], err)
		}
	}
	t.Logf("killed %d times", kills)
}

// policyKilled applies rules until a process completes, and returns the total number of kills. Each
// round waits a little longer after the process has begun to write.
func policyKilled(t *testing.T, rules, table, journal string, kills int) int {
	t.Helper()
	audit := func() int64 {
		st, err := os.Stat(filepath.Join(journal, "audit.jsonl"))
		if err != nil {
			return 0
		}
		return st.Size()
	}
	for ; ; kills++ {
		var out bytes.Buffer
		cmd := exec.Command(binary, "files", "policy", rules, table, "--apply", "--journal", journal)
		cmd.Stdout, cmd.Stderr = &out, &out
		before := audit()
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		finished := make(chan error, 1)
		go func() { finished <- cmd.Wait() }()
		var err error
		running := true
		comes(func() bool {
			select {
			case err = <-finished:
				running = false
			default:
			}
			return !running || audit() > before+int64(1+kills*kills*500)
		})
		if running {
			if err := cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
				t.Fatal(err)
			}
			err = <-finished
		}
		if err == nil {
			return kills
		}
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != -1 {
			t.Fatalf("%v\n%s", err, out.String())
		}
	}
}

// Packing and unpacking lose nothing when they are killed repeatedly: the directory shows the same
// files at any time, mounted or not.
func TestPackKilled(t *testing.T) {
	if !apart(t) {
		return
	}
	dir := t.TempDir()
	run := func(args ...string) *exec.Cmd {
		cmd := exec.Command(binary, args...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "PREMIX_HOME="+filepath.Join(dir, "home"), "PREMIX_NODE_DIR=")
		return cmd
	}
	ok := func(args ...string) {
		t.Helper()
		if out, err := run(args...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	logs := filepath.Join(dir, "data/logs")
	for i := range 300 {
		sub := filepath.Join(logs, fmt.Sprint("sub", i%7))
		if err := errors.Join(os.MkdirAll(sub, 0o777), os.WriteFile(filepath.Join(sub, fmt.Sprint(i)), fmt.Appendf(nil, "log %d\n", i), 0o666)); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.Command("cp", "-a", logs, filepath.Join(dir, "copy")).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	rules := "RULE 'logs' PACK INTO STORE 'store' WHERE files > 20 AND name = 'logs'"
	if err := os.WriteFile(filepath.Join(dir, "rules.sql"), []byte(rules), 0o666); err != nil {
		t.Fatal(err)
	}
	ok("store", "init", "store")
	ok("files", "scan", "data", "-o", "scan.parquet")
	t.Cleanup(func() { ok("node", "stop") })
	whole := func() {
		t.Helper()
		differences, err := testtree.Compare(filepath.Join(dir, "copy"), logs)
		if err != nil || len(differences) > 0 {
			t.Fatalf("%v %v", differences, err)
		}
	}
	random := rand.New(rand.NewPCG(1, 8))
	for _, args := range [][]string{{"files", "policy", "rules.sql", "scan.parquet", "--apply", "--journal", "journal"}, {"files", "unpack", "data/logs"}} {
		for round := 0; ; round++ {
			cmd := run(args...)
			var out bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &out
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			if round < 12 {
				time.Sleep(time.Duration(random.IntN(20+40*round)) * time.Millisecond)
				if err := cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
					t.Fatal(err)
				}
			}
			err := cmd.Wait()
			var exit *exec.ExitError
			if err != nil && (!errors.As(err, &exit) || exit.ExitCode() != -1) {
				t.Fatalf("%v: %v\n%s", args, err, out.String())
			}
			whole()
			if err == nil {
				break
			}
			// The last step of unpacking removes the note: a kill after this step finds the work
			// complete.
			notes, err := filepath.Glob(filepath.Join(dir, "data/.premix-packed-*.json"))
			if err != nil {
				t.Fatal(err)
			}
			if args[1] == "unpack" && len(notes) == 0 {
				break
			}
		}
		if args[1] == "policy" && !strings.Contains(mountTable(t), logs) {
			t.Error("it is not mounted")
		}
	}
	if strings.Contains(mountTable(t), logs) {
		t.Error("it is mounted still")
	}
	left, err := filepath.Glob(filepath.Join(dir, "data/.premix-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

func mountTable(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
