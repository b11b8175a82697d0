package local

import (
	"io"
	"time"
)

// Messages are the notices and the progress line of an engine, for people. It is safe
// for concurrent use.
type Messages struct{ p *progress }

// NewMessages writes to w; nil: nowhere. On a terminal the progress line is rewritten.
func NewMessages(w io.Writer, terminal bool) *Messages { return &Messages{newProgress(w, terminal)} }

// Interval returns how often the progress line is to be drawn.
func (m *Messages) Interval() time.Duration { return m.p.interval() }

// Notice writes one line.
func (m *Messages) Notice(format string, args ...any) { m.p.notice(format, args...) }

// Note writes one line about a problem that does not stop the run. Of
// one format only the first lines are written.
func (m *Messages) Note(format string, args ...any) { m.p.note(format, args...) }

// Draw writes the progress line.
func (m *Messages) Draw(line string) { m.p.draw(drawn(line)) }

// Clear removes the progress line.
func (m *Messages) Clear() { m.p.clear() }

// drawn is a progress line that its caller has made.
type drawn string

func (d drawn) line(time.Time) string { return string(d) }
