package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/kit/quantile"
	"premix/internal/testkit/figures"
)

func main() {
	if len(os.Args) == 4 && os.Args[1] == "contender" {
		exit(contend(os.Args[2], os.Args[3]))
		return
	}
	if len(os.Args) == 2 && os.Args[1] == "busy" {
		busy()
		return
	}
	exit(benchMain())
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// bench is the state that the parts share.
type bench struct {
	dir      string // for files that the benchmark makes
	results  *figures.Results
	series   int
	points   int64
	days     int
	reps     int
	withPeer bool
	seconds  int
}

// parts are the measurements, by name.
var parts = []struct {
	name string
	run  func(ctx context.Context, b *bench) error
}{
	{"series", measureSeries},
	{"tasks", measureTasks},
	{"collect", measureCollect},
	{"nodes", measureNodes},
}

// quarterPoints is the number of points of the monitor in doc.go.
const quarterPoints = 137_000_000

func benchMain() error {
	work := flag.String("work", "bench-work/watch", "`directory` for generated data and results")
	b := &bench{}
	flag.IntVar(&b.series, "series", 1000, "how many series")
	scale := flag.Float64("scale", 0.05, "part to take of the 137 million points of a quarter of a large cluster; 1 is all")
	flag.Int64Var(&b.points, "points", 0, "points of all series, in place of -scale")
	flag.IntVar(&b.days, "days", 91, "how long they are spread over")
	flag.IntVar(&b.reps, "reps", 2, "how often each contender takes all points")
	flag.BoolVar(&b.withPeer, "peer", true, "measure Prometheus' storage, too")
	flag.IntVar(&b.seconds, "seconds", 30, "how long the collectors are watched, with and without tasks")
	only := flag.String("part", "", "measure only this `part`")
	flag.Parse()
	if b.points == 0 {
		b.points = int64(*scale * quarterPoints)
	}
	if b.points < 1000*int64(b.series) {
		return errors.New("less than a thousand points of each series measure nothing")
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	var err error
	if b.dir, err = filepath.Abs(*work); err != nil {
		return err
	}
	if err := os.MkdirAll(b.dir, 0o777); err != nil {
		return err
	}
	if b.results, err = figures.Open(filepath.Join(b.dir, "results.jsonl"), os.Stdout); err != nil {
		return err
	}
	defer b.results.Close()
	fmt.Println(figures.Machine(b.dir))
	ran := false
	for _, p := range parts {
		if *only == "" || *only == p.name {
			ran = true
			if err := p.run(ctx, b); err != nil {
				return fmt.Errorf("%s: %w", p.name, err)
			}
		}
	}
	if !ran {
		return fmt.Errorf("there is no part %s", *only)
	}
	return nil
}

// measureSeries runs the contenders one after the other over the points, and collects
// their figures.
func measureSeries(ctx context.Context, b *bench) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	type contender struct {
		name string
		args []string
	}
	list := []contender{{"premix", []string{self, "contender"}}}
	if b.withPeer {
		peer, err := buildPeer(ctx, b.dir)
		if err != nil {
			fmt.Printf("prometheus is left out: %v\n", err)
		} else {
			list = append(list, contender{"prometheus", []string{peer}})
		}
	}
	all := make(map[string]map[string][]float64) // by name, then contender
	var order []string
	for range b.reps {
		for _, c := range list {
			got, err := b.take(ctx, c.name, c.args)
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			for _, f := range got {
				if all[f.Name] == nil {
					all[f.Name] = make(map[string][]float64)
					order = append(order, f.Name)
				}
				all[f.Name][c.name] = append(all[f.Name][c.name], f.Value)
			}
		}
	}
	rows := [][]string{{"", "premix", "prometheus", "ratio"}}
	for _, name := range order {
		own := quantile.Median(all[name]["premix"])
		f := figures.Figure{Name: "watch/" + name, Value: own, Unit: unitOf(name)}
		row := []string{name, number(own, f.Unit), "", ""}
		if other := all[name]["prometheus"]; len(other) > 0 {
			f.Peer = "prometheus"
			f.Ratio = figures.Lower(own, quantile.Median(other))
			if f.Unit == "1/s" {
				f.Ratio = figures.Higher(own, quantile.Median(other))
			}
			row[2], row[3] = number(quantile.Median(other), f.Unit), strconv.FormatFloat(f.Ratio, 'f', 2, 64)
		}
		rows = append(rows, row)
		if err := b.results.Add(f); err != nil {
			return err
		}
	}
	b.results.Table(fmt.Sprintf("%d points of %d series over %d days", b.points, b.series, b.days), rows)
	return nil
}

func unitOf(name string) string {
	switch {
	case strings.HasPrefix(name, "ingest"):
		return "1/s"
	case strings.HasPrefix(name, "bytes"), strings.HasPrefix(name, "memory"):
		return "B"
	case strings.HasPrefix(name, "answer"):
		return "points"
	}
	return "s"
}

func number(v float64, unit string) string {
	switch unit {
	case "s":
		return strconv.FormatFloat(v*1000, 'f', 1, 64) + " ms"
	case "1/s":
		return strconv.FormatFloat(v/1e6, 'f', 2, 64) + " M/s"
	case "B":
		if v >= 1e6 {
			return strconv.FormatFloat(v/1e6, 'f', 0, 64) + " MB"
		}
		return strconv.FormatFloat(v, 'f', 2, 64) + " B"
	}
	return strconv.FormatFloat(v, 'f', 0, 64)
}

// buildPeer builds Prometheus' storage, a separate module.
func buildPeer(ctx context.Context, dir string) (string, error) {
	out := filepath.Join(dir, "peer")
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", out, ".")
	cmd.Dir = "bench/watch/peer"
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, text)
	}
	return out, nil
}

// said is a figure that a contender printed.
type said struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
}

// take runs a contender over all points in a new directory.
func (b *bench) take(ctx context.Context, name string, args []string) ([]said, error) {
	dir := filepath.Join(b.dir, name)
	if err := os.RemoveAll(dir); err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir) // the rest only takes space
	cmd := exec.CommandContext(ctx, args[0], append(slices.Clone(args[1:]), dir, strconv.Itoa(b.series))...)
	cmd.Stderr = os.Stderr
	var out bytes.Buffer
	cmd.Stdout = &out
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	werr := errors.Join(b.generate(in), in.Close())
	if err := cmd.Wait(); err != nil {
		return nil, err
	}
	if werr != nil {
		return nil, werr
	}
	var all []said
	for d := json.NewDecoder(&out); ; {
		var f said
		err := d.Decode(&f)
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		all = append(all, f)
	}
}

// begin is the time of the first tick, in milliseconds.
var begin = time.Date(2026, 8, 3, 0, 0, 0, 0, time.UTC).UnixMilli()

// generate writes the ticks, the same in each call.
func (b *bench) generate(to io.Writer) error {
	ticks := b.points / int64(b.series)
	interval := int64(b.days) * 24 * 3_600_000 / ticks
	r := rand.New(rand.NewPCG(1, 2))
	state := make([]float64, b.series)
	out := bufio.NewWriterSize(to, 1<<20)
	buf := make([]byte, 8*(b.series+1))
	for i := range ticks {
		t := begin + i*interval
		daily := 1 + 0.5*math.Sin(2*math.Pi*float64(t%86_400_000)/86_400_000)
		binary.LittleEndian.PutUint64(buf, uint64(t))
		for k := range b.series {
			binary.LittleEndian.PutUint64(buf[8*(k+1):], math.Float64bits(next(r, state, k, daily)))
		}
		if _, err := out.Write(buf); err != nil {
			return err
		}
	}
	return out.Flush()
}

// next returns the next value of series k.
func next(r *rand.Rand, state []float64, k int, daily float64) float64 {
	switch k % 8 {
	case 0: // bytes a second, in pages
		return float64(r.IntN(int(20_000*daily))) * 4096
	case 1: // requests a second
		return float64(r.IntN(int(300 * daily)))
	case 2: // a ratio with four decimals that drifts
		state[k] = min(1, max(0, state[k]+(r.Float64()-0.5)*0.02))
		return math.Round(state[k]*1e4) / 1e4
	case 3: // mostly zero
		if r.IntN(50) == 0 {
			return float64(r.IntN(100))
		}
		return 0
	case 4: // a level that rarely changes
		if r.IntN(200) == 0 {
			state[k] = float64(r.IntN(1 << 30))
		}
		return state[k]
	case 5: // a level in bytes that drifts
		state[k] = max(0, state[k]+float64(r.IntN(2001)-900)*4096)
		return state[k]
	case 6: // seconds, in milliseconds
		return math.Round(r.ExpFloat64()*20) / 1000
	default: // noise
		return r.NormFloat64() * daily
	}
}
