package calls

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/hotstart/procstate"
	"premix/internal/hotstart/tools"
	"premix/internal/kit/beneath"
	"premix/internal/kit/lock"
	"premix/internal/kit/owner"
)

// Call is a command as its caller would execute it.
type Call struct {
	Exe       string // absolute path of the program
	Path      string // of the program as execve(2) gets it from the caller; empty: Exe
	Argv, Env []string
	Dir       string
	Inherited procstate.Inherited
	// Running is true if the call has begun. Directories then has the indexes of the outputs
	// among the late words that were directories before, and Pipes the indexes of the inputs
	// that were pipes.
	Running            bool
	Directories, Pipes []int
}

// WorkingDir returns the working directory of this process as the kernel has it, for Call.Dir.
// os.Getwd may return the path of a link (PWD), and a tool that asks the kernel gets another.
func WorkingDir() (string, error) {
	dir, err := unix.Getwd()
	return dir, os.NewSyscallError("getcwd", err)
}

// Plan is a decision on a call.
type Plan struct {
	Hot     bool          // a snapshot may serve the call
	Reason  string        // why it starts cold, if Hot is false
	Prepare bool          // prepare a snapshot during the call
	First   bool          // prepare it before the call instead
	Await   bool          // a snapshot may be in preparation, and the call may wait for it
	Waited  time.Duration // for a preparation
	Words   []tools.Word  // the late words
	LateEnv []string      // names of the late variables
	Rates   []string      // regular expressions of parts of output files with times and rates
	Key     string        // of the form; empty if the command is not recorded
	Cold    bool          // all calls of the form start cold, for a reason that lasts
	Behind  []string      // programs that can start hot when the call, a script, executes them; the script itself starts cold
	Script  string        // with Behind: the key of the script's form, for RecordBehind
}

// Bounds; see the package's documentation.
const (
	maxForms  = 2048
	maxTries  = 6
	maxFirst  = 2 // tries after which a preparation may still come before a call
	maxServed = 8 // environments of a form
	maxStarts = 8 << 20
	retryAge  = 7 * 24 * time.Hour
)

// calls after which a snapshot is prepared.
const (
	knownCalls   = 2 // of a form of a program in the catalogue
	unknownCalls = 3 // of a pattern, and knownCalls of a form
)

// lateNames are the names, and latePrefixes the beginnings of the names, of variables that
// shells, schedulers and workflow managers change from call to call.
var (
	lateNames    = []string{"PWD", "OLDPWD", "_", "SHLVL", "HOSTNAME", "TMPDIR", "MAKEFLAGS", "MFLAGS", "MAKELEVEL", "INVOCATION_ID", "JOURNAL_STREAM", "WINDOWID"}
	latePrefixes = []string{"SLURM_", "PBS_", "LSB_", "SGE_", "JOB_", "_CONDOR_", "NXF_", "PARALLEL_", "MAKE_TERM", "SSH_", "XDG_SESSION_"}
)

// form is the record of the calls of a form.
type form struct {
	Tool  string    `json:"tool"`
	Argv  []string  `json:"argv"` // of the last noted call
	Calls int       `json:"calls"`
	Last  time.Time `json:"last"`
	Env   envSeen   `json:"env"`

	State  state     `json:"state,omitempty"`
	Reason string    `json:"reason,omitempty"` // of the state cold, or of the last preparation that failed
	Since  time.Time `json:"since,omitzero"`   // of the state, or of the last preparation
	Tries  int       `json:"tries,omitempty"`  // failed preparations
	Exe    exeStamp  `json:"exe"`

	// Served identifies the environments for which there was a snapshot, the last one at the end.
	Served []uint64 `json:"served,omitempty"`
}

type state string

const (
	unprepared state = ""
	ready      state = "ready"
	cold       state = "cold"
)

// exeStamp is the recorded size and time of a program, by which a change is found.
type exeStamp struct {
	Size  int64 `json:"size"`
	Mtime int64 `json:"mtime"` // ns since the epoch
}

func stampOf(exe string) exeStamp {
	var st unix.Stat_t
	if unix.Stat(exe, &st) != nil {
		return exeStamp{}
	}
	return exeStamp{st.Size, st.Mtim.Nano()}
}

// envSeen has the variables of calls. It keeps their values as keyed hashes, since the
// values may be secrets.
//
// A variable whose value changes may change the work of the tool, and is not late. It is
// late if it is one of lateNames, or if its value names the sample.
type envSeen struct {
	Salt   uint64            `json:"salt"`
	Values map[string]uint32 `json:"values"`
	Late   []string          `json:"late,omitempty"` // names whose values have changed and name the sample
}

// note compares an environment with the one before, and keeps it. named reports whether a
// value names the sample. It returns whether there is something new to keep, and the name
// of a variable with another value that does not name the sample, or "".
func (e *envSeen) note(env []string, named func(value string) bool) (found bool, other string) {
	if e.Values == nil {
		e.Salt = rand.Uint64()
	}
	values := make(map[string]uint32, len(env))
	for _, v := range env {
		name, value, _ := strings.Cut(v, "=")
		h := fnv.New64a()
		fmt.Fprintf(h, "%x %s", e.Salt, value)
		sum := uint32(h.Sum64())
		if before, ok := e.Values[name]; ok && before != sum && !alwaysLate(name) {
			found = true
			if !named(value) {
				other = name
				e.Late = slices.DeleteFunc(e.Late, func(n string) bool { return n == name })
			} else if !slices.Contains(e.Late, name) {
				e.Late = append(e.Late, name)
			}
		}
		values[name] = sum
	}
	e.Values = values
	return found, other
}

// sum identifies an environment without the values of its late variables.
func (e *envSeen) sum(env, late []string) uint64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%x", e.Salt)
	for _, v := range env {
		if name, _, _ := strings.Cut(v, "="); slices.Contains(late, name) {
			v = name
		}
		fmt.Fprintf(h, " %q", v)
	}
	return h.Sum64()
}

// late returns the names of the late variables of an environment.
func (e *envSeen) late(env []string) []string {
	var names []string
	for _, v := range env {
		name, _, _ := strings.Cut(v, "=")
		if alwaysLate(name) || slices.Contains(e.Late, name) {
			names = append(names, name)
		}
	}
	return names
}

// namesSample returns a function that reports whether a text has a token of a late word of
// a call, or is a path in its directory.
func namesSample(c Call, words []tools.Word) func(text string) bool {
	var sample []string
	for _, w := range words {
		sample = append(sample, fileTokens(c.Argv[w.Arg][w.From:w.To])...)
	}
	return func(text string) bool {
		return text == c.Dir || strings.HasPrefix(text, c.Dir+"/") ||
			slices.ContainsFunc(fileTokens(text), func(t string) bool { return slices.Contains(sample, t) })
	}
}

func alwaysLate(name string) bool {
	return slices.Contains(lateNames, name) || slices.ContainsFunc(latePrefixes, func(p string) bool { return strings.HasPrefix(name, p) })
}

// Dir returns the directory of the state, for all programs of this user.
func Dir() (string, error) {
	if home := os.Getenv("PREMIX_HOME"); home != "" {
		return filepath.Join(home, "calls"), nil
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no directory for the state of hot starts: %w", err)
	}
	return filepath.Join(cache, "premix", "calls"), nil
}

// openDir makes the directory of the state if it is missing, and refuses a directory
// that another user could write to.
func openDir() (string, error) {
	dir, err := Dir()
	if err != nil {
		return "", err
	}
	for _, sub := range []string{"forms", "patterns", "scripts"} {
		path := filepath.Join(dir, sub)
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
			if err := owner.MkdirAll(path, 0o700); err != nil {
				return "", err
			}
		}
	}
	return dir, owner.Private(dir)
}

// Disabled reports whether the user has switched hot starts off.
func Disabled() bool { return os.Getenv("PREMIX_HOT") == "off" }

// Decide decides how a call starts, and records the call. An error comes from the state or
// from a description of the tool; the call then starts cold.
func Decide(c Call) (Plan, error) { return decide(c, true) }

// Preview decides on a call and notes nothing.
func Preview(c Call) (Plan, error) { return decide(c, false) }

func decide(c Call, note bool) (Plan, error) {
	tool, err := tools.Find(c.Argv[0])
	if err != nil {
		return Plan{Reason: err.Error()}, err
	}
	dir, err := openDir()
	if err != nil {
		return Plan{Reason: err.Error()}, err
	}
	if note {
		defer hold(dir)()
	}
	if c.Path != "" && c.Path != c.Exe {
		return Plan{Reason: "its path, which it may print, is relative or not the shortest one: call it by its name on PATH, or by its whole path"}, nil
	}
	var (
		p   Plan
		due = true
	)
	if tool != nil {
		r := tool.Read(c.Argv)
		if r.Unfit != "" {
			return Plan{Reason: r.Unfit}, nil
		}
		p.Words, p.Rates = r.Late(), r.Rates
		if len(tool.Behind) > 0 && isScript(c.Exe) {
			return decideScript(dir, c, tool.Behind, p.Words), nil
		}
	} else if p, due = learn(dir, c, note); p.Reason != "" {
		return p, nil
	}
	p.Key = formKey(c, p.Words)
	path := filepath.Join(dir, "forms", p.Key)
	f, known := &form{}, true
	if err := load(path, f); err != nil {
		known = false
		*f = form{Tool: filepath.Base(c.Argv[0]), Exe: stampOf(c.Exe)}
	}
	learned, other := f.Env.note(c.Env, namesSample(c, p.Words))
	p.LateEnv = f.Env.late(c.Env)
	f.Calls++
	f.Last, f.Argv = time.Now().UTC(), c.Argv
	if f.State == cold && !f.lasts(c.Exe) {
		f.State, f.Reason, f.Tries, f.Exe = unprepared, "", 0, stampOf(c.Exe)
	}
	switch {
	case c.Inherited.Refusal() != "":
		return Plan{Reason: c.Inherited.Refusal()}, nil
	case procstate.CanFixAddresses() != nil:
		return Plan{Reason: procstate.CanFixAddresses().Error()}, nil
	case slices.Contains(f.Served, f.Env.sum(c.Env, p.LateEnv)):
		p.Hot = true // also while a snapshot is prepared for other calls of the form
	case f.State == cold:
		p.Cold, p.Reason = true, f.Reason
		return p, nil
	case other != "":
		p.Reason = fmt.Sprintf("the variable %s has another value than in the previous call, which may change the behaviour of the tool", other)
	case f.State == ready:
		p.Hot = true
	case f.Calls < knownCalls || !due:
		p.Reason = fmt.Sprintf("this is call %d of its form: a snapshot is prepared beside a later one", f.Calls)
	case f.killed():
		p.Prepare, p.First, p.Reason = true, true, "a snapshot is prepared before this call"
	case f.waits():
		p.Await, p.Reason = true, "a snapshot is being prepared, or is tried again later"
	default:
		p.Prepare, p.Await, p.Reason = true, true, "a snapshot is prepared beside this call"
	}
	if note && (!known || learned || f.State == unprepared && !f.waits()) {
		if !known {
			bound(filepath.Join(dir, "forms"))
		}
		if err := save(path, f); err != nil {
			return p, err
		}
	}
	return p, nil
}

// script is the record of calls of a script whose program starts cold: the program, and the key
// of the program's form.
type script struct {
	Exe  string `json:"exe"`
	Form string `json:"form"`
}

// decideScript decides on a call of a script that executes one of the programs behind. A script
// must be traced for its program to start hot. Where the program is known to start cold, the
// script runs without a tracer, which costs less.
func decideScript(dir string, c Call, behind []string, words []tools.Word) Plan {
	p := Plan{Behind: behind, Script: formKey(c, words), Words: words, Reason: "it is a script, and the program behind it starts by itself"}
	var s script
	var f form
	if load(filepath.Join(dir, "scripts", p.Script), &s) != nil || load(filepath.Join(dir, "forms", s.Form), &f) != nil {
		return p
	}
	if f.State == cold && f.lasts(s.Exe) {
		return Plan{Reason: fmt.Sprintf("it is a script, and the program behind it starts cold: %s", f.Reason)}
	}
	return p
}

// RecordBehind notes that a call of a script, whose form has the key script, has executed a
// program whose calls of a form start cold. Later calls of the script then run without a tracer
// as long as this is so.
func RecordBehind(key, exe, form string) error {
	dir, err := openDir()
	if err != nil {
		return err
	}
	path := filepath.Join(dir, "scripts", key)
	if _, err := os.Lstat(path); err != nil {
		bound(filepath.Join(dir, "scripts"))
	}
	return save(path, script{exe, form})
}

// lasts reports whether the state cold of a form still holds for a program.
func (f *form) lasts(exe string) bool {
	return time.Since(f.Since) <= retryAge && stampOf(exe) == f.Exe
}

// isScript reports whether a program begins with the name of its interpreter.
func isScript(exe string) bool {
	f, err := os.Open(exe)
	if err != nil {
		return false
	}
	defer f.Close()
	var b [2]byte
	_, err = io.ReadFull(f, b[:])
	return err == nil && b == [2]byte{'#', '!'}
}

// waits reports whether a preparation is not to be tried yet.
func (f *form) waits() bool {
	if f.Tries == 0 {
		return false
	}
	return f.Tries >= maxTries || time.Since(f.Since) < time.Minute<<(2*f.Tries)
}

// killed reports whether the last preparation was killed. This happens if a container or a
// batch job ends with its first process. Another preparation during a call would be killed
// in the same way.
func (f *form) killed() bool {
	if f.State != unprepared || f.Reason != "" || f.Tries == 0 || f.Tries > maxFirst {
		return false
	}
	l, err := Lock()
	if err != nil || l == nil {
		return false // it is still at work, or another one is
	}
	l.Close()
	return true
}

// formKey identifies the form of a call: all of its words, with the shapes of late ones.
func formKey(c Call, words []tools.Word) string {
	h := fnv.New128a()
	fmt.Fprintf(h, "%q", c.Exe)
	for i, arg := range c.Argv {
		at := 0
		fmt.Fprint(h, " ")
		for _, w := range words {
			if w.Arg == i {
				fmt.Fprintf(h, "%q<%s%s>", arg[at:w.From], w.Role, shape(arg[w.From:w.To]))
				at = w.To
			}
		}
		fmt.Fprintf(h, "%q", arg[at:])
	}
	fmt.Fprintf(h, " %s", c.Inherited)
	return fmt.Sprintf("%x", h.Sum(nil))
}

// shape returns the shape of a word: its length, the places of '/' and '.', and its
// extension. One snapshot can serve only words of one shape.
func shape(word string) string {
	base := strings.LastIndexByte(word, '/') + 1
	ext := strings.LastIndexByte(word[base:], '.')
	if ext < 0 {
		ext = len(word)
	} else {
		ext += base
	}
	b := []byte(word)
	for i := range b[:ext] {
		if b[i] != '/' && b[i] != '.' {
			b[i] = 'x'
		}
	}
	return string(b)
}

// load reads a file of the state.
func load(path string, v any) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, v)
}

// save replaces a file of the state.
func save(path string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return beneath.Replace(path, 0o600, beneath.Volatile, b)
}

// bound removes the oldest files of a directory of the state, so that at most maxForms
// stay. It does so only at some of the calls.
func bound(dir string) {
	if rand.N(maxForms/16) != 0 {
		return
	}
	prune(dir, maxForms)
}

// prune removes the oldest files of a directory, so that at most keep stay. It ignores
// errors: a later call tries again.
func prune(dir string, keep int) {
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) <= keep {
		return
	}
	age := map[string]int64{}
	for _, e := range entries {
		if info, err := e.Info(); err == nil {
			age[e.Name()] = info.ModTime().UnixNano()
		}
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return int(age[a.Name()]/1e6 - age[b.Name()]/1e6) })
	for _, e := range entries[:len(entries)-keep] {
		_ = os.Remove(filepath.Join(dir, e.Name()))
	}
}

// longestHold is the time after which a call no longer waits for the lock of forms.
const longestHold = 200 * time.Millisecond

// hold takes the lock of forms and patterns, and returns a function that releases it. So calls
// that begin at the same time are all counted. The lock is best effort: a stopped process may
// have it, and no call waits for that.
func hold(dir string) func() {
	f, err := os.Open(filepath.Join(dir, "forms"))
	if err != nil {
		return func() {}
	}
	ctx, cancel := context.WithTimeout(context.Background(), longestHold)
	defer cancel()
	_ = lock.Await(ctx, f, lock.Exclusive)
	return func() { f.Close() }
}

// update changes the record of a form.
func update(key string, change func(*form)) error {
	dir, err := openDir()
	if err != nil {
		return err
	}
	defer hold(dir)()
	path := filepath.Join(dir, "forms", key)
	f := &form{}
	if err := load(path, f); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	change(f)
	return save(path, f)
}

// RecordTrying notes that a snapshot for calls of the form of c is being prepared. Until RecordReady or
// RecordCold is called, this counts as a failed preparation, since its process may be killed.
func RecordTrying(key string, c Call) error {
	return update(key, func(f *form) {
		if f.Tool == "" { // it is prepared before it is called
			f.Tool, f.Argv, f.Exe, f.Last = filepath.Base(c.Argv[0]), c.Argv, stampOf(c.Exe), time.Now().UTC()
			f.Env.note(c.Env, namesSample(c, nil))
		}
		f.State, f.Reason, f.Since, f.Tries = unprepared, "", time.Now().UTC(), f.Tries+1
	})
}

// RecordFailed records why a preparation failed. It is tried again later.
func RecordFailed(key, reason string) error {
	return update(key, func(f *form) { f.Reason = reason })
}

// RecordKept notes that a preparation failed for a call, and that there still is a snapshot for other
// calls of its form. They start hot, and none is prepared for a while.
func RecordKept(key string) error {
	return update(key, func(f *form) { f.State, f.Reason, f.Tries = ready, "", min(f.Tries, maxTries-1) })
}

// RecordReady notes that there is a snapshot for calls of the form of c.
func RecordReady(c Call, p Plan) error {
	return update(p.Key, func(f *form) {
		f.State, f.Reason, f.Since, f.Tries = ready, "", time.Now().UTC(), 0
		f.leave(c, p)
		f.Served = append(f.Served, f.Env.sum(c.Env, p.LateEnv))
		f.Served = f.Served[max(0, len(f.Served)-maxServed):]
	})
}

// leave removes the environment of a call from those for which there was a snapshot.
func (f *form) leave(c Call, p Plan) {
	sum := f.Env.sum(c.Env, p.LateEnv)
	f.Served = slices.DeleteFunc(f.Served, func(s uint64) bool { return s == sum })
}

// RecordCold records why calls of the form of c start cold.
func RecordCold(c Call, p Plan, reason string) error {
	return update(p.Key, func(f *form) {
		f.State, f.Reason, f.Since = cold, reason, time.Now().UTC()
		f.leave(c, p)
	})
}

// RecordMissed records that no snapshot of a form serves a call, and reports whether to
// prepare one.
func RecordMissed(key string) (prepare bool) {
	err := update(key, func(f *form) {
		if prepare = f.State != cold && !f.waits(); prepare {
			f.State = unprepared
		}
	})
	return prepare && err == nil
}

// lockName is the name of the file that Lock locks.
const lockName = "preparing"

// Lock takes the lock of the process that prepares, and returns nil where another process
// has it. It is free again when the file is closed.
func Lock() (*os.File, error) {
	dir, err := openDir()
	if err != nil {
		return nil, err
	}
	f, err := owner.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := lock.Try(f, lock.Exclusive); err != nil {
		f.Close()
		if errors.Is(err, lock.ErrHeld) {
			return nil, nil
		}
		return nil, err
	}
	return f, nil
}
