package inplace

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/hotstart/frozen"
	"premix/internal/hotstart/late"
	"premix/internal/hotstart/procstate"
)

// tool is the path of a simulated aligner, testdata/tool.c, compiled once.
var tool string

// TestMain is also the main function of the calls that tests make.
func TestMain(m *testing.M) {
	if spec := os.Getenv("PREMIX_TEST_CALL"); spec != "" {
		os.Unsetenv("PREMIX_TEST_CALL")
		runtime.LockOSThread()
		os.Exit(front(spec))
	}
	if err := unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC); err != nil {
		panic(err)
	}
	os.Exit(withTool(m))
}

// clientSpec describes a call in a separate process.
type clientSpec struct {
	Store string
	Note  string // file to which the kind of the start is written
	Call  Call
}

// front acts as the verb: it starts the call hot, or executes the command directly.
func front(spec string) int {
	var s clientSpec
	if err := json.Unmarshal([]byte(spec), &s); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 120
	}
	s.Call.Stdin, s.Call.Stdout, s.Call.Stderr = os.Stdin, os.Stdout, os.Stderr
	s.Call.Env = os.Environ()
	snap, reason := Find(s.Store, s.Call)
	if snap != nil {
		exit, err := Run(snap, s.Call)
		var interrupted *Interrupted
		if err == nil || errors.As(err, &interrupted) {
			note := fmt.Sprintf("hot %v", err)
			if snap.Plain != "" {
				note = "plain " + snap.Plain
			}
			_ = os.WriteFile(s.Note, []byte(note), 0o600)
			End(exit)
		}
		reason = err.Error()
	}
	_ = os.WriteFile(s.Note, []byte("cold "+reason), 0o600)
	fmt.Fprintln(os.Stderr, syscall.Exec(s.Call.Exe, s.Call.Argv, s.Call.Env))
	return 121
}

func withTool(m *testing.M) int {
	dir, err := os.MkdirTemp("", "premix-inplace-")
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
	if out, err := exec.Command("cc", "-O1", "-o", tool, "testdata/tool.c").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "the tests need a C compiler: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// place is a directory in which calls are made.
type place struct {
	t     *testing.T
	dir   string
	store string
	calls int
	timed bool // the tool writes times to standard error, from threads in varying order
	dated bool // the tool writes the times of its execution
	mixed bool // the threads of the tool write lines to all files in varying order

	enough time.Duration // see PrepareOptions
}

func newPlace(t *testing.T) *place {
	t.Helper()
	base, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	p := &place{t: t, enough: 1, dir: filepath.Join(base, "work", strings.Repeat("d", 120)), store: filepath.Join(base, "store")}
	if err := os.MkdirAll(p.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	p.write("index", strings.Repeat("an index of some size\n", 100000))
	for i, name := range []string{"SRR5204809_1.fq", "SRR5204810_1.fq", "SRR77_1.fq"} {
		p.write(name, reads(i, 300+i))
	}
	return p
}

// reads returns the content of a FASTQ file.
func reads(seed, n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "@read%d.%d\n%s\n+\n%s\n", seed, i, strings.Repeat("ACGTTGCA"[(seed+i)%8:], 4), strings.Repeat("IIIIIIII"[(seed+i)%8:], 4))
	}
	return b.String()
}

func (p *place) write(name, text string) {
	p.t.Helper()
	if err := os.WriteFile(filepath.Join(p.dir, name), []byte(text), 0o644); err != nil {
		p.t.Fatal(err)
	}
}

// invocation describes a call for a test. Late words are in braces with their role before them, as
// in {input:NAME}.
type invocation struct {
	dir   string // if empty, the directory of the place
	exe   string // if empty, tool
	args  []string
	env   []string // in addition to PATH and PWD
	late  []string
	rates []string // regular expressions of parts of files with times and rates
	stdin string   // content; if empty, the null device
	skip  int64    // bytes of stdin that were read before the call, if stdin is a file
	above string   // content of the file of standard output before the call, which appends to it
	pipe  bool     // standard input and output are pipes
	join  bool     // standard error is the same file as standard output
	front func(*exec.Cmd)
}

func (p *place) call(v invocation) Call {
	p.t.Helper()
	c := Call{Exe: v.exe, Dir: v.dir, LateEnv: v.late, Rates: v.rates}
	if c.Exe == "" {
		c.Exe = tool
	}
	if c.Dir == "" {
		c.Dir = p.dir
	}
	for i, arg := range append([]string{filepath.Base(c.Exe)}, v.args...) {
		for _, role := range []Role{Input, Output, Label} {
			for {
				before, rest, ok := strings.Cut(arg, "{"+string(role)+":")
				if !ok {
					break
				}
				word, after, _ := strings.Cut(rest, "}")
				c.Words = append(c.Words, Word{Arg: i, From: len(before), To: len(before) + len(word), Role: role})
				arg = before + word + after
			}
		}
		c.Argv = append(c.Argv, arg)
	}
	c.Env = append([]string{"PATH=/usr/bin:/bin", "PWD=" + c.Dir}, v.env...)
	return c
}

// result is the outcome of a call.
type result struct {
	stdout, stderr string
	state          *os.ProcessState
	kind           string
	began, ended   time.Time
	files          map[string]string
}

// command returns a call in a separate process, direct or through the engine.
func (p *place) command(v invocation, hot bool) (cmd *exec.Cmd, note string) {
	p.t.Helper()
	c := p.call(v)
	p.calls++
	note = filepath.Join(p.t.TempDir(), "note")
	cmd = exec.Command(c.Exe, c.Argv[1:]...)
	cmd.Args[0] = c.Argv[0]
	cmd.Env = c.Env
	if hot {
		spec, err := json.Marshal(clientSpec{Store: p.store, Note: note, Call: c})
		if err != nil {
			p.t.Fatal(err)
		}
		cmd = exec.Command("/proc/self/exe")
		cmd.Env = append(c.Env, "PREMIX_TEST_CALL="+string(spec))
	}
	cmd.Dir = c.Dir
	if v.front != nil {
		v.front(cmd)
	}
	return cmd, note
}

// run makes a call.
func (p *place) run(v invocation, hot bool) result {
	p.t.Helper()
	cmd, note := p.command(v, hot)
	var out, errs bytes.Buffer
	dir := p.t.TempDir()
	if v.pipe {
		cmd.Stdout, cmd.Stderr = &out, &errs
		if v.join {
			cmd.Stderr = &out
		}
		if v.stdin != "" {
			cmd.Stdin = strings.NewReader(v.stdin)
		}
	} else {
		for i, name := range []string{"stdout", "stderr"} {
			f, err := os.Create(filepath.Join(dir, name))
			if err != nil {
				p.t.Fatal(err)
			}
			defer f.Close()
			switch {
			case i == 0:
				if _, err := f.WriteString(v.above); err != nil {
					p.t.Fatal(err)
				}
				cmd.Stdout = f
			case v.join:
				cmd.Stderr = cmd.Stdout
			default:
				cmd.Stderr = f
			}
		}
		if v.stdin != "" {
			if err := os.WriteFile(filepath.Join(dir, "stdin"), []byte(v.stdin), 0o600); err != nil {
				p.t.Fatal(err)
			}
			f, err := os.Open(filepath.Join(dir, "stdin"))
			if err != nil {
				p.t.Fatal(err)
			}
			defer f.Close()
			if _, err := f.Seek(v.skip, io.SeekStart); err != nil {
				p.t.Fatal(err)
			}
			cmd.Stdin = f
		}
	}
	before := p.files(cmd.Dir)
	began := time.Now()
	err := cmd.Run()
	ended := time.Now()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		p.t.Fatalf("%v: %v", cmd.Args, err)
	}
	r := result{stdout: out.String(), stderr: errs.String(), state: cmd.ProcessState, began: began, ended: ended, files: map[string]string{}}
	if !v.pipe {
		r.stdout, r.stderr = readText(p.t, filepath.Join(dir, "stdout")), readText(p.t, filepath.Join(dir, "stderr"))
	}
	for name, text := range p.files(cmd.Dir) {
		if old, ok := before[name]; !ok || old != text {
			r.files[name] = text
		}
	}
	if hot {
		r.kind = readText(p.t, note)
	}
	return r
}

func readText(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func (p *place) files(dir string) map[string]string {
	p.t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrPermission) {
			b, err = []byte("(not for us)"), nil
		}
		all[path] = string(b)
		return err
	})
	if err != nil {
		p.t.Fatal(err)
	}
	return all
}

// prepare prepares a call.
func (p *place) prepare(v invocation) error {
	p.t.Helper()
	c := p.call(v)
	a := p.inherited(v)
	c.Inherited = &a
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	before := p.files(c.Dir)
	snap, err := Prepare(ctx, p.store, c, PrepareOptions{Scratch: p.t.TempDir(), Log: p.t.Logf, Enough: p.enough})
	if err == nil {
		snap.Close()
		p.t.Logf("prepared in %.2f s, loads in %.3f s, %d bytes, %d places, words %q", snap.Seconds, snap.Loaded, snap.Memory, len(snap.plan.Places), snap.plan.Words)
	}
	for name, text := range p.files(c.Dir) {
		if before[name] != text {
			p.t.Errorf("the preparation has written %s", name)
		}
		delete(before, name)
	}
	for name := range before {
		p.t.Errorf("the preparation has removed %s", name)
	}
	return err
}

// inherited returns the state that the tool of a call inherits.
func (p *place) inherited(v invocation) procstate.Inherited {
	a := procstate.Current()
	a.Streams, a.Joined, a.Extra = [3]procstate.Stream{procstate.Null, procstate.File, procstate.File}, v.join, nil
	if v.pipe {
		a.Streams[1], a.Streams[2] = procstate.Pipe, procstate.Pipe
	}
	if v.stdin != "" {
		a.Streams[0] = a.Streams[1]
	}
	if v.above != "" {
		a.Streams[1] = procstate.Appended
	}
	return a
}

// same makes a call hot and directly, and compares the outcomes. It returns the result of the hot
// start.
func (p *place) same(v invocation) result {
	p.t.Helper()
	hot := p.run(v, true)
	for name := range hot.files {
		os.Remove(name)
	}
	plain := p.run(v, false)
	if p.mixed {
		for _, r := range []*result{&hot, &plain} {
			r.stdout = string(inAnyOrder.of([]byte(r.stdout)))
			for name, text := range r.files {
				r.files[name] = string(inAnyOrder.of([]byte(text)))
			}
		}
	}
	if p.dated {
		hot.blankDates(v.env)
		plain.blankDates(v.env)
	}
	for _, rate := range v.rates {
		blank := func(rate string) string {
			return regexp.MustCompile(`[\t ]+([\d.:]+|inf|-?nan)`).ReplaceAllString(rate, " N")
		}
		for _, r := range []*result{&hot, &plain} {
			for name, text := range r.files {
				r.files[name] = regexp.MustCompile("(?m)"+rate).ReplaceAllStringFunc(text, blank)
			}
		}
	}
	if hot.stdout != plain.stdout {
		p.t.Errorf("%v: standard output is %q, plain %q", v.args, tail(hot.stdout), tail(plain.stdout))
	}
	if hot.stderr != plain.stderr && !(p.timed && late.EqualButNumbers(sortedLines(hot.stderr), sortedLines(plain.stderr))) {
		p.t.Errorf("%v: standard error is %q, plain %q", v.args, tail(hot.stderr), tail(plain.stderr))
	}
	if hot.state.Sys() != plain.state.Sys() {
		p.t.Errorf("%v: it ends with %v, plain with %v", v.args, hot.state, plain.state)
	}
	if fmt.Sprint(hot.files) != fmt.Sprint(plain.files) {
		p.t.Errorf("%v: it wrote %d files, plain %d, or others", v.args, len(hot.files), len(plain.files))
		for name, text := range hot.files {
			if other := plain.files[name]; text != other {
				at := max(0, differsAt([]byte(text), []byte(other))-60)
				p.t.Logf("%s: %.120q, plain %.120q", name, text[min(at, len(text)):], other[min(at, len(other)):])
			}
		}
	}
	return hot
}

// blankDates replaces the times of a call, which a hot start may round down by a second.
func (r *result) blankDates(env []string) {
	blank := func(text string) string {
		return string(frozen.BlankDates([]byte(text), r.began.Add(-time.Second), r.ended, env))
	}
	r.stdout, r.stderr = blank(r.stdout), blank(r.stderr)
	for name, text := range r.files {
		r.files[name] = blank(text)
	}
}

// wantHot is like same for a call that must start hot.
func (p *place) wantHot(v invocation) {
	p.t.Helper()
	if r := p.same(v); r.kind != "hot <nil>" {
		p.t.Errorf("%v started %s", v.args, r.kind)
	}
}

// wantCold is like same for a call that must start cold, for a reason.
func (p *place) wantCold(v invocation, reason string) {
	p.t.Helper()
	if r := p.same(v); !strings.HasPrefix(r.kind, "cold ") || !strings.Contains(r.kind, reason) {
		p.t.Errorf("%v started %q, want cold because of %q", v.args, r.kind, reason)
	}
}

func tail(text string) string {
	if len(text) > 300 {
		return "..." + text[len(text)-300:]
	}
	return text
}

// sortedLines returns the lines of a text in the order of their letters.
func sortedLines(text string) []byte {
	lines := strings.SplitAfter(text, "\n")
	slices.SortFunc(lines, func(a, b string) int { return strings.Compare(lettersOf(a), lettersOf(b)) })
	return []byte(strings.Join(lines, ""))
}

// lettersOf returns a text without its digits.
func lettersOf(text string) string {
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return -1
		}
		return r
	}, text)
}
