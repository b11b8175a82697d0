// Peer is Prometheus' storage as a contender of bench/watch; see there. It is a separate
// module, so that premix does not get its dependencies.
//
//	peer DIR SERIES < ticks
package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
)

func main() {
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// said is a figure.
type said struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
}

func open(dir string) (*tsdb.DB, error) {
	o := tsdb.DefaultOptions()
	o.RetentionDuration = (10 * 366 * 24 * time.Hour).Milliseconds()
	// A block of two hours, the default, would hold 130 samples of a series: most of the
	// measured time would be for writing and merging the 1,092 blocks of a quarter.
	o.MinBlockDuration = (24 * time.Hour).Milliseconds()
	// Prometheus sets this for a retention of more than 310 days.
	o.MaxBlockDuration = (31 * 24 * time.Hour).Milliseconds()
	return tsdb.Open(dir, slog.New(slog.DiscardHandler), nil, o, nil)
}

func run(dir, count string) error {
	n, err := strconv.Atoi(count)
	if err != nil {
		return err
	}
	ctx := context.Background()
	db, err := open(dir)
	if err != nil {
		return err
	}
	ids := make([]labels.Labels, n)
	for i := range ids {
		ids[i] = labels.FromStrings("__name__", fmt.Sprintf("disk_q%02d", i%20), "node", fmt.Sprintf("n%03d", i/20))
	}
	refs := make([]storage.SeriesRef, n)
	in := bufio.NewReaderSize(os.Stdin, 1<<20)
	buf := make([]byte, 8*(n+1))
	begun := time.Now()
	points, last := int64(0), int64(0)
	for {
		if _, err := io.ReadFull(in, buf); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return err
		}
		last = int64(binary.LittleEndian.Uint64(buf))
		a := db.Appender(ctx)
		for i := range ids {
			if refs[i], err = a.Append(refs[i], ids[i], last, math.Float64frombits(binary.LittleEndian.Uint64(buf[8*(i+1):]))); err != nil {
				return err
			}
		}
		if err := a.Commit(); err != nil {
			return err
		}
		points += int64(n)
	}
	taken := time.Since(begun)
	if err := db.Compact(ctx); err != nil {
		return err
	}
	took, cpu := time.Since(begun), cpuTime()
	if err := db.Close(); err != nil {
		return err
	}
	bytes, err := size(dir)
	if err != nil {
		return err
	}
	out := json.NewEncoder(os.Stdout)
	say := func(name string, v float64) {
		err = errors.Join(err, out.Encode(said{name, v}))
	}
	say("ingest", float64(points)/took.Seconds())
	say("ingest/taken", float64(points)/taken.Seconds())
	say("cpu/million", cpu.Seconds()/float64(points)*1e6)
	say("bytes", float64(bytes))
	say("bytes/point", float64(bytes)/float64(points))
	begin := time.Now()
	if db, err = open(dir); err != nil {
		return err
	}
	defer db.Close()
	say("open", time.Since(begin).Seconds())
	for _, q := range queries(time.UnixMilli(last)) {
		var took, cpu []float64
		answered := 0
		for range queryReps {
			begin, used := time.Now(), cpuTime()
			if answered, err = ask(ctx, db, q); err != nil {
				return err
			}
			took, cpu = append(took, time.Since(begin).Seconds()), append(cpu, (cpuTime()-used).Seconds())
		}
		say("query/"+q.name+"/first", took[0])
		say("query/"+q.name, median(took[1:]))
		say("query/"+q.name+"/cpu", median(cpu[1:]))
		say("answer/"+q.name, float64(answered))
	}
	return err
}

// queryReps is the number of repetitions of each query.
const queryReps = 6

// query is a query of the contender premix.
type query struct {
	name       string
	match      [][2]string // labels and their required values
	start, end time.Time
	step       time.Duration
}

func queries(last time.Time) []query {
	dayEnd := last.Truncate(24 * time.Hour).Add(-10 * 24 * time.Hour)
	day, quarter := dayEnd.Add(-24*time.Hour), last.Add(-90*24*time.Hour)
	one := [][2]string{{"__name__", "disk_q00"}, {"node", "n001"}}
	return []query{
		{"day/1-series/full", one, day, dayEnd, time.Millisecond},
		{"day/1-series", one, day, dayEnd, 2 * time.Minute},
		{"day/all-series", nil, day, dayEnd, 2 * time.Minute},
		{"quarter/1-series", one, quarter, last, 3 * time.Hour},
		{"quarter/1-name", one[:1], quarter, last, 3 * time.Hour},
		{"quarter/1-node", one[1:], quarter, last, 3 * time.Hour},
		{"quarter/all-series", nil, quarter, last, 3 * time.Hour},
	}
}

// point sums up the samples of a step.
type point struct {
	time           int64
	min, mean, max float64
	count          int64
}

// ask sums samples up by steps and returns the number of resulting points.
func ask(ctx context.Context, db *tsdb.DB, q query) (int, error) {
	step := q.step.Milliseconds()
	start, end := q.start.UnixMilli()/step*step, (q.end.UnixMilli()+step-1)/step*step
	r, err := db.Querier(start, end-1)
	if err != nil {
		return 0, err
	}
	defer r.Close()
	matchers := []*labels.Matcher{labels.MustNewMatcher(labels.MatchRegexp, "__name__", ".+")}
	for i, m := range q.match {
		if i == 0 {
			matchers = nil
		}
		matchers = append(matchers, labels.MustNewMatcher(labels.MatchEqual, m[0], m[1]))
	}
	answered := 0
	set := r.Select(ctx, true, nil, matchers...)
	var it chunkenc.Iterator
	for set.Next() {
		var points []point
		at := int64(-1)
		for it = set.At().Iterator(it); it.Next() == chunkenc.ValFloat; {
			t, v := it.At()
			if t < start || t >= end {
				continue
			}
			if b := t / step * step; b != at {
				at = b
				points = append(points, point{b, v, v, v, 1})
				continue
			}
			p := &points[len(points)-1]
			p.min, p.max = min(p.min, v), max(p.max, v)
			p.count++
			p.mean += (v - p.mean) / float64(p.count)
		}
		if err := it.Err(); err != nil {
			return 0, err
		}
		answered += len(points)
	}
	return answered, set.Err()
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}

// cpuTime returns the CPU time of this process.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// size returns the size of the blocks, in bytes: without the write-ahead log and the
// files of the head, as premix's journals are empty by then, too.
func size(dir string) (int64, error) {
	total := int64(0)
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && (d.Name() == "wal" || d.Name() == "chunks_head") {
			return fs.SkipDir
		}
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			total += info.Size()
		}
		return err
	})
	return total, err
}
