package calls

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/hotstart/procstate"
	"premix/internal/hotstart/tools"
)

// home gives a test a separate state directory.
func home(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("PREMIX_HOME", dir)
	t.Setenv("PREMIX_TOOLS", filepath.Join(dir, "tools"))
	return dir
}

func call(t *testing.T, line string, env ...string) Call {
	t.Helper()
	argv := strings.Fields(line)
	return Call{Exe: "/usr/bin/" + argv[0], Argv: argv, Env: env, Dir: t.TempDir(), Inherited: procstate.Inherited{Streams: [3]procstate.Stream{procstate.Null, procstate.Pipe, procstate.File}}}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func plan(t *testing.T, c Call) Plan {
	t.Helper()
	p, err := Decide(c)
	must(t, err)
	return p
}

// The first call of a form is recorded, the second one is prepared in the background, and later
// calls are hot.
func TestForm(t *testing.T) {
	home(t)
	first := plan(t, call(t, "bwa mem ref a_1.fq a_2.fq"))
	if first.Hot || first.Prepare || first.Key == "" {
		t.Errorf("first call: %+v", first)
	}
	if p, err := Preview(call(t, "bwa mem ref b_1.fq b_2.fq")); err != nil || !p.Prepare {
		t.Errorf("%+v, %v", p, err)
	}
	second := plan(t, call(t, "bwa mem ref b_1.fq b_2.fq"))
	if second.Hot || !second.Prepare || second.Key != first.Key {
		t.Errorf("second call: %+v", second)
	}
	preparing, err := Lock()
	must(t, err)
	must(t, RecordTrying(second.Key, call(t, "bwa mem ref b_1.fq b_2.fq")))
	if p := plan(t, call(t, "bwa mem ref c_1.fq c_2.fq")); p.Hot || p.Prepare {
		t.Errorf("while a snapshot is prepared: %+v", p)
	}
	must(t, preparing.Close())
	must(t, RecordReady(call(t, "bwa mem ref b_1.fq b_2.fq"), second))
	p := plan(t, call(t, "bwa mem ref d_1.fq d_2.fq"))
	if !p.Hot || len(p.Words) != 2 || p.Words[0].Role != tools.Input {
		t.Errorf("with a snapshot: %+v", p)
	}
	if !RecordMissed(p.Key) {
		t.Error("a form whose snapshot has gone is not prepared")
	}
	must(t, RecordTrying(p.Key, call(t, "bwa mem ref d_1.fq d_2.fq")))
	must(t, RecordKept(p.Key))
	for range 2 {
		if p := plan(t, call(t, "bwa mem ref d_1.fq d_2.fq")); !p.Hot || RecordMissed(p.Key) {
			t.Errorf("with a snapshot for other calls: %+v, or it is prepared again at once", p)
		}
	}
	must(t, RecordCold(call(t, "bwa mem ref d_1.fq d_2.fq"), p, "it is cold"))
	if RecordMissed(p.Key) {
		t.Error("a form that is cold is prepared")
	}
	if p := plan(t, call(t, "bwa mem ref e_1.fq e_2.fq")); p.Hot || p.Prepare || p.Reason != "it is cold" {
		t.Errorf("cold: %+v", p)
	}
	f := &form{}
	dir, err := Dir()
	must(t, err)
	must(t, load(filepath.Join(dir, "forms", p.Key), f))
	if f.State != "cold" || f.Tool != "bwa" {
		t.Errorf("%+v", f)
	}
}

// Of calls that begin at the same time, all but the first one count as later calls. A stopped
// process that has the lock keeps no call from its start.
func TestCallsAtOnce(t *testing.T) {
	atOnce := func() (first int) {
		home(t)
		var all sync.WaitGroup
		plans := make([]Plan, 8)
		for i := range plans {
			c := call(t, "bwa mem ref a_1.fq a_2.fq")
			all.Go(func() { plans[i], _ = Decide(c) })
		}
		all.Wait()
		for _, p := range plans {
			if !p.Prepare {
				first++
			}
		}
		return first
	}
	first := 0
	for range 5 { // a call may find the lock held for too long on a busy machine
		if first = atOnce(); first == 1 {
			break
		}
	}
	if first != 1 {
		t.Errorf("%d of 8 calls counted as the first one", first)
	}
	dir, err := openDir()
	must(t, err)
	defer hold(dir)()
	if p := plan(t, call(t, "bwa mem ref b_1.fq b_2.fq")); !p.Prepare {
		t.Errorf("while another process has the lock: %+v", p)
	}
}

// Calls that one snapshot cannot serve have different forms.
func TestFormKey(t *testing.T) {
	base := call(t, "bwa mem -t 4 ref a_1.fq a_2.fq")
	key := func(c Call) string {
		r, err := tools.Find("bwa")
		must(t, err)
		return formKey(c, r.Read(c.Argv).Late())
	}
	for line, same := range map[string]bool{
		"bwa mem -t 4 ref b_1.fq b_2.fq":     true,
		"bwa mem -t 4 ref a_1.fq a_1.fq":     true,
		"bwa mem -t 8 ref a_1.fq a_2.fq":     false,
		"bwa mem -t 4 reg a_1.fq a_2.fq":     false,
		"bwa mem -t 4 ref aa_1.fq a_2.fq":    false,
		"bwa mem -t 4 ref a/1.fq a_2.fq":     false,
		"bwa mem -t 4 ref a_1.gz a_2.fq":     false,
		"bwa mem -t 4 ref a_1.fq":            false,
		"bwa mem -t 4 ref a_1.fq a_2.fq -a":  false,
		"bwa mem -t 4 -o x ref a_1.fq a2.fq": false,
	} {
		if got := key(call(t, line)) == key(base); got != same {
			t.Errorf("%s: the same form is %v", line, got)
		}
	}
	other := base
	other.Inherited.Streams[1] = procstate.File
	if key(other) == key(base) {
		t.Error("calls with other streams have the same form")
	}
}

// Variables of schedulers and variables whose values contain the name of the sample are late. If
// another variable has changed, the call starts without a snapshot. No value is stored.
func TestLateEnv(t *testing.T) {
	dir := home(t)
	plan(t, call(t, "bwa mem ref s1_1.fq", "SAMPLE=secret-s1", "PWD=/a", "LANG=C", "SLURM_JOB_ID=1", "MODE=1"))
	second := call(t, "bwa mem ref s2_1.fq", "SAMPLE=secret-s2", "PWD=/b", "LANG=C", "SLURM_JOB_ID=2", "NEW=1", "MODE=1")
	p := plan(t, second)
	slices.Sort(p.LateEnv)
	if got := strings.Join(p.LateEnv, " "); got != "PWD SAMPLE SLURM_JOB_ID" || !p.Prepare {
		t.Errorf("late: %s, %+v", got, p)
	}
	must(t, RecordReady(second, p))
	if p := plan(t, call(t, "bwa mem ref s3_1.fq", "SAMPLE=secret-s3", "LANG=C", "MODE=1")); !p.Hot {
		t.Errorf("%+v", p)
	}
	// The reason is given once. After that the new value is part of the calls.
	for i, env := range [][]string{{"MODE=2", "LANG=C"}, {"MODE=2", "LANG=C"}, {"MODE=1", "LANG=C"}, {"MODE=1", "LANG=C"}, {"MODE=1", "LANG=de"}} {
		p := plan(t, call(t, "bwa mem ref s4_1.fq", append(env, "SAMPLE=s4")...))
		if changed := strings.Contains(p.Reason, "has another value than in the previous call"); changed != (i%2 == 0) || p.Hot == changed || slices.Contains(p.LateEnv, "MODE") {
			t.Errorf("call %d: %+v", i, p)
		}
	}
	c := call(t, "bwa mem ref s5_1.fq", "SAMPLE=x", "MODE=1", "LANG=de")
	if p := plan(t, c); p.Hot || slices.Contains(p.LateEnv, "SAMPLE") {
		t.Errorf("a value that does not name the sample: %+v", p)
	}
	c.Env = []string{"SAMPLE=" + c.Dir + "/tmp", "MODE=1", "LANG=de"}
	if p := plan(t, c); !p.Hot || !slices.Contains(p.LateEnv, "SAMPLE") {
		t.Errorf("a path in the call's directory: %+v", p)
	}
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		if strings.Contains(string(text), "secret") {
			t.Errorf("%s has the value of a variable: %s", path, text)
		}
		return err
	})
	must(t, err)
}

// Calls whose environment was prepared are hot while a snapshot is prepared for another
// environment, after a call with another one, and where calls with another one start cold.
func TestServed(t *testing.T) {
	home(t)
	with := func(mode string) Call { return call(t, "bwa mem ref s1_1.fq", "MODE="+mode, "LANG=C") }
	plan(t, with("one"))
	p := plan(t, with("one"))
	must(t, RecordReady(with("one"), p))
	if p := plan(t, with("two")); p.Hot || p.Prepare {
		t.Errorf("the first call of another environment: %+v", p)
	}
	if p := plan(t, with("one")); !p.Hot {
		t.Errorf("after a call with another environment: %+v", p)
	}
	plan(t, with("two"))
	p = plan(t, with("two"))
	if !p.Hot || !RecordMissed(p.Key) {
		t.Errorf("the second call in a row with another environment is not prepared: %+v", p)
	}
	must(t, RecordTrying(p.Key, with("two")))
	if p := plan(t, with("two")); p.Hot {
		t.Errorf("while its snapshot is prepared: %+v", p)
	}
	plan(t, with("one"))
	if p := plan(t, with("one")); !p.Hot || RecordMissed(p.Key) {
		t.Errorf("while another snapshot is prepared: %+v, or a second one is begun", p)
	}
	must(t, RecordCold(with("two"), p, "it is cold"))
	if p := plan(t, with("one")); !p.Hot || RecordMissed(p.Key) {
		t.Errorf("with another environment that is cold: %+v, or it is prepared", p)
	}
	if p := plan(t, with("two")); p.Hot || p.Reason != "it is cold" {
		t.Errorf("an environment that is cold: %+v", p)
	}
	for n := range 2 * maxServed {
		must(t, RecordReady(with(fmt.Sprint(n)), p))
	}
	must(t, RecordReady(with("1"), p))
	must(t, update(p.Key, func(f *form) {
		if len(f.Served) != maxServed || f.Served[maxServed-1] != f.Env.sum(with("1").Env, nil) {
			t.Errorf("the environments of the snapshots are %x", f.Served)
		}
	}))
	must(t, RecordCold(with("1"), p, "it is cold"))
	if p := plan(t, with("1")); p.Hot {
		t.Errorf("an environment that had a snapshot and is cold now: %+v", p)
	}
}

// Failed preparations are retried at growing intervals, a limited number of times. They are tried
// again after the program has changed.
func TestTries(t *testing.T) {
	home(t)
	c := call(t, "bwa mem ref a.fq")
	c.Exe = filepath.Join(t.TempDir(), "bwa")
	must(t, os.WriteFile(c.Exe, nil, 0o755))
	plan(t, c)
	p := plan(t, c)
	key := p.Key
	for n := range maxTries {
		must(t, RecordTrying(key, c))
		must(t, RecordFailed(key, "a reason"))
		if plan(t, c).Prepare {
			t.Fatalf("it is prepared at once after try %d", n+1)
		}
		must(t, update(key, func(f *form) { f.Since = f.Since.Add(-100 * time.Hour) }))
		if got, want := plan(t, c).Prepare, n+1 < maxTries; got != want {
			t.Fatalf("prepared long after try %d: %v", n+1, got)
		}
	}
	must(t, RecordCold(c, p, "no"))
	must(t, os.WriteFile(c.Exe, []byte("new"), 0o755))
	if !plan(t, c).Prepare {
		t.Error("a program that has changed is not tried again")
	}
	must(t, RecordCold(c, p, "no"))
	must(t, update(key, func(f *form) { f.Since = f.Since.Add(-retryAge) }))
	if !plan(t, c).Prepare {
		t.Error("a form that was cold for a week is not tried again")
	}
}

// A killed preparation is repeated before a call, but not while another process prepares, and only
// a limited number of times.
func TestKilled(t *testing.T) {
	home(t)
	c := call(t, "bwa mem ref a.fq")
	plan(t, c)
	p := plan(t, c)
	if !p.Prepare || p.First {
		t.Fatalf("the second call: %+v", p)
	}
	for range maxFirst {
		l, err := Lock()
		must(t, err)
		must(t, RecordTrying(p.Key, c))
		if p := plan(t, c); p.Prepare {
			t.Errorf("while a process prepares: %+v", p)
		}
		must(t, l.Close())
		if p := plan(t, c); !p.Prepare || !p.First {
			t.Errorf("after the process was killed: %+v", p)
		}
	}
	must(t, RecordTrying(p.Key, c))
	if p := plan(t, c); p.Prepare {
		t.Errorf("after %d tries: %+v", maxFirst+1, p)
	}
}

// For a program without a description, files and names of samples are late.
func TestLearn(t *testing.T) {
	for _, c := range []struct{ line, late string }{
		{"mytool -k 3 db S%d_1.fa --out=./S%[1]d.txt --rg @RG\\tID:S%[1]d\\tSM:S%[1]d x", "S3_1.fa:input ./S3.txt:output S3:label S3:label"},
		{"mytool -o out/S%d S%[1]d_1.fa", "out/S3:output S3_1.fa:input"},
		{"mytool -o S%d S%[1]d_1.fa", "S3:label S3_1.fa:input"},
		{"mytool -o made%d S%[1]d_1.fa", "made3:output S3_1.fa:input"},
		{"mytool S%d_1.fa S%[1]d_2.fa", "S3_1.fa:input S3_2.fa:input"},
		{"mytool in=S%d_1.fa out=out/S%[1]d.txt @x=S%[1]d", "S3_1.fa:input out/S3.txt:output S3:label"},
	} {
		t.Run(c.line, func(t *testing.T) {
			home(t)
			dir := t.TempDir()
			must(t, os.Mkdir(filepath.Join(dir, "out"), 0o755))
			for _, name := range []string{"S1_1.fa", "S2_1.fa", "S3_1.fa", "S1_2.fa", "S2_2.fa", "S3_2.fa", "made1", "made2"} {
				must(t, os.WriteFile(filepath.Join(dir, name), nil, 0o644))
			}
			if strings.Contains(c.line, "made") {
				defer func() { must(t, os.Remove(filepath.Join(dir, "made2"))) }()
				must(t, os.Remove(filepath.Join(dir, "made1"))) // outputs do not exist before their call
			}
			for i, reason := range []string{
				"the tool is not in the catalogue, and no word of its calls has changed (calls: 1)",
				"this is call 1 of its form",
				"",
			} {
				n := i + 1
				m := call(t, fmt.Sprintf(c.line, n))
				m.Dir = dir
				if n == 2 && strings.Contains(c.line, "made") {
					must(t, os.Rename(filepath.Join(dir, "made2"), filepath.Join(dir, "made1"))) // the first call has ended
				}
				p := plan(t, m)
				if n == 2 && strings.Contains(c.line, "made") {
					must(t, os.Rename(filepath.Join(dir, "made1"), filepath.Join(dir, "made2")))
				}
				if !strings.HasPrefix(p.Reason, reason) || p.Prepare != (n == 3) {
					t.Errorf("call %d: %+v", n, p)
				}
				if n < 3 {
					continue
				}
				var got []string
				for _, w := range p.Words {
					got = append(got, fmt.Sprintf("%s:%s", m.Argv[w.Arg][w.From:w.To], w.Role))
				}
				if s := strings.Join(got, " "); s != c.late {
					t.Errorf("%s, want %s", s, c.late)
				}
			}
			// Another number of words is another pattern.
			m := call(t, "mytool -k 3 db S3_1.fa a b c d")
			m.Dir = dir
			if p := plan(t, m); !strings.Contains(p.Reason, "(calls: 1)") {
				t.Errorf("%+v", p)
			}
		})
	}
}

// Words that may select the behaviour of a program belong to the command.
func TestLearnValues(t *testing.T) {
	for line, values := range map[string][]string{
		"mytool --mode %s S%d_1.fa":          {"fast", "slow", "gold", "fine"},
		"mytool --mode=%s S%d_1.fa":          {"fast", "slow", "gold", "fine"},
		"mytool mode=%s in=S%d_1.fa":         {"fast", "slow", "gold", "fine"},
		"mytool --level %s S%d_1.fa":         {"1", "2", "3", "4"},
		"mytool --ratio %s S%d_1.fa":         {"0.1", "0.2", "1.5", "0.4"},
		"mytool --format v%s.x S%d_1.fa":     {"1", "2", "3", "4"},
		"mytool --preset map/%s S%d_1.fa":    {"hifi", "onts", "pacb", "asms"},
		"mytool --type %s S%d_1.fa":          {"fa", "fq", "fs", "fx"},
		"mytool --rg ID:S1\\tPL:%s S%d_1.fa": {"illu", "onts", "pacb", "asms"},
		"mytool --mode %s all_S%d_1.fa":      {"alls", "all", "ally", "none"},
	} {
		t.Run(line, func(t *testing.T) {
			home(t)
			dir := t.TempDir()
			for i, value := range values {
				text := fmt.Sprintf(line, value, i+1)
				c := call(t, text)
				c.Dir = dir
				must(t, os.WriteFile(filepath.Join(dir, strings.TrimPrefix(c.Argv[len(c.Argv)-1], "in=")), nil, 0o644))
				p := plan(t, c)
				if p.Hot || p.Prepare {
					t.Errorf("%s: %+v", text, p)
				}
				for _, w := range p.Words {
					if w.Role != tools.Input {
						t.Errorf("%s: %q is a late word", text, c.Argv[w.Arg][w.From:w.To])
					}
				}
			}
		})
	}
	// Only a text changes, so there is no input to wait for.
	home(t)
	for _, line := range []string{"echoer a", "echoer b", "echoer c"} {
		if p := plan(t, call(t, line)); p.Prepare || p.Hot || p.Reason == "" {
			t.Errorf("%s: %+v", line, p)
		}
	}
}

// Lost or damaged state is learned again.
func TestDamage(t *testing.T) {
	dir := home(t)
	c := call(t, "bwa mem ref a.fq")
	key := plan(t, c).Key
	path := filepath.Join(dir, "calls/forms", key)
	for _, text := range []string{"", "{", "null", `{"calls": -1}`, "[]"} {
		must(t, os.WriteFile(path, []byte(text), 0o600))
		if p := plan(t, c); p.Hot {
			t.Errorf("%q: %+v", text, p)
		}
	}
	m := call(t, "mytool a")
	m.Dir = dir
	plan(t, m)
	list, err := filepath.Glob(filepath.Join(dir, "calls/patterns/*"))
	if err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	for _, text := range []string{"", "{}", "null", `{"argv": ["x"]}`, `{"calls": 5, "argv": ["mytool", "b"], "common": ["x"], "late": {"1": "label"}}`} {
		must(t, os.WriteFile(list[0], []byte(text), 0o600))
		plan(t, m)
	}
	must(t, os.Chmod(filepath.Join(dir, "calls"), 0o777))
	if p, err := Decide(c); err == nil || p.Hot || p.Prepare {
		t.Errorf("a directory to which others can write is used: %+v", p)
	}
}

func TestPrune(t *testing.T) {
	dir := t.TempDir()
	for i := range 10 {
		path := filepath.Join(dir, fmt.Sprint(i))
		must(t, os.WriteFile(path, nil, 0o600))
		at := time.Now().Add(time.Duration(i-20) * time.Hour)
		must(t, os.Chtimes(path, at, at))
	}
	prune(dir, 4)
	left, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(left) != 4 || filepath.Base(left[0]) != "6" {
		t.Error(left, err)
	}
}

// Every start has its line, even with concurrent writers. Torn lines are ignored, and the size of
// the table is limited.
func TestStarts(t *testing.T) {
	dir := home(t)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 25 {
				RecordStart(Start{Tool: "bwa", Start: "hot", Saved: 1, Bytes: 2})
			}
		})
	}
	all.Wait()
	sum := func(since time.Time) (n int) {
		t.Helper()
		must(t, Starts(since, func(s Start) {
			if s.Tool == "bwa" && s.Saved == 1 && s.Node != "" {
				n++
			}
		}))
		return n
	}
	if n := sum(time.Time{}); n != 200 {
		t.Errorf("%d starts of 200", n)
	}
	if n := sum(time.Now()); n != 0 {
		t.Errorf("%d starts of the future", n)
	}
	table := filepath.Join(dir, "calls", startsName)
	text, err := os.ReadFile(table)
	must(t, err)
	must(t, os.WriteFile(table, []byte("{\"tool\": \"bw\n"+string(text)), 0o600))
	if n := sum(time.Time{}); n != 200 {
		t.Errorf("%d starts of 200 beside a torn line", n)
	}
	// The first line above the limit renames the table, and a later one replaces the renamed table.
	f, err := os.OpenFile(table, os.O_WRONLY|os.O_APPEND, 0)
	must(t, err)
	for range maxStarts / 1024 {
		_, err := f.WriteString(strings.Repeat(" ", 1023) + "\n")
		must(t, err)
	}
	must(t, f.Close())
	RecordStart(Start{Tool: "bwa", Start: "hot", Saved: 1})
	RecordStart(Start{Tool: "bwa", Start: "hot", Saved: 1})
	if n := sum(time.Time{}); n != 202 {
		t.Errorf("%d starts of 202 in two tables", n)
	}
	if st, err := os.Stat(table); err != nil || st.Size() > 1024 {
		t.Errorf("%v, %v: the table was not put aside", st.Size(), err)
	}
}

// The background process of a call holds no pipe of the call, and is not a child of the call's
// program.
func TestBeside(t *testing.T) {
	if RunBeside() {
		t.Fatal("this process was not started beside a call")
	}
	home(t)
	dir := t.TempDir()
	// The test binary acts as the shim and as premix: see TestMain.
	must(t, unix.Mkfifo(filepath.Join(dir, "beside"), 0o600))
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "CALLS_TEST=caller", "CALLS_TEST_DIR="+dir)
	extra, w, err := os.Pipe()
	must(t, err)
	defer extra.Close()
	cmd.ExtraFiles = []*os.File{w}
	out, err := cmd.Output() // ends when no process holds the pipe
	must(t, err)
	must(t, w.Close())
	if got := string(out); got != "children: \n" {
		t.Errorf("the caller's program has %q", got)
	}
	if _, err := extra.Read(make([]byte, 1)); err == nil {
		t.Error("something was written to an inherited pipe")
	}
	text, err := os.ReadFile(filepath.Join(dir, "beside")) // ends after the process has written to it
	must(t, err)
	if got := string(text); got != "hot warm --beside --streams null,pipe,pipe --exe /bin/tool -- tool a  b" {
		t.Errorf("beside the call: %q", got)
	}
}

func TestMain(m *testing.M) {
	if RunBeside() {
		return
	}
	switch os.Getenv("CALLS_TEST") {
	case "caller":
		if err := os.Setenv("CALLS_TEST", "premix"); err != nil {
			os.Exit(1)
		}
		c := Call{Exe: "/bin/tool", Argv: []string{"tool", "a  b"}, Env: os.Environ(), Dir: "/", Inherited: procstate.Inherited{Streams: [3]procstate.Stream{procstate.Null, procstate.Pipe, procstate.Pipe}}}
		Prepare("/proc/self/exe", c, Plan{Prepare: true})
		// The kernel lists the children of the main thread of this thread group.
		children, err := os.ReadFile("/proc/thread-self/children")
		if err != nil {
			os.Exit(1)
		}
		fmt.Printf("children: %s\n", children)
		return
	case "premix":
		path := filepath.Join(os.Getenv("CALLS_TEST_DIR"), "beside")
		if err := os.WriteFile(path, []byte(strings.Join(os.Args[1:], " ")), 0); err != nil {
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// TestWorkingDir checks that a link in PWD is not the working directory.
func TestWorkingDir(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	t.Chdir(link)
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := WorkingDir(); err != nil || got != real || os.Getenv("PWD") != link {
		t.Errorf("%s, %v with PWD %s; want %s", got, err, os.Getenv("PWD"), real)
	}
}

// TestScripts checks that calls of one interpreter with different scripts are learned apart.
func TestScripts(t *testing.T) {
	for _, c := range []struct {
		a, b  []string
		alike bool
	}{
		{[]string{"python3", "a.py", "x"}, []string{"python3", "b.py", "x"}, false},
		{[]string{"python3.11", "-O", "a.py", "x"}, []string{"python3.11", "-O", "a.py", "y"}, true},
		{[]string{"java", "-jar", "a.jar", "x"}, []string{"java", "-jar", "b.jar", "x"}, false},
		{[]string{"tool", "a.py", "x"}, []string{"tool", "b.py", "x"}, true},
	} {
		a, b := Call{Exe: "/usr/bin/" + c.a[0], Argv: c.a}, Call{Exe: "/usr/bin/" + c.b[0], Argv: c.b}
		if alike := patternKey(a) == patternKey(b); alike != c.alike {
			t.Errorf("%v and %v: alike %v", c.a, c.b, alike)
		}
	}
}
