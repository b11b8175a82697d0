package series

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/kit/beneath"
	"premix/internal/kit/lines"
	"premix/internal/kit/units"
	"premix/internal/watch"
)

// load reads segments and journals.
func (db *DB) load(damaged *[]string) error {
	dirs, err := os.ReadDir(filepath.Join(db.dir, "segments"))
	if err != nil {
		return err
	}
	gone := make(map[uint64]bool) // numbers whose content is in a segment
	for _, d := range dirs {
		if n, ok := number(d.Name()); ok {
			db.number = max(db.number, n)
		}
		s, err := openSegment(filepath.Join(db.dir, "segments", d.Name()))
		if errors.Is(err, errDamaged) {
			if err := db.setAside(filepath.Join("segments", d.Name()), err, damaged); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return err
		}
		for _, n := range s.Replaces {
			gone[n] = true
		}
		db.segments = append(db.segments, s)
	}
	for _, s := range db.segments {
		if gone[s.Number] {
			if err := os.RemoveAll(s.dir); err != nil {
				return err
			}
		}
	}
	db.segments = slices.DeleteFunc(db.segments, func(s *segment) bool { return gone[s.Number] })
	db.sortSegments()
	for _, s := range db.segments {
		gone[s.Number] = true
	}
	journals, err := os.ReadDir(filepath.Join(db.dir, "journal"))
	if err != nil {
		return err
	}
	for _, j := range journals {
		n, ok := number(j.Name())
		if !ok {
			continue
		}
		db.number = max(db.number, n)
		path := filepath.Join(db.dir, "journal", j.Name())
		if gone[n] {
			if err := os.Remove(path); err != nil {
				return err
			}
			continue
		}
		if err := db.loadJournal(path, n, damaged); err != nil {
			return err
		}
	}
	slices.SortFunc(db.open, func(a, b *window) int { return int(a.begin - b.begin) })
	for len(db.open) > maxWindows {
		db.retire(db.open[0])
	}
	return nil
}

// setAside moves a damaged file or directory to the directory "damaged".
func (db *DB) setAside(name string, why error, damaged *[]string) error {
	*damaged = append(*damaged, fmt.Sprintf("%s was set aside in %s: %v", name, filepath.Join(db.dir, "damaged"), why))
	return setAside(db.dir, name)
}

func setAside(dir, name string) error {
	if err := os.MkdirAll(filepath.Join(dir, "damaged"), dirMode); err != nil {
		return err
	}
	to := filepath.Join(dir, "damaged", filepath.Base(name))
	if err := os.RemoveAll(to); err != nil {
		return err
	}
	return beneath.Move(filepath.Join(dir, name), to, beneath.Volatile)
}

func (db *DB) loadJournal(path string, n uint64, damaged *[]string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	w := &window{number: n, touched: time.Now(), journal: f}
	begin, size, err := replay(f, func(number int, id watch.ID, unit watch.Unit) error {
		if number != len(w.series) {
			return errJournal
		}
		db.series(id, unit).join(w)
		return nil
	}, func(e entry) error {
		if e.series < 0 || e.series >= len(w.columns) || e.time < 0 || e.time > maxTime {
			return errJournal
		}
		size := w.columns[e.series].add(e.time, e.value)
		w.size += int64(size)
		w.samples++
		db.memory += int64(size)
		return nil
	})
	w.begin, w.end, w.written = begin, begin+db.opt.Window.Milliseconds(), size
	if errors.Is(err, errJournal) && size < journalHead {
		// The journal was cut before its head was whole, and holds nothing else.
		info, serr := f.Stat()
		if serr == nil && info.Size() < journalHead {
			return errors.Join(f.Close(), os.Remove(path))
		}
	}
	if err != nil {
		db.forget(w)
		f.Close()
		if errors.Is(err, errJournal) {
			return db.setAside(filepath.Join("journal", filepath.Base(path)), err, damaged)
		}
		return err
	}
	if err := f.Truncate(size); err != nil {
		return errors.Join(err, f.Close())
	}
	if w.samples == 0 {
		db.forget(w)
		return errors.Join(f.Close(), os.Remove(path))
	}
	db.open = append(db.open, w)
	return nil
}

func (db *DB) sortSegments() {
	slices.SortFunc(db.segments, func(a, b *segment) int {
		if a.First != b.First {
			return int(a.First - b.First)
		}
		return int(int64(a.Number) - int64(b.Number))
	})
}

// flusher writes journals, closes windows that receive no more samples, and checks whether
// the disk can be written again.
func (db *DB) flusher(ctx context.Context) {
	const syncEvery = time.Second
	tick := time.NewTicker(db.opt.Flush)
	defer tick.Stop()
	synced := time.Now()
	probe, delay := time.Time{}, time.Second
	var recovered time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := time.Now()
		if db.flush(now.Sub(synced) >= syncEvery) {
			synced = now
		}
		db.mu.Lock()
		for _, w := range slices.Clone(db.open) {
			if now.Sub(w.touched) > db.opt.Late || w.broken && db.trouble == nil {
				db.retire(w)
			}
		}
		trouble, need := db.trouble, int64(0)
		for _, w := range slices.Concat(db.open, db.closing) {
			need = max(need, w.size)
		}
		r := db.refused
		tell := (r.late > 0 || r.invalid > 0 || r.lost > 0) && now.Sub(r.told) > time.Minute
		if tell {
			db.refused = counts{told: now}
		}
		db.mu.Unlock()
		if tell {
			db.tell(r)
		}
		if trouble == nil || now.Before(probe) {
			continue
		}
		if err := db.probe(need); err != nil {
			delay = min(2*delay, 30*time.Second)
			probe = now.Add(delay)
			continue
		}
		if now.Sub(recovered) > time.Minute {
			delay = time.Second
		}
		recovered = now
		probe = now.Add(delay)
		db.mu.Lock()
		db.trouble = nil
		db.mu.Unlock()
		db.note("disk_recovered", "%s can be written again", db.dir)
		db.nudge()
	}
}

// tell stores an event for each count that is not 0.
func (db *DB) tell(r counts) {
	if r.late > 0 {
		db.note("samples_refused", "%d samples were refused: they are old, and samples of too many other times arrive", r.late)
	}
	if r.invalid > 0 {
		db.note("samples_refused", "%d samples were refused: no finite value, no name, or an impossible time", r.invalid)
	}
	if r.lost > 0 {
		db.note("samples_lost", "%d samples are lost: they could not be written to the disk, and memory is limited to %s", r.lost, units.Size(db.opt.Memory))
	}
}

func (db *DB) nudge() {
	select {
	case db.wake <- struct{}{}:
	default:
	}
}

// probe checks that a number of bytes can be written to the disk.
func (db *DB) probe(need int64) error {
	path := filepath.Join(db.dir, "tmp", "probe")
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer os.Remove(path)
	b := make([]byte, 64<<10)
	for n := int64(0); n <= need && err == nil; n += int64(len(b)) {
		_, err = f.Write(b)
	}
	return errors.Join(err, f.Sync(), f.Close())
}

// fail records that the disk cannot be written.
func (db *DB) fail(err error) {
	db.mu.Lock()
	first := db.trouble == nil
	db.trouble = err
	db.mu.Unlock()
	if first {
		db.note("disk_failed", "samples are kept in memory until the disk can be written again: %v", err)
	}
}

// flush writes pending frames to the journals, and syncs them if asked to. It reports
// whether it succeeded.
func (db *DB) flush(sync bool) bool {
	db.writer.Lock()
	defer db.writer.Unlock()
	type piece struct {
		w *window
		b []byte
	}
	var pieces []piece
	var all []*window
	db.mu.Lock()
	abandoned := db.abandoned
	db.abandoned = nil
	for _, w := range slices.Concat(db.open, db.closing) {
		all = append(all, w)
		if len(w.pend) > 0 {
			pieces = append(pieces, piece{w, w.pend})
			db.pending -= int64(len(w.pend))
			w.pend = nil
		}
	}
	db.mu.Unlock()
	for _, w := range abandoned {
		db.removeJournal(w)
	}
	for _, j := range pieces {
		if err := db.append(j.w, j.b); err != nil {
			db.mu.Lock()
			db.breakJournal(j.w)
			db.mu.Unlock()
			db.fail(err)
		}
	}
	if sync {
		for _, w := range all {
			if !w.dirty {
				continue
			}
			if err := unix.Fdatasync(int(w.journal.Fd())); err != nil {
				db.fail(err)
				continue
			}
			w.dirty = false
		}
	}
	for _, err := range []error{db.tasks.flush(), db.events.flush()} {
		if err != nil {
			db.fail(err)
		}
	}
	return sync
}

func (db *DB) journalPath(w *window) string {
	return filepath.Join(db.dir, "journal", strconv.FormatUint(w.number, 10)+".wal")
}

// append writes frames to the journal of a window. After an error the journal has none of
// them.
func (db *DB) append(w *window, frames []byte) error {
	if w.journal == nil {
		f, err := os.OpenFile(db.journalPath(w), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o640)
		if err != nil {
			return err
		}
		head := binary.LittleEndian.AppendUint64([]byte(journalMagic), uint64(w.begin))
		if _, err := f.Write(head); err != nil {
			return errors.Join(err, f.Close(), os.Remove(f.Name()))
		}
		w.journal, w.written = f, journalHead
		if err := beneath.SyncDir(filepath.Dir(f.Name())); err != nil {
			return err
		}
	}
	end, err := lines.Append(w.journal, w.written, frames, false)
	if err == nil {
		w.written, w.dirty = end, true
	}
	return err
}

// removeJournal removes the journal of a window that a segment holds, or that was dropped.
// The caller holds writer.
func (db *DB) removeJournal(w *window) {
	if w.journal == nil {
		return
	}
	w.journal.Close()
	w.journal, w.dirty = nil, false
	if err := os.Remove(db.journalPath(w)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		db.fail(err)
	}
}

// gather is the time that a closed window waits for others of its day. They are then
// written as one segment and need not be merged.
const gather = 10 * time.Second

// closer writes closed windows as segments.
func (db *DB) closer(ctx context.Context) {
	alone := false // after a failure: there may be space for one window and not for all
	for {
		db.mu.Lock()
		all, wait := db.due(time.Now())
		if alone && len(all) > 1 {
			all = all[:1]
		}
		for _, w := range all {
			w.writing = true
		}
		db.mu.Unlock()
		if len(all) == 0 {
			timer := time.NewTimer(wait)
			select {
			case <-ctx.Done():
				timer.Stop()
				return
			case <-db.wake:
			case <-timer.C:
			}
			timer.Stop()
			continue
		}
		err := db.closeWindows(all)
		if alone = err != nil; alone {
			db.fail(err)
		}
		if ctx.Err() != nil {
			return
		}
	}
}

// due returns the closed windows to write as a segment now, or how long to wait for some.
// The caller holds mu.
//
// These are the windows of the oldest one's day. A window with the same begin as an open
// one is written by itself: for samples of the same time the open window's counts, and the
// numbers of the segments decide that.
func (db *DB) due(now time.Time) (all []*window, wait time.Duration) {
	if db.trouble != nil || len(db.closing) == 0 {
		return nil, time.Minute
	}
	first := db.closing[0]
	again := func(w *window) bool {
		return slices.ContainsFunc(db.open, func(o *window) bool { return o.begin == w.begin })
	}
	if again(first) {
		return []*window{first}, 0
	}
	sameDay := func(w *window) bool { return floor(w.begin, day) == floor(first.begin, day) }
	urgent := db.flushing > 0 || db.memory > db.opt.Memory/4 || !slices.ContainsFunc(db.open, sameDay)
	for _, w := range db.closing {
		if sameDay(w) && !again(w) {
			all = append(all, w)
			urgent = urgent || w.broken
		}
	}
	if wait = gather - now.Sub(first.closed); wait > 0 && !urgent {
		return nil, wait
	}
	return all, 0
}

// closeBroken writes as segments all windows whose journals are incomplete.
func (db *DB) closeBroken() error {
	db.mu.Lock()
	var broken []*window
	for _, w := range slices.Clone(db.open) {
		if w.broken {
			db.retire(w)
		}
	}
	for _, w := range db.closing {
		if w.broken {
			broken = append(broken, w)
		}
	}
	db.mu.Unlock()
	var errs []error
	for _, w := range broken {
		errs = append(errs, db.closeWindows([]*window{w}))
	}
	return errors.Join(errs...)
}

// closingSeries is a series of windows that are being written, with its samples in each.
type closingSeries struct {
	*memSeries
	unit    watch.Unit
	columns []*column
}

// members returns the series of closed windows, sorted.
func (db *DB) members(windows []*window) []*closingSeries {
	db.mu.RLock()
	defer db.mu.RUnlock()
	of := make(map[*memSeries]*closingSeries, len(windows[0].series))
	var all []*closingSeries
	for _, w := range windows {
		for i, m := range w.series {
			c := of[m]
			if c == nil {
				c = &closingSeries{memSeries: m, unit: m.unit}
				of[m] = c
				all = append(all, c)
			}
			c.columns = append(c.columns, w.columns[i])
		}
	}
	slices.SortFunc(all, func(a, b *closingSeries) int { return compareIdentity(a.identity, b.identity) })
	return all
}

// closeWindows writes windows of one day as a segment.
func (db *DB) closeWindows(windows []*window) error {
	slices.SortFunc(windows, func(a, b *window) int { return cmp.Compare(a.number, b.number) })
	s, err := db.writeWindows(windows)
	db.mu.Lock()
	for _, w := range windows {
		w.writing = false
	}
	if err != nil {
		db.mu.Unlock()
		return err
	}
	db.closing = slices.DeleteFunc(db.closing, func(o *window) bool { return slices.Contains(windows, o) })
	db.segments = append(db.segments, s)
	db.sortSegments()
	for _, w := range windows {
		db.forget(w)
		db.pending -= int64(len(w.pend))
		w.pend = nil
	}
	db.mu.Unlock()
	db.writer.Lock()
	for _, w := range windows {
		db.removeJournal(w)
	}
	db.writer.Unlock()
	return nil
}

// writeWindows writes windows, ordered by number, as a segment with the number of the last
// one.
func (db *DB) writeWindows(windows []*window) (*segment, error) {
	last := len(windows) - 1
	a := about{Number: windows[last].number, Begin: windows[last].begin}
	for _, w := range windows[:last] {
		a.Begin = min(a.Begin, w.begin)
		a.Replaces = append(a.Replaces, w.number)
	}
	all := db.members(windows)
	var rows census
	for _, m := range all {
		for _, c := range m.columns {
			rows.add(c.first, c.last, int64(c.count))
		}
	}
	out, err := newSegment(filepath.Join(db.dir, "tmp"), a, rows.worth())
	if err != nil {
		return nil, err
	}
	var times []int64
	var values []float64
	for _, m := range all {
		times, values = times[:0], values[:0]
		for _, c := range m.columns {
			times, values = c.samples(times, values)
		}
		n := sortSamples(times, values)
		if err := out.add(m.identity, m.unit, times[:n], values[:n]); err != nil {
			return nil, errors.Join(err, out.abort())
		}
	}
	return out.commit(filepath.Join(db.dir, "segments"))
}

// Flush closes all windows, and returns when they are segments or with the error that
// prevents it. It is for tests and bulk loads: windows close by themselves.
func (db *DB) Flush(ctx context.Context) error {
	db.mu.Lock()
	for _, w := range slices.Clone(db.open) {
		db.retire(w)
	}
	db.flushing++
	db.mu.Unlock()
	defer func() {
		db.mu.Lock()
		db.flushing--
		db.mu.Unlock()
	}()
	db.nudge()
	db.flush(true)
	return db.wait(ctx, func() bool { return len(db.closing) == 0 })
}

// Throttle returns when less than half of the memory is used. It is for bulk loads, which
// are faster than a disk.
func (db *DB) Throttle(ctx context.Context) error {
	return db.wait(ctx, func() bool { return db.memory < db.opt.Memory/2 })
}

// wait waits until ok, which it calls with mu held, returns true. It returns an error if
// that cannot happen.
func (db *DB) wait(ctx context.Context, ok func() bool) error {
	stop := context.AfterFunc(ctx, func() {
		db.mu.Lock()
		defer db.mu.Unlock()
		db.changed.Broadcast()
	})
	defer stop()
	db.mu.Lock()
	defer db.mu.Unlock()
	for !ok() {
		if err := ctx.Err(); err != nil {
			return err
		}
		if db.trouble != nil {
			return db.trouble
		}
		if db.closed {
			return os.ErrClosed
		}
		db.changed.Wait()
	}
	return nil
}
