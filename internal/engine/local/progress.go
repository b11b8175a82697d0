package local

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// How often the progress line is written: on a terminal it is rewritten, else
// there is one line after another.
const (
	terminalInterval = 200 * time.Millisecond
	plainInterval    = 10 * time.Second
)

// progress writes notices and a progress line. It is safe for concurrent use.
type progress struct {
	terminal bool

	mu    sync.Mutex // mu guards the fields below
	w     io.Writer  // nil: nothing is written
	drawn bool       // the progress line is on the terminal
	notes map[string]int
}

// maxNotes is how many notes of one kind are written: the same may be true for each
// of ten thousand tasks.
const maxNotes = 3

func newProgress(w io.Writer, terminal bool) *progress {
	return &progress{w: w, terminal: terminal, notes: make(map[string]int)}
}

func (p *progress) interval() time.Duration {
	if p.terminal {
		return terminalInterval
	}
	return plainInterval
}

// notice writes one line for people.
func (p *progress) notice(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.w == nil {
		return
	}
	p.erase()
	// A closed terminal does not end a run.
	_, _ = fmt.Fprintf(p.w, format+"\n", args...)
}

// note writes one line about a problem that does not stop the run.
// Of one kind, which means of one format, only the first lines are written.
func (p *progress) note(format string, args ...any) {
	p.mu.Lock()
	p.notes[format]++
	n := p.notes[format]
	p.mu.Unlock()
	switch {
	case n < maxNotes:
		p.notice("note: "+format, args...)
	case n == maxNotes:
		p.notice("note: "+format+" (more notes like this are not printed)", args...)
	}
}

// state is the source of a progress line.
type state interface{ line(now time.Time) string }

// draw writes the progress line of s.
func (p *progress) draw(s state) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.w == nil {
		return
	}
	line := s.line(time.Now())
	if p.terminal {
		_, _ = fmt.Fprintf(p.w, "\r\x1b[2K%s", line)
		p.drawn = true
		return
	}
	_, _ = fmt.Fprintln(p.w, line)
}

// clear removes the progress line.
func (p *progress) clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.erase()
}

// erase removes the progress line. The caller holds mu.
func (p *progress) erase() {
	if p.drawn {
		_, _ = io.WriteString(p.w, "\r\x1b[2K")
		p.drawn = false
	}
}

// rateText returns a rate per second, minute or hour, whichever reads best.
func rateText(perSecond float64) string {
	switch {
	case perSecond >= 1:
		return fmt.Sprintf("%.1f/s", perSecond)
	case perSecond >= 1.0/60:
		return fmt.Sprintf("%.1f/min", perSecond*60)
	}
	return fmt.Sprintf("%.1f/h", perSecond*3600)
}

// durationText returns a duration as h:mm:ss or m:ss.
func durationText(d time.Duration) string {
	s := int(d.Round(time.Second).Seconds())
	if s >= 3600 {
		return fmt.Sprintf("%d:%02d:%02d", s/3600, s/60%60, s%60)
	}
	return fmt.Sprintf("%d:%02d", s/60, s%60)
}
