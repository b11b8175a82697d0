package pilot

import (
	"context"
	"fmt"
	"slices"
)

// Place is the place of a task that was given away.
type Place struct {
	Engine  string
	Job     string            // the engine's id; "" as long as the wave is not known to be submitted
	Options map[string]string // of the engine
}

// FindPlace returns the place of a task that was given away. It is nil if the task was not given
// away, or if its worker is closed.
func FindPlace(dir string, task int) (*Place, error) {
	l := &ledger{path: ledgerPath(dir)}
	if err := l.read(); err != nil {
		return nil, err
	}
	for _, h := range l.open() {
		if !slices.ContainsFunc(h.Ranges, func(r [2]int) bool { return task >= r[0] && task <= r[1] }) {
			continue
		}
		w := l.wave(h.wave)
		p := &Place{Engine: w.Engine, Job: h.job}
		if w.Settings != nil {
			p.Options = w.Settings.Options
		}
		return p, nil
	}
	return nil, nil
}

// Say returns a sentence with the reason why a task that was given away has no result yet.
// eng is the engine of the place; nil if it is not available.
func (p *Place) Say(ctx context.Context, eng Engine) string {
	if p.Job == "" {
		return fmt.Sprintf("it is being given to a job of %s", p.Engine)
	}
	with := fmt.Sprintf("it was given to job %s of %s", p.Job, p.Engine)
	if eng == nil {
		return with
	}
	list, err := eng.Status(ctx, []string{p.Job})
	if err != nil {
		return fmt.Sprintf("%s, which does not say how far that is: %v", with, err)
	}
	st, ok := list[p.Job]
	if !ok {
		return with + ", which has just been submitted"
	}
	switch st.Phase {
	case Pending:
		with += ", which waits"
	case Running:
		with += ", which runs"
		if st.Node != "" {
			with += " on " + st.Node
		}
	default:
		return fmt.Sprintf("%s, which is over (%s): the premix that has submitted it gives it to another", with, reasonOf(st))
	}
	if st.Reason != "" {
		with += ": " + st.Reason
	}
	return with
}
