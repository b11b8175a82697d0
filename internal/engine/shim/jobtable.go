package shim

import (
	"cmp"
	"encoding/json"
	"iter"
	"slices"
	"strconv"
	"strings"

	"premix/internal/engine/queue"
	"premix/internal/engine/spawn"
)

// batch is the jobs of one submission: one job, or the elements of an array. An element has a
// job of its own once it has begun, or was changed. The others have the properties of the
// batch, and are made when a question needs them.
type batch struct {
	first, n int
	proto    *job         // the job, or the properties of elements
	array    *queue.Array // nil: one job
	own      map[int]*job // of an array, by id
	apart    map[int]bool // elements of own that scontrol has held, released, requeued or changed
	blocked  bool         // some of its jobs may be
}

// last returns the id of the last job.
func (b *batch) last() int { return b.first + b.n - 1 }

// job returns the job with an id. An element without a job of its own gets one that w.keep
// may keep.
func (b *batch) job(id int) *job {
	if b.array == nil {
		return b.proto
	}
	if j := b.own[id]; j != nil {
		return j
	}
	j := &job{}
	b.copy(j, id)
	return j
}

// copy sets a job to an element that has none of its own.
func (b *batch) copy(j *job, id int) {
	*j = *b.proto
	j.id, j.At = id, id-b.first
	j.Index = b.array.Index(j.At)
}

// jobTable is the jobs of a worker, by their ids, which count from 1.
type jobTable struct {
	batches []*batch // in the order of their ids
	known   int      // jobs
}

// batch returns the batch of a job, which exists.
func (t *jobTable) batch(id int) *batch {
	i, ok := slices.BinarySearchFunc(t.batches, id, func(b *batch, id int) int { return cmp.Compare(b.first, id) })
	if !ok {
		i--
	}
	return t.batches[i]
}

// job returns a job, which exists.
func (t *jobTable) job(id int) *job { return t.batch(id).job(id) }

// keep has an element keep the job that it got from job.
func (t *jobTable) keep(j *job) {
	if b := t.batch(j.id); b.array != nil {
		b.own[j.id] = j
	}
}

// apart keeps the job of an element that no longer has the properties of its array.
func (t *jobTable) apart(j *job) {
	t.keep(j)
	if b := t.batch(j.id); b.array != nil {
		b.apart[j.id] = true
	}
}

// span returns the jobs from first to last.
func (t *jobTable) span(first, last int) iter.Seq[*job] {
	return func(yield func(*job) bool) {
		for id := first; id <= last; {
			for b := t.batch(id); id <= min(last, b.last()); id++ {
				if !yield(b.job(id)) {
					return
				}
			}
		}
	}
}

// jobs returns all jobs.
func (t *jobTable) jobs() iter.Seq[*job] { return t.span(1, t.known) }

// in returns the jobs of ranges of ids.
func (t *jobTable) in(ranges [][2]int) (list []*job) {
	for _, r := range ranges {
		list = slices.AppendSeq(list, t.span(r[0], r[1]))
	}
	return list
}

// ids returns the ids of the jobs that a user names: 12, 12_3, 12_[1-4], 12.batch. The id of an
// array names all of its elements.
func (t *jobTable) ids(text string) ([][2]int, error) {
	bad := &optionError{"Invalid job id specified: " + strconv.Quote(text), "a job is a number, or as in 12_3"}
	text, _, _ = strings.Cut(text, ".")
	text, _, _ = strings.Cut(text, "+")
	number, element, isElement := strings.Cut(text, "_")
	id, err := strconv.Atoi(number)
	if err != nil || id < 1 {
		return nil, bad
	}
	if id > t.known {
		return nil, nil
	}
	j := t.job(id)
	if !isElement {
		if j.Array > 0 && j.At == 0 {
			return [][2]int{{id, id + j.Array - 1}}, nil
		}
		return [][2]int{{id, id}}, nil
	}
	if j.Array == 0 {
		return nil, nil
	}
	indices, _, err := parseArray(strings.Trim(element, "[]"))
	if err != nil {
		return nil, bad
	}
	var list [][2]int
	add := func(id int) {
		if n := len(list); n > 0 && list[n-1][1] == id-1 {
			list[n-1][1] = id
			return
		}
		list = append(list, [2]int{id, id})
	}
	if b := t.batch(id); b.array != nil {
		for _, index := range indices {
			if at, ok := b.array.Element(index); ok {
				add(b.first + at)
			}
		}
		return list, nil
	}
	for o := range t.span(j.array(), j.array()+j.Array-1) { // of an earlier premix: each has a line
		if _, ok := slices.BinarySearch(indices, o.Index); ok {
			add(o.id)
		}
	}
	return list, nil
}

// selected returns the jobs that a user names; see ids.
func (t *jobTable) selected(text string) ([]*job, error) {
	ranges, err := t.ids(text)
	return t.in(ranges), err
}

// follow adds tasks that are not known as jobs yet. The caller holds mu, or is
// alone.
func (w *worker) follow() error {
	total := 0
	for _, n := range w.q.Counts() {
		total += n
	}
	for w.known < total {
		id := w.known + 1
		_, last, array, err := w.q.Batch(id)
		if err != nil {
			return err
		}
		if array != nil {
			w.add(id, last, array)
			continue
		}
		spec, err := w.q.Spec(id)
		if err != nil {
			return err
		}
		w.add(id, id, spec)
	}
	return nil
}

// add adds the jobs of a spec.
func (w *worker) add(first, last int, spec *queue.Spec) {
	j := &job{jobMeta: &jobMeta{}, id: first, step: spec.Group}
	if spec.Note == "" || json.Unmarshal([]byte(spec.Note), j.jobMeta) != nil {
		// It was submitted by premix task submit.
		*j.jobMeta = jobMeta{Name: spec.Name, Dir: spec.Dir, Partition: defaultPartition, Ntasks: 1, PerTask: spec.Cores, Cores: spec.Cores, Memory: spec.Memory, Limit: spec.Timeout.Seconds()}
		if j.Name == "" {
			j.Name = spec.Group
		}
	}
	b := &batch{first: first, n: last - first + 1, proto: j, array: spec.Array}
	j.At, j.Index, j.places = j.jobMeta.At, j.jobMeta.Index, spec.Array
	if b.array != nil {
		b.own, b.apart = make(map[int]*job), make(map[int]bool)
	}
	j.submittedAs()
	w.batches, w.known = append(w.batches, b), last
	if j.Request != "" {
		w.requests[j.Request] = j.array()
	}
	if j.Script != "" {
		w.scripts = append(w.scripts, b)
	}
	w.alter(b)
	w.block(b)
}

// submittedAs sets the fields of a job that follow from its properties.
func (j *job) submittedAs() {
	j.needs = nil
	if j.Needs != "" {
		j.needs, _ = parseDependency(j.Needs) // it was when it was submitted
	}
	j.userHeld = j.UserHeld || j.Needs == "" && j.Begin.IsZero() && j.Width == 0
}

// alter applies the changes of earlier workers to the jobs of a batch.
func (w *worker) alter(b *batch) {
	altered := func(id int, n *jobMeta) {
		j := b.job(id)
		j.jobMeta = n
		j.submittedAs()
		w.apart(j)
		if j.Again {
			w.again = append(w.again, j)
		}
	}
	if b.array == nil {
		if n, ok := w.changes.notes[b.first]; ok {
			altered(b.first, n)
		}
		return
	}
	for id, n := range w.changes.notes {
		if id >= b.first && id <= b.last() {
			altered(id, n)
		}
	}
}

// block notes the batch of held jobs as one of which jobs may be released.
func (w *worker) block(b *batch) {
	if b.blocked || len(w.q.HeldFrom(b.first, b.last(), 1, func(int) bool { return false })) == 0 {
		return
	}
	b.blocked = true
	w.blocked = append(w.blocked, b)
	w.wakes.add(b, b.proto)
	for id := range b.apart {
		w.wakes.add(b, b.own[id])
	}
}

// ended reports whether all jobs from first to last have ended for good. The caller holds mu.
func (w *worker) ended(first, last int, running map[int]spawn.Running) bool {
	c := w.q.Census(first, last)
	return c.Counts[queue.Waiting] == 0 && w.leaving(first, last, running) == 0
}

// leaving counts the jobs from first to last that are cancelled and not over: their processes
// have not ended, or they run again.
func (w *worker) leaving(first, last int, running map[int]spawn.Running) (n int) {
	for id := range running {
		if id >= first && id <= last && w.q.State(id) == queue.Cancelled {
			n++
		}
	}
	for _, j := range w.again {
		if _, runs := running[j.id]; !runs && j.id >= first && j.id <= last && w.q.State(j.id) == queue.Cancelled {
			n++
		}
	}
	return n
}
