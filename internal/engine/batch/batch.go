package batch

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"premix/internal/engine/pilot"
	"premix/internal/engine/programs"
	"premix/internal/engine/queue"
	"premix/internal/kit/exit"
	"premix/internal/kit/units"
)

// DefaultInterval is how old a listing may be.
const DefaultInterval = 5 * time.Second

// overhead is memory of a job that premix itself may take.
const overhead = 128 << 20

// none is the index of a job without an array.
const none = -1

// Names returns the names of the systems for --engine.
func Names() []string {
	var list []string
	for i := range dialects {
		list = append(list, dialects[i].name)
	}
	return list
}

// Engine is a batch system.
type Engine struct {
	*dialect
	premix string            // path on the nodes
	knobs  map[string]string // options that the dialect has
	more   []string          // options of the program that submits
	shared *programs.Shared[listing]
	known  programs.FirstSeen // zero once a job was listed
}

// New makes the engine of a system. It passes options that it does not know to the program
// that submits: q=short becomes -q short, and r= becomes -r.
func New(name string, options map[string]string) (*Engine, error) {
	at := slices.Index(Names(), name)
	if at < 0 {
		return nil, exit.Errorf(exit.Usage, "it is one of "+strings.Join(Names(), ", "), "there is no batch system %q", name)
	}
	e := &Engine{dialect: &dialects[at], knobs: make(map[string]string), known: make(programs.FirstSeen)}
	interval := DefaultInterval
	for _, key := range slices.Sorted(maps.Keys(options)) {
		value := options[key]
		switch {
		case key == "premix":
			if !filepath.IsAbs(value) {
				return nil, exit.Errorf(exit.Usage, "give the path of premix on the nodes", "--engine-opt premix=%s is not an absolute path", value)
			}
			e.premix = value
		case key == "poll":
			d, err := units.ParseDuration(value)
			if err != nil {
				return nil, exit.Errorf(exit.Usage, "as in poll=10s", "--engine-opt poll=%s: %v", value, err)
			}
			interval = d
		case slices.Contains(e.dialect.knobs, key):
			e.knobs[key] = value
		case slices.Contains(e.own, key):
			return nil, exit.Errorf(exit.Usage, "cores=N, memory=SIZE and jobs=N say what its jobs ask for", "--engine-opt %s: premix sets this option of %s itself", key, e.submit)
		case value == "":
			e.more = append(e.more, "-"+key)
		default:
			e.more = append(e.more, "-"+key, value)
		}
	}
	if e.premix == "" {
		path, err := os.Executable()
		if err != nil {
			return nil, err
		}
		e.premix = path
	}
	for _, program := range []string{e.submit, e.query[0], e.cancel} {
		if _, err := exec.LookPath(program); err != nil {
			return nil, exit.Errorf(exit.Unavailable, "run it on a machine from which jobs are submitted", "there is no %s on PATH, which --engine %s needs", program, e.name)
		}
	}
	e.shared = programs.NewShared[listing](e.name, "jobs", interval, append([]string{"PATH"}, e.variables...)...)
	return e, nil
}

// Name returns the name of the engine for --engine.
func (e *Engine) Name() string { return e.name }

func (e *Engine) knob(key, otherwise string) string {
	if v := e.knobs[key]; v != "" {
		return v
	}
	return otherwise
}

// Reach asks for a listing.
func (e *Engine) Reach(ctx context.Context, _ string) error {
	_, _, err := e.list(ctx, time.Time{})
	return err
}

// Submit submits a wave, as one array if it has several jobs.
func (e *Engine) Submit(ctx context.Context, w *pilot.Wave) ([]string, error) {
	args := append(e.options(e, &w.Shares[0], programs.JobName(w.Token), len(w.Shares)), e.more...)
	out, err := programs.Run(ctx, e.script(w), e.submit, args...)
	if err != nil {
		ids, ferr := e.Find(ctx, w)
		if ferr != nil {
			return nil, err
		}
		if ids == nil {
			return nil, &pilot.RefusedError{Engine: e.name, Reason: programs.Message(err), HintText: fmt.Sprintf("options of %s are given as --engine-opt %s", e.submit, e.example)}
		}
		return ids, nil
	}
	m := e.number.FindStringSubmatch(strings.TrimSpace(out))
	if m == nil {
		return nil, fmt.Errorf("%s prints %q, which is not the number of a job", e.submit, out)
	}
	return e.elements(m[1], w), nil
}

// script returns the script of each job of a wave.
func (e *Engine) script(w *pilot.Wave) string {
	words := []string{"exec", queue.Quote(e.premix)}
	for _, a := range w.Command(e.name, "\x00") {
		switch {
		case a != "\x00":
			a = queue.Quote(a)
		case len(w.Shares) == 1:
			a = "0"
		default:
			a = e.index
		}
		words = append(words, a)
	}
	words = append(words, "-j", strconv.Itoa(max(1, w.Shares[0].Cores)))
	if m := w.Shares[0].Memory; m > 0 {
		words = append(words, "--memory", strconv.FormatInt((m+1<<20-1)>>20, 10)+"M")
	}
	return fmt.Sprintf("#!/bin/sh\nexec >>%s 2>&1\ncd %s || exit 1\n%s\n", queue.Quote(w.Log), queue.Quote(w.Dir), strings.Join(words, " "))
}

// elements returns the ids of the jobs of a wave.
func (e *Engine) elements(number string, w *pilot.Wave) []string {
	return e.known.Jobs(len(w.Shares), func(i int) string {
		index := none
		if len(w.Shares) > 1 {
			index = e.first + i
		}
		return e.id(number, index, programs.JobName(w.Token))
	})
}

// id returns the id of a job, as package pilot keeps it in a ledger: 12[3] (premix-TOKEN).
func (e *Engine) id(number string, index int, name string) string {
	text := number
	if index != none {
		text = e.element(number, index)
	}
	return text + " (" + name + ")"
}

// Find looks for the jobs of a wave.
func (e *Engine) Find(ctx context.Context, w *pilot.Wave) ([]string, error) {
	l, _, err := e.list(ctx, time.Now())
	if err != nil {
		return nil, err
	}
	if j := programs.Find(l, w.Token, func(j *job) string { return j.Name }); j != nil {
		return e.elements(j.Number, w), nil
	}
	return nil, nil
}

// Status looks jobs up in the listing. A job that has ended is in the listings of LSF for
// some time; PBS and SGE have forgotten it.
func (e *Engine) Status(ctx context.Context, ids []string) (map[string]pilot.Status, error) {
	l, started, err := e.list(ctx, time.Time{})
	if err != nil {
		return nil, err
	}
	listed := e.byID(l)
	result := make(map[string]pilot.Status)
	for _, id := range ids {
		e.known.Add(id)
		if j, ok := listed[id]; ok {
			result[id] = pilot.Status{Phase: j.Phase, Word: j.Word, Reason: j.Reason, Node: j.Node, Blameless: j.Blameless, Stuck: j.Stuck}
			e.known[id] = time.Time{}
		} else if at := e.known[id]; at.IsZero() || started.After(at.Add(e.lag)) {
			result[id] = pilot.Status{Phase: pilot.Gone, Reason: e.name + " lists it no more"}
		}
	}
	return result, nil
}

// byID returns the jobs of a listing by their ids. A job that is listed twice, as it starts
// again, counts as the live one.
func (e *Engine) byID(l listing) map[string]*job {
	m := make(map[string]*job)
	for i := range l {
		id := e.id(l[i].Number, l[i].Index, l[i].Name)
		if old, ok := m[id]; !ok || l[i].Phase < old.Phase {
			m[id] = &l[i]
		}
	}
	return m
}

// Cancel cancels jobs that a new listing shows under their names: others have ended, and
// their numbers may be other jobs' now.
func (e *Engine) Cancel(ctx context.Context, ids []string) error {
	l, _, err := e.list(ctx, time.Now())
	if err != nil {
		return err
	}
	listed := e.byID(l)
	var live []string
	for _, id := range ids {
		if j, ok := listed[id]; ok && j.Phase < pilot.Ended {
			element, _, _ := strings.Cut(id, " (")
			live = append(live, element)
		}
	}
	if len(live) == 0 {
		return nil
	}
	if _, err := programs.Run(ctx, "", e.cancel, live...); err != nil {
		// A job that has ended is an error as well. But this system does not answer.
		if _, _, lerr := e.list(ctx, time.Now()); lerr != nil {
			return err
		}
	}
	return nil
}
