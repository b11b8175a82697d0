package summary

import (
	"cmp"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"

	"premix/internal/kit/beneath"
	"premix/internal/kit/outputs"
	"premix/internal/kit/owner"
	"premix/internal/kit/quantile"
	"premix/internal/record"
	"premix/internal/transfer"
	"premix/internal/transfer/stats"
)

// Confidence is the confidence level of all intervals.
const Confidence = 0.95

// Group is the summary of one protocol with some data. Speeds are bytes a second.
type Group struct {
	Link      string             `json:"link"`
	Protocol  string             `json:"protocol"`
	Direction transfer.Direction `json:"direction"`
	Data      string             `json:"data"`
	Size      int64              `json:"size"`
	Files     int                `json:"files"`
	Copies    int                `json:"copies"` // usable
	Failed    int                `json:"failed"`
	Disturbed int                `json:"disturbed"`
	Seconds   float64            `json:"seconds"` // median
	Speed     float64            `json:"speed"`   // median
	Low       *float64           `json:"low"`     // confidence interval of the mean speed; nil for fewer than two copies
	High      *float64           `json:"high"`
	Steady    float64            `json:"steady"`  // median
	Flowing   float64            `json:"flowing"` // median
	BytesDown float64            `json:"bytes_down"`
	BytesUp   float64            `json:"bytes_up"`
	Ratio     float64            `json:"ratio"`
	CPU       float64            `json:"cpu"`
	CPUPeer   float64            `json:"cpu_peer"`
	Resent    float64            `json:"retransmits"` // mean, both directions
	Best      bool               `json:"best"`

	speeds []float64
	rows   []transfer.Copy
}

// Comparison is a comparison of two sets of speeds.
type Comparison struct {
	Link      string             `json:"link"`
	Direction transfer.Direction `json:"direction"`
	Data      string             `json:"data"`
	A         string             `json:"a"` // a protocol, or a protocol and its period
	B         string             `json:"b"`
	NA        int                `json:"n_a"`
	NB        int                `json:"n_b"`
	Diff      float64            `json:"difference"` // of the means, in per cent of B
	Low       *float64           `json:"low"`        // its confidence interval
	High      *float64           `json:"high"`
	Welch     *float64           `json:"p_welch"` // corrected; nil if it cannot be computed
	Ranks     *float64           `json:"p_ranks"`
	G         *float64           `json:"hedges_g"`
	Delta     float64            `json:"cliffs_delta"`
}

// Report is the report on a directory of results.
type Report struct {
	Made     time.Time     `json:"made"`
	Copies   int           `json:"copies"`
	From, To time.Time     `json:"-"`
	Groups   []*Group      `json:"groups"`
	Against  []*Comparison `json:"against_best"`
	Periods  []*Comparison `json:"peak_against_off_peak"`

	dir    string
	copies []transfer.Copy
}

// Read computes the report on a directory of results.
func Read(dir string) (*Report, error) {
	copies, err := transfer.Read(dir)
	if err != nil {
		return nil, err
	}
	if len(copies) == 0 {
		return nil, &transfer.NoResults{Dir: dir}
	}
	r := &Report{Made: time.Now().UTC(), Copies: len(copies), From: copies[0].Started, To: copies[len(copies)-1].Started, dir: dir, copies: copies}
	r.group()
	r.compare()
	return r, nil
}

type groupKey struct {
	link, protocol string
	way            transfer.Direction
	size           int64
	files          int
}

func (r *Report) group() {
	all := map[groupKey]*Group{}
	for _, c := range r.copies {
		k := groupKey{c.Link, c.Protocol, c.Direction, c.Size, c.Files}
		g := all[k]
		if g == nil {
			g = &Group{Link: c.Link, Protocol: c.Protocol, Direction: c.Direction, Data: c.Data(), Size: c.Size, Files: c.Files}
			all[k] = g
			r.Groups = append(r.Groups, g)
		}
		switch {
		case !c.OK:
			g.Failed++
		case c.Disturbed != "":
			g.Disturbed++
		default:
			g.Copies++
			g.rows = append(g.rows, c)
			g.speeds = append(g.speeds, c.Speed)
		}
	}
	of := func(g *Group, f func(*transfer.Copy) float64) []float64 {
		v := make([]float64, len(g.rows))
		for i := range g.rows {
			v[i] = f(&g.rows[i])
		}
		return v
	}
	for _, g := range r.Groups {
		if g.Copies == 0 {
			continue
		}
		g.Speed = quantile.Of(g.speeds, 0.5)
		g.Seconds = quantile.Of(of(g, func(c *transfer.Copy) float64 { return c.Seconds }), 0.5)
		g.Steady = quantile.Of(of(g, func(c *transfer.Copy) float64 { return c.Steady }), 0.5)
		g.Flowing = quantile.Of(of(g, func(c *transfer.Copy) float64 { return c.Flowing }), 0.5)
		g.BytesDown = stats.Mean(of(g, func(c *transfer.Copy) float64 { return float64(c.BytesDown) }))
		g.BytesUp = stats.Mean(of(g, func(c *transfer.Copy) float64 { return float64(c.BytesUp) }))
		g.Ratio = stats.Mean(of(g, func(c *transfer.Copy) float64 { return c.Ratio }))
		g.CPU = quantile.Of(of(g, func(c *transfer.Copy) float64 { return c.CPU }), 0.5)
		g.CPUPeer = quantile.Of(of(g, func(c *transfer.Copy) float64 { return c.CPUPeer }), 0.5)
		g.Resent = stats.Mean(of(g, func(c *transfer.Copy) float64 { return float64(c.RetransmitsDown + c.RetransmitsUp) }))
		if g.Copies > 1 {
			low, high := stats.MeanInterval(g.speeds, Confidence)
			g.Low, g.High = number(low), number(high)
		}
	}
	slices.SortStableFunc(r.Groups, func(a, b *Group) int {
		return cmp.Or(cmp.Compare(a.Link, b.Link), cmp.Compare(a.Direction, b.Direction), cmp.Compare(min(a.Files, 2), min(b.Files, 2)), cmp.Compare(a.Size, b.Size), cmp.Compare(b.Speed, a.Speed))
	})
	for i, g := range r.Groups {
		g.Best = g.Copies > 0 && (i == 0 || !same(r.Groups[i-1], g))
	}
}

// same reports whether two groups have the same data, link and direction.
func same(a, b *Group) bool {
	return a.Link == b.Link && a.Direction == b.Direction && a.Size == b.Size && a.Files == b.Files
}

// number returns a pointer to v, or nil for a value that JSON cannot represent.
func number(v float64) *float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return nil
	}
	return &v
}

func (r *Report) compare() {
	var best *Group
	for _, g := range r.Groups {
		if g.Best {
			best = g
		} else if g.Copies > 0 && best != nil && same(best, g) {
			r.Against = append(r.Against, compare(g, g.Protocol, best.Protocol, g.speeds, best.speeds))
		}
		var peak, off []float64
		for _, c := range g.rows {
			switch c.Period {
			case "peak":
				peak = append(peak, c.Speed)
			case "off-peak":
				off = append(off, c.Speed)
			}
		}
		if len(peak) > 0 && len(off) > 0 {
			r.Periods = append(r.Periods, compare(g, g.Protocol+" peak", g.Protocol+" off-peak", peak, off))
		}
	}
	correct(r.Against)
	correct(r.Periods)
}

func compare(g *Group, nameA, nameB string, a, b []float64) *Comparison {
	c := &Comparison{Link: g.Link, Direction: g.Direction, Data: g.Data, A: nameA, B: nameB, NA: len(a), NB: len(b), Delta: stats.CliffsDelta(a, b)}
	base := stats.Mean(b) / 100
	c.Diff = (stats.Mean(a) - stats.Mean(b)) / base
	c.Ranks = number(stats.MannWhitney(a, b).P)
	if len(a) > 1 && len(b) > 1 {
		w := stats.Welch(a, b, Confidence)
		c.Welch, c.Low, c.High, c.G = number(w.P), number(w.Low/base), number(w.High/base), number(stats.HedgesG(a, b))
	}
	return c
}

func correct(list []*Comparison) {
	for _, field := range []func(*Comparison) **float64{
		func(c *Comparison) **float64 { return &c.Welch },
		func(c *Comparison) **float64 { return &c.Ranks },
	} {
		p := make([]float64, len(list))
		for i, c := range list {
			p[i] = math.NaN()
			if v := *field(c); v != nil {
				p[i] = *v
			}
		}
		for i, v := range stats.Holm(p) {
			*field(list[i]) = number(v)
		}
	}
}

// Write writes all files and returns the path of the page.
func (r *Report) Write() (page string, err error) {
	figures, err := r.figures()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(r.dir, "figures")
	if err := owner.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	for _, f := range figures {
		if err := beneath.Replace(filepath.Join(dir, f.Name+".svg"), 0o666, beneath.Volatile, []byte(f.SVG+"\n"+outputs.Mark)); err != nil {
			return "", err
		}
	}
	if err := record.ToParquet(filepath.Join(r.dir, "transfers.parquet"), transfer.Rows(r.copies)); err != nil {
		return "", err
	}
	for name, write := range map[string]func(io.Writer) error{"transfers.csv": r.WriteCSV, "report.json": r.WriteJSON,
		"report.html": func(w io.Writer) error { return r.writeHTML(w, figures) }} {
		if err := beneath.Write(filepath.Join(r.dir, name), 0o666, beneath.Volatile, write); err != nil {
			return "", fmt.Errorf("write %s: %w", name, err)
		}
	}
	return filepath.Join(r.dir, "report.html"), nil
}

// WriteJSON writes groups and comparisons.
func (r *Report) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// WriteCSV writes one line a group.
func (r *Report) WriteCSV(w io.Writer) error {
	c := csv.NewWriter(w)
	rows := [][]string{{"link", "direction", "data", "size", "files", "protocol", "copies", "failed", "disturbed", "bytes_down", "bytes_up", "bytes", "ratio_percent", "seconds", "speed", "speed_low", "speed_high", "steady", "flowing", "cpu", "cpu_peer", "retransmits"}}
	f := func(v float64) string { return strconv.FormatFloat(v, 'g', 8, 64) }
	o := func(v *float64) string {
		if v == nil {
			return ""
		}
		return f(*v)
	}
	for _, g := range r.Groups {
		rows = append(rows, []string{g.Link, string(g.Direction), g.Data, fmt.Sprint(g.Size), fmt.Sprint(g.Files), g.Protocol, fmt.Sprint(g.Copies), fmt.Sprint(g.Failed), fmt.Sprint(g.Disturbed),
			f(g.BytesDown), f(g.BytesUp), f(g.BytesDown + g.BytesUp), f(100 * g.Ratio), f(g.Seconds), f(g.Speed), o(g.Low), o(g.High), f(g.Steady), f(g.Flowing), f(g.CPU), f(g.CPUPeer), f(g.Resent)})
	}
	return c.WriteAll(rows)
}

// WriteText writes the table for a terminal.
func (r *Report) WriteText(w io.Writer) error {
	var last *Group
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, g := range r.Groups {
		if last == nil || !same(last, g) {
			if last != nil {
				fmt.Fprintln(t)
			}
			fmt.Fprintf(t, "%s %s %s\tcopies\ttime\tMbit/s\tsteady\tratio\tCPU\tat the peer\tresent\t\n", g.Link, g.Direction, g.Data)
		}
		last = g
		note := ""
		if g.Failed > 0 {
			note += fmt.Sprintf(", %d failed", g.Failed)
		}
		if g.Disturbed > 0 {
			note += fmt.Sprintf(", %d disturbed", g.Disturbed)
		}
		if g.Copies == 0 {
			fmt.Fprintf(t, "%s\t0%s\t\t\t\t\t\t\t\t\n", g.Protocol, note)
			continue
		}
		fmt.Fprintf(t, "%s\t%d%s\t%.3f s\t%.1f\t%.1f\t%.2f %%\t%.2f s\t%.2f s\t%.0f\t\n", g.Protocol, g.Copies, note, g.Seconds, mbit(g.Speed), mbit(g.Steady), 100*g.Ratio, g.CPU, g.CPUPeer, g.Resent)
	}
	return t.Flush()
}

func mbit(v float64) float64 { return v * 8 / 1e6 }
