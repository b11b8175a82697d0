package series

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"premix/internal/kit/exit"
	"premix/internal/kit/lock"
	"premix/internal/kit/owner"
	"premix/internal/watch"
)

// Options configure a directory. Zero values are replaced by the defaults given here.
type Options struct {
	Node   string        // label "node" of events about the directory itself
	Window time.Duration // 2 h; a day is a multiple of it
	Memory int64         // bound on the bytes of samples in memory; 512 MiB
	// Late is the time without writes after which a window is closed: 5 min.
	Late time.Duration
	// Flush is the time after which samples are written to the journal: 250 ms. They are
	// synced once a second.
	Flush time.Duration
	Keep  Keep
	// RowsInTable is the number of tasks, or of events, that are kept as JSON Lines before
	// they are converted to Parquet: 100,000.
	RowsInTable int
	// Now returns the time, from which the age of data is computed; time.Now.
	Now func() time.Time
	// Settled is the time that the clock must run without a jump before data is removed
	// because of its age: 1 h.
	Settled time.Duration
}

// Keep is the age up to which each kind of data is kept. Zero keeps it without limit.
type Keep struct {
	Raw    time.Duration // samples; at least two days
	Minute time.Duration // roll-ups of a minute; at least two days
	Hour   time.Duration // roll-ups of an hour; at least two days
	Tasks  time.Duration // tasks and events
}

func (o Options) withDefaults() (Options, error) {
	if o.Window == 0 {
		o.Window = 2 * time.Hour
	}
	if o.Memory == 0 {
		o.Memory = 512 << 20
	}
	if o.Late == 0 {
		o.Late = 5 * time.Minute
	}
	if o.Flush == 0 {
		o.Flush = 250 * time.Millisecond
	}
	if o.RowsInTable == 0 {
		o.RowsInTable = 100_000
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Settled == 0 {
		o.Settled = time.Hour
	}
	if o.Window < time.Minute || day%o.Window.Milliseconds() != 0 || o.Window%time.Minute != 0 {
		return o, fmt.Errorf("a window of %v: it must be whole minutes, and a day must be a multiple of it", o.Window)
	}
	for _, k := range []time.Duration{o.Keep.Raw, o.Keep.Minute, o.Keep.Hour} {
		if k != 0 && k < 48*time.Hour {
			return o, fmt.Errorf("samples cannot be kept for %v: at least 48h, or 0 to keep them without limit", k)
		}
	}
	return o, nil
}

// day is the length of a day in milliseconds.
const day = 24 * 3_600_000

// maxWindows is the highest number of open windows.
const maxWindows = 4

// spare is the time without writes after which a window may be closed to open an older one.
const spare = 10 * time.Second

// maxTime is the largest accepted time: the end of the year 9999.
const maxTime = 253402300799999

// DB is an open directory. It implements watch.Sink.
type DB struct {
	dir   string
	opt   Options
	lock  *os.File
	seed  maphash.Seed
	known identities
	files *files

	mu        sync.RWMutex
	closed    bool
	index     map[uint64][]*memSeries
	open      []*window // ordered by begin
	closing   []*window // to be written as segments, oldest first; includes those whose write failed
	abandoned []*window // dropped because memory was full; their journals are to be removed
	segments  []*segment
	number    uint64 // the last number assigned
	memory    int64  // bytes of samples in open and closing
	pending   int64  // bytes that wait to be written to journals
	trouble   error  // why the disk cannot be written; nil if it can be
	flushing  int    // number of callers of Flush that are waiting
	refused   counts
	stats     Stats

	tasks  *table[watch.Task, TaskRow]
	events *table[watch.Event, EventRow]
	live   hub

	syncing    groupSync
	writer     sync.Mutex // held while journals are written
	compacting sync.Mutex // held while segments are merged or removed
	wake       chan struct{}
	changed    *sync.Cond // of mu: a window was closed, or a query has ended
	stop       context.CancelFunc
	done       sync.WaitGroup
}

// counts are the numbers of samples that were refused or lost since the last event about
// them.
type counts struct {
	late, invalid, lost int64
	told                time.Time
}

// memSeries is a series in memory.
type memSeries struct {
	*identity
	hash  uint64
	unit  watch.Unit
	parts []part
}

// part is the share of a series that lies in one window.
type part struct {
	w      *window
	c      *column
	number int // in the journal of the window
}

// window is a window in memory. DB.mu guards its fields, except those at the end.
type window struct {
	begin, end int64
	number     uint64
	series     []*memSeries // indexed by their number in the journal
	columns    []*column    // the samples of series, with the same index
	size       int64
	samples    int64
	touched    time.Time // time of the last write
	closed     time.Time // time at which it was moved to closing

	pend    []byte // frames that wait to be written to the journal
	broken  bool   // it has samples that are not in the journal
	writing bool   // a segment is being written from it

	// The fields below are guarded by DB.writer.
	journal *os.File
	written int64
	dirty   bool // written, but not synced
}

// Stats are numbers about the stored data.
type Stats struct {
	Samples  int64     // in files and in memory
	Series   int       // in memory
	Bytes    int64     // on disk, without journals
	Memory   int64     // bytes in memory
	Segments int       //
	Refused  int64     // samples since the start that were not accepted
	Lost     int64     // samples since the start that were accepted and then lost
	Since    time.Time // of the first sample; zero if there is none
	Trouble  string    // why the disk cannot be written, "" if it can
}

// Samples stores samples. Samples with a value that is not finite are counted and dropped.
func (db *DB) Samples(samples []watch.Sample) { db.Accept(samples) }

// Accept is Samples. It returns the number of samples that are refused because samples of
// too many other times arrive; the same samples may be accepted later.
func (db *DB) Accept(samples []watch.Sample) (late int) {
	if len(samples) == 0 {
		return 0
	}
	now := time.Now()
	db.mu.Lock()
	if db.closed {
		db.mu.Unlock()
		return len(samples)
	}
	f := framer{db: db}
	for i := range samples {
		s := &samples[i]
		t := s.Time.UnixMilli()
		if math.IsNaN(s.Value) || math.IsInf(s.Value, 0) || t < 0 || t > maxTime || s.ID.Name == "" {
			db.refused.invalid++
			db.stats.Refused++
			continue
		}
		w := f.w
		if w == nil || t < w.begin || t >= w.end {
			f.end()
			if w = db.window(t, now); w == nil {
				db.refused.late++
				db.stats.Refused++
				late++
				continue
			}
			w.touched = now
			f.begin(w)
		}
		m := db.series(s.ID, s.Unit)
		p := m.part(w)
		if p == nil {
			p = m.join(w)
			f.series(p.number, m)
		}
		n := int64(p.c.add(t, s.Value))
		w.size += n
		w.samples++
		db.memory += n
		f.sample(entry{p.number, t, s.Value})
	}
	f.end()
	db.bound()
	db.mu.Unlock()
	db.live.samples(samples)
	return late
}

// window returns the open window for a time. It returns nil if there is none and none can
// be opened.
func (db *DB) window(t int64, now time.Time) *window {
	for _, w := range db.open {
		if t >= w.begin && t < w.end {
			return w
		}
	}
	if len(db.open) >= maxWindows {
		idle := slices.MinFunc(db.open, func(a, b *window) int { return a.touched.Compare(b.touched) })
		newest := t >= db.open[len(db.open)-1].end
		if !newest && now.Sub(idle.touched) < spare {
			return nil
		}
		db.retire(idle)
	}
	length := db.opt.Window.Milliseconds()
	begin := floor(t, length)
	db.number++
	w := &window{begin: begin, end: begin + length, number: db.number, touched: now}
	db.open = append(db.open, w)
	slices.SortFunc(db.open, func(a, b *window) int { return int(a.begin - b.begin) })
	return w
}

// retire moves a window from open to closing, to be written as a segment.
func (db *DB) retire(w *window) {
	db.open = slices.DeleteFunc(db.open, func(o *window) bool { return o == w })
	w.closed = time.Now()
	db.closing = append(db.closing, w)
	db.nudge()
}

// bound keeps memory within its limit. Windows are closed when they take half of it. If the
// disk does not keep up, the oldest windows are dropped.
func (db *DB) bound() {
	for db.memory > db.opt.Memory/2 && len(db.open) > 0 {
		closing := int64(0)
		for _, w := range db.closing {
			closing += w.size
		}
		if db.memory-closing <= db.opt.Memory/2 {
			break
		}
		db.retire(slices.MaxFunc(db.open, func(a, b *window) int { return int(a.size - b.size) }))
	}
	for db.memory > db.opt.Memory {
		i := slices.IndexFunc(db.closing, func(w *window) bool { return !w.writing })
		if i < 0 {
			break
		}
		w := db.closing[i]
		db.closing = slices.Delete(db.closing, i, i+1)
		db.refused.lost += w.samples
		db.stats.Lost += w.samples
		db.abandoned = append(db.abandoned, w)
		db.forget(w)
	}
}

// forget removes a window from memory.
func (db *DB) forget(w *window) {
	db.memory -= w.size
	for _, m := range w.series {
		i := slices.IndexFunc(m.parts, func(p part) bool { return p.w == w })
		m.parts = slices.Delete(m.parts, i, i+1)
		if len(m.parts) == 0 {
			same := slices.DeleteFunc(db.index[m.hash], func(o *memSeries) bool { return o == m })
			if len(same) == 0 {
				delete(db.index, m.hash)
			} else {
				db.index[m.hash] = same
			}
		}
	}
	w.series, w.columns = nil, nil
	db.changed.Broadcast()
}

// series returns the series in memory with an ID, which it adds if necessary.
func (db *DB) series(id watch.ID, unit watch.Unit) *memSeries {
	h := hashID(db.seed, id)
	for _, m := range db.index[h] {
		if equalID(m.id, id) {
			m.unit = unit
			return m
		}
	}
	id.Labels = slices.Clone(id.Labels)
	m := &memSeries{identity: &identity{id: id, labels: labelsText(id.Labels)}, hash: h, unit: unit}
	db.index[h] = append(db.index[h], m)
	return m
}

// part returns the share of the series in a window, or nil. It searches from the newest on,
// because most samples belong there, and many windows may be waiting for the disk.
func (m *memSeries) part(w *window) *part {
	for i := len(m.parts) - 1; i >= 0; i-- {
		if m.parts[i].w == w {
			return &m.parts[i]
		}
	}
	return nil
}

func (m *memSeries) join(w *window) *part {
	c := &column{}
	m.parts = append(m.parts, part{w, c, len(w.series)})
	w.series, w.columns = append(w.series, m), append(w.columns, c)
	return &m.parts[len(m.parts)-1]
}

// framer encodes the samples of one call into frames for the journals of their windows.
type framer struct {
	db      *DB
	w       *window
	at      int
	entries []entry
}

// maxEntries bounds the samples of a frame, so that it stays below maxFrame.
const maxEntries = 1 << 20

func (f *framer) begin(w *window) {
	f.w = w
	if w.broken {
		return
	}
	before := len(w.pend)
	w.pend, f.at = beginFrame(w.pend)
	f.db.pending += int64(len(w.pend) - before)
}

func (f *framer) series(number int, m *memSeries) {
	if f.w.broken {
		return
	}
	before := len(f.w.pend)
	f.w.pend = appendSeries(f.w.pend, number, m.id, m.unit)
	f.db.pending += int64(len(f.w.pend) - before)
}

func (f *framer) sample(e entry) {
	if f.w.broken {
		return
	}
	if f.entries = append(f.entries, e); len(f.entries) == maxEntries {
		w := f.w
		f.end()
		f.begin(w)
	}
}

func (f *framer) end() {
	w := f.w
	f.w = nil
	if w == nil || w.broken {
		f.entries = f.entries[:0]
		return
	}
	before := len(w.pend)
	w.pend = appendSamples(w.pend, f.entries)
	endFrame(w.pend, f.at)
	f.db.pending += int64(len(w.pend) - before)
	f.entries = f.entries[:0]
	if len(w.pend) > maxPending {
		f.db.breakJournal(w)
	}
}

// maxPending bounds the bytes that wait for a slow disk. Beyond it the journal is
// abandoned.
const maxPending = 64 << 20

// breakJournal records that some samples of a window will not be in its journal.
func (db *DB) breakJournal(w *window) {
	db.pending -= int64(len(w.pend))
	w.pend, w.broken = nil, true
}

// Task stores a task, at its beginning and again at its end.
func (db *DB) Task(t watch.Task) {
	db.tasks.add(t)
	db.live.task(t)
}

// Event stores an event.
func (db *DB) Event(e watch.Event) {
	db.events.add(e)
	db.live.event(e)
}

// note stores an event about the directory itself.
func (db *DB) note(kind, format string, args ...any) {
	db.Event(watch.Event{Time: db.opt.Now(), Node: db.opt.Node, Layer: watch.LayerStore, Kind: kind, Text: fmt.Sprintf(format, args...)})
}

// Stats returns numbers about the stored data.
func (db *DB) Stats() Stats {
	db.mu.RLock()
	defer db.mu.RUnlock()
	s := db.stats
	s.Memory, s.Segments = db.memory, len(db.segments)
	first := int64(math.MaxInt64)
	for _, g := range db.segments {
		s.Samples += g.Samples
		s.Bytes += g.bytes
		first = min(first, g.First)
	}
	for _, w := range slices.Concat(db.open, db.closing) {
		s.Samples += w.samples
		for _, c := range w.columns {
			first = min(first, c.first)
		}
	}
	for _, same := range db.index {
		s.Series += len(same)
	}
	s.Bytes += db.tasks.bytes() + db.events.bytes()
	if first != math.MaxInt64 {
		s.Since = time.UnixMilli(first).UTC()
	}
	if db.trouble != nil {
		s.Trouble = db.trouble.Error()
	}
	return s
}

// dirMode is the mode of the directories. Not every user may see tasks, their commands and
// the paths of their files.
const dirMode = 0o750

// makeDirs makes the directories of a database. It corrects the modes of directories that
// earlier versions made.
func makeDirs(dir string) error {
	if err := owner.MkdirAll(dir, dirMode); err != nil {
		return err
	}
	for _, sub := range []string{"journal", "segments", "tasks", "events", "tmp"} {
		sub = filepath.Join(dir, sub)
		if err := os.MkdirAll(sub, dirMode); err != nil {
			return err
		}
		st, err := os.Stat(sub)
		if err != nil {
			return err
		}
		if mode := st.Mode().Perm(); mode&^dirMode != 0 {
			if err := os.Chmod(sub, mode&dirMode); err != nil {
				return err
			}
		}
	}
	return nil
}

// Open opens a directory, and creates it if it does not exist. It returns an error if
// another process has the directory open.
func Open(dir string, opt Options) (_ *DB, err error) {
	opt, err = opt.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := makeDirs(dir); err != nil {
		return nil, err
	}
	db := &DB{dir: dir, opt: opt, seed: maphash.MakeSeed(), index: make(map[uint64][]*memSeries), wake: make(chan struct{}, 1)}
	db.changed = sync.NewCond(&db.mu)
	db.files = newFiles(&db.known)
	if db.lock, err = owner.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			db.lock.Close()
		}
	}()
	if err := lock.Take(db.lock, lock.Exclusive); err != nil {
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, exit.Errorf(exit.Directory, "stop the other one, or name another directory with --data", "%s is in use by another premix watch", dir)
		}
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	if err := emptyDir(filepath.Join(dir, "tmp")); err != nil {
		return nil, err
	}
	var damaged []string
	if db.events, err = openTable(filepath.Join(dir, "events"), "event", opt, eventKind, &damaged); err != nil {
		return nil, err
	}
	if db.tasks, err = openTable(filepath.Join(dir, "tasks"), "task", opt, taskKind, &damaged); err != nil {
		return nil, err
	}
	if err := db.load(&damaged); err != nil {
		return nil, err
	}
	for _, d := range damaged {
		db.note("damaged", "%s", d)
	}
	ctx, stop := context.WithCancel(context.Background())
	db.stop = stop
	for _, f := range []func(context.Context){db.flusher, db.closer, db.compactor} {
		db.done.Add(1)
		go func() {
			defer db.done.Done()
			f(ctx)
		}()
	}
	return db, nil
}

func emptyDir(dir string) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
	}
	return err
}

// Close writes all pending data to the journals and closes the directory.
func (db *DB) Close() error {
	db.mu.Lock()
	if db.closed {
		db.mu.Unlock()
		return nil
	}
	db.closed = true
	db.mu.Unlock()
	db.stop()
	db.done.Wait()
	db.flush(true)
	err := db.closeBroken()
	for _, w := range slices.Concat(db.open, db.closing) {
		if w.journal != nil {
			err = errors.Join(err, w.journal.Close())
		}
	}
	db.files.close()
	db.live.close()
	return errors.Join(err, db.tasks.close(), db.events.close(), db.lock.Close())
}
