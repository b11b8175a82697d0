package shim

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"premix/internal/engine/queue"
)

// dependency is the value of --dependency: all of its conditions, or any.
type dependency struct {
	any        bool
	conditions []condition
}

// condition is one condition of a dependency: on the start or the end of some jobs.
type condition struct {
	kind string // after, afterany, afterok, afternotok, aftercorr or singleton
	jobs []string
	wait time.Duration // after a start
}

// verdict is the state of a dependency.
type verdict int

const (
	notYet verdict = iota
	satisfied
	never
)

func parseDependency(text string) (*dependency, error) {
	bad := func(what string) error {
		return &optionError{fmt.Sprintf("Job dependency problem: %s in %q", what, text), "write it as in afterok:12:13 or afterany:12,afterok:14"}
	}
	d := &dependency{any: strings.Contains(text, "?")}
	if d.any && strings.Contains(text, ",") {
		return nil, bad("both , and ?")
	}
	for _, part := range strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == '?' }) {
		kind, list, _ := strings.Cut(part, ":")
		c := condition{kind: strings.ToLower(kind)}
		switch c.kind {
		case "singleton":
			d.conditions = append(d.conditions, c)
			continue
		case "after", "afterany", "afterok", "afternotok", "aftercorr":
		default:
			return nil, bad("unknown condition " + strconv.Quote(kind))
		}
		for _, id := range strings.Split(list, ":") {
			id, minutes, has := strings.Cut(id, "+")
			if has {
				n, err := strconv.Atoi(minutes)
				if err != nil || c.kind != "after" || n < 0 {
					return nil, bad("a bad time")
				}
				c.wait = time.Duration(n) * time.Minute
			}
			if id == "" {
				return nil, bad("a job is missing")
			}
			c.jobs = append(c.jobs, id)
		}
		d.conditions = append(d.conditions, c)
	}
	if len(d.conditions) == 0 {
		return nil, bad("nothing")
	}
	return d, nil
}

// waits reports whether a condition depends on the time.
func (d *dependency) waits() bool {
	return slices.ContainsFunc(d.conditions, func(c condition) bool { return c.wait > 0 })
}

// corresponds reports whether a condition of an element of an array is about an element of
// another.
func (d *dependency) corresponds() bool {
	return slices.ContainsFunc(d.conditions, func(c condition) bool { return c.kind == "aftercorr" })
}

// exist checks that all jobs of a dependency are there. The caller holds mu.
func (w *worker) exist(d *dependency) error {
	for _, c := range d.conditions {
		for _, text := range c.jobs {
			list, err := w.ids(text)
			if err != nil {
				return err
			}
			if len(list) == 0 {
				return &optionError{fmt.Sprintf("Batch job submission failed: Job dependency problem: there is no job %s", text), "name jobs that were submitted here"}
			}
		}
	}
	return nil
}

// satisfied reports whether the dependencies of a job are met. The caller holds mu.
func (w *worker) satisfied(j *job, p *pass) verdict {
	yes, no := 0, 0
	for _, c := range j.needs.conditions {
		switch w.holds(j, &c, p) {
		case satisfied:
			yes++
		case never:
			no++
		}
	}
	all := len(j.needs.conditions)
	switch {
	case yes == all, j.needs.any && yes > 0:
		return satisfied
	case !j.needs.any && no > 0, no == all:
		return never
	}
	return notYet
}

// tally is how many of some jobs have succeeded, have ended otherwise, and have not ended.
type tally struct{ completed, ended, open int }

// tally counts jobs.
func (p *pass) tally(ranges [][2]int) (t tally) {
	for _, r := range ranges {
		c := p.w.q.Census(r[0], r[1])
		leaving := p.w.leaving(r[0], r[1], p.running)
		t.completed += c.Counts[queue.Succeeded]
		t.ended += c.Counts[queue.Failed] + c.Counts[queue.Cancelled] - leaving
		t.open += c.Counts[queue.Waiting] + leaving
	}
	return t
}

// of counts the jobs that a condition of a job names with one text.
func (p *pass) of(j *job, c *condition, text string) tally {
	ids, _ := p.w.ids(text) // it was looked at when the job was submitted
	if c.kind == "aftercorr" && j.Array > 0 {
		return p.tally(p.w.corresponding(j, ids))
	}
	t, ok := p.tallies[text]
	if !ok {
		t = p.tally(ids)
		p.tallies[text] = t
	}
	return t
}

// corresponding returns those of some jobs that have the index of a job, and those outside an
// array.
func (w *worker) corresponding(j *job, ids [][2]int) (list [][2]int) {
	for _, r := range ids {
		if b := w.batch(r[0]); b.array != nil {
			if at, ok := b.array.Element(j.Index); ok && b.first+at >= r[0] && b.first+at <= r[1] {
				list = append(list, [2]int{b.first + at, b.first + at})
			}
			continue
		}
		for o := range w.span(r[0], r[1]) {
			if o.Array == 0 || o.Index == j.Index {
				list = append(list, [2]int{o.id, o.id})
			}
		}
	}
	return list
}

// begun reports whether all jobs that a text names began a time ago, or have ended.
func (p *pass) begun(text string, wait time.Duration) bool {
	ids, _ := p.w.ids(text)
	for _, r := range ids {
		if c := p.w.q.Census(r[0], r[1]); c.Held > 0 {
			return false
		}
		for o := range p.w.span(r[0], r[1]) {
			if st := p.w.status(o, p.running); !st.over() && (st.state == pending || p.now.Sub(st.started) < wait) {
				return false
			}
		}
	}
	return true
}

func (w *worker) holds(j *job, c *condition, p *pass) verdict {
	if c.kind == "singleton" {
		return w.alone(j, p)
	}
	whole := satisfied
	for _, text := range c.jobs {
		if c.kind == "after" {
			if !p.begun(text, c.wait) {
				whole = notYet
			}
			continue
		}
		switch t := p.of(j, c, text); {
		case (c.kind == "afterok" || c.kind == "aftercorr") && t.ended > 0, c.kind == "afternotok" && t.completed > 0:
			return never
		case t.open > 0:
			whole = notYet
		}
	}
	return whole
}

// alone reports whether all earlier jobs with the name of a job have ended.
func (w *worker) alone(j *job, p *pass) verdict {
	for _, b := range w.batches {
		if b.first >= j.id {
			break
		}
		if b.proto.Name == j.Name && !w.ended(b.first, min(b.last(), j.id-1), p.running) {
			return notYet
		}
		for id := range b.apart {
			if o := b.own[id]; id < j.id && b.array != nil && o.Name == j.Name && !w.ended(id, id, p.running) {
				return notYet
			}
		}
	}
	return satisfied
}
