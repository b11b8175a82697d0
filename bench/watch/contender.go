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
	"math"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"premix/internal/kit/quantile"
	"premix/internal/watch"
	"premix/internal/watch/series"
)

// contend runs premix as a contender.
func contend(dir, count string) error {
	n, err := strconv.Atoi(count)
	if err != nil {
		return err
	}
	ctx := context.Background()
	db, err := series.Open(dir, series.Options{})
	if err != nil {
		return err
	}
	batch := make([]watch.Sample, n)
	for i := range batch {
		batch[i].ID = watch.NewID(fmt.Sprintf("disk.q%02d", i%20), "node", fmt.Sprintf("n%03d", i/20))
		batch[i].Unit = watch.Count
	}
	in := bufio.NewReaderSize(os.Stdin, 1<<20)
	buf := make([]byte, 8*(n+1))
	started := time.Now()
	points, last := int64(0), int64(0)
	for {
		if _, err := io.ReadFull(in, buf); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return err
		}
		last = int64(binary.LittleEndian.Uint64(buf))
		t := time.UnixMilli(last)
		for i := range batch {
			batch[i].Time, batch[i].Value = t, math.Float64frombits(binary.LittleEndian.Uint64(buf[8*(i+1):]))
		}
		db.Samples(batch)
		if points += int64(n); points%(100*int64(n)) == 0 {
			if err := db.Throttle(ctx); err != nil {
				return err
			}
		}
	}
	taken := time.Since(started)
	if err := errors.Join(db.Flush(ctx), db.Compact(ctx)); err != nil {
		return err
	}
	took, cpu := time.Since(started), cpuTime()
	if s := db.Stats(); s.Samples != points {
		return fmt.Errorf("%d points are kept of %d", s.Samples, points)
	}
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
	if db, err = series.Open(dir, series.Options{}); err != nil {
		return err
	}
	defer db.Close()
	say("open", time.Since(begin).Seconds())
	for _, q := range queries(time.UnixMilli(last)) {
		var took, cpu []float64
		answered := 0
		for range queryReps {
			begin, used := time.Now(), cpuTime()
			answered = 0
			results, err := db.Query(ctx, series.Query{Name: q.series, Match: q.match, Start: q.start, End: q.end, Step: q.step})
			if err != nil {
				return err
			}
			for _, r := range results {
				answered += len(r.Points)
			}
			took, cpu = append(took, time.Since(begin).Seconds()), append(cpu, (cpuTime()-used).Seconds())
		}
		say("query/"+q.name+"/first", took[0])
		say("query/"+q.name, quantile.Median(took[1:]))
		say("query/"+q.name+"/cpu", quantile.Median(cpu[1:]))
		say("answer/"+q.name, float64(answered))
	}
	return err
}

// queryReps is the number of repetitions of each query.
const queryReps = 6

// query is a query that each contender answers.
type query struct {
	name       string
	series     string
	match      []watch.Label
	start, end time.Time
	step       time.Duration
}

func queries(last time.Time) []query {
	dayEnd := last.Truncate(24 * time.Hour).Add(-10 * 24 * time.Hour)
	day, quarter := dayEnd.Add(-24*time.Hour), last.Add(-90*24*time.Hour)
	one := []watch.Label{{Key: "node", Value: "n001"}}
	return []query{
		{"day/1-series/full", "disk.q00", one, day, dayEnd, time.Millisecond},
		{"day/1-series", "disk.q00", one, day, dayEnd, 2 * time.Minute},
		{"day/all-series", "*", nil, day, dayEnd, 2 * time.Minute},
		{"quarter/1-series", "disk.q00", one, quarter, last, 3 * time.Hour},
		{"quarter/1-name", "disk.q00", nil, quarter, last, 3 * time.Hour},
		{"quarter/1-node", "*", one, quarter, last, 3 * time.Hour},
		{"quarter/all-series", "*", nil, quarter, last, 3 * time.Hour},
	}
}

// size returns the size of a directory's files, in bytes.
func size(dir string) (int64, error) {
	total := int64(0)
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
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
