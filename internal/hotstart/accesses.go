package hotstart

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"premix/internal/hotstart/frozen"
	"premix/internal/hotstart/tracer"
)

// How an initialisation is watched.
//
// A tool runs under a tracer.Watch twice: when the probe runs cold, to its end, and when a
// template is loaded. The cold run shows at which open of its input the tool has loaded
// its data, since some tools open their reads before that. The template is stopped at that
// open. The fingerprint of the snapshot has all files that the tool has looked at before
// the stop, and all paths at which it did not find a file, also without a declaration in
// the recipe.

// access is one look of a tool at a file.
type access struct {
	Process int             `json:"p"`
	Op      tracer.AccessOp `json:"op"`
	Path    string          `json:"path"`
	Input   bool            `json:"in,omitempty"`
}

// watcher collects the looks of a tool.
type watcher struct {
	*tracer.Watch
	isInput func(path string) bool
	looks   []access
	seen    map[access]int // the number of opens of inputs when it was noted last, plus 1
	opens   map[int]int    // process -> number of opens of inputs
	inputs  int            // opens of inputs
}

func newWatcher(isInput func(string) bool) *watcher {
	return &watcher{Watch: tracer.NewWatch(), isInput: isInput, seen: map[access]int{}, opens: map[int]int{}}
}

// note records a look. If the look opens an input, note returns the process and the number
// of its opens of inputs.
func (w *watcher) note(l *tracer.Access) (process, open int) {
	k := access{Process: tracer.Process(l.Tid), Op: l.Op, Path: filepath.Clean(l.Path)}
	if l.Path == "" && l.Op != tracer.AccessSocket {
		return k.Process, 0
	}
	k.Input = w.isInput(k.Path)
	if k.Input && k.Op == tracer.AccessOpen {
		w.opens[k.Process]++
		w.inputs++
		w.looks = append(w.looks, k) // each of them: their order counts
		return k.Process, w.opens[k.Process]
	}
	// A tool may open a file again after an input, and load the file only then.
	if l.Target != "" {
		target := *l
		target.Path, target.Target = l.Target, ""
		w.note(&target)
	}
	if n := w.seen[k]; n == 0 || k.Op == tracer.AccessOpen && n <= w.inputs {
		w.seen[k] = w.inputs + 1
		w.looks = append(w.looks, k)
	}
	return k.Process, 0
}

// moment is the look into an input at which a tool has loaded its data.
type moment struct {
	At    int   // index of the look; -1: none
	Open  int   // the number of opens of inputs, by one process, until then; 0: none
	Late  int64 // bytes of data that the tool opens only after it
	Total int64 // bytes of data that the tool opens
}

// dataSize is the least size in bytes of a file that counts as data. Settings and small
// libraries are smaller.
const dataSize = 1 << 20

// loadedShare is the share of the data that has to be open for a tool to have
// loaded it. What it opens later is small.
const loadedShare = 0.9

// findMoment looks for the first open or read of an input before which most of the data
// was opened. Of several opens of a file the last one counts: bwa aln, for example, looks
// for its index before it opens its reads, and loads it afterwards.
func findMoment(looks []access, size func(path string) int64) moment {
	var total int64
	counted := map[string]bool{}
	sizes := make([]int64, len(looks)) // of data that is opened for the last time
	for i, l := range slices.Backward(looks) {
		if l.Op != tracer.AccessOpen || l.Input || counted[l.Path] {
			continue
		}
		counted[l.Path] = true
		if n := size(l.Path); n >= dataSize {
			sizes[i] = n
			total += n
		}
	}
	m := moment{At: -1, Total: total}
	var loaded int64
	opens := map[int]int{}
	for i, l := range looks {
		loaded += sizes[i]
		if !l.Input || l.Op != tracer.AccessOpen && l.Op != tracer.AccessRead {
			continue
		}
		if l.Op == tracer.AccessOpen {
			opens[l.Process]++
		}
		m.At, m.Open, m.Late = i, opens[l.Process], total-loaded
		if float64(loaded) >= loadedShare*float64(total) {
			break
		}
	}
	return m
}

// opened returns the number of bytes of data that a tool has opened.
func opened(looks []access, size func(path string) int64) (total int64) {
	counted := map[string]bool{}
	for _, l := range looks {
		if l.Op != tracer.AccessOpen || l.Input || counted[l.Path] {
			continue
		}
		counted[l.Path] = true
		if n := size(l.Path); n >= dataSize {
			total += n
		}
	}
	return total
}

// fileSize returns the size of a regular file, and 0 for other files.
func fileSize(path string) int64 {
	st, err := os.Stat(path)
	if err != nil || !st.Mode().IsRegular() {
		return 0
	}
	return st.Size()
}

// early returns the looks of a tool at its input before the stop, without the last open.
// If the input is a FIFO, opens do not count, since they return nothing about the input.
func early(looks []access, ready ReadyKind) []string {
	var ops []string
	for i, l := range looks {
		last := i == len(looks)-1 && l.Op == tracer.AccessOpen
		if l.Op == tracer.AccessOpen && ready != ReadyOpen {
			continue
		}
		if l.Input && !last && !slices.Contains(ops, string(l.Op)) {
			ops = append(ops, string(l.Op))
		}
	}
	return ops
}

// watched lets a tool that was just begun run under the supervisor's watch.
func (s *supervisor) watched(p *tracer.Proc) error {
	s.watch = newWatcher(s.isInput)
	s.watch.Facts = true
	if s.cfg.Seed != nil {
		s.watch.Random = tracer.NewEntropy([32]byte(s.cfg.Seed))
		c := s.cfg.Clock
		s.watch.Clock = &tracer.Clock{Realtime: c.Realtime, Monotonic: c.Monotonic, Boottime: c.Boottime, Cycles: c.Cycles}
	}
	return s.watch.Install(p)
}

// holdAt holds the template's processes. A thread of one of them may be stopped at a
// look.
func (s *supervisor) holdAt(pid, process, tid int) error {
	pids, err := tree(pid)
	if err != nil {
		return err
	}
	rest(slices.DeleteFunc(slices.Clone(pids), func(p int) bool { return p == process }))
	for _, p := range pids {
		at := 0
		if p == process {
			at = tid
		}
		held, err := s.watch.Hold(p, at)
		if err != nil {
			return fmt.Errorf("hold process %d: %w", p, err)
		}
		s.held = append(s.held, held)
	}
	s.template = s.held[0]
	s.prepared = frozen.Preparation{Pid: pid, Began: s.cfg.Clock, Dir: s.workDir(), Inputs: s.inputs()}
	if c := s.watch.Clock; c != nil {
		s.prepared.Stopped = frozen.Moment{Realtime: c.Realtime, Monotonic: c.Monotonic, Boottime: c.Boottime, Cycles: c.Cycles}
	}
	return nil
}

// inputs returns the inputs of a template with the status that the tool has seen. There are
// none in a container, whose file systems can show another one, and none for a command with
// the name of the sample, since its further comparisons do not confirm them.
func (s *supervisor) inputs() (all []frozen.Input) {
	if s.container != nil || s.cfg.Task.Sample != "" {
		return nil
	}
	for _, name := range s.cfg.Inputs {
		// An input that is missing has no status.
		if input, err := frozen.ReadInput(s.workDir(), name); err == nil {
			all = append(all, input)
		}
	}
	return all
}

// howFinished describes the end of a tool, with the last lines of its stderr.
func (s *supervisor) howFinished(st unix.WaitStatus) string {
	how := fmt.Sprintf("exit status %d", st.ExitStatus())
	if st.Signaled() {
		how = st.Signal().String()
	}
	if words := lastWords(s.workDir()); words != "" {
		how += ": " + words
	}
	return how
}

// unwatched are the directories whose files describe the machine or the process
// itself.
var unwatched = []string{"/proc", "/sys", "/dev", "/run/premix"}

// isUnwatched reports whether a file is in one of these directories. /dev/shm has files of
// users.
func isUnwatched(path string) bool {
	return !below(path, "/dev/shm") && slices.ContainsFunc(unwatched, func(dir string) bool { return below(path, dir) })
}

// below reports whether a path is a directory or lies in it.
func below(path, dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }
