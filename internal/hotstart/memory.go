package hotstart

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/hotstart/frozen"
	"premix/internal/hotstart/tracer"
)

// How the memory of a tool is proved.
//
// A tool is prepared twice. The two preparations have placeholders with different content,
// sizes and times, different process ids, and clocks (tracer.Clock) that are years apart.
// They have different names of the directory, unless all tasks have the same one. Random
// bytes are the same in both preparations, and new for each snapshot. A difference between
// the two memories that no rule of package frozen explains shows that the memory depends
// on something that differs between tasks. The tool then starts cold.
//
// The proof of outputs tests the rules: where a rule explains a different value in the
// second preparation, the hot start of the probe gets this value.

// MemoryProof is the result of the comparison of two preparations.
type MemoryProof struct {
	// Compared is false where the memories could not be compared, for Reason.
	Compared    bool                `json:"compared"`
	Reason      string              `json:"reason,omitempty"`
	Explained   map[string]int      `json:"explained,omitempty"` // rule to number of words of 8 bytes
	Unexplained []frozen.Difference `json:"unexplained,omitempty"`
	More        int                 `json:"more,omitempty"`    // unexplained differences that are not listed
	Trusted     bool                `json:"trusted,omitempty"` // the recipe accepts them
	Bytes       int64               `json:"bytes"`             // that differed in their digests and were read
	Seconds     float64             `json:"seconds"`           // that the second preparation and the comparison took
}

// note describes the proof in a few words, for the record of a task.
func (m *MemoryProof) note() string {
	switch {
	case m == nil || !m.Compared:
		return "memory not"
	case m.Trusted:
		return fmt.Sprintf("memory differs in %d places without a known reason, and is trusted", len(m.Unexplained)+m.More)
	}
	return "memory too"
}

// maxUnexplained is how many unexplained differences a snapshot lists.
const maxUnexplained = 20

// dependence is the error for a tool whose memory depends on something that differs
// between tasks.
type dependence struct{ text string }

func (e *dependence) Error() string { return e.text }

// circumstances are the random seed, the directories and the clocks of the two
// preparations.
type circumstances struct {
	seed   []byte           // of the random bytes, the same in both
	names  [2]string        // of the directories; no letter is in both
	clocks [2]frozen.Moment // at which the tool begins
}

// newCircumstances draws the circumstances of two preparations.
func newCircumstances() circumstances {
	c := circumstances{seed: make([]byte, 32)}
	word := make([]byte, 8)
	for _, b := range [][]byte{c.seed, word} {
		rand.Read(b) // never fails
	}
	for i, b := range word {
		word[i] = 'a' + b%13
	}
	c.names[0] = string(word)
	for i := range word {
		word[i] += 13
	}
	c.names[1] = string(word)
	c.clocks = Clocks(os.Environ())
	return c
}

// Clocks returns the times at which the tool begins in two preparations: now, and Later.
func Clocks(env []string) [2]frozen.Moment {
	first, err := frozen.Now()
	if err != nil {
		first = frozen.Moment{Realtime: time.Now().UnixNano()} // no process is prepared here
	}
	if !clearSecond(first.Realtime) {
		first.Realtime -= 20 * int64(time.Second)
	}
	return [2]frozen.Moment{first, Later(first, env)}
}

// clearSecond reports whether the second of a time has two digits, and will have them for a
// while. strftime(3) leaves the digits of the last number in its stack frame, and the digits of
// several numbers if that number has one digit.
func clearSecond(t int64) bool {
	second := t / int64(time.Second) % 60
	return second >= 10 && second < 50
}

// Later returns a time for a further preparation, which is years after the first one by a
// random number of seconds. Both have the same distance from UTC in the time zone of an
// environment. No field of the times is equal, so that each place of a field differs. The day
// of the month has one digit, and another number than the month, so that texts of the time in
// different layouts differ.
func Later(first frozen.Moment, env []string) frozen.Moment {
	n := make([]byte, 16)
	const second, day = int64(time.Second), 24 * int64(time.Hour)
	for {
		rand.Read(n) // never fails
		draw := func(i int) int64 { return int64(binary.NativeEndian.Uint32(n[i:])) }
		later := frozen.Moment{
			Realtime:  first.Realtime + 1000*day + draw(0)%(86400*500)*second,
			Monotonic: first.Monotonic + 100*day + draw(4)%(86400*50)*second,
			Boottime:  first.Boottime + 200*day + draw(12)%(86400*50)*second,
			Cycles:    first.Cycles + 1<<49 + uint64(draw(8))<<17,
		}
		season := frozen.Season(later.Realtime, env)
		if season != frozen.Season(first.Realtime, env) || !clearSecond(later.Realtime) {
			continue
		}
		u := time.Unix(0, later.Realtime).In(time.FixedZone("", season))
		if fieldsDiffer(first.Realtime, later.Realtime, season) && u.Day() < 10 && u.Day() != int(u.Month()) {
			return later
		}
	}
}

// fieldsDiffer reports whether two times differ in each field, in a zone at a distance from UTC.
func fieldsDiffer(first, second int64, season int) bool {
	zone := time.FixedZone("", season)
	t, u := time.Unix(0, first).In(zone), time.Unix(0, second).In(zone)
	return t.Second() != u.Second() && t.Minute() != u.Minute() && t.Hour() != u.Hour() && t.Day() != u.Day() &&
		t.Month() != u.Month() && t.Weekday() != u.Weekday() && t.Year() != u.Year()
}

// Earlier returns a time at which a preparation begins that loads its data at another time. It is
// years before that by a random number of seconds, and no field is the same. Its text differs from
// the text of another time, if that is not 0, in each letter and digit, and the day of the year in
// both bytes. With short true the numbers of the text have one digit each, and else two:
// functions that print a time leave other bytes in memory then.
func Earlier(load frozen.Moment, env []string, other int64, short bool) frozen.Moment {
	const second, day = int64(time.Second), 24 * int64(time.Hour)
	season := frozen.Season(load.Realtime, env)
	zone := time.FixedZone("", season)
	for {
		var n [4]byte
		rand.Read(n[:]) // never fails
		began := load.Realtime - 1000*day - int64(binary.NativeEndian.Uint32(n[:]))%(86400*500)*second
		t, u := time.Unix(0, began).In(zone), time.Unix(0, other).In(zone)
		numbers := []int{t.Second(), t.Minute(), t.Hour(), t.Day()}
		switch {
		case frozen.Season(began, env) != season, !fieldsDiffer(load.Realtime, began, season):
		case slices.ContainsFunc(numbers, func(n int) bool { return (n < 10) != short }):
		case other != 0 && !short && (t.YearDay()>>8 == u.YearDay()>>8 || !lettersDiffer(t, u)):
		default:
			return frozen.Moment{Realtime: began, Monotonic: load.Monotonic - tracer.HeadTime, Boottime: load.Boottime - tracer.HeadTime, Cycles: load.Cycles - tracer.HeadCycles}
		}
	}
}

// lettersDiffer reports whether the texts of two times differ in each letter and digit, apart from
// the year.
func lettersDiffer(t, u time.Time) bool {
	const layout = "Mon Jan 02 15 04 05"
	a, b := t.Format(layout), u.Format(layout)
	for i := range a {
		if a[i] == b[i] && a[i] != ' ' {
			return false
		}
	}
	return true
}

// compareMemory prepares the tool a second time and compares its memory with the memory
// in the snapshot. first describes the preparation of the snapshot. The image records
// where the tool keeps ids of its threads. A difference without a known reason is a
// *dependence, unless the recipe trusts the tool.
func (p *preparation) compareMemory(snap *Snapshot, first templateInfo) error {
	started := time.Now()
	p.second.adopt(p)
	if err := p.load(1); err != nil {
		return err
	}
	defer p.end()
	if p.asksOnly() && len(snap.Early) > 0 {
		snap.Bounds = map[string]Bounds{}
		for _, name := range p.spec.Inputs {
			b, err := NewBounds(filepath.Join(p.firstDir, name), filepath.Join(p.held.dir, name))
			if err != nil {
				return err
			}
			snap.Bounds[name] = b
		}
	}
	r := request{Op: opCompare, Dir: snap.Dir, First: first.Prepared, Words: p.late.words()}
	reply, err := p.held.ask(p.ctx, r)
	if err != nil {
		return err
	}
	c := reply.Comparison
	m := &MemoryProof{Compared: len(c.Layout) == 0, Bytes: c.Read, Seconds: time.Since(started).Seconds()}
	snap.MemoryProof = m
	if c.Same() {
		m.Explained = map[string]int{}
		for _, g := range c.Explained {
			m.Explained[g.Rule] = g.Count
		}
		if err := writeNoise(filepath.Join(snap.Dir, noiseName), c.Noise); err != nil {
			return err
		}
		if err := p.compareLate(snap, first, reply); err != nil {
			return err
		}
		m.Seconds = time.Since(started).Seconds()
		return notePlaces(filepath.Join(snap.Dir, imageName), c, first.Prepared.Stopped)
	}
	if r.Words != nil {
		return &dependence{"its memory depends on something that is not the same in each start: " + describeComparison(c)}
	}
	if first.Threads || p.held.held.Threads {
		// Their turns are not the same each time.
		m.Compared, m.Reason = false, "threads of the tool ran while it loaded its data: "+describeComparison(c)
		return notePlaces(filepath.Join(snap.Dir, imageName), c, first.Prepared.Stopped)
	}
	m.Reason = describeComparison(c)
	m.Unexplained, m.More = c.Unexplained, c.More
	if n := len(m.Unexplained); n > maxUnexplained {
		m.Unexplained, m.More = m.Unexplained[:maxUnexplained], m.More+n-maxUnexplained
	}
	if p.spec.Trust {
		m.Trusted = true
		return notePlaces(filepath.Join(snap.Dir, imageName), c, first.Prepared.Stopped)
	}
	return &dependence{"its memory depends on a value that differs between starts: " + m.Reason}
}

// describeComparison describes the differences between two memories.
func describeComparison(c *frozen.Comparison) string {
	if len(c.Layout) > 0 {
		return fmt.Sprintf("the layouts differ in %d mappings, one %s", len(c.Layout), c.Layout[0])
	}
	n := len(c.Unexplained) + c.More
	if n == 1 {
		return "one place differs: " + c.Unexplained[0].String()
	}
	return fmt.Sprintf("%d places differ, the first: %s", n, c.Unexplained[0])
}

// writeNoise keeps patches for the proof of outputs.
func writeNoise(path string, patches []frozen.Patch) error {
	b, err := json.Marshal(patches)
	if err != nil {
		return err
	}
	return os.WriteFile(path, b, 0o600)
}

// applyNoise puts the values of the second preparation into a process that is held.
func applyNoise(path string, pid int) error {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // nothing was compared
	}
	if err != nil {
		return err
	}
	var patches []frozen.Patch
	if err := json.Unmarshal(b, &patches); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return frozen.Apply(pid, patches)
}

// notePlaces notes in an image the places that a start has to write.
func notePlaces(path string, c *frozen.Comparison, stopped frozen.Moment) error {
	if len(c.Ids)+len(c.RegisterIds)+len(c.Devices)+len(c.Clocks)+len(c.Dates)+len(c.Statuses)+len(c.WorkDirs) == 0 && c.Generator == nil {
		return nil
	}
	im, err := frozen.ReadFile(path)
	if err != nil {
		return err
	}
	c.Note(im, stopped)
	if err := os.Remove(path); err != nil {
		return err
	}
	return im.WriteFile(path)
}

// LargeSize is the size of the inputs of a second preparation that the tool does not open
// before it is held, bytes: a tool that asks for the size of its input may go other ways
// from some size on. Not all file systems have files of this size.
const LargeSize = 1 << 42

// placeholderTime returns the modification time of the placeholders of a preparation, with
// all times of files that people use between the two.
func placeholderTime(number int) time.Time {
	if number == 0 {
		return time.Now().AddDate(-30, 0, -211)
	}
	return time.Now().AddDate(1, 0, 97)
}

// Bounds are the sizes (bytes) and modification times (ns since the epoch) of an input in
// two preparations. If a tool asks for them before it is held, and the memories are equal,
// it can start hot for inputs whose sizes and times are between the two.
type Bounds struct {
	Size [2]int64 `json:"size"`
	Time [2]int64 `json:"time"`
}

// NewBounds returns the bounds of an input from its files in two preparations.
func NewBounds(a, b string) (Bounds, error) {
	var all Bounds
	for i, path := range []string{a, b} {
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			return all, &fs.PathError{Op: "stat", Path: path, Err: err}
		}
		all.Size[i], all.Time[i] = st.Size, st.Mtim.Nano()
	}
	slices.Sort(all.Size[:])
	slices.Sort(all.Time[:])
	return all, nil
}

// Refuses returns the reason why an input is not within the bounds, or "".
func (b Bounds) Refuses(path string) string {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return "" // the tool meets the same error
	}
	const asked = "the tool asks for the size and the times of its input before it loads its data"
	if st.Size < b.Size[0] || st.Size > b.Size[1] {
		return fmt.Sprintf("%s, and %s has %d bytes, where %d to %d were compared", asked, filepath.Base(path), st.Size, b.Size[0], b.Size[1])
	}
	if t := st.Mtim.Nano(); t < b.Time[0] || t > b.Time[1] {
		return fmt.Sprintf("%s, and %s was modified on %s", asked, filepath.Base(path), time.Unix(0, t).UTC().Format(time.DateOnly))
	}
	return ""
}

// trustHint returns the hint for a tool whose memory differs between preparations.
func (p *preparation) trustHint() string {
	if p.late != nil {
		return "use --start cold, or a command without ${sample}"
	}
	return "use --start cold; `trust: true` in the recipe starts the tool hot without this proof"
}
