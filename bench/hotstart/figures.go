package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"premix/internal/kit/quantile"
	"premix/internal/kit/units"
	"premix/internal/testkit/figures"
	"premix/internal/testkit/workbench"
)

// benchmark is one execution of this program.
type benchmark struct {
	*figures.Results
	lab   *lab
	reps  int
	rates []int64 // storage, bytes per second

	premix string // the program that makes runs, in the part auto
}

// A part measures some of the figures of all cases.
type part struct {
	name string
	run  func(b *benchmark, ctx context.Context, cases []*benchCase) error
}

var parts = []part{
	{"start", (*benchmark).start},
	{"peers", (*benchmark).peers},
	{"memory", (*benchmark).memory},
	{"rate", (*benchmark).rate},
	{"storage", (*benchmark).storage},
	{"auto", (*benchmark).auto},
}

// repetitions returns the number of repetitions. Slow cases have fewer.
func (b *benchmark) repetitions(c *benchCase) int {
	if c.synth >= 3072 {
		return min(b.reps, 3)
	}
	return b.reps
}

// start measures opened, whole, and the cost of preparing.
func (b *benchmark) start(ctx context.Context, cases []*benchCase) error {
	head := []string{"case", "cold", "hot", "hot to cold"}
	openedRows, wholeRows := [][]string{head}, [][]string{head}
	paidRows := [][]string{{"case", "prepared in", "on disk", "paid after"}}
	for _, c := range cases {
		got, prepared, err := b.startOf(ctx, c)
		if err != nil {
			return err
		}
		row, err := b.compare(c, "opened", got, opened)
		if err != nil {
			return err
		}
		openedRows = append(openedRows, row)
		if row, err = b.compare(c, "whole", got, whole); err != nil {
			return err
		}
		wholeRows = append(wholeRows, row)
		rows, err := b.paid(c, got, prepared)
		if err != nil {
			return err
		}
		paidRows = append(paidRows, rows...)
	}
	b.Table("Time until the input is opened", openedRows)
	b.Table("Whole time of a task over a short sample", wholeRows)
	b.Table("Cost of preparing, and the number of samples after which it pays", paidRows)
	return nil
}

func (b *benchmark) startOf(ctx context.Context, c *benchCase) (map[variant][]measured, map[variant]preparation, error) {
	x := b.lab.open(c)
	defer x.close()
	can, err := x.prepareAll(ctx, cold, hot)
	if err != nil {
		return nil, nil, err
	}
	got, err := x.alternate(ctx, can, startSample, b.repetitions(c))
	return got, x.prepared, err
}

// compare records one figure of each variant, and the ratio of hot to cold.
func (b *benchmark) compare(c *benchCase, what string, got map[variant][]measured, value func([]measured) float64) ([]string, error) {
	row := []string{c.name}
	for _, v := range []variant{cold, hot} {
		if got[v] == nil {
			row = append(row, "-")
			continue
		}
		mine := value(got[v])
		row = append(row, figures.Seconds(mine))
		f := figures.Figure{Name: c.name + "/" + what + "/" + string(v), Value: mine, Unit: "s"}
		if v != cold {
			f.Peer, f.Ratio = string(cold), figures.Lower(mine, value(got[cold]))
		}
		if err := b.Add(f); err != nil {
			return nil, err
		}
	}
	if got[hot] == nil {
		return append(row, "-"), nil
	}
	return append(row, figures.Times(figures.Lower(value(got[hot]), value(got[cold])))), nil
}

// paid records the cost of preparing, and the number of samples after which the time that
// each of them saves has made up for it.
func (b *benchmark) paid(c *benchCase, got map[variant][]measured, prepared map[variant]preparation) ([][]string, error) {
	p, ok := prepared[hot]
	if !ok || got[hot] == nil {
		return nil, nil
	}
	name := c.name + "/prepare/hot"
	if err := b.Add(figures.Figure{Name: name, Value: p.took.Seconds(), Unit: "s"}); err != nil {
		return nil, err
	}
	if err := b.Add(figures.Figure{Name: name, Value: float64(p.bytes), Unit: "B"}); err != nil {
		return nil, err
	}
	text := "never"
	if saved := whole(got[cold]) - whole(got[hot]); saved > 0 {
		after := p.took.Seconds() / saved
		text = fmt.Sprintf("%.0f samples", max(1, after+0.5))
		if err := b.Add(figures.Figure{Name: name, Value: after, Unit: "samples"}); err != nil {
			return nil, err
		}
	}
	return [][]string{{c.name, figures.Seconds(p.took.Seconds()), units.Size(int64(p.bytes)), text}}, nil
}

// tasksTogether is the number of tasks that share a machine in the figures of memory.
const tasksTogether = 4

// memory measures the PSS of one task and of several at once.
func (b *benchmark) memory(ctx context.Context, cases []*benchCase) error {
	rows := [][]string{{"case", "kind", "one", "four together", "four to one", "supervisors of four"}}
	for _, c := range cases {
		more, err := b.memoryOf(ctx, c)
		if err != nil {
			return err
		}
		rows = append(rows, more...)
	}
	b.Table("Memory (PSS) of one task, and of four together", rows)
	return nil
}

func (b *benchmark) memoryOf(ctx context.Context, c *benchCase) ([][]string, error) {
	sample := longSample
	switch {
	case c.synth > 0:
		sample = pagesSample
	case c.large:
		sample = shortSample // long enough to measure, and four cold tasks do not take minutes
	}
	x := b.lab.open(c)
	defer x.close()
	var rows [][]string
	peer := map[int]float64{}
	for _, v := range []variant{cold, hot} {
		can, err := x.prepareAll(ctx, v)
		if err != nil {
			return nil, err
		}
		if len(can) == 0 {
			continue
		}
		row, err := b.memoryRow(ctx, x, v, sample, peer)
		if err != nil {
			return nil, err
		}
		rows = append(rows, row)
		x.drop(v)
	}
	return rows, nil
}

func (b *benchmark) memoryRow(ctx context.Context, x *bench, v variant, sample string, peer map[int]float64) ([]string, error) {
	row := []string{x.name, string(v)}
	one, err := x.together(ctx, v, sample, 1)
	if errors.Is(err, errTooShort) {
		return append(row, "too short", "-", "-", "-"), nil
	}
	if err != nil {
		return nil, err
	}
	if err := b.pss(x.benchCase, v, 1, one, peer); err != nil {
		return nil, err
	}
	row = append(row, units.Size(int64(one.tools)))
	free, err := available()
	if err != nil {
		return nil, err
	}
	if v == cold && tasksTogether*one.tools > free*9/10 {
		return append(row, "does not fit", "-", "-"), nil
	}
	four, err := x.together(ctx, v, sample, tasksTogether)
	if errors.Is(err, errTooShort) {
		return append(row, "too short", "-", "-"), nil
	}
	if err != nil {
		return nil, err
	}
	if err := b.pss(x.benchCase, v, tasksTogether, four, peer); err != nil {
		return nil, err
	}
	ratio := figures.Higher(float64(four.tools), float64(one.tools))
	err = b.Add(figures.Figure{Name: x.name + "/pss-growth/" + string(v), Value: ratio, Unit: "of one"})
	return append(row, units.Size(int64(four.tools)), figures.Times(ratio), units.Size(int64(four.supervisors))), err
}

func (b *benchmark) pss(c *benchCase, v variant, n int, m memory, peer map[int]float64) error {
	f := figures.Figure{Name: fmt.Sprintf("%s/pss-%d/%s", c.name, n, v), Value: float64(m.tools), Unit: "B"}
	if v == cold {
		peer[n] = f.Value
	} else if peer[n] > 0 {
		f.Peer, f.Ratio = string(cold), figures.Lower(f.Value, peer[n])
	}
	return b.Add(f)
}

// rate measures the speed of a tool after its start: with large entries for the pages of
// its index it should be faster than cold.
func (b *benchmark) rate(ctx context.Context, cases []*benchCase) error {
	synthRows := [][]string{{"case", "kind", "first reads/s", "later reads/s", "to cold", "mapped by 2 MiB", "of PSS"}}
	toolRows := [][]string{{"case", "kind", "records/s", "to cold"}}
	for _, c := range cases {
		if c.synth > 0 {
			rows, err := b.synthRate(ctx, c)
			if err != nil {
				return err
			}
			synthRows = append(synthRows, rows...)
			continue
		}
		rows, err := b.toolRate(ctx, c)
		if err != nil {
			return err
		}
		toolRows = append(toolRows, rows...)
	}
	b.Table("Random reads of the prepared memory", synthRows)
	b.Table("Mapping rate in steady state: the difference in records of a long and a short sample, over the difference in CPU time", toolRows)
	return nil
}

func (b *benchmark) synthRate(ctx context.Context, c *benchCase) ([][]string, error) {
	x := b.lab.open(c)
	defer x.close()
	can, err := x.prepareAll(ctx, cold, hot)
	if err != nil {
		return nil, err
	}
	got, err := x.alternate(ctx, can, rateSample, min(3, b.reps))
	if err != nil {
		return nil, err
	}
	var rows [][]string
	var peer float64
	for _, v := range can {
		first := medianOf(got[v], func(m measured) float64 { return readRates(m.stderr)[0] })
		later := medianOf(got[v], func(m measured) float64 { return quantile.Median(readRates(m.stderr)[1:]) })
		if v == cold {
			peer = later
		}
		m, err := x.together(ctx, v, rateSample, 1)
		if err != nil {
			return nil, err
		}
		huge := float64(m.filePmd + m.anonHuge)
		f := figures.Figure{Name: c.name + "/reads/" + string(v), Value: later, Unit: "1/s"}
		if v != cold {
			f.Peer, f.Ratio = string(cold), figures.Higher(later, peer)
		}
		if err := b.Add(f); err != nil {
			return nil, err
		}
		if err := b.Add(figures.Figure{Name: c.name + "/mapped-by-2MiB/" + string(v), Value: huge, Unit: "B"}); err != nil {
			return nil, err
		}
		rows = append(rows, []string{c.name, string(v), fmt.Sprintf("%.3g", first), fmt.Sprintf("%.3g", later),
			figures.Times(figures.Higher(later, peer)), units.Size(int64(huge)), fmt.Sprintf("%.0f %%", 100*figures.Higher(huge, float64(m.tools)))})
	}
	return rows, nil
}

func (b *benchmark) toolRate(ctx context.Context, c *benchCase) ([][]string, error) {
	x := b.lab.open(c)
	defer x.close()
	can, err := x.prepareAll(ctx, cold, hot)
	if err != nil {
		return nil, err
	}
	reps := min(3, b.reps)
	long, err := x.alternate(ctx, can, longSample, reps)
	if err != nil {
		return nil, err
	}
	short, err := x.alternate(ctx, can, shortSample, reps)
	if err != nil {
		return nil, err
	}
	var rows [][]string
	var peer float64
	for _, v := range can {
		records := float64(c.reads[longSample] - c.reads[shortSample])
		rate := records / (cpu(long[v]) - cpu(short[v]))
		if v == cold {
			peer = rate
		}
		f := figures.Figure{Name: c.name + "/mapping/" + string(v), Value: rate, Unit: "1/s"}
		if v != cold {
			f.Peer, f.Ratio = string(cold), figures.Higher(rate, peer)
		}
		if err := b.Add(f); err != nil {
			return nil, err
		}
		rows = append(rows, []string{c.name, string(v), fmt.Sprintf("%.4g", rate), figures.Times(figures.Higher(rate, peer))})
	}
	return rows, nil
}

// storage measures whole tasks with an empty page cache and slow storage.
func (b *benchmark) storage(ctx context.Context, cases []*benchCase) error {
	rows := [][]string{{"case", "storage", "cold", "hot", "hot to cold"}}
	for _, c := range cases {
		if c.synth > 0 {
			continue // it reads nothing from storage
		}
		more, err := b.storageOf(ctx, c)
		if err != nil {
			return err
		}
		rows = append(rows, more...)
	}
	b.Table("Whole time of a task over a short sample, page cache empty", rows)
	return nil
}

func (b *benchmark) storageOf(ctx context.Context, c *benchCase) ([][]string, error) {
	x := b.lab.open(c)
	defer x.close()
	can, err := x.prepareAll(ctx, cold, hot)
	if err != nil {
		return nil, err
	}
	var rows [][]string
	for _, rate := range b.rates {
		got, err := b.slowly(ctx, x, can, rate)
		if err != nil {
			return nil, err
		}
		label, where := "as it is", "storage-full"
		if rate > 0 {
			label = fmt.Sprintf("%d MB/s", rate/1e6)
			where = "storage-" + strings.ReplaceAll(label, " ", "")
		}
		row := []string{c.name, label}
		for _, v := range []variant{cold, hot} {
			if got[v] == nil {
				row = append(row, "-")
				continue
			}
			f := figures.Figure{Name: c.name + "/" + where + "/" + string(v), Value: whole(got[v]), Unit: "s"}
			if v != cold {
				f.Peer, f.Ratio = string(cold), figures.Lower(f.Value, whole(got[cold]))
			}
			if err := b.Add(f); err != nil {
				return nil, err
			}
			row = append(row, figures.Seconds(f.Value))
		}
		if got[hot] != nil {
			row = append(row, figures.Times(figures.Lower(whole(got[hot]), whole(got[cold]))))
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// slowly alternates variants with an empty page cache before each task, on storage
// limited to rate bytes per second; with rate 0 the storage is not limited.
func (b *benchmark) slowly(ctx context.Context, x *bench, variants []variant, rate int64) (got map[variant][]measured, err error) {
	if rate > 0 {
		undo, err := workbench.Throttle(b.lab.dir, rate)
		if err != nil {
			return nil, err
		}
		defer func() {
			if uerr := undo(); err == nil {
				err = uerr
			}
		}()
	}
	got = map[variant][]measured{}
	for range min(3, b.reps) {
		for _, v := range variants {
			if err := dropCaches(); err != nil {
				return nil, err
			}
			m, err := x.task(ctx, v, startSample)
			if err != nil {
				return nil, err
			}
			got[v] = append(got[v], m)
		}
	}
	return got, nil
}
