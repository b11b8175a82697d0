package series

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"

	"premix/internal/kit/beneath"
	"premix/internal/kit/parquetparts"
	"premix/internal/record"
	"premix/internal/watch"
)

// Row is a row of raw.parquet: a sample. Values are stored as plain doubles under zstd: a
// series repeats whole values, which zstd finds, and which splitting them into streams of
// bytes would hide. Files with few samples store each page plain or split
// (BYTE_STREAM_SPLIT), whichever is smaller. The header of a page names its encoding, and
// the reader accepts both.
type Row struct {
	Name   string  `parquet:"name,dict"`
	Labels string  `parquet:"labels,dict"` // a JSON object, its keys sorted
	Unit   string  `parquet:"unit,dict"`
	Time   int64   `parquet:"time,delta,timestamp(millisecond)"`
	Value  float64 `parquet:"value"`
}

// RollupRow is a row of 1m.parquet or 1h.parquet: a summary of the samples of a series in
// the minute or hour that begins at Time. Means are seldom equal, so that each page of
// values is stored plain or split, whichever is smaller.
type RollupRow struct {
	Name   string  `parquet:"name,dict"`
	Labels string  `parquet:"labels,dict"`
	Unit   string  `parquet:"unit,dict"`
	Time   int64   `parquet:"time,delta,timestamp(millisecond)"`
	Min    float64 `parquet:"min"`
	Mean   float64 `parquet:"mean"`
	Max    float64 `parquet:"max"`
	Count  int64   `parquet:"count,delta"`
}

// The columns that queries read, by their index in Row and RollupRow.
const (
	colTime  = 3
	colValue = 4
	colMin   = 4
	colMean  = 5
	colMax   = 6
	colCount = 7
)

// resolution is a kind of file of a segment.
type resolution int

const (
	raw resolution = iota
	minute
	hour
	resolutions
)

// step returns the milliseconds that a row covers; 0 for samples.
func (r resolution) step() int64 { return [...]int64{0, 60_000, 3_600_000}[r] }

func (r resolution) file() string { return [...]string{"raw.parquet", "1m.parquet", "1h.parquet"}[r] }

// about is the content of segment.json: the facts about a segment that do not need its
// other files.
type about struct {
	Format   int      `json:"format"`
	Number   uint64   `json:"number"`
	Day      bool     `json:"day"`   // merged from all segments of a day
	Begin    int64    `json:"begin"` // of the window or the day, ms since 1970
	First    int64    `json:"first"` // time of the first sample
	Last     int64    `json:"last"`
	Series   int      `json:"series"`
	Samples  int64    `json:"samples"`
	Replaces []uint64 `json:"replaces,omitempty"` // windows and segments whose samples are in this one
}

const segmentFormat = 1

// keySeries is the key in the metadata of a Parquet file under which its series are listed,
// see encodeSpans.
const keySeries = "premix.watch.series"

// span is the range of rows of a series in a file.
type span struct {
	*identity
	unit        watch.Unit
	row, rows   int64
	first, last int64 // times of the first and last row
}

// encodeSpans writes spans as text: base64 of a zstd frame of, for each series, name,
// labels, unit (each with its length, a uvarint, before it), uvarint rows, varint time of
// the first row, uvarint time from it to the last. The list has the order of the rows.
func encodeSpans(spans []span) (string, error) {
	var b []byte
	for _, s := range spans {
		b = appendText(b, s.id.Name)
		b = appendText(b, s.labels)
		b = appendText(b, string(s.unit))
		b = binary.AppendUvarint(b, uint64(s.rows))
		b = binary.AppendVarint(b, s.first)
		b = binary.AppendUvarint(b, uint64(s.last-s.first))
	}
	z, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	if err != nil {
		return "", err
	}
	return base64.StdEncoding.EncodeToString(z.EncodeAll(b, nil)), z.Close()
}

// maxSpans bounds the bytes of memory that the list of series of a file may take.
const maxSpans = 1 << 30

func decodeSpans(text string, known *identities) ([]span, error) {
	packed, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return nil, err
	}
	z, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxSpans))
	if err != nil {
		return nil, err
	}
	defer z.Close()
	b, err := z.DecodeAll(packed, nil)
	if err != nil {
		return nil, err
	}
	var spans []span
	row := int64(0)
	for p := (parser{b: b}); len(p.b) > 0; {
		name, labels := p.text(), p.text()
		s := span{unit: watch.Unit(p.text()), row: row, rows: int64(p.uvarint(math.MaxInt64))}
		s.first = p.varint()
		s.last = s.first + int64(p.uvarint(math.MaxInt64))
		if p.bad {
			return nil, errors.New("the list of series is cut short")
		}
		if s.identity, err = known.get(name, labels); err != nil {
			return nil, err
		}
		row += s.rows
		spans = append(spans, s)
	}
	return spans, nil
}

// census counts the rows that the files of a segment would have.
type census [resolutions]int64

// add counts the rows of a series with a number of samples from first to last.
func (c *census) add(first, last, samples int64) {
	c[raw] += samples
	for _, r := range [...]resolution{minute, hour} {
		c[r] += min((last-first)/r.step()+1, samples)
	}
}

// worth reports which roll-ups are worth writing. A row of a roll-up has four values and a
// sample has one, so that with less than five samples a row the roll-ups would be larger
// than the samples and no faster to read.
func (c *census) worth() (worth [resolutions]bool) {
	for r := range resolutions {
		worth[r] = r == raw || 5*c[r] <= c[raw]
	}
	return worth
}

// segmentWriter writes a segment, series after series in the order of compareIdentity.
type segmentWriter struct {
	about
	dir   string             // DIR/tmp/N
	files [resolutions]*file // nil for files that the segment does not have
	sums  rollups
}

// rollups are rows of roll-ups, stored by columns.
type rollups struct {
	times, counts         []int64
	least, mean, greatest []float64
}

// newSegment begins a segment in a directory below tmp, with those roll-ups for which worth
// is true.
func newSegment(tmp string, a about, worth [resolutions]bool) (*segmentWriter, error) {
	a.Format, a.First, a.Last = segmentFormat, math.MaxInt64, math.MinInt64
	w := &segmentWriter{about: a, dir: filepath.Join(tmp, strconv.FormatUint(a.Number, 10))}
	if err := os.RemoveAll(w.dir); err != nil {
		return nil, err
	}
	err := os.MkdirAll(w.dir, dirMode)
	for r := range resolutions {
		rows := rollupPageRows
		switch {
		case r == raw && worth[hour]:
			rows = rawPageRows
		case r == raw:
			rows = fewPageRows
		}
		if err == nil && worth[r] {
			w.files[r], err = newFile(filepath.Join(w.dir, r.file()), r, rows)
		}
	}
	if err != nil {
		return nil, errors.Join(err, w.abort())
	}
	return w, nil
}

// add writes the samples of a series, sorted by time, with each time once.
func (w *segmentWriter) add(i *identity, unit watch.Unit, times []int64, values []float64) error {
	n := len(times)
	if n == 0 {
		return nil
	}
	w.Series++
	w.Samples += int64(n)
	w.First, w.Last = min(w.First, times[0]), max(w.Last, times[n-1])
	if err := w.files[raw].series(i, unit, times, nil, values); err != nil {
		return err
	}
	for _, r := range [...]resolution{minute, hour} {
		if w.files[r] == nil {
			continue
		}
		s := &w.sums
		s.sum(r.step(), times, values)
		if err := w.files[r].series(i, unit, s.times, s.counts, s.least, s.mean, s.greatest); err != nil {
			return err
		}
	}
	return nil
}

// sum replaces the rows by roll-ups of samples.
func (s *rollups) sum(step int64, times []int64, values []float64) {
	s.times, s.counts = s.times[:0], s.counts[:0]
	s.least, s.mean, s.greatest = s.least[:0], s.mean[:0], s.greatest[:0]
	for k := 0; k < len(times); {
		at := floor(times[k], step)
		b := bucket{min: values[k], max: values[k]}
		for ; k < len(times) && times[k] < at+step; k++ {
			b.add(values[k], values[k], values[k], 1)
		}
		s.times, s.counts = append(s.times, at), append(s.counts, b.count)
		s.least, s.mean, s.greatest = append(s.least, b.min), append(s.mean, b.mean()), append(s.greatest, b.max)
	}
}

// commit renames the segment to its name below segments. On an error it leaves no file of
// it.
func (w *segmentWriter) commit(segments string) (*segment, error) {
	err := w.closeFiles()
	var text []byte
	if err == nil {
		text, err = json.Marshal(w.about)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(w.dir, "segment.json"), append(text, '\n'), 0o666)
	}
	s := &segment{about: w.about, dir: filepath.Join(segments, w.name())}
	if err == nil {
		err = beneath.Move(w.dir, s.dir, beneath.Durable)
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(w.dir))
	}
	s.has, s.bytes = look(s.dir)
	return s, nil
}

func (w *segmentWriter) closeFiles() error {
	var errs []error
	for r, f := range w.files {
		if f != nil {
			errs = append(errs, f.close())
			w.files[r] = nil
		}
	}
	return errors.Join(errs...)
}

// abort removes the files written so far.
func (w *segmentWriter) abort() error {
	for _, f := range w.files {
		if f != nil {
			f.f.Close()
		}
	}
	return os.RemoveAll(w.dir)
}

// name returns the name of the segment's directory; names sort by time.
func (a *about) name() string {
	layout := "20060102T150405"
	if a.Day {
		layout = "20060102"
	}
	return time.UnixMilli(a.Begin).UTC().Format(layout) + "-" + strconv.FormatUint(a.Number, 10)
}

// segment is a segment on disk.
type segment struct {
	about
	dir     string
	has     [resolutions]bool // guarded by DB.mu, as are the fields below
	bytes   int64
	readers int // number of queries that read it; its files are removed only when it is 0
}

// errDamaged is the error for a segment that cannot be used.
var errDamaged = errors.New("damaged")

// openSegment opens the segment in a directory. The error is errDamaged if its files are
// not as they were written.
func openSegment(dir string) (*segment, error) {
	text, err := os.ReadFile(filepath.Join(dir, "segment.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %w", errDamaged, err)
	}
	if err != nil {
		return nil, err
	}
	s := &segment{dir: dir}
	if err := json.Unmarshal(text, &s.about); err != nil {
		return nil, fmt.Errorf("%w: segment.json: %w", errDamaged, err)
	}
	if s.Format > segmentFormat {
		return nil, &record.FormatError{Path: dir, Format: s.Format}
	}
	if s.name() != filepath.Base(dir) {
		return nil, fmt.Errorf("%w: segment.json belongs to %s", errDamaged, s.name())
	}
	s.has, s.bytes = look(s.dir)
	for r := range resolutions {
		if !s.has[r] {
			continue
		}
		if err := checkParquet(filepath.Join(dir, r.file())); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// look returns which files a segment has, and their total size.
func look(dir string) (has [resolutions]bool, bytes int64) {
	for r := range resolutions {
		info, err := os.Stat(filepath.Join(dir, r.file()))
		if has[r] = err == nil; err == nil {
			bytes += info.Size()
		}
	}
	return has, bytes
}

// checkParquet checks that a file ends with a complete Parquet footer.
func checkParquet(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	var tail [8]byte
	if info.Size() < 12 {
		return fmt.Errorf("%w: %s has %d bytes", errDamaged, path, info.Size())
	}
	if _, err := f.ReadAt(tail[:], info.Size()-8); err != nil {
		return err
	}
	if string(tail[4:]) != parquetparts.Magic || int64(binary.LittleEndian.Uint32(tail[:])) > info.Size()-12 {
		return fmt.Errorf("%w: %s has no footer", errDamaged, path)
	}
	return nil
}

// number returns the N in the name of a file or directory.
func number(name string) (uint64, bool) {
	name, _, _ = strings.Cut(name, ".")
	n, err := strconv.ParseUint(name[strings.LastIndexByte(name, '-')+1:], 10, 64)
	return n, err == nil
}

// floor rounds a time down to a multiple of step.
func floor(t, step int64) int64 {
	if step <= 1 {
		return t
	}
	m := t % step
	if m < 0 {
		m += step
	}
	return t - m
}

// bucket summarizes samples. Its sum is exact for whole numbers.
type bucket struct {
	min, max, sum float64
	count         int64
}

// add adds a summary of count samples.
func (b *bucket) add(least, sum, greatest float64, count int64) {
	b.min, b.max = min(b.min, least), max(b.max, greatest)
	b.sum += sum
	b.count += count
}

// mean lies between min and max, even after rounding or overflow of the sum.
func (b *bucket) mean() float64 {
	if m := b.sum / float64(b.count); !math.IsNaN(m) {
		return min(b.max, max(b.min, m))
	}
	return b.min // of infinities of both signs
}
