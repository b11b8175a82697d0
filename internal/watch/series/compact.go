package series

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"premix/internal/watch"
)

// compactor merges the segments of days that are over, and removes data that is older than
// [Keep] permits.
func (db *DB) compactor(ctx context.Context) {
	const every = 10 * time.Second
	tick := time.NewTicker(every)
	defer tick.Stop()
	steady := clock{now: db.opt.Now}
	steady.jumped()
	started := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if steady.jumped() {
			started = time.Now()
		}
		if err := db.Compact(ctx); err != nil && ctx.Err() == nil {
			db.fail(err)
		}
		for _, t := range []interface {
			due() bool
			rotate() error
		}{db.tasks, db.events} {
			if t.due() && !db.troubled() {
				if err := t.rotate(); err != nil {
					db.fail(err)
				}
			}
		}
		if time.Since(started) >= db.opt.Settled {
			if err := db.Expire(); err != nil {
				db.fail(err)
			}
		}
	}
}

func (db *DB) troubled() bool {
	db.mu.RLock()
	defer db.mu.RUnlock()
	return db.trouble != nil
}

// clock detects jumps of the system time.
type clock struct {
	now  func() time.Time
	wall time.Time
	real time.Time
}

// jumped reports whether the system time since the last call differs from the elapsed time
// by more than five seconds.
func (c *clock) jumped() bool {
	wall, real := c.now().Round(0), time.Now()
	off := wall.Sub(c.wall) - real.Sub(c.real)
	c.wall, c.real = wall, real
	return off.Abs() > 5*time.Second
}

// Compact merges the segments of days that are over and that have no open window. The DB
// does this by itself; the method is for tests and bulk loads.
func (db *DB) Compact(ctx context.Context) error {
	db.compacting.Lock()
	defer db.compacting.Unlock()
	for {
		db.mu.RLock()
		merge := db.mergeable()
		trouble := db.trouble
		db.mu.RUnlock()
		if len(merge) == 0 || trouble != nil {
			return nil
		}
		if err := db.merge(ctx, merge); err != nil {
			return err
		}
	}
}

// mergeable returns the segments of a day that can be merged, or nil. The caller holds mu.
func (db *DB) mergeable() []*segment {
	newest := floor(db.opt.Now().UnixMilli()-db.opt.Late.Milliseconds(), day)
	days := make(map[int64][]*segment)
	for _, s := range db.segments {
		days[floor(s.Begin, day)] = append(days[floor(s.Begin, day)], s)
		newest = max(newest, floor(s.Begin, day))
	}
	busy := make(map[int64]bool)
	for _, w := range slices.Concat(db.open, db.closing) {
		busy[floor(w.begin, day)] = true
		newest = max(newest, floor(w.begin, day))
	}
	var oldest []*segment
	for d, all := range days {
		if d >= newest || busy[d] || len(all) < 2 {
			continue
		}
		if slices.ContainsFunc(all, func(s *segment) bool { return !s.has[raw] }) {
			continue // its samples are gone, and its roll-ups do not say which of them another segment replaces
		}
		if oldest == nil || d < floor(oldest[0].Begin, day) {
			oldest = all
		}
	}
	return oldest
}

// source is a segment that is being merged.
type source struct {
	*segment
	o *openFile
	r *rowReader
	i int // next of its spans
}

// merge merges several segments of one day into one.
func (db *DB) merge(ctx context.Context, from []*segment) error {
	slices.SortFunc(from, func(a, b *segment) int { return int(int64(a.Number) - int64(b.Number)) })
	db.mu.Lock()
	db.number++
	a := about{Number: db.number, Day: true, Begin: floor(from[0].Begin, day)}
	db.mu.Unlock()
	var sources []*source
	var rows census
	defer func() {
		for _, s := range sources {
			db.files.release(s.o)
		}
	}()
	for _, s := range from {
		o, err := db.files.open(filepath.Join(s.dir, raw.file()))
		if err != nil {
			return db.excuse(s, err)
		}
		a.Replaces = append(append(a.Replaces, s.Number), s.Replaces...)
		sources = append(sources, &source{segment: s, o: o, r: &rowReader{o: o}})
		for _, p := range o.spans {
			rows.add(p.first, p.last, p.rows)
		}
	}
	out, err := newSegment(filepath.Join(db.dir, "tmp"), a, rows.worth())
	if err != nil {
		return err
	}
	var times []int64
	var values []float64
	for {
		if err := ctx.Err(); err != nil {
			return errors.Join(err, out.abort())
		}
		var next *span
		for _, s := range sources {
			if s.i < len(s.o.spans) && (next == nil || compareIdentity(s.o.spans[s.i].identity, next.identity) < 0) {
				next = &s.o.spans[s.i]
			}
		}
		if next == nil {
			break
		}
		times, values = times[:0], values[:0]
		var unit watch.Unit
		for _, s := range sources {
			if s.i == len(s.o.spans) || compareIdentity(s.o.spans[s.i].identity, next.identity) != 0 {
				continue
			}
			p := s.o.spans[s.i]
			s.i++
			unit = p.unit
			if times, err = s.r.readInts(colTime, p.row, p.rows, times); err == nil {
				values, err = s.r.readFloats(colValue, p.row, p.rows, values)
			}
			if err != nil {
				return errors.Join(db.excuse(s.segment, err), out.abort())
			}
		}
		n := sortSamples(times, values)
		if err := out.add(next.identity, unit, times[:n], values[:n]); err != nil {
			return errors.Join(err, out.abort())
		}
	}
	merged, err := out.commit(filepath.Join(db.dir, "segments"))
	if merged == nil {
		return err
	}
	db.mu.Lock()
	db.segments = slices.DeleteFunc(db.segments, func(s *segment) bool { return slices.Contains(from, s) })
	db.segments = append(db.segments, merged)
	db.sortSegments()
	db.mu.Unlock()
	return errors.Join(err, db.remove(from))
}

// excuse handles an error of reading a segment. If the segment is damaged, it sets the
// segment aside; it returns any other error.
func (db *DB) excuse(s *segment, err error) error {
	if !errors.Is(err, errDamaged) {
		return err
	}
	db.mu.Lock()
	n := len(db.segments)
	db.segments = slices.DeleteFunc(db.segments, func(o *segment) bool { return o == s })
	first := len(db.segments) < n
	db.mu.Unlock()
	if !first {
		return nil
	}
	for r := range resolutions {
		db.files.forget(filepath.Join(s.dir, r.file()))
	}
	db.note("damaged", "%s is set aside in %s: %v", filepath.Base(s.dir), filepath.Join(db.dir, "damaged"), err)
	return setAside(db.dir, filepath.Join("segments", filepath.Base(s.dir)))
}

// remove removes segments that no query can find any more, after the last query that reads
// them has ended.
func (db *DB) remove(all []*segment) error {
	var errs []error
	for _, s := range all {
		db.unread(s)
		for r := range resolutions {
			db.files.forget(filepath.Join(s.dir, r.file()))
		}
		errs = append(errs, os.RemoveAll(s.dir))
	}
	return errors.Join(errs...)
}

// unread waits until no query reads a segment.
func (db *DB) unread(s *segment) {
	db.mu.Lock()
	defer db.mu.Unlock()
	for s.readers > 0 {
		db.changed.Wait()
	}
}

// Expire removes data that is older than [Keep] permits, by the system time. The DB does
// this by itself when the clock can be trusted; the method is for tests.
func (db *DB) Expire() error {
	now := db.opt.Now()
	db.compacting.Lock()
	defer db.compacting.Unlock()
	db.mu.RLock()
	segments := slices.Clone(db.segments)
	db.mu.RUnlock()
	var errs []error
	for _, s := range segments {
		old := func(keep time.Duration) bool {
			return keep > 0 && s.Last < now.Add(-keep).UnixMilli()
		}
		db.mu.RLock()
		has := s.has
		db.mu.RUnlock()
		drop := [resolutions]bool{hour: has[hour] && old(db.opt.Keep.Hour)}
		drop[minute] = has[minute] && old(db.opt.Keep.Minute)
		drop[raw] = has[raw] && old(db.opt.Keep.Raw)
		// Where there were too few samples for roll-ups, the samples are kept for as long
		// as roll-ups.
		drop[raw] = drop[raw] && (has[minute] || old(db.opt.Keep.Minute)) && (has[hour] || old(db.opt.Keep.Hour))
		if drop == ([resolutions]bool{}) {
			continue
		}
		errs = append(errs, db.drop(s, drop))
	}
	errs = append(errs, db.tasks.expire(now, db.opt.Keep.Tasks), db.events.expire(now, db.opt.Keep.Tasks))
	return errors.Join(errs...)
}

// drop removes files of a segment. Queries that begin after this do not use them.
func (db *DB) drop(s *segment, drop [resolutions]bool) error {
	db.mu.Lock()
	for r := range resolutions {
		s.has[r] = s.has[r] && !drop[r]
	}
	empty := s.has == [resolutions]bool{}
	if empty {
		db.segments = slices.DeleteFunc(db.segments, func(o *segment) bool { return o == s })
	}
	db.mu.Unlock()
	if empty {
		return db.remove([]*segment{s})
	}
	db.unread(s)
	var errs []error
	for r := range resolutions {
		if drop[r] {
			path := filepath.Join(s.dir, r.file())
			db.files.forget(path)
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
			}
		}
	}
	_, bytes := look(s.dir)
	db.mu.Lock()
	s.bytes = bytes
	db.mu.Unlock()
	return errors.Join(errs...)
}
