package hotstart

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"premix/internal/hotstart/frozen"
	"premix/internal/hotstart/late"
)

// How the name of a sample stands in a command.
//
// Spec.Argv may have SampleMark. Then the name of the sample is a late word: one snapshot
// serves all names of one Shape, and a start writes the task's name into the memory of the
// frozen tool. The first preparation has the name Spec.Sample, and the second one a name
// that differs from it in each letter. Where the two memories differ by the name alone, the
// comparison has found a place of the name. A value of few bits that the tool computes from
// the name can be the same in both by chance. So further preparations have other names, and
// each must equal a start from the first one with its name. The outputs are proved with one
// more name.
//
// The tool must look at the same files, and leave the same files in its directory apart
// from the name, whatever the name is.

// SampleMark stands for the name of the sample in Spec.Argv. No argument of a program can
// have it.
const SampleMark = "\x00"

// Shape returns the shape of a sample's name: tasks with names of one shape can share a
// snapshot. It returns "" if the command does not have the name.
func (spec Spec) Shape(sample string) string {
	if !slices.ContainsFunc(spec.Argv, func(w string) bool { return strings.Contains(w, SampleMark) }) {
		return ""
	}
	return late.Label.Shape(sample)
}

// Command returns a command, as in Spec.Argv, for a sample.
func Command(argv []string, sample string) []string {
	argv = slices.Clone(argv)
	for i, w := range argv {
		argv[i] = strings.ReplaceAll(w, SampleMark, sample)
	}
	return argv
}

// Further preparations: there are fewestFurther, and up to mostFurther where they do not
// take longer than enoughFurther in all.
const (
	fewestFurther = 2
	mostFurther   = 6
	enoughFurther = 5 * time.Second
)

// lateNames are the names of samples in the executions of a preparation.
type lateNames struct {
	first, second, further, probe string
	avoid                         []byte // letters with which no further name begins
	drawn                         int    // number of the name that was drawn last
}

// lateNames draws the names of the preparations. It returns nil for a command without
// SampleMark.
func (spec Spec) lateNames() *lateNames {
	if spec.Shape(spec.Sample) == "" {
		return nil
	}
	n := &lateNames{first: spec.Sample}
	// The tool may compare the name with a constant. The second name is on one side of the
	// first, and the other names are on the other side.
	n.second = late.Contrast([]string{n.first}, []late.Role{late.Label}, late.LettersOf(1, n.first), nil)[0]
	n.drawn = 3
	n.probe = n.other() // 4
	n.drawn = 1
	return n
}

// other draws one more name.
func (n *lateNames) other() string {
	n.drawn++
	return late.Contrast([]string{n.first}, []late.Role{late.Label}, late.LettersOf(n.drawn, n.first), map[int][]byte{0: n.avoid})[0]
}

// word returns the name of the sample of a preparation.
func (n *lateNames) word(number int) string {
	if n == nil {
		return ""
	}
	return [...]string{n.first, n.second, n.further}[number]
}

// probeName returns the name of the sample of the probe.
func (n *lateNames) probeName() string {
	if n == nil {
		return ""
	}
	return n.probe
}

// words returns the late words of the first two preparations.
func (n *lateNames) words() []frozen.LateWord {
	if n == nil {
		return nil
	}
	return []frozen.LateWord{{A: []byte(n.first), B: []byte(n.second)}}
}

// latePlan has the places to which a start writes the name of the sample.
type latePlan struct {
	Shape   string                   `json:"shape"`
	Places  []frozen.WordPlace       `json:"places"`
	Offsets []frozen.Offset          `json:"offsets,omitempty"`
	Files   map[string][]frozen.Span `json:"files,omitempty"`  // of the tool's directory
	Prefix  []frozen.Span            `json:"prefix,omitempty"` // of the streamed standard output
}

// late returns the writes of a start.
func (l *latePlan) late(sample string) *frozen.Late {
	return &frozen.Late{Places: l.Places, Offsets: l.Offsets, Words: []string{sample}}
}

// outfit puts the name of the sample into the files that the tool had written.
func (l *latePlan) outfit(cfg *supervisorConfig, spec Spec, t Task) error {
	shape := spec.Shape(t.Sample)
	switch {
	case l == nil && shape == "":
		return nil
	case l == nil || l.Shape != shape && !t.prove: // names of probes may be numbers
		return fmt.Errorf("the snapshot is for samples with names of another shape than %s", t.Sample)
	}
	cfg.Late = l.late(t.Sample)
	for name, spans := range l.Files {
		path := filepath.Join(t.Dir, name)
		b, err := os.ReadFile(path)
		if err == nil {
			err = os.WriteFile(path, late.Text{Bytes: b, Spans: spans}.With(cfg.Late.Words), 0o600)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// prefix puts the name of the sample into the output before the stop.
func (l *latePlan) prefix(b []byte, sample string) []byte {
	if l == nil {
		return b
	}
	return late.Text{Bytes: b, Spans: l.Prefix}.With([]string{sample})
}

// compareLate completes the comparison of two preparations with different names of the
// sample, whose memories are equal apart from the names: it compares their looks and
// files, and makes further preparations. reply is the comparison of their memories.
func (p *preparation) compareLate(snap *Snapshot, first templateInfo, reply event) error {
	n := p.late
	if n == nil {
		return nil
	}
	plan := &latePlan{Shape: p.spec.Shape(n.first), Places: reply.Comparison.Words, Offsets: reply.Comparison.Offsets}
	snap.Late = plan
	words := frozen.NewWords(n.words())
	err := p.lateFiles(snap, reply.Prefix, func(a late.Text, b []byte) (late.Text, bool) {
		if len(a.Bytes) != len(b) {
			return a, false
		}
		var same bool
		a.Spans, same = words.Same(a.Bytes, b)
		return a, same
	})
	if err != nil {
		return err
	}
	for _, o := range plan.Offsets {
		n.avoid = append(n.avoid, byte(-o.Constant))
	}
	started := time.Now()
	for i := 0; i < fewestFurther || i < mostFurther && time.Since(started) < enoughFurther; i++ {
		p.end()
		n.further = n.other()
		if err := p.load(2); err != nil {
			return err
		}
		reply, err := p.held.ask(p.ctx, request{Op: opCompare, Dir: snap.Dir, First: first.Prepared, Late: plan.late(n.further)})
		if err != nil {
			return err
		}
		if c := reply.Comparison; !c.Same() {
			return &dependence{"its memory depends on the name of the sample: " + describeComparison(c)}
		}
		plan.Offsets = reply.Comparison.Offsets
		err = p.lateFiles(snap, reply.Prefix, func(a late.Text, b []byte) (late.Text, bool) {
			return a, bytes.Equal(a.With([]string{n.further}), b)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// lateFiles compares the looks and the files of the template that is held with those of
// the first one. same compares the content of a file, and returns the first one's with the
// places of the name.
func (p *preparation) lateFiles(snap *Snapshot, prefix []byte, same func(a late.Text, b []byte) (late.Text, bool)) error {
	if !maps.Equal(lookSet(p.firstLooks, p.firstDir), lookSet(p.held.looks, p.held.dir)) {
		return &dependence{"its looks at files depend on the name of the sample"}
	}
	plan := snap.Late
	a, err := madeFiles(p.firstDir, p.spec)
	if err != nil {
		return err
	}
	b, err := madeFiles(p.held.dir, p.spec)
	if err != nil {
		return err
	}
	if p.spec.Stream {
		first, err := os.ReadFile(filepath.Join(snap.Dir, prefixName))
		if err != nil {
			return err
		}
		t, ok := same(late.Text{Bytes: first, Spans: plan.Prefix}, prefix)
		if !ok {
			return &dependence{"its output before its input depends on the name of the sample"}
		}
		plan.Prefix = t.Spans
	}
	if plan.Files == nil {
		plan.Files = map[string][]frozen.Span{}
	}
	if len(a) != len(b) {
		return &dependence{"the files that it makes before its input depend on the name of the sample"}
	}
	for name, one := range a {
		other, ok := b[name]
		t, equal := same(late.Text{Bytes: one.content, Spans: plan.Files[name]}, other.content)
		if name == StderrName && !equal {
			// It may have times. Where these have other lengths, the places of the name are not known.
			equal = late.EqualButNumbers(one.content, other.content) && !bytes.Contains(one.content, []byte(p.late.first))
			t.Spans = nil
		}
		if !ok || !equal || one.mode != other.mode || one.target != other.target {
			return &dependence{fmt.Sprintf("the file %s, which it makes before its input, is not the same in each start", name)}
		}
		if len(t.Spans) > 0 {
			plan.Files[name] = t.Spans
		}
	}
	return nil
}

// lookSet returns the looks of a tool, without the name of its directory.
func lookSet(looks []access, dir string) map[access]bool {
	set := map[access]bool{}
	for _, l := range looks {
		if isUnwatched(l.Path) && !below(l.Path, FixedDir) {
			continue
		}
		l.Process = 0
		for _, d := range []string{dir, FixedDir} {
			if rel, ok := strings.CutPrefix(l.Path, d); ok {
				l.Path = "." + rel
			}
		}
		set[l] = true
	}
	return set
}

// made is a file that a tool has made before the stop.
type made struct {
	mode    fs.FileMode
	target  string // of a symbolic link
	content []byte
}

// madeLimit is the size in bytes up to which the files of two preparations with different
// names of the sample are compared.
const madeLimit = 1 << 20

// madeFiles returns the files in a tool's directory, without its inputs.
func madeFiles(dir string, spec Spec) (map[string]made, error) {
	all := map[string]made{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		if slices.Contains(spec.Inputs, rel) {
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		m := made{mode: info.Mode()}
		switch {
		case m.mode.IsRegular() && info.Size() > madeLimit:
			return &dependence{fmt.Sprintf("the file %s, which it makes before its input, is too large to compare it for several names of the sample", rel)}
		case m.mode.IsRegular():
			m.content, err = os.ReadFile(path)
		case m.mode&fs.ModeSymlink != 0:
			m.target, err = os.Readlink(path)
		}
		all[rel] = m
		return err
	})
	return all, err
}

// errSample is the error for a Spec without a name of a sample.
var errSample = errors.New("the command has the name of the sample, and no sample is known")
