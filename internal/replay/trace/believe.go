package trace

// clockStep is the time by which recorded times may be wrong: they are rounded to seconds.
const clockStep = Second

// mayContradict is the part of the jobs with dependencies, as 1/mayContradict, that may have
// started before their dependencies had ended. With more, the column does not mean what its
// format says.
const mayContradict = 100

// believe drops dependencies that the recorded starts contradict: a job that began before
// another one ended did not wait for it. If they contradict the dependencies of more than a
// hundredth of the jobs that have any, it drops all dependencies.
func (t *Trace) believe() {
	if t.AfterAt == nil || t.Waited == nil {
		return
	}
	with, wrong := 0, make(map[int32]bool)
	for job := range t.Len() {
		if len(t.Before(job)) == 0 {
			continue
		}
		with++
		for _, before := range t.Before(job) {
			if t.contradicts(job, int(before)) {
				wrong[int32(job)] = true
			}
		}
	}
	switch {
	case len(wrong) == 0:
		return
	case len(wrong) > with/mayContradict:
		t.AfterAt, t.After, t.Think = nil, nil, nil
		t.Read.note("%d of %d jobs started before the jobs ended that they are said to come after: all dependencies were ignored", len(wrong), with)
	default:
		t.dropContradicted()
		t.Read.note("%d of %d jobs started before the jobs ended that they are said to come after: their contradicted dependencies were ignored", len(wrong), with)
	}
}

// contradicts reports whether a job is recorded to have begun before another one ended.
func (t *Trace) contradicts(job, before int) bool {
	a, b := t.WaitedOf(job), t.WaitedOf(before)
	return a != Unknown && b != Unknown && t.Submit[job]+a+clockStep < t.Submit[before]+b+t.Run[before]
}

func (t *Trace) dropContradicted() {
	kept := t.After[:0]
	from := int32(0)
	for job := range t.Len() {
		until := t.AfterAt[job+1]
		for _, before := range t.After[from:until] {
			if !t.contradicts(job, int(before)) {
				kept = append(kept, before)
			}
		}
		from, t.AfterAt[job+1] = until, int32(len(kept))
	}
	if t.After = kept; len(kept) == 0 {
		t.AfterAt, t.After = nil, nil
	}
}
