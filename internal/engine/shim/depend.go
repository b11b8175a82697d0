package shim

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"premix/internal/engine/spawn"
)

// dependency is the value of --dependency: all of its conditions, or any.
type dependency struct {
	any        bool
	conditions []condition
}

// condition is one of them.
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

// known checks that all jobs of a dependency are there. The caller holds mu.
func (w *worker) known(d *dependency) error {
	for _, c := range d.conditions {
		for _, text := range c.jobs {
			list, err := w.selected(text)
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
func (w *worker) satisfied(j *job, running map[int]spawn.Running, now time.Time) verdict {
	yes, no := 0, 0
	for _, c := range j.needs.conditions {
		switch w.holds(j, &c, running, now) {
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

func (w *worker) holds(j *job, c *condition, running map[int]spawn.Running, now time.Time) verdict {
	if c.kind == "singleton" {
		for _, o := range w.jobs[:j.id-1] {
			if o.Name == j.Name && !w.status(o, running).over() {
				return notYet
			}
		}
		return satisfied
	}
	whole := satisfied
	for _, text := range c.jobs {
		list, _ := w.selected(text) // it was looked at when the job was submitted
		for _, o := range list {
			if c.kind == "aftercorr" && j.Array > 0 && o.Array > 0 && o.Index != j.Index {
				continue
			}
			st := w.status(o, running)
			v := notYet
			switch c.kind {
			case "after":
				if st.over() || st.state != pending && now.Sub(st.started) >= c.wait {
					v = satisfied
				}
			case "afterany":
				if st.over() {
					v = satisfied
				}
			case "afterok", "aftercorr":
				if st.state == completed {
					v = satisfied
				} else if st.over() {
					v = never
				}
			case "afternotok":
				if st.state == completed {
					v = never
				} else if st.over() {
					v = satisfied
				}
			}
			switch {
			case v == never:
				return never
			case v == notYet:
				whole = notYet
			}
		}
	}
	return whole
}
