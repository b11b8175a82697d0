package hotstart

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

// tool is the path of a simulated aligner, testdata/tool.c, compiled once.
var tool string

// TestMain is also the main function of the supervisors that tests open, and of the runs that
// TestKilledPremix and TestKilledContainers kill.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == SupervisorArg {
		os.Exit(SupervisorMain())
	}
	if dir := os.Getenv("PREMIX_TEST_VICTIM"); dir != "" {
		os.Exit(victim(dir))
	}
	if root := os.Getenv("PREMIX_TEST_CONTAINER"); root != "" {
		os.Exit(containerVictim(root, os.Getenv("PREMIX_TEST_DIR")))
	}
	os.Exit(withTool(m))
}

func withTool(m *testing.M) int {
	dir, err := os.MkdirTemp("", "premix-hotstart-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	tool = filepath.Join(dir, "tool")
	if out, err := exec.Command("cc", "-O1", "-pthread", "-o", tool, "testdata/tool.c").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "the tests need a C compiler: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// needNamespaces skips a test that needs root.
func needNamespaces(t *testing.T) {
	t.Helper()
	if !probeHost().namespaces {
		t.Skip("mount namespaces need root (CAP_SYS_ADMIN)")
	}
}

// kinds lists the kinds of start.
var kinds = []Kind{Cold, Hot}

// bench is a Starter with a directory for its tasks.
type bench struct {
	t       *testing.T
	dir     string
	store   string
	starter *Starter
	notices []string

	noticing sync.Mutex // guards notices while tasks run
}

func newSpec(args ...string) Spec {
	return Spec{
		Name: "tool", Argv: append([]string{tool}, args...),
		Env:    []string{"PATH=/usr/bin:/bin", "MARK=frozen"},
		Inputs: []string{"input"}, Ready: Ready{Kind: ReadyOpen}, Recipe: "1",
	}
}

func newBench(t *testing.T, spec Spec, kind Kind) *bench {
	t.Helper()
	dir := t.TempDir()
	return benchIn(t, spec, kind, dir, filepath.Join(dir, "store"))
}

func benchIn(t *testing.T, spec Spec, kind Kind, dir, store string) *bench {
	t.Helper()
	b := &bench{t: t, dir: dir, store: store}
	var err error
	b.starter, err = New(spec, Options{Store: store, Start: kind, Log: func(f string, a ...any) {
		b.noticing.Lock() // tasks begin at the same time
		defer b.noticing.Unlock()
		b.notices = append(b.notices, fmt.Sprintf(f, a...))
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.starter.Close() })
	return b
}

// prepare proves the start with one sample; "" means no probe.
func (b *bench) prepare(probe string) error {
	b.t.Helper()
	scratch, err := os.MkdirTemp(b.dir, "scratch-")
	if err != nil {
		b.t.Fatal(err)
	}
	var in map[string]string
	if probe != "" {
		in = map[string]string{"input": b.input(probe)}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	return b.starter.Prepare(ctx, in, scratch)
}

func (b *bench) mustPrepare(probe string) {
	b.t.Helper()
	if err := b.prepare(probe); err != nil {
		b.t.Fatalf("prepare: %v", err)
	}
}

// input writes a sample, which consists of commands for the tool.
func (b *bench) input(commands string) string {
	b.t.Helper()
	f, err := os.CreateTemp(b.dir, "sample-")
	if err != nil {
		b.t.Fatal(err)
	}
	defer f.Close()
	if _, err := io.WriteString(f, commands); err != nil {
		b.t.Fatal(err)
	}
	if err := f.Chmod(0o644); err != nil { // the user of an image reads it too
		b.t.Fatal(err)
	}
	return f.Name()
}

// task makes an empty directory for the next task.
func (b *bench) task() string {
	b.t.Helper()
	// Another bench may have the same directory.
	top := filepath.Join(b.dir, "tasks")
	if err := os.MkdirAll(top, 0o755); err != nil {
		b.t.Fatal(err)
	}
	dir, err := os.MkdirTemp(top, "")
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		b.t.Fatal(err)
	}
	return dir
}

type result struct {
	out, err, dir string
	exit          Exit
	proc          *Process
}

func (b *bench) start(commands string) (*Process, string) {
	b.t.Helper()
	dir := b.task()
	p, err := b.starter.Start(context.Background(), Task{Dir: dir, Inputs: map[string]string{"input": b.input(commands)}})
	if err != nil {
		b.t.Fatalf("start: %v", err)
	}
	return p, dir
}

func (b *bench) finish(p *Process, dir string) result {
	b.t.Helper()
	out := ""
	if p.Stdout != nil {
		defer p.Stdout.Close()
		text, err := io.ReadAll(p.Stdout)
		if err != nil {
			b.t.Fatal(err)
		}
		out = string(text)
	}
	exit, err := p.Wait()
	if err != nil {
		b.t.Fatalf("wait: %v", err)
	}
	if p.Stdout == nil {
		out = read(b.t, filepath.Join(dir, StdoutName))
	}
	return result{out: out, err: read(b.t, filepath.Join(dir, StderrName)), dir: dir, exit: exit, proc: p}
}

func (b *bench) run(commands string) result {
	b.t.Helper()
	p, dir := b.start(commands)
	return b.finish(p, dir)
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func gzipped(t *testing.T, text string) string {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	io.WriteString(z, text)
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// eventually waits until a condition holds, and fails the test at a time limit.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("not within two minutes: %s", what)
}

// processesWith lists the processes with a mark in their environment.
func processesWith(t *testing.T, mark string) []string {
	t.Helper()
	var found []string
	environs, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, path := range environs {
		env, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(env, []byte(mark)) {
			continue
		}
		status, err := os.ReadFile(filepath.Join(filepath.Dir(path), "status"))
		if err == nil && !bytes.Contains(status, []byte("State:\tZ")) {
			name, _, _ := bytes.Cut(status, []byte("\n"))
			found = append(found, filepath.Base(filepath.Dir(path))+" "+string(name))
		}
	}
	return found
}

// mounts lists the mounts at the places that supervisors use: /proc, the fixed places, and dir,
// which contains the tasks. Other mounts may change at any time, for example by tests of other
// packages.
func mounts(t *testing.T, dir string) string {
	t.Helper()
	var ours strings.Builder
	for line := range strings.Lines(read(t, "/proc/self/mounts")) {
		at := strings.Fields(line)[1]
		for _, place := range []string{"/proc", FixedDir, dir} {
			if at == place || place != "/proc" && strings.HasPrefix(at, place+"/") {
				ours.WriteString(line)
			}
		}
	}
	return ours.String()
}

func wantUnavailable(t *testing.T, err error, kind Kind, reason string) {
	t.Helper()
	var u *Unavailable
	if !errors.As(err, &u) {
		t.Fatalf("got error %v, want *Unavailable", err)
	}
	if u.Kind != kind || !regexp.MustCompile(reason).MatchString(u.Reason) {
		t.Fatalf("got %s start unavailable because %q, want %s because of %q", u.Kind, u.Reason, kind, reason)
	}
}

// smapsSum adds up one field of all mappings of a process, in bytes.
func smapsSum(t *testing.T, pid int, field string) int64 {
	t.Helper()
	f, err := os.Open(fmt.Sprintf("/proc/%d/smaps", pid))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var total int64
	for s := bufio.NewScanner(f); s.Scan(); {
		if strings.HasPrefix(s.Text(), field+":") {
			var kb int64
			fmt.Sscanf(strings.TrimPrefix(s.Text(), field+":"), "%d", &kb)
			total += kb << 10
		}
	}
	return total
}
