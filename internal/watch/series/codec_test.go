package series

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/quick"
	"time"

	"github.com/parquet-go/parquet-go"
	pzstd "github.com/parquet-go/parquet-go/compress/zstd"

	"premix/internal/watch"
)

func TestBlock(t *testing.T) {
	for _, tt := range []struct {
		name   string
		times  []int64
		values []float64
		most   int // highest number of bytes
	}{
		{"nothing", nil, nil, 1},
		{"one", []int64{1795082400000}, []float64{0.1}, 16},
		{"equal values at equal distances", steps(128, 1000), slices.Repeat([]float64{7}, 128), 2 + 8 + 2*128 + 9},
		{"extremes", []int64{0, maxTime, 5}, []float64{math.MaxFloat64, -math.SmallestNonzeroFloat64, math.Copysign(0, -1)}, 80},
		{"backwards", []int64{100, 50, 50}, []float64{1, 2, 3}, 40},
	} {
		b := appendBlock(nil, tt.times, tt.values)
		times, values, err := readBlock(b, nil, nil)
		if err != nil || !slices.Equal(times, tt.times) || !equalBits(values, tt.values) {
			t.Errorf("%s: %v %v %v", tt.name, times, values, err)
		}
		if len(b) > tt.most {
			t.Errorf("%s: %d bytes, want at most %d", tt.name, len(b), tt.most)
		}
	}
}

func steps(n int, by int64) []int64 {
	var all []int64
	for i := range n {
		all = append(all, 1795082400000+int64(i)*by)
	}
	return all
}

func equalBits(a, b []float64) bool {
	return slices.EqualFunc(a, b, func(x, y float64) bool { return math.Float64bits(x) == math.Float64bits(y) })
}

func TestBlockOfAnything(t *testing.T) {
	err := quick.Check(func(times []int64, values []float64) bool {
		n := min(len(times), len(values))
		for i := range times {
			times[i] = max(0, times[i]) % (maxTime + 1)
		}
		b := appendBlock(nil, times[:n], values[:n])
		gotTimes, gotValues, err := readBlock(b, nil, nil)
		return err == nil && slices.Equal(gotTimes, times[:n]) && equalBits(gotValues, values[:n])
	}, nil)
	if err != nil {
		t.Error(err)
	}
}

// A column returns its samples sorted by time. Of two samples with the same time, it keeps
// the later one.
func TestColumn(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	var c column
	want := make(map[int64]float64)
	size := 0
	for range 1000 {
		at, v := int64(r.IntN(700)), float64(r.IntN(10))
		size += c.add(at, v)
		want[at] = v
	}
	if size != c.size {
		t.Errorf("%d bytes told, %d counted", size, c.size)
	}
	times, values := c.samples(nil, nil)
	if len(times) != len(want) || !slices.IsSorted(times) {
		t.Fatalf("%d samples, want %d", len(times), len(want))
	}
	for i, at := range times {
		if values[i] != want[at] {
			t.Errorf("%v at %d, want %v", values[i], at, want[at])
		}
	}
}

func FuzzBlock(f *testing.F) {
	f.Add(appendBlock(nil, []int64{1, 2, 3}, []float64{1, 2, 2}))
	f.Add([]byte{200, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		times, values, err := readBlock(b, nil, nil)
		if err != nil {
			return
		}
		if len(times) != len(values) {
			t.Fatalf("%d times, %d values", len(times), len(values))
		}
		again, same, err := readBlock(appendBlock(nil, times, values), nil, nil)
		if err != nil || !slices.Equal(times, again) || !equalBits(values, same) {
			t.Fatal("it is not read as it was written", err)
		}
	})
}

// journalOf returns a journal with the given frames.
func journalOf(payloads ...[]byte) []byte {
	b := binary.LittleEndian.AppendUint64([]byte(journalMagic), uint64(7_200_000))
	for _, p := range payloads {
		var at int
		b, at = beginFrame(b)
		b = append(b, p...)
		endFrame(b, at)
	}
	return b
}

// FuzzJournal checks that reading a frame of arbitrary bytes ends without a panic, and
// returns no more data than the frame has bytes.
func FuzzJournal(f *testing.F) {
	first := appendSeries(nil, 0, watch.NewID("node.load", "node", "n1"), watch.Count)
	f.Add(appendSamples(first, []entry{{0, 7_200_001, 1.5}, {0, 7_201_000, 2}}))
	f.Add(appendSamples(nil, []entry{{3, 1, 1}}))
	f.Add([]byte{recordSeries, 0})
	f.Add([]byte{recordSeries, 0, 5, 'x', 'x', 'x', 'x'}) // a text that ends behind the frame
	f.Fuzz(func(t *testing.T, payload []byte) {
		n := 0
		err := readRecords(payload, func(number int, id watch.ID, _ watch.Unit) error {
			if number < 0 || len(id.Name) > len(payload) || len(id.Labels) > len(payload) {
				t.Errorf("series %d, %v", number, id)
			}
			n++
			return nil
		}, func(entry) error {
			n++
			return nil
		})
		if n > len(payload) {
			t.Errorf("%d things in %d bytes, %v", n, len(payload), err)
		}
	})
}

func TestJournalHoldsWhatItWasGiven(t *testing.T) {
	ids := []watch.ID{watch.NewID("node.load"), watch.NewID("disk.x", "device", "s\"\n", "node", "ü")}
	var b []byte
	for i, id := range ids {
		b = appendSeries(b, i, id, watch.Bytes)
	}
	want := []entry{{0, 7_200_000, 1}, {1, 7_200_000, math.Pi}, {0, 7_199_000, -1}, {1, maxTime, 0}}
	text := journalOf(b, appendSamples(nil, want[:2]), appendSamples(nil, nil), appendSamples(nil, want[2:]))
	path := filepath.Join(t.TempDir(), "1.wal")
	if err := os.WriteFile(path, append(bytes.Clone(text), 1, 2, 3), 0o666); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var got []entry
	n := 0
	window, size, err := replay(f, func(number int, id watch.ID, unit watch.Unit) error {
		if number != n || !equalID(id, ids[n]) || unit != watch.Bytes {
			t.Errorf("series %d is %v in %s", number, id, unit)
		}
		n++
		return nil
	}, func(e entry) error {
		got = append(got, e)
		return nil
	})
	if err != nil || window != 7_200_000 || size != int64(len(text)) || !slices.Equal(got, want) {
		t.Errorf("%v, %d, %d, %v", got, window, size, err)
	}
}

func TestSpansComeBack(t *testing.T) {
	i := &identity{id: watch.NewID("disk.x", "device", "<sd>"), labels: labelsText(watch.NewID("", "device", "<sd>").Labels)}
	j := &identity{id: watch.NewID("node.load"), labels: "{}"}
	want := []span{{i, watch.Bytes, 0, 5, 10, 20}, {j, watch.Count, 5, 1, 7, 7}}
	text, err := encodeSpans(want)
	if err != nil {
		t.Fatal(err)
	}
	got, err := decodeSpans(text, &identities{})
	if err != nil || len(got) != 2 {
		t.Fatal(got, err)
	}
	for k := range want {
		if !equalID(got[k].id, want[k].id) || got[k].labels != want[k].labels || got[k].row != want[k].row || got[k].rows != want[k].rows || got[k].first != want[k].first || got[k].last != want[k].last || got[k].unit != want[k].unit {
			t.Errorf("%+v, want %+v", got[k], want[k])
		}
	}
}

// splitRow is a Row in the form of versions that split the bytes of values.
type splitRow struct {
	Name   string  `parquet:"name,dict"`
	Labels string  `parquet:"labels,dict"`
	Unit   string  `parquet:"unit,dict"`
	Time   int64   `parquet:"time,delta,timestamp(millisecond)"`
	Value  float64 `parquet:"value,split"`
}

// Values are read back bit by bit, also from files of older versions.
func TestValuesComeBack(t *testing.T) {
	const n = 20_000 // enough for several pages
	r := rand.New(rand.NewPCG(1, 2))
	values := []float64{0, math.Copysign(0, -1), 1, -1, math.SmallestNonzeroFloat64, -math.MaxFloat64, 0.1, 4096}
	for len(values) < n {
		values = append(values, [...]float64{r.NormFloat64(), float64(r.IntN(300)), math.Float64frombits(r.Uint64() &^ (1 << 62))}[r.IntN(3)])
	}
	i := &identity{id: watch.NewID("disk.q"), labels: "{}"}
	check := func(name string, write func(path string) error) {
		t.Helper()
		path := filepath.Join(t.TempDir(), "raw.parquet")
		if err := write(path); err != nil {
			t.Fatal(err)
		}
		o, err := openParquet(path, &identities{})
		if err != nil {
			t.Fatal(err)
		}
		defer o.f.Close()
		reader := &rowReader{o: o}
		for _, span := range [][2]int64{{0, n}, {9_000, 5_000}} {
			times, err := reader.readInts(colTime, span[0], span[1], nil)
			if err != nil {
				t.Fatal(err)
			}
			got, err := reader.readFloats(colValue, span[0], span[1], nil)
			if err != nil {
				t.Fatal(err)
			}
			if times[0] != span[0] || !equalBits(got, values[span[0]:span[0]+span[1]]) {
				t.Errorf("%s: rows %v differ", name, span)
			}
		}
	}
	times := make([]int64, n)
	for k := range times {
		times[k] = int64(k)
	}
	check("as it is", func(path string) error {
		f, err := newFile(path, raw, rawPageRows)
		if err != nil {
			return err
		}
		return errors.Join(f.series(i, "", times, nil, values), f.close())
	})
	check("as it was", func(path string) error { return writeOld(path, i, values) })
}

// writeOld writes a file in the form of versions that split the bytes of values.
func writeOld(path string, i *identity, values []float64) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	w := parquet.NewGenericWriter[splitRow](f, parquet.Compression(&pzstd.Codec{Level: pzstd.SpeedDefault}), parquet.PageBufferSize(64<<10), parquet.DataPageStatistics(true))
	rows := make([]splitRow, len(values))
	for k, v := range values {
		rows[k] = splitRow{i.id.Name, i.labels, "", int64(k), v}
	}
	_, err = w.Write(rows)
	text, serr := encodeSpans([]span{{identity: i, rows: int64(len(values)), last: int64(len(values) - 1)}})
	w.SetKeyValueMetadata(keySeries, text)
	return errors.Join(err, serr, w.Close())
}

// The Parquet library reads the files row for row: series that share a page, a series with
// many pages, and several row groups.
func TestFilesAreParquet(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 3))
	dir := t.TempDir()
	out, err := newSegment(dir, about{Number: 1}, [resolutions]bool{raw: true, minute: true})
	if err != nil {
		t.Fatal(err)
	}
	var samples []Row
	var sums []RollupRow
	for k := range 1500 {
		labels := watch.NewID("", "device", fmt.Sprintf("s%04d", k)).Labels
		i := &identity{id: watch.ID{Name: fmt.Sprintf("disk.q%d", k/600), Labels: labels}, labels: labelsText(labels)}
		unit := []watch.Unit{watch.Bytes, watch.Count, ""}[k%3]
		n := 1 + r.IntN(600)
		if k == 700 {
			n = groupRows / 2
		}
		times, values := make([]int64, n), make([]float64, n)
		at := int64(1_800_000_000_000 + r.IntN(1000))
		for j := range n {
			at += int64(1 + r.IntN(5000))
			times[j], values[j] = at, [...]float64{r.NormFloat64(), float64(r.IntN(9)), 0, math.Copysign(0, -1)}[r.IntN(4)]
			samples = append(samples, Row{i.id.Name, i.labels, string(unit), at, values[j]})
			if len(sums) == 0 || sums[len(sums)-1].Labels != i.labels || sums[len(sums)-1].Time != floor(at, 60_000) {
				sums = append(sums, RollupRow{i.id.Name, i.labels, string(unit), floor(at, 60_000), values[j], 0, values[j], 0})
			}
			s := &sums[len(sums)-1]
			s.Min, s.Max, s.Count = min(s.Min, values[j]), max(s.Max, values[j]), s.Count+1
			s.Mean += values[j] // the sum, from which the mean is computed below
		}
		if err := out.add(i, unit, times, values); err != nil {
			t.Fatal(err)
		}
	}
	for k := range sums {
		s := &sums[k]
		s.Mean = min(s.Max, max(s.Min, s.Mean/float64(s.Count)))
	}
	if err := out.closeFiles(); err != nil {
		t.Fatal(err)
	}
	if got, err := parquet.ReadFile[Row](filepath.Join(out.dir, raw.file())); err != nil || !slices.Equal(got, samples) {
		t.Errorf("samples: %v, %d rows, want %d", err, len(got), len(samples))
	}
	if got, err := parquet.ReadFile[RollupRow](filepath.Join(out.dir, minute.file())); err != nil || !slices.Equal(got, sums) {
		t.Errorf("roll-ups: %v, %d rows, want %d", err, len(got), len(sums))
	}
	// The footer's data about a row group is true for its rows.
	f, err := os.Open(filepath.Join(out.dir, raw.file()))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	p, err := parquet.OpenFile(f, info.Size())
	if err != nil {
		t.Fatal(err)
	}
	if n := len(p.RowGroups()); n < 2 {
		t.Errorf("%d row groups", n)
	}
	from := 0
	for _, g := range p.RowGroups() {
		rows := samples[from : from+int(g.NumRows())]
		from += len(rows)
		for c, of := range map[int]func(Row) parquet.Value{
			0: func(r Row) parquet.Value { return parquet.ValueOf(r.Name) }, 1: func(r Row) parquet.Value { return parquet.ValueOf(r.Labels) },
			2: func(r Row) parquet.Value { return parquet.ValueOf(r.Unit) }, colTime: func(r Row) parquet.Value { return parquet.ValueOf(r.Time) },
			colValue: func(r Row) parquet.Value { return parquet.ValueOf(r.Value) }} {
			column := g.ColumnChunks()[c]
			least, greatest, ok := column.(*parquet.FileColumnChunk).Bounds()
			wantLeast, wantGreatest := of(rows[0]), of(rows[0])
			for _, r := range rows {
				if v := of(r); column.Type().Compare(v, wantLeast) < 0 {
					wantLeast = v
				} else if column.Type().Compare(v, wantGreatest) > 0 {
					wantGreatest = v
				}
			}
			if !ok || column.Type().Compare(least, wantLeast) != 0 || column.Type().Compare(greatest, wantGreatest) != 0 {
				t.Errorf("column %d: %v to %v, want %v to %v", c, least, greatest, wantLeast, wantGreatest)
			}
		}
	}
}

// The windows of a day become one segment if no more windows will belong to it, or if a
// caller waits. A window is left out while another one with the same begin is open.
func TestWindowsThatAreDue(t *testing.T) {
	now := time.Now()
	hours := func(begin ...int64) (all []*window) {
		for i, b := range begin {
			all = append(all, &window{begin: b * 3_600_000, number: uint64(i + 1), closed: now})
		}
		return all
	}
	for _, c := range []struct {
		name         string
		open, closed []*window
		change       func(db *DB)
		want         int
	}{
		{"nothing", nil, nil, nil, 0},
		{"a day is over", hours(24, 26), hours(0, 2, 4), nil, 3},
		{"two days", hours(48), hours(0, 2, 24), nil, 2},
		{"a day is not over", hours(6), hours(0, 2, 4), nil, 0},
		{"somebody waits", hours(6), hours(0, 2, 4), func(db *DB) { db.flushing = 1 }, 3},
		{"memory is short", hours(6), hours(0, 2, 4), func(db *DB) { db.memory = 30 }, 3},
		{"one is not in its journal", hours(6), hours(0, 2, 4), func(db *DB) { db.closing[1].broken = true }, 3},
		{"the first waits for long", hours(6), hours(0, 2, 4), func(db *DB) { db.closing[0].closed = now.Add(-gather) }, 3},
		{"the first is open again", hours(0, 6), hours(0, 2, 4), nil, 1},
		{"another is open again", hours(2), hours(0, 2, 4), func(db *DB) { db.flushing = 1 }, 2},
		{"the disk is full", nil, hours(0, 2), func(db *DB) { db.trouble = os.ErrInvalid }, 0},
	} {
		db := &DB{opt: Options{Memory: 100}, open: c.open, closing: c.closed}
		if c.change != nil {
			c.change(db)
		}
		got, wait := db.due(now)
		if len(got) != c.want || len(got) == 0 && wait <= 0 {
			t.Errorf("%s: %d windows, %v; want %d", c.name, len(got), wait, c.want)
		}
	}
}

// Labels are encoded as JSON, and equal labels have equal texts.
func TestLabelsText(t *testing.T) {
	for _, tt := range []struct {
		labels []watch.Label
		want   string
	}{
		{nil, "{}"},
		{watch.NewID("", "b", "2", "a", "<1>").Labels, `{"a":"<1>","b":"2"}`},
		{watch.NewID("", "a", "\"\\\n").Labels, `{"a":"\"\\\n"}`},
	} {
		got := labelsText(tt.labels)
		back, err := parseLabels(got)
		if got != tt.want || err != nil || !slices.Equal(back, tt.labels) {
			t.Errorf("%s, %v, %v; want %s", got, back, err, tt.want)
		}
	}
}
