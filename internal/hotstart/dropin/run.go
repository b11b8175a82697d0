package dropin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/hotstart"
	"premix/internal/hotstart/calls"
	"premix/internal/hotstart/inplace"
	"premix/internal/hotstart/procstate"
	"premix/internal/hotstart/tools"
	"premix/internal/kit/exit"
	"premix/internal/kit/units"
)

// NewCall returns the call for an execution of argv by this process. exe is the program. If
// it is empty, NewCall finds argv[0] on PATH and ignores shims.
func NewCall(exe string, argv []string) (calls.Call, error) {
	c := calls.Call{Exe: exe, Argv: argv, Inherited: procstate.Current()}
	var err error
	if c.Exe == "" {
		if c.Path, c.Exe, err = calls.FindProgram(argv[0]); err != nil {
			return c, err
		}
	}
	c.Env = calls.Environ(cmp.Or(c.Path, c.Exe))
	c.Dir, err = calls.WorkingDir()
	return c, err
}

// engineCall returns the call of package inplace for c, with this process's streams.
func engineCall(c calls.Call, p calls.Plan) inplace.Call {
	e := inplace.Call{Exe: c.Exe, Argv: c.Argv, Env: c.Env, Dir: c.Dir, LateEnv: p.LateEnv, Rates: p.Rates, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Inherited: &c.Inherited,
		Running: c.Running, Directories: c.Directories, Pipes: c.Pipes}
	for _, w := range p.Words {
		e.Words = append(e.Words, inplace.Word{Arg: w.Arg, From: w.From, To: w.To, Role: inplace.Role(w.Role)})
	}
	return e
}

// Run runs a command in place of this process, hot where a snapshot serves it. It returns
// only with an error. A call that is noted has been decided on by a shim. A call that a script
// has made has the key of the script's form. waited is the time for which the shim has waited for
// a preparation.
func Run(c calls.Call, noted bool, waited time.Duration, script string) error {
	if calls.Disabled() {
		return calls.RunPlain(c)
	}
	decide := calls.Decide
	if noted {
		decide = calls.Preview
	}
	// The reason is in the plan too.
	p, _ := decide(c)
	if script != "" && p.Cold {
		_ = calls.RecordBehind(script, c.Exe, p.Key) // the next call of the script tries again
	}
	self, err := os.Executable()
	if err != nil {
		p.Prepare = false
	}
	p = calls.Prepare(self, c, p)
	p.Waited += waited
	if p.Behind != nil && err == nil {
		p.Reason = through(self, c, p)
	}
	if p.Hot {
		p.Reason = start(c, p)
		p.Prepare, p.First = err == nil && calls.RecordMissed(p.Key), false
		calls.Prepare(self, c, p)
	}
	calls.RecordStart(calls.Start{Tool: filepath.Base(c.Argv[0]), Start: "cold", Why: p.Reason, Waited: p.Waited.Seconds()})
	return calls.RunPlain(c)
}

// through runs a script, and ends this process with the exit status of the script. The
// programs that the script executes are run by self. If the script must be executed
// unchanged, through returns the reason.
func through(self string, c calls.Call, p calls.Plan) string {
	exit, err := inplace.RunTraced(engineCall(c, p), func(exe string, argv []string) []string {
		if !slices.Contains(p.Behind, filepath.Base(exe)) {
			return nil
		}
		// The script may start a program only to ask for its version.
		tool, err := tools.Find(exe)
		if err != nil || tool == nil || tool.Read(argv).Unfit != "" {
			return nil
		}
		return append([]string{self, "premix", "hot", "--script", p.Script, "--exe", exe, "--"}, argv...)
	})
	if reason := interrupted(err, calls.Start{Tool: filepath.Base(c.Argv[0]), Start: "cold"}); reason != "" {
		return reason
	}
	inplace.End(exit)
	return ""
}

// interrupted returns the reason in an error of a start, after which the command must be
// executed unchanged. If the tool has already begun, interrupted ends this process with a
// record.
func interrupted(err error, record calls.Start) string {
	var interrupted *inplace.Interrupted
	switch {
	case errors.As(err, &interrupted):
		record.Why = err.Error()
		calls.RecordStart(record)
		fmt.Fprintf(os.Stderr, "premix: %s: %v\n", record.Tool, err)
		os.Exit(1)
	case err != nil:
		return err.Error()
	}
	return ""
}

// start runs a command hot, and ends this process with the exit status of the command. If
// the command must be executed unchanged, start returns the reason.
func start(c calls.Call, p calls.Plan) string {
	store, err := inplace.DefaultStore()
	if err != nil {
		return err.Error()
	}
	e := engineCall(c, p)
	s, reason := inplace.Find(store, e)
	if s == nil {
		return reason
	}
	record := calls.Start{Tool: filepath.Base(c.Argv[0]), Start: string(hotstart.Hot), Saved: s.Loaded, Bytes: s.Memory, ID: s.ID, Waited: p.Waited.Seconds()}
	exit, err := inplace.Run(s, e)
	failed := record
	failed.Saved, failed.Bytes = 0, 0
	if reason := interrupted(err, failed); reason != "" {
		s.Close()
		return reason
	}
	if s.Plain != "" {
		record = calls.Start{Tool: record.Tool, Start: "cold", Why: s.Plain, ID: record.ID, Waited: record.Waited}
	}
	calls.RecordStart(record)
	inplace.End(exit)
	return ""
}

// WarmBeside does the work of Warm while a call runs, at the lowest priority. It does
// nothing if another process already does that.
func WarmBeside(ctx context.Context, c calls.Call, set Settings) error {
	humble()
	lock, err := calls.Lock()
	if err != nil || lock == nil {
		return err
	}
	defer lock.Close()
	_, err = warm(ctx, c, set, nil, calls.RecordProgress)
	return err
}

// Warm prepares a snapshot for calls of the form of c, unless the store has one.
func Warm(ctx context.Context, c calls.Call, set Settings, log func(string, ...any)) (*inplace.Snapshot, error) {
	return warm(ctx, c, set, log, func(calls.Progress) error { return nil })
}

func warm(ctx context.Context, c calls.Call, set Settings, log func(string, ...any), note func(calls.Progress) error) (*inplace.Snapshot, error) {
	p, err := calls.Preview(c)
	if err != nil {
		return nil, err
	}
	if p.Behind != nil {
		return nil, exit.Errorf(exit.Unavailable, "prepare the call of "+strings.Join(p.Behind, " or ")+" that it makes, or run the command twice", "the command cannot start hot: %s", p.Reason)
	}
	if p.Key == "" {
		return nil, exit.Errorf(exit.Unavailable, "premix hot --why -- COMMAND prints the roles of all words; a file in the directory of descriptions changes them", "the command cannot start hot: %s", p.Reason)
	}
	store, err := inplace.DefaultStore()
	if err != nil {
		return nil, err
	}
	e := engineCall(c, p)
	s, _ := inplace.Find(store, e)
	if s == nil {
		// Until it is done, this counts as a failed preparation.
		if err := calls.RecordTrying(p.Key, c); err != nil {
			return nil, err
		}
		progress := func(now inplace.Progress) {
			// No call waits for a preparation whose state is not known.
			_ = note(calls.Progress{Key: p.Key, Tool: now.Tool, Load: now.Load, Rest: now.Rest})
		}
		progress(inplace.Progress{}) // in place of the last one
		if s, err = inplace.Prepare(ctx, store, e, inplace.PrepareOptions{Log: log, Worth: set.Worth, Progress: progress}); ctx.Err() != nil {
			return nil, err // as if it had been killed
		} else if err != nil {
			var unfit *inplace.Unfit
			if errors.As(err, &unfit) {
				if unfit.Written != nil && calls.RecordOutput(c, unfit.Written.Arg) {
					return warm(ctx, c, set, log, note)
				}
				err = exit.Errorf(exit.Unavailable, "it starts plainly, with the same results", "the command cannot start hot: %s", unfit.Reason)
				if unfit.Passing && inplace.Usable(store, e) {
					return nil, errors.Join(err, calls.RecordKept(p.Key))
				}
				if unfit.Passing {
					return nil, errors.Join(err, calls.RecordFailed(p.Key, unfit.Reason))
				}
				return nil, errors.Join(err, calls.RecordCold(c, p, unfit.Reason))
			}
			return nil, errors.Join(err, calls.RecordFailed(p.Key, err.Error()))
		}
	}
	defer s.Close()
	s.Close()
	size := s.Bytes()
	removed, err := Trim(store, set.Quota)
	if err != nil {
		return nil, err
	}
	if slices.ContainsFunc(removed, func(r *inplace.Snapshot) bool { return r.ID == s.ID }) {
		reason := fmt.Sprintf("its snapshot takes %s, and the quota is %s", units.Size(size), units.Size(set.Quota))
		return nil, errors.Join(exit.Errorf(exit.Unavailable, "raise the quota with --quota, PREMIX_HOT_QUOTA or hot.yaml", "the command cannot start hot: %s", reason), calls.RecordCold(c, p, reason))
	}
	return s, calls.RecordReady(c, p)
}

// humble makes the kernel kill this process before the tool if memory runs out. If the
// process leads its own group, humble also sets the lowest priority for the CPU and the
// disk for the process, its threads and its children. It ignores errors.
func humble() {
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("1000"), 0)
	if unix.Getpgrp() != os.Getpid() {
		return
	}
	_ = unix.Setpriority(unix.PRIO_PGRP, 0, 19)
	const whoGroup, idle = 2, 3 << 13 // ioprio_set(2)
	_, _, _ = unix.Syscall(unix.SYS_IOPRIO_SET, whoGroup, 0, idle)
}

// Explanation is the kind of start that a call would have now, and the reason.
type Explanation struct {
	Tool      string   `json:"tool"`
	Exe       string   `json:"exe"`
	Described string   `json:"described,omitempty"` // the file that describes the tool
	Words     []Word   `json:"words"`
	LateEnv   []string `json:"lateEnv,omitempty"`
	Start     string   `json:"start"` // hot or cold
	Reason    string   `json:"reason,omitempty"`
	Snapshot  string   `json:"snapshot,omitempty"`
	Saves     float64  `json:"saves,omitempty"` // seconds
}

// Word is a part of an argument with its role.
type Word struct {
	Text string     `json:"text"`
	Role tools.Role `json:"role"`
}

// Why explains how a call would start now. It changes nothing.
func Why(c calls.Call) (*Explanation, error) {
	x := &Explanation{Tool: filepath.Base(c.Argv[0]), Exe: c.Exe, Start: "cold"}
	tool, err := tools.Find(c.Argv[0])
	if err != nil {
		return nil, err
	}
	p, err := calls.Preview(c)
	if err != nil {
		return nil, err
	}
	words := p.Words
	if tool != nil {
		x.Described = tool.File
		words = tool.Read(c.Argv).Words
	}
	for _, w := range words {
		x.Words = append(x.Words, Word{c.Argv[w.Arg][w.From:w.To], w.Role})
	}
	x.LateEnv, x.Reason = p.LateEnv, p.Reason
	switch {
	case calls.Disabled():
		x.Reason = "PREMIX_HOT is off"
	case p.Hot:
		store, err := inplace.DefaultStore()
		if err != nil {
			return nil, err
		}
		s, reason := inplace.Find(store, engineCall(c, p))
		if s == nil {
			x.Reason = reason
			break
		}
		defer s.Close()
		x.Start, x.Snapshot, x.Saves = string(hotstart.Hot), s.ID, s.Loaded
	}
	return x, nil
}
