package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/parquet-go/parquet-go"

	"premix/internal/files"
	"premix/internal/kit/quantile"
	"premix/internal/testkit/figures"
)

// groupRows is the number of rows of a row group, as in a scan.
const groupRows = 128 << 10

// table writes a scan of made-up files, one a row, unless it exists: owners, sizes over
// eight orders of magnitude, ages of up to three years, a thousand files a directory. The
// root directory exists; the files do not.
func table(ctx context.Context, path, root string, rows int) error {
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	fmt.Printf("making a scan of %d files, once\n", rows)
	f, err := os.Create(path + ".tmp")
	if err != nil {
		return err
	}
	defer f.Close()
	w := parquet.NewGenericWriter[files.Entry](f, parquet.Compression(&parquet.Snappy),
		parquet.MaxRowsPerRowGroup(groupRows), parquet.DataPageStatistics(false))
	var (
		mu   sync.Mutex
		all  sync.WaitGroup
		next int
		bad  error
	)
	for range runtime.GOMAXPROCS(0) {
		all.Go(func() {
			f := filler{names: madeNames()}
			for {
				mu.Lock()
				n := next
				next++
				stop := bad != nil || n*groupRows >= rows || ctx.Err() != nil
				mu.Unlock()
				if stop {
					return
				}
				g := w.BeginRowGroup()
				err := f.fill(g, root, n, min(groupRows, rows-n*groupRows))
				mu.Lock()
				if err == nil {
					_, err = g.Commit()
				}
				bad = errors.Join(bad, err)
				mu.Unlock()
			}
		})
	}
	all.Wait()
	if err := errors.Join(bad, context.Cause(ctx)); err != nil {
		return err
	}
	roots, err := json.Marshal([]string{root})
	if err != nil {
		return err
	}
	for key, value := range map[string]string{"format": "1", "roots": string(roots), "begun": present.Format(time.RFC3339Nano), "ended": present.Format(time.RFC3339Nano)} {
		w.SetKeyValueMetadata("premix.files."+key, value)
	}
	if err := errors.Join(w.Close(), f.Sync()); err != nil {
		return err
	}
	return os.Rename(path+".tmp", path)
}

// present is the time of the made-up scan.
var present = time.Now()

const (
	perDirectory = 1000
	perWrite     = 4096 // values of a column in one write
)

// madeNames returns the possible names of files in a directory: each number with each
// suffix.
func madeNames() (names [perDirectory][8]parquet.Value) {
	for i := range names {
		for k, suffix := range [...]string{"bam", "bam.bai", "fastq.gz", "log", "txt", "vcf.gz", "tmp", "done"} {
			names[i][k] = text(fmt.Sprintf("scatter.%04d.%s", i, suffix))
		}
	}
	return names
}

func text(s string) parquet.Value { return parquet.ByteArrayValue([]byte(s)) }

// filler makes the values of row groups. It is for one goroutine.
type filler struct {
	names                     [perDirectory][8]parquet.Value
	sizes, modified, accessed []int64
	values                    []parquet.Value
}

// fill fills row group n. The number of the group determines its rows.
func (f *filler) fill(g *parquet.ConcurrentRowGroupWriter, root string, n, rows int) error {
	const year = int64(365 * 24 * time.Hour)
	r := rand.New(rand.NewPCG(8, uint64(n)))
	f.sizes, f.modified, f.accessed = f.sizes[:0], f.modified[:0], f.accessed[:0]
	for range rows {
		age := r.Int64N(3 * year)
		modified := present.UnixNano() - age
		f.sizes = append(f.sizes, r.Int64N(100)*[...]int64{1, 10, 100, 1000, 1e4, 1e5, 1e6, 1e7}[r.IntN(8)])
		f.modified = append(f.modified, modified)
		f.accessed = append(f.accessed, modified+r.Int64N(age+1))
	}
	var dir parquet.Value
	for _, column := range []struct {
		files.Column
		value func(i int) parquet.Value
	}{
		{files.ColumnDir, func(i int) parquet.Value {
			if i%perDirectory == 0 {
				dir = text(fmt.Sprintf("%s/run%d/sample%d", root, n, i/perDirectory))
			}
			return dir
		}},
		{files.ColumnName, func(i int) parquet.Value { return f.names[i%perDirectory][r.IntN(8)] }},
		{files.ColumnType, same(text("f"))},
		{files.ColumnSize, func(i int) parquet.Value { return parquet.Int64Value(f.sizes[i]) }},
		{files.ColumnAllocated, func(i int) parquet.Value { return parquet.Int64Value((f.sizes[i] + 4095) &^ 4095) }},
		{files.ColumnEntries, same(parquet.Int64Value(-1))},
		{files.ColumnMode, same(parquet.Int32Value(0o644))},
		{files.ColumnUID, same(parquet.Int64Value(int64(1000 + n%50)))},
		{files.ColumnGID, same(parquet.Int64Value(100))},
		{files.ColumnLinks, same(parquet.Int64Value(1))},
		{files.ColumnInode, func(i int) parquet.Value { return parquet.Int64Value(int64(n*groupRows + i)) }},
		{files.ColumnDevice, same(parquet.Int64Value(2049))},
		{files.ColumnAccessed, func(i int) parquet.Value { return parquet.Int64Value(f.accessed[i]) }},
		{files.ColumnModified, func(i int) parquet.Value { return parquet.Int64Value(f.modified[i]) }},
		{files.ColumnChanged, func(i int) parquet.Value { return parquet.Int64Value(f.modified[i]) }},
		{files.ColumnBorn, func(i int) parquet.Value { return parquet.Int64Value(f.modified[i]) }},
		{files.ColumnError, same(text(""))},
	} {
		for from := 0; from < rows; from += perWrite {
			f.values = f.values[:0]
			for i := from; i < min(from+perWrite, rows); i++ {
				f.values = append(f.values, column.value(i))
			}
			if _, err := g.ColumnWriters()[column.Column].WriteRowValues(f.values); err != nil {
				return err
			}
		}
	}
	return g.Flush()
}

func same(v parquet.Value) func(int) parquet.Value { return func(int) parquet.Value { return v } }

// maxRSS returns the largest resident set size of an ended process, in bytes.
func maxRSS(p *os.ProcessState) int64 {
	if u, ok := p.SysUsage().(*syscall.Rusage); ok {
		return u.Maxrss << 10
	}
	return 0
}

// policies are the measured rules, ordered by the number of columns that they need.
var policies = []struct{ name, rule string }{
	{"size", "DELETE WHERE size > 500 MB AND accessed < now() - INTERVAL 2 YEARS"},
	{"name", "DELETE WHERE path LIKE '%.tmp' AND modified < now() - INTERVAL 30 DAYS"},
	{"owner", "DELETE WHERE uid IN (1007, 1011) AND suffix = '.bam'"},
	{"threshold", "MIGRATE FROM POOL flash THRESHOLD 80 TO 70 WEIGHT now() - accessed TO POOL disk WHERE size > 1 MB"},
}

// rules measures dry runs of rules over a table.
func rules(ctx context.Context, results *figures.Results, dir, premix string, rows, reps int) error {
	premix, err := filepath.Abs(premix)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, fmt.Sprintf("scan-%d.parquet", rows))
	pools := []string{filepath.Join(dir, "flash"), filepath.Join(dir, "disk")}
	for _, pool := range pools {
		if err := os.MkdirAll(pool, 0o777); err != nil {
			return err
		}
	}
	if err := table(ctx, path, pools[0], rows); err != nil {
		return err
	}
	st, err := os.Stat(path)
	if err != nil {
		return err
	}
	lines := [][]string{{"", "time", "rows a second", "CPU time", "memory"}}
	for _, p := range policies {
		file := filepath.Join(dir, "rules-"+p.name+".sql")
		text := fmt.Sprintf("CREATE POOL flash AT '%s' CAPACITY %d MB; CREATE POOL disk AT '%s';\nRULE 'x' %s;\n", pools[0], rows*80, pools[1], p.rule)
		if err := os.WriteFile(file, []byte(text), 0o666); err != nil {
			return err
		}
		var wall, cpu []float64
		memory := int64(0)
		for rep := range reps + 1 { // the first repetition brings the table into memory
			cmd := exec.CommandContext(ctx, premix, "files", "policy", file, path, "--dry-run")
			started := time.Now()
			out, err := cmd.CombinedOutput()
			if err != nil {
				return fmt.Errorf("rule %s: %w\n%s", p.name, err, out)
			}
			if rep > 0 {
				wall = append(wall, time.Since(started).Seconds())
				cpu = append(cpu, (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds())
				memory = max(memory, maxRSS(cmd.ProcessState))
			}
		}
		f := figures.Figure{Name: fmt.Sprintf("files/rule/%d/%s", rows, p.name), Value: quantile.Median(wall), Unit: "s"}
		if err := results.Add(f); err != nil {
			return err
		}
		lines = append(lines, []string{p.name, figures.Seconds(f.Value), fmt.Sprintf("%.0f", float64(rows)/f.Value), figures.Seconds(quantile.Median(cpu)), fmt.Sprintf("%d MB", memory>>20)})
	}
	results.Table(fmt.Sprintf("Rules over a scan of %d files (%d MB), medians of %d", rows, st.Size()>>20, reps), lines)
	return nil
}
