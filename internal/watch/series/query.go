package series

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"premix/internal/watch"
)

// Query selects series.
type Query struct {
	Name  string        // exact, or a prefix followed by *
	Match []watch.Label // labels that the series must have
	// Pick chooses among the series with this name and these labels; nil chooses all.
	Pick  func(watch.ID) bool
	Start time.Time // rounded down to a whole step
	End   time.Time // rounded up to a whole step; exclusive
	// Step is the length of a point, in whole milliseconds. 0 chooses the least of a list
	// of round lengths that gives at most 1,000 points.
	Step time.Duration
	// MaxPoints bounds the points of all series together; 0 does not bound them. An answer
	// with more is a *TooManyError.
	MaxPoints int
}

// Result is one series.
type Result struct {
	ID     watch.ID
	Unit   watch.Unit
	Step   time.Duration
	Points []Point // by time; steps without samples are left out
}

// Point summarizes the samples of one step that begins at Time.
type Point struct {
	Time           time.Time
	Min, Mean, Max float64
	Count          int64
}

// Info describes a series.
type Info struct {
	ID          watch.ID
	Unit        watch.Unit
	First, Last time.Time
}

// TooManyError is returned for an answer that would be too large.
type TooManyError struct{ Limit int }

func (e *TooManyError) Error() string { return fmt.Sprintf("more than %d points", e.Limit) }

// Hint names the ways to resolve the error.
func (e *TooManyError) Hint() string {
	return "ask for a longer step, a shorter time, or fewer series"
}

// autoPoints is the highest number of points of a series if no step is given.
const autoPoints = 1000

// AutoStep returns the step for a query of some length that does not give one.
func AutoStep(length time.Duration) time.Duration {
	for _, s := range []time.Duration{1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 2 * 3600, 3 * 3600, 6 * 3600, 12 * 3600} {
		if s *= time.Second; length <= autoPoints*s {
			return s
		}
	}
	const day = 24 * time.Hour
	return day * max(1, (length+autoPoints*day-1)/(autoPoints*day))
}

// snapshot holds the data that a query reads: segments that are not removed before it ends,
// and columns of windows.
type snapshot struct {
	db       *DB
	segments []*segment
	has      [][resolutions]bool // of the segments
	windows  []snapWindow
}

type snapWindow struct {
	number      uint64
	first, last int64
	members     []member
}

// member is a series in a window.
type member struct {
	*identity
	unit watch.Unit
	c    *column
}

// look returns a snapshot of the data that overlaps [start, end) and has series that match.
// A nil match selects all series.
func (db *DB) look(start, end int64, match func(watch.ID) bool) *snapshot {
	db.mu.Lock()
	defer db.mu.Unlock()
	s := &snapshot{db: db}
	for _, g := range db.segments {
		// A roll-up has the time at which its hour begins.
		if g.First < end && g.Last >= floor(start, hour.step()) {
			g.readers++
			s.segments, s.has = append(s.segments, g), append(s.has, g.has)
		}
	}
	for _, w := range slices.Concat(db.open, db.closing) {
		sw := snapWindow{number: w.number, first: maxTime, last: -1}
		for i, m := range w.series {
			if match != nil && !match(m.id) {
				continue
			}
			c := w.columns[i]
			if c.count == 0 || c.first >= end || c.last < start {
				continue
			}
			v := c.view()
			sw.first, sw.last = min(sw.first, c.first), max(sw.last, c.last)
			sw.members = append(sw.members, member{m.identity, m.unit, &v})
		}
		if len(sw.members) > 0 {
			s.windows = append(s.windows, sw)
		}
	}
	return s
}

func (s *snapshot) release() {
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	for _, g := range s.segments {
		g.readers--
	}
	s.db.changed.Broadcast()
}

// matcher returns a function that reports whether the query selects a series.
func (q Query) matcher() func(watch.ID) bool {
	prefix, many := strings.CutSuffix(q.Name, "*")
	return func(id watch.ID) bool {
		if id.Name != prefix && !(many && strings.HasPrefix(id.Name, prefix)) {
			return false
		}
		for _, m := range q.Match {
			if id.Label(m.Key) != m.Value {
				return false
			}
		}
		return q.Pick == nil || q.Pick(id)
	}
}

// Query returns series, sorted by name and labels. It leaves out series without a sample in
// the time. It reads roll-ups where the step permits, and roll-ups coarser than the step
// only where no finer data is left; then some steps have no point.
func (db *DB) Query(ctx context.Context, q Query) ([]Result, error) {
	if q.Step == 0 {
		q.Step = AutoStep(q.End.Sub(q.Start))
	}
	step := q.Step.Milliseconds()
	if step <= 0 || q.Step%time.Millisecond != 0 {
		return nil, fmt.Errorf("a step of %v: a number of milliseconds is needed", q.Step)
	}
	start, end := floor(q.Start.UnixMilli(), step), -floor(-q.End.UnixMilli(), step)
	if start >= end {
		return nil, nil
	}
	match := q.matcher()
	snap := db.look(start, end, match)
	defer snap.release()
	a := newAnswer(start, end, step, q.MaxPoints)
	a.buffers = reusable.Get().(*buffers)
	defer func() {
		a.buffers.reader.turn(nil)
		reusable.Put(a.buffers)
	}()
	if err := snap.read(ctx, q.Name, match, a); err != nil {
		return nil, err
	}
	return a.results(), nil
}

// piece is a segment or a window that a query reads.
type piece struct {
	first, last int64
	number      uint64
	segment     *segment
	resolution  resolution
	window      *snapWindow
}

// choose returns the file of a segment to read for a step: the coarsest that gives the same
// answer as samples, or else the finest that exists.
func choose(has [resolutions]bool, step int64) (resolution, bool) {
	for r := hour; r > raw; r-- {
		if has[r] && step%r.step() == 0 {
			return r, true
		}
	}
	for r := raw; r < resolutions; r++ {
		if has[r] {
			return r, true
		}
	}
	return 0, false
}

// read adds all matching series to the answer. It reads pieces of different times one after
// another. It merges the samples of pieces that overlap in time before it summarizes them.
func (s *snapshot) read(ctx context.Context, name string, match func(watch.ID) bool, a *answer) error {
	var pieces []piece
	for i, g := range s.segments {
		if r, ok := choose(s.has[i], a.step); ok {
			pieces = append(pieces, piece{first: g.First, last: g.Last, number: g.Number, segment: g, resolution: r})
		}
	}
	for i := range s.windows {
		w := &s.windows[i]
		pieces = append(pieces, piece{first: w.first, last: w.last, number: w.number, window: w})
	}
	slices.SortFunc(pieces, func(x, y piece) int {
		if x.first != y.first {
			return int(x.first - y.first)
		}
		return int(int64(x.number) - int64(y.number))
	})
	for from := 0; from < len(pieces); {
		until, last := from+1, pieces[from].last
		for until < len(pieces) && pieces[until].first <= last {
			last = max(last, pieces[until].last)
			until++
		}
		group := pieces[from:until]
		from = until
		var hold *held
		if len(group) > 1 {
			hold = &held{all: make(map[seriesKey]*heldSeries)}
			slices.SortStableFunc(group, func(x, y piece) int { return int(int64(x.number) - int64(y.number)) })
		}
		for _, p := range group {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := s.db.readPiece(p, name, match, a, hold); err != nil {
				return err
			}
		}
		if hold != nil {
			for _, h := range hold.all {
				n := sortSamples(h.times, h.values)
				if err := a.samples(h.identity, h.unit, h.times[:n], h.values[:n]); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// seriesKey identifies a series: equal series have equal keys.
type seriesKey struct{ name, labels string }

func (i *identity) key() seriesKey { return seriesKey{i.id.Name, i.labels} }

// held collects the samples of several pieces that overlap in time.
type held struct{ all map[seriesKey]*heldSeries }

type heldSeries struct {
	*identity
	unit   watch.Unit
	times  []int64
	values []float64
}

func (h *held) series(i *identity, unit watch.Unit) *heldSeries {
	s := h.all[i.key()]
	if s == nil {
		s = &heldSeries{identity: i}
		h.all[i.key()] = s
	}
	s.unit = unit
	return s
}

// readPiece adds the matching series of a piece to the answer, or to hold if it is not nil.
func (db *DB) readPiece(p piece, name string, match func(watch.ID) bool, a *answer, hold *held) error {
	if p.window != nil {
		var times []int64
		var values []float64
		for _, m := range p.window.members {
			if hold != nil {
				h := hold.series(m.identity, m.unit)
				h.times, h.values = m.c.samples(h.times, h.values)
				continue
			}
			times, values = m.c.samples(times[:0], values[:0])
			if err := a.samples(m.identity, m.unit, times, values); err != nil {
				return err
			}
		}
		return nil
	}
	o, err := db.files.open(filepath.Join(p.segment.dir, p.resolution.file()))
	if err != nil {
		return db.excuse(p.segment, err)
	}
	defer db.files.release(o)
	b := a.buffers
	r := &b.reader
	r.turn(o)
	for _, s := range o.find(name) {
		if s.first >= a.end || s.last < floor(a.start, p.resolution.step()) || !match(s.id) {
			continue
		}
		// Errors of reading are returned after all columns, because this function cannot
		// correct them.
		var errs [4]error
		switch {
		case p.resolution == raw && hold != nil:
			h := hold.series(s.identity, s.unit)
			n := len(h.times)
			h.times, errs[0] = r.readInts(colTime, s.row, s.rows, h.times)
			h.values, errs[1] = r.readFloats(colValue, s.row, s.rows, h.values)
			if errs[0] != nil || errs[1] != nil {
				h.times, h.values = h.times[:n], h.values[:n]
			}
		case p.resolution == raw:
			b.times, errs[0] = r.readInts(colTime, s.row, s.rows, b.times[:0])
			b.values, errs[1] = r.readFloats(colValue, s.row, s.rows, b.values[:0])
		default:
			b.times, errs[0] = r.readInts(colTime, s.row, s.rows, b.times[:0])
			b.least, errs[1] = r.readFloats(colMin, s.row, s.rows, b.least[:0])
			b.values, errs[2] = r.readFloats(colMean, s.row, s.rows, b.values[:0])
			b.greatest, errs[3] = r.readFloats(colMax, s.row, s.rows, b.greatest[:0])
			var err error
			b.counts, err = r.readInts(colCount, s.row, s.rows, b.counts[:0])
			errs[0] = errors.Join(errs[0], err)
		}
		if err := errors.Join(errs[:]...); err != nil {
			return db.excuse(p.segment, err)
		}
		switch {
		case p.resolution == raw && hold == nil:
			err = a.samples(s.identity, s.unit, b.times, b.values)
		case p.resolution != raw:
			err = a.rollups(s.identity, s.unit, p.resolution.step(), b.times, b.least, b.values, b.greatest, b.counts)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// answer summarizes samples and roll-ups as points.
type answer struct {
	start, end, step int64
	limit, points    int
	all              map[seriesKey]*answerSeries
	buffers          *buffers
}

// buffers hold the rows being read. They are used for one piece after the other.
type buffers struct {
	reader                  rowReader
	times, counts           []int64
	values, least, greatest []float64
}

var reusable = sync.Pool{New: func() any { return new(buffers) }}

type answerSeries struct {
	*identity
	unit    watch.Unit
	times   []int64
	buckets []bucket
	mixed   bool // not in rising order of time
}

func newAnswer(start, end, step int64, limit int) *answer {
	return &answer{start: start, end: end, step: step, limit: limit, all: make(map[seriesKey]*answerSeries)}
}

func (a *answer) series(i *identity, unit watch.Unit) *answerSeries {
	s := a.all[i.key()]
	if s == nil {
		s = &answerSeries{identity: i}
		a.all[i.key()] = s
	}
	s.unit = unit
	return s
}

func (a *answer) samples(i *identity, unit watch.Unit, times []int64, values []float64) error {
	from, _ := slices.BinarySearch(times, a.start)
	until, _ := slices.BinarySearch(times, a.end)
	if from == until {
		return nil
	}
	s := a.series(i, unit)
	for from < until {
		at := floor(times[from], a.step)
		b := bucket{min: values[from], max: values[from]}
		for ; from < until && times[from] < at+a.step; from++ {
			b.add(values[from], values[from], values[from], 1)
		}
		if err := a.put(s, at, b); err != nil {
			return err
		}
	}
	return nil
}

// rollups adds roll-ups to the answer. A roll-up that is longer than a step counts in the
// step in which it begins, or in the first one.
func (a *answer) rollups(i *identity, unit watch.Unit, length int64, times []int64, least, mean, greatest []float64, counts []int64) error {
	from, _ := slices.BinarySearch(times, floor(a.start, length))
	until, _ := slices.BinarySearch(times, a.end)
	if from == until {
		return nil
	}
	s := a.series(i, unit)
	for from < until {
		at := floor(max(times[from], a.start), a.step)
		b := bucket{min: least[from], max: greatest[from]}
		for ; from < until && max(times[from], a.start) < at+a.step; from++ {
			b.add(least[from], mean[from]*float64(counts[from]), greatest[from], counts[from])
		}
		if err := a.put(s, at, b); err != nil {
			return err
		}
	}
	return nil
}

func (a *answer) put(s *answerSeries, at int64, b bucket) error {
	if n := len(s.times); n > 0 {
		if s.times[n-1] == at {
			s.buckets[n-1].add(b.min, b.sum, b.max, b.count)
			return nil
		}
		s.mixed = s.mixed || s.times[n-1] > at
	}
	s.times, s.buckets = append(s.times, at), append(s.buckets, b)
	if a.points++; a.limit > 0 && a.points > a.limit {
		return &TooManyError{a.limit}
	}
	return nil
}

func (a *answer) results() []Result {
	all := make([]*answerSeries, 0, len(a.all))
	for _, s := range a.all {
		all = append(all, s)
	}
	slices.SortFunc(all, func(x, y *answerSeries) int { return compareIdentity(x.identity, y.identity) })
	results := make([]Result, 0, len(all))
	for _, s := range all {
		if s.mixed {
			s.sort()
		}
		r := Result{ID: s.id, Unit: s.unit, Step: time.Duration(a.step) * time.Millisecond, Points: make([]Point, len(s.times))}
		for i, b := range s.buckets {
			r.Points[i] = Point{time.UnixMilli(s.times[i]).UTC(), b.min, b.mean(), b.max, b.count}
		}
		results = append(results, r)
	}
	return results
}

// sort sorts buckets by time and merges those of the same time.
func (s *answerSeries) sort() {
	order := make([]int, len(s.times))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(x, y int) int { return int(s.times[x] - s.times[y]) })
	var times []int64
	var buckets []bucket
	for _, i := range order {
		if n := len(times); n > 0 && times[n-1] == s.times[i] {
			b := s.buckets[i]
			buckets[n-1].add(b.min, b.sum, b.max, b.count)
			continue
		}
		times, buckets = append(times, s.times[i]), append(buckets, s.buckets[i])
	}
	s.times, s.buckets = times, buckets
}

// Latest returns the newest sample of each series in memory that has one since a time, in
// no order.
func (db *DB) Latest(since time.Time) []watch.Sample {
	from := since.UnixMilli()
	var all []watch.Sample
	db.mu.RLock()
	defer db.mu.RUnlock()
	for _, same := range db.index {
		for _, m := range same {
			best := -1
			for i, p := range m.parts {
				if p.c.last >= from && p.c.count > 0 && (best < 0 || p.c.last > m.parts[best].c.last) {
					best = i
				}
			}
			if best >= 0 {
				c := m.parts[best].c
				all = append(all, watch.Sample{ID: m.id, Unit: m.unit, Time: time.UnixMilli(c.last).UTC(), Value: c.newest})
			}
		}
	}
	return all
}

// Names returns all series, sorted by name and labels.
func (db *DB) Names(ctx context.Context) ([]Info, error) {
	return db.NamesBetween(ctx, time.UnixMilli(0), time.UnixMilli(maxTime))
}

// NamesBetween returns the series that may have a sample from start until end, sorted by
// name and labels. Their First and Last cover all data near that time.
func (db *DB) NamesBetween(ctx context.Context, start, end time.Time) ([]Info, error) {
	from, until := start.UnixMilli(), end.UnixMilli()
	snap := db.look(from, until, nil)
	defer snap.release()
	type found struct {
		*identity
		unit        watch.Unit
		first, last int64
	}
	all := make(map[seriesKey]*found)
	add := func(i *identity, unit watch.Unit, first, last int64) {
		if first >= until || last < from {
			return
		}
		f := all[i.key()]
		if f == nil {
			all[i.key()] = &found{i, unit, first, last}
			return
		}
		f.unit, f.first, f.last = unit, min(f.first, first), max(f.last, last)
	}
	for n, g := range snap.segments {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		r, ok := choose(snap.has[n], 1)
		if !ok {
			continue
		}
		o, err := db.files.open(filepath.Join(g.dir, r.file()))
		if err != nil {
			if err := db.excuse(g, err); err != nil {
				return nil, err
			}
			continue
		}
		for _, s := range o.spans {
			add(s.identity, s.unit, s.first, s.last)
		}
		db.files.release(o)
	}
	for _, w := range snap.windows {
		for _, m := range w.members {
			add(m.identity, m.unit, m.c.first, m.c.last)
		}
	}
	list := make([]*found, 0, len(all))
	for _, f := range all {
		list = append(list, f)
	}
	slices.SortFunc(list, func(a, b *found) int { return compareIdentity(a.identity, b.identity) })
	infos := make([]Info, len(list))
	for i, f := range list {
		infos[i] = Info{f.id, f.unit, time.UnixMilli(f.first).UTC(), time.UnixMilli(f.last).UTC()}
	}
	return infos, nil
}
