package series

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/parquet-go/parquet-go"
	pzstd "github.com/parquet-go/parquet-go/compress/zstd"

	"premix/internal/kit/beneath"
	"premix/internal/record"
)

// kind describes to a table its values T and its rows R.
type kind[T, R any] struct {
	key      func(*T) string           // of two values with the same key the later one counts; "" for none
	running  func(*T) bool             // it will be reported again
	span     func(*T) (from, to int64) // the time of a value, ms since 1970, both ends included
	row      func(*T) R                //
	fields   []field[T]                // of the columns of R, in their order
	keyed    columns                   // those that key reads
	from, to int                       // columns of R with the span; a 0 in to has no end
}

// wanted describes which values visit returns from files, and which of their columns.
type wanted[T any] struct {
	columns columns       // in addition to the key and the span
	pick    func(*T) bool // selects values; it is called with the fields of picked alone. nil: all
	picked  columns
}

// table stores values: recent ones in memory and as JSON Lines, older ones as Parquet.
//
//	DIR/N.jsonl    values in the order in which they came, beginning with those that
//	               were running when the file was made
//	DIR/N.parquet  the finished values of N.jsonl and of journals before it, by their begin
//
// All values of a journal whose number is not above that of a Parquet file are in that
// file, or in a later journal.
type table[T, R any] struct {
	kind[T, R]
	dir, name string
	rows      int // number of values after which it is closed

	writing sync.Mutex // held while files are written
	journal *record.Writer
	number  uint64   // of the journal
	old     []string // journals before that one

	mu      sync.Mutex
	recent  []*T
	place   map[string]int // in recent, by key
	moving  []*T           // being written to a Parquet file
	pend    bytes.Buffer   // lines for the journal
	broken  bool           // some values of recent are in no journal
	doubt   map[string]*T  // running, but began before finished values that are in files
	started time.Time      // when recent was last emptied
	closed  []closedTable
	size    int64 // bytes of files
}

// closedTable is a Parquet file of a table.
type closedTable struct {
	path     string
	number   uint64
	from, to int64
	size     int64
}

// tableRowGroup is the smallest number of rows that a query reads.
const tableRowGroup = 8 << 10

// keySpan is the key in a Parquet file's metadata under which its span is stored: two
// numbers.
const keySpan = "premix.watch.span"

// closeEvery is the time after which values are converted to Parquet, however few they are.
const closeEvery = 24 * time.Hour

func openTable[T, R any](dir, name string, opt Options, k kind[T, R], damaged *[]string) (*table[T, R], error) {
	t := &table[T, R]{kind: k, dir: dir, name: name, rows: opt.RowsInTable, place: make(map[string]int), started: time.Now()}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	aside := func(name string, err error) error {
		root := filepath.Dir(dir)
		*damaged = append(*damaged, fmt.Sprintf("%s was set aside in %s: %v", filepath.Join(filepath.Base(dir), name), filepath.Join(root, "damaged"), err))
		return setAside(root, filepath.Join(filepath.Base(dir), name))
	}
	newest := uint64(0)
	for _, e := range entries {
		n, ok := number(e.Name())
		path := filepath.Join(dir, e.Name())
		switch {
		case strings.HasSuffix(path, ".tmp"), strings.HasPrefix(e.Name(), beneath.Prefix):
			if err := os.Remove(path); err != nil {
				return nil, err
			}
		case ok && strings.HasSuffix(path, ".parquet"):
			t.number = max(t.number, n)
			c, err := openClosed(path)
			if errors.Is(err, errDamaged) {
				if err := aside(e.Name(), err); err != nil {
					return nil, err
				}
				continue
			}
			if err != nil {
				return nil, err
			}
			c.number = n
			newest = max(newest, n)
			t.size += c.size
			t.closed = append(t.closed, c)
		}
	}
	slices.SortFunc(t.closed, func(a, b closedTable) int { return int(int64(a.number) - int64(b.number)) })
	var journals []uint64
	for _, e := range entries {
		if n, ok := number(e.Name()); ok && strings.HasSuffix(e.Name(), ".jsonl") {
			journals = append(journals, n)
		}
	}
	slices.Sort(journals)
	for _, n := range journals {
		t.number = max(t.number, n)
		path := t.path(n)
		if n <= newest {
			if err := os.Remove(path); err != nil {
				return nil, err
			}
			continue
		}
		if _, _, err := record.Read(path, func(v *T) error { t.keep(v); return nil }); err != nil {
			return nil, err
		}
		t.old = append(t.old, path)
		if info, err := os.Stat(path); err == nil {
			t.size += info.Size()
		}
	}
	return t, nil
}

func (t *table[T, R]) path(n uint64) string {
	return filepath.Join(t.dir, strconv.FormatUint(n, 10)+".jsonl")
}

func openClosed(path string) (c closedTable, err error) {
	f, pf, err := openRows(path)
	if err != nil {
		return c, err
	}
	defer f.Close()
	c = closedTable{path: path, size: pf.Size()}
	text, _ := pf.Lookup(keySpan)
	if _, err := fmt.Sscan(text, &c.from, &c.to); err != nil {
		return c, fmt.Errorf("%w: %s has no time span", errDamaged, path)
	}
	return c, nil
}

func openRows(path string) (f *os.File, pf *parquet.File, err error) {
	if err := checkParquet(path); err != nil {
		return nil, nil, err
	}
	if f, err = os.Open(path); err != nil {
		return nil, nil, err
	}
	defer func() {
		if r := recover(); r != nil { // of the library, for a damaged footer
			err = fmt.Errorf("%w: %s: %v", errDamaged, path, r)
		}
		if err != nil {
			f.Close()
		}
	}()
	info, err := f.Stat()
	if err != nil {
		return nil, nil, err
	}
	if pf, err = parquet.OpenFile(f, info.Size(), parquet.SkipBloomFilters(true)); err != nil {
		return nil, nil, fmt.Errorf("%w: %s: %w", errDamaged, path, err)
	}
	return f, pf, nil
}

// keep puts a value into recent. A running value does not replace a finished one. The
// caller holds mu, or no other goroutine uses the table yet.
func (t *table[T, R]) keep(v *T) {
	key := t.key(v)
	if i, ok := t.place[key]; ok && key != "" {
		if !t.running(v) || t.running(t.recent[i]) {
			t.recent[i] = v
		}
		return
	}
	if key != "" {
		t.place[key] = len(t.recent)
	}
	t.recent = append(t.recent, v)
}

// add stores a value.
func (t *table[T, R]) add(v T) {
	line, err := json.Marshal(v)
	if err != nil {
		return // it has numbers that are not finite, which JSON cannot represent
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if key := t.key(&v); key != "" {
		if _, known := t.place[key]; t.running(&v) && !known && len(t.closed) > 0 {
			if from, _ := t.span(&v); from <= t.closed[len(t.closed)-1].to {
				if t.doubt == nil {
					t.doubt = make(map[string]*T)
				}
				t.doubt[key] = &v
			}
		} else {
			delete(t.doubt, key)
		}
	}
	t.keep(&v)
	if t.pend.Len() > maxPending {
		t.pend.Reset()
		t.broken = true
	}
	t.pend.Write(line)
	t.pend.WriteByte('\n')
}

// flush writes the pending lines to the journal.
func (t *table[T, R]) flush() error {
	t.writing.Lock()
	defer t.writing.Unlock()
	t.mu.Lock()
	lines := bytes.Clone(t.pend.Bytes())
	t.pend.Reset()
	t.mu.Unlock()
	if len(lines) == 0 {
		return nil
	}
	err := t.append(lines)
	if err != nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		later := bytes.Clone(t.pend.Bytes())
		t.pend.Reset()
		t.pend.Write(lines)
		t.pend.Write(later)
	}
	return err
}

// append writes lines to the journal. The caller holds writing.
func (t *table[T, R]) append(lines []byte) error {
	if t.journal == nil {
		if err := t.begin(); err != nil {
			return err
		}
	}
	if _, err := t.journal.Append(lines); err != nil {
		return err
	}
	t.mu.Lock()
	t.size += int64(len(lines))
	t.mu.Unlock()
	return nil
}

// begin creates a journal. The caller holds writing.
func (t *table[T, R]) begin() error {
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	j, err := record.Create(t.path(t.number+1), record.Header{Table: t.name, Host: host, PID: os.Getpid(), Created: time.Now()})
	if err != nil {
		return err
	}
	t.number++
	t.journal = j
	return nil
}

// due reports whether it is time to convert the values to Parquet.
func (t *table[T, R]) due() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.recent) >= t.rows || t.broken || len(t.recent) > 0 && time.Since(t.started) > closeEvery
}

// rotate writes the finished values to a Parquet file and begins a journal.
func (t *table[T, R]) rotate() error {
	if err := t.flush(); err != nil {
		return err
	}
	t.writing.Lock()
	defer t.writing.Unlock()
	t.mu.Lock()
	var stay []*T
	for _, v := range t.recent {
		if t.running(v) {
			stay = append(stay, v)
		} else {
			t.moving = append(t.moving, v)
		}
	}
	if len(stay) >= t.rows { // too many run: their end was probably never reported
		t.moving, stay = t.recent, nil
	}
	moving := t.moving
	need := len(moving) > 0 || t.broken
	t.replace(stay)
	t.started = time.Now()
	t.mu.Unlock()

	lines, err := encodeLines(stay)
	before := t.number
	olds := slices.Clone(t.old)
	if t.journal != nil {
		olds = append(olds, t.path(t.number))
	}
	if err == nil && need {
		err = t.change(lines)
	}
	var c closedTable
	if err == nil && len(moving) > 0 {
		c, err = t.write(moving, before)
	}
	t.mu.Lock()
	t.moving = nil
	if err != nil {
		t.replace(slices.Concat(moving, t.recent)) // values that came in between are newer
		t.mu.Unlock()
		return err
	}
	t.broken = false
	if len(moving) > 0 {
		t.closed = append(t.closed, c)
		t.size += c.size
	}
	t.mu.Unlock()
	if len(moving) == 0 {
		return nil // the earlier journals are still the only copy of some values
	}
	t.old = nil
	var errs []error
	for _, path := range olds {
		if info, err := os.Stat(path); err == nil {
			t.mu.Lock()
			t.size -= info.Size()
			t.mu.Unlock()
		}
		errs = append(errs, os.Remove(path))
	}
	return errors.Join(errs...)
}

// replace sets the recent values. The caller holds mu.
func (t *table[T, R]) replace(values []*T) {
	t.recent, t.place = nil, make(map[string]int)
	for _, v := range values {
		t.keep(v)
	}
}

func encodeLines[T any](values []*T) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	for _, v := range values {
		if err := e.Encode(v); err != nil {
			return nil, err
		}
	}
	return b.Bytes(), nil
}

// change begins another journal that starts with lines. The caller holds writing.
func (t *table[T, R]) change(lines []byte) error {
	before, number := t.journal, t.number
	t.journal = nil
	if err := t.begin(); err != nil {
		t.journal = before
		return err
	}
	if _, err := t.journal.Append(lines); err != nil {
		// The previous journal is complete, and is read before this one.
		t.old = append(t.old, t.path(number))
		return errors.Join(err, closeWriter(before))
	}
	t.mu.Lock()
	t.size += int64(len(lines))
	t.mu.Unlock()
	if before != nil {
		t.old = append(t.old, t.path(number))
	}
	return closeWriter(before)
}

func closeWriter(w *record.Writer) error {
	if w == nil {
		return nil
	}
	return w.Close()
}

// write writes values to the Parquet file with a number.
func (t *table[T, R]) write(values []*T, number uint64) (c closedTable, err error) {
	slices.SortStableFunc(values, func(a, b *T) int {
		x, _ := t.span(a)
		y, _ := t.span(b)
		return int(x - y)
	})
	c = closedTable{path: strings.TrimSuffix(t.path(number), ".jsonl") + ".parquet", number: number, from: math.MaxInt64, to: math.MinInt64}
	for _, v := range values {
		from, to := t.span(v)
		c.from, c.to = min(c.from, from), max(c.to, to)
	}
	f, err := beneath.Create(c.path, 0o666)
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, f.Discard()) }()
	w := parquet.NewGenericWriter[R](f, parquet.Compression(&pzstd.Codec{Level: pzstd.SpeedDefault}),
		parquet.MaxRowsPerRowGroup(tableRowGroup), parquet.DataPageStatistics(true),
		parquet.KeyValueMetadata(keySpan, fmt.Sprint(c.from, c.to)))
	rows := make([]R, 0, 256)
	for i, v := range values {
		rows = append(rows, t.row(v))
		if len(rows) == cap(rows) || i == len(values)-1 {
			if _, err := w.Write(rows); err != nil {
				return c, err
			}
			rows = rows[:0]
		}
	}
	if err := w.Close(); err != nil {
		return c, err
	}
	info, err := f.Stat()
	if err != nil {
		return c, err
	}
	c.size = info.Size()
	return c, f.Commit(beneath.Durable)
}

// visit calls f for the values that overlap a time, in ms since 1970 with the end
// exclusive, until f returns false. It calls f once for all values with the same key.
func (t *table[T, R]) visit(start, end int64, want wanted[T], f func(*T) bool) error {
	if err := t.settle(); err != nil {
		return err
	}
	overlaps := func(from, to int64) bool { return from < end && to >= start }
	t.mu.Lock()
	recent := slices.Concat(t.recent, t.moving)
	closed := slices.DeleteFunc(slices.Clone(t.closed), func(c closedTable) bool { return !overlaps(c.from, c.to) })
	t.mu.Unlock()
	// There may be millions of keys, so that only their hashes are kept. The chance that
	// two of a million are equal is one in thirty million.
	seen := make(map[uint64]struct{})
	seed := maphash.MakeSeed()
	first := func(v *T) bool {
		key := t.key(v)
		if key == "" {
			return true
		}
		before := len(seen)
		seen[maphash.String(seed, key)] = struct{}{}
		return len(seen) > before
	}
	tell := func(v *T) bool {
		return !overlaps(t.span(v)) || !first(v) || want.pick != nil && !want.pick(v) || f(v)
	}
	for _, v := range recent {
		if !t.running(v) && !tell(v) {
			return nil
		}
	}
	s := &search[T]{wanted: want, overlaps: overlaps, tell: f}
	if len(recent) > 0 || len(closed) > 1 { // a file has each key once
		s.first = first
	}
	for i := len(closed) - 1; i >= 0; i-- {
		more, err := t.visitClosed(closed[i].path, s)
		if err != nil && !errors.Is(err, os.ErrNotExist) { // it may just have been removed because of its age
			return err
		}
		if !more {
			return nil
		}
	}
	for _, v := range recent {
		if t.running(v) && !tell(v) {
			return nil
		}
	}
	return nil
}

// settle drops running values whose end is in a file already. A collector that restarted
// may report a task as running again when it reads the past.
func (t *table[T, R]) settle() error {
	t.mu.Lock()
	doubt, closed := t.doubt, slices.Clone(t.closed)
	t.doubt = nil
	t.mu.Unlock()
	if len(doubt) == 0 {
		return nil
	}
	least := int64(math.MaxInt64)
	for _, v := range doubt {
		from, _ := t.span(v)
		least = min(least, from)
	}
	finished := make(map[string]bool)
	for _, c := range closed {
		_, err := t.visitClosed(c.path, &search[T]{
			wanted:   wanted[T]{columns: t.keyed},
			overlaps: func(_, to int64) bool { return to >= least },
			tell: func(v *T) bool {
				if key := t.key(v); doubt[key] != nil && !t.running(v) {
					finished[strings.Clone(key)] = true
				}
				return true
			}})
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.replace(slices.DeleteFunc(slices.Clone(t.recent), func(v *T) bool { return finished[t.key(v)] && t.running(v) }))
	return nil
}

// search describes the values to read from a file.
type search[T any] struct {
	wanted[T]
	overlaps func(from, to int64) bool
	first    func(*T) bool // reports whether no value had its key before; nil: none had
	tell     func(*T) bool

	values []T   // of a row group
	rows   []int // the selected ones of them
}

// visitClosed calls tell for the values of a file that the search selects, until tell
// returns false. It reads whole columns, row group by row group, and only the requested
// ones: with a million tasks, most of the time would go into reading all fields.
func (t *table[T, R]) visitClosed(path string, s *search[T]) (more bool, err error) {
	f, pf, err := openRows(path)
	if err != nil {
		return true, err
	}
	defer f.Close()
	defer func() {
		if r := recover(); r != nil { // of the library, for damaged pages
			more, err = true, fmt.Errorf("%w: %s: %v", errDamaged, path, r)
		}
	}()
	r := newGroupReader()
	for i, g := range pf.RowGroups() {
		from := pf.Metadata().RowGroups[i].Columns[t.from].MetaData.Statistics.MinValue
		ends := pf.Metadata().RowGroups[i].Columns[t.to].MetaData.Statistics
		if len(from) == 8 && len(ends.MinValue) == 8 && len(ends.MaxValue) == 8 {
			to := int64(binary.LittleEndian.Uint64(ends.MaxValue))
			if binary.LittleEndian.Uint64(ends.MinValue) == 0 {
				to = maxTime
			}
			if !s.overlaps(int64(binary.LittleEndian.Uint64(from)), to) {
				continue
			}
		}
		r.reset(g)
		more, err := t.visitGroup(r, s)
		if err != nil {
			return true, fmt.Errorf("%s: %w", path, err)
		}
		if !more {
			return false, nil
		}
	}
	return true, nil
}

func (t *table[T, R]) visitGroup(r *groupReader, s *search[T]) (more bool, err error) {
	// Values left from the previous row group are either set again or not selected.
	n := int(r.group.NumRows())
	s.values = slices.Grow(s.values[:0], n)[:n]
	values, rows := s.values, s.rows[:0]
	for i := range n {
		rows = append(rows, i)
	}
	s.rows = rows
	have := columns(0)
	need := func(c columns) {
		if err == nil {
			err = fill(r, t.fields, c&^have, rows, values)
			have |= c
		}
	}
	keep := func(f func(*T) bool) {
		rows = slices.DeleteFunc(rows, func(i int) bool { return err != nil || !f(&values[i]) })
	}
	need(1<<t.from | 1<<t.to)
	keep(func(v *T) bool { return s.overlaps(t.span(v)) })
	if s.first != nil {
		need(t.keyed)
		keep(s.first)
	}
	if s.pick != nil {
		need(s.picked)
		keep(s.pick)
	}
	need(s.columns)
	if err != nil {
		return true, err
	}
	for _, i := range rows {
		if !s.tell(&values[i]) {
			return false, nil
		}
	}
	return true, nil
}

// expire removes files with no value younger than keep.
func (t *table[T, R]) expire(now time.Time, keep time.Duration) error {
	if keep == 0 {
		return nil
	}
	before := now.Add(-keep).UnixMilli()
	var gone []closedTable
	t.mu.Lock()
	t.closed = slices.DeleteFunc(t.closed, func(c closedTable) bool {
		if c.to >= before {
			return false
		}
		gone = append(gone, c)
		t.size -= c.size
		return true
	})
	t.mu.Unlock()
	var errs []error
	for _, c := range gone {
		errs = append(errs, os.Remove(c.path))
	}
	return errors.Join(errs...)
}

func (t *table[T, R]) bytes() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.size
}

func (t *table[T, R]) close() error {
	t.writing.Lock()
	defer t.writing.Unlock()
	return closeWriter(t.journal)
}

// CloseTables writes the finished tasks and events to Parquet files. The DB does this by
// itself when there are many, and once a day.
func (db *DB) CloseTables() error {
	return errors.Join(db.tasks.rotate(), db.events.rotate())
}
