package choose

import (
	"cmp"
	"fmt"
	"math"
	"os/exec"
	"slices"

	"premix/internal/transfer"
	"premix/internal/transfer/link"
)

// Estimate is the expected time of one protocol.
type Estimate struct {
	Protocol string  `json:"protocol"`
	Seconds  float64 `json:"seconds"` // 0: not measured, or it cannot be used
	Copies   int     `json:"copies"`  // number of copies on which it is based
	Why      string  `json:"why"`     // the reason, in words
	Left     bool    `json:"left_out"`
}

// Task describes the data to be copied.
type Task struct {
	Direction transfer.Direction
	Size      int64
	Files     int // more than 1: a tree
	Open      bool
	Have      bool // the receiver has a path that may contain much of it
}

// own is premix's own protocol, and ownServer the same with a standing server. get and put
// do not start a standing server: that would cost more than it saves, because ssh starts
// own at once.
const (
	own       = "premix"
	ownServer = "premix-server"
)

// habit is the default order of protocols without measurements: for a file, and for a tree.
var habit = map[bool][]string{
	false: {own, "rsync", "scp", "sftp"},
	true:  {own, "tar", "rsync", "scp", "sftp"},
}

// smallFile is the mean size in bytes below which the time for a tree depends on the number
// of its files and not on its size.
const smallFile = 1 << 20

// Order returns the protocols in the order in which they are tried, with the reasons.
// Protocols that are left out come last.
func Order(l *link.Link, copies []transfer.Copy, t Task) []Estimate {
	return order(l, copies, t, installed())
}

// installed returns a function that reports whether a program is installed here. It
// searches once for each program.
func installed() func(name string) bool {
	known := map[string]bool{}
	return func(name string) bool {
		here, ok := known[name]
		if !ok {
			_, err := exec.LookPath(name)
			here = err == nil
			known[name] = here
		}
		return here
	}
}

func order(l *link.Link, copies []transfer.Copy, t Task, here func(name string) bool) []Estimate {
	var list []Estimate
	reach := reaching(l, copies, t.Direction)
	for i := range l.Protocols {
		list = append(list, estimate(&l.Protocols[i], copies, t, reach, here))
	}
	rank := func(e Estimate) int {
		if i := slices.Index(habit[t.Files > 1], e.Protocol); i >= 0 {
			return i
		}
		return len(habit[true])
	}
	slices.SortStableFunc(list, func(a, b Estimate) int {
		return cmp.Or(compareBool(a.Left, b.Left), compareBool(!(t.Have && a.Protocol == own), !(t.Have && b.Protocol == own)), compareBool(a.Seconds == 0, b.Seconds == 0), cmp.Compare(a.Seconds, b.Seconds), cmp.Compare(rank(a), rank(b)), cmp.Compare(a.Protocol, b.Protocol))
	})
	return list
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// reaching returns the seconds until the peer can be asked to start a server: the time
// until data flowed in copies through ssh. It returns 0 if it is not known.
func reaching(l *link.Link, copies []transfer.Copy, way transfer.Direction) (least float64) {
	serves := map[string]bool{}
	for i := range l.Protocols {
		serves[l.Protocols[i].Name] = l.Protocols[i].Server != ""
	}
	for i := range copies {
		c := &copies[i]
		serving, known := serves[c.Protocol]
		if !known || serving || !c.Usable() || c.Direction != way {
			continue
		}
		took := c.Seconds // without captured packets, it is at most this
		if c.Flowing > 0 {
			took = c.Flowing
		}
		if least == 0 || took < least {
			least = took
		}
	}
	return least
}

func estimate(p *link.Protocol, copies []transfer.Copy, t Task, reach float64, here func(name string) bool) Estimate {
	e := Estimate{Protocol: p.Name}
	leave := func(format string, args ...any) Estimate {
		e.Left, e.Why = true, fmt.Sprintf(format, args...)
		return e
	}
	if p.Script(t.Direction, t.Files > 1) == "" {
		what := "a file"
		if t.Files > 1 {
			what = "a tree"
		}
		return leave("it cannot %s %s", t.Direction, what)
	}
	if p.Name == ownServer {
		return leave("use premix://HOST:PORT/PATH for a server that runs already")
	}
	if p.Open && !t.Open {
		return leave("it gives access to all who can reach its port, or is not encrypted: --allow-open permits it")
	}
	for _, n := range p.Needs {
		if !here(n) {
			return leave("%s is not installed here", n)
		}
	}
	usable, failed := map[int64][]float64{}, 0
	for i := range copies { // pointers, because a row is large and there may be many
		c := &copies[i]
		if c.Protocol != p.Name || c.Direction != t.Direction || (c.Files > 1) != (t.Files > 1) {
			continue
		}
		switch {
		case c.Usable():
			x, _ := measure(c.Size, c.Files, t)
			took := c.Seconds + c.Setup
			if p.Server != "" {
				took += reach
			}
			usable[x] = append(usable[x], took)
			e.Copies++
		case !c.OK:
			failed++
		}
	}
	if t.Have && p.Name == own {
		e.Why = "only this protocol sends just the missing parts"
		return e
	}
	if e.Copies == 0 {
		if failed > 0 {
			return leave("all %d measured copies by it failed", failed)
		}
		e.Why = "it was not measured in this direction"
		return e
	}
	_, x := measure(t.Size, t.Files, t)
	e.Seconds = predict(usable, x)
	e.Why = fmt.Sprintf("%.3g s expected, from %d copies", e.Seconds, e.Copies)
	if failed > 0 {
		e.Why += fmt.Sprintf("; %d failed", failed)
	}
	return e
}

// measure returns the size on which the time of a copy depends: bytes, or the number of
// files if these are small.
func measure(size int64, files int, t Task) (int64, float64) {
	if t.Files > 1 && t.Size/int64(t.Files) < smallFile {
		return int64(files), float64(files)
	}
	return size, float64(size)
}

// predict returns the time at x, from the medians at other sizes.
func predict(at map[int64][]float64, x float64) float64 {
	var xs, ys []float64
	for size := range at {
		xs = append(xs, float64(size))
	}
	slices.Sort(xs)
	for _, v := range xs {
		s := slices.Sorted(slices.Values(at[int64(v)]))
		n := len(s)
		ys = append(ys, (s[(n-1)/2]+s[n/2])/2)
	}
	n := len(xs)
	switch {
	case n == 1 || x <= xs[0]:
		if x <= xs[0] {
			// Below the smallest measured size, overhead and rate cannot be separated: the
			// overhead dominates there, and a smaller copy does not take longer.
			return ys[0]
		}
		return ys[0] * x / xs[0]
	case x >= xs[n-1]:
		slope := max((ys[n-1]-ys[n-2])/(xs[n-1]-xs[n-2]), ys[n-1]/xs[n-1]/4)
		return ys[n-1] + slope*(x-xs[n-1])
	}
	i := slices.IndexFunc(xs, func(v float64) bool { return v >= x })
	share := (x - xs[i-1]) / (xs[i] - xs[i-1])
	return math.FMA(share, ys[i]-ys[i-1], ys[i-1])
}
