package generate

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"premix/internal/replay/trace"
)

// ks is the two-sample statistic of Kolmogorov and Smirnov.
func ks(a, b []float64) float64 {
	slices.Sort(a)
	slices.Sort(b)
	d, i, k := 0.0, 0, 0
	for i < len(a) && k < len(b) {
		x := min(a[i], b[k])
		for i < len(a) && a[i] == x {
			i++
		}
		for k < len(b) && b[k] == x {
			k++
		}
		d = max(d, math.Abs(float64(i)/float64(len(a))-float64(k)/float64(len(b))))
	}
	return d
}

func column(t *trace.Trace, f func(i int) float64) []float64 {
	v := make([]float64, t.Len())
	for i := range v {
		v[i] = f(i)
	}
	return v
}

func TestLikeTheOriginal(t *testing.T) {
	data := os.Getenv("PREMIX_TESTDATA")
	if data == "" {
		t.Skip("PREMIX_TESTDATA is not set: no real traces")
	}
	for _, name := range []string{"LCG.swf.gz", "NASA-iPSC-1993-3.1-cln.swf.zip"} {
		original, err := trace.Open(filepath.Join(data, "traces", name), trace.Options{})
		if err != nil {
			t.Fatal(err)
		}
		m, err := Fit(original)
		if err != nil {
			t.Fatal(err)
		}
		g := m.Generate(original.Len(), 1, 1)
		if g.Len() != original.Len() || !slices.IsSorted(g.Submit) {
			t.Fatalf("%d jobs", g.Len())
		}
		// With this number of jobs, a test of significance would find differences that do
		// not matter, so the bounds are on the distance.
		for what, test := range map[string]struct {
			f     func(tr *trace.Trace) func(i int) float64
			bound float64
		}{
			"cores":    {func(tr *trace.Trace) func(i int) float64 { return func(i int) float64 { return float64(tr.Cores[i]) } }, 0.05},
			"run time": {func(tr *trace.Trace) func(i int) float64 { return func(i int) float64 { return float64(tr.Run[i]) } }, 0.05},
			"asked":    {func(tr *trace.Trace) func(i int) float64 { return func(i int) float64 { return float64(tr.Asked[i]) } }, 0.05},
			"hour of day": {func(tr *trace.Trace) func(i int) float64 {
				return func(i int) float64 {
					return float64((tr.Submit[i]+trace.Time(tr.Begin)+tr.Zone)/trace.Hour%24+24) / 24
				}
			}, 0.15},
		} {
			if d := ks(column(original, test.f(original)), column(g, test.f(g))); d > test.bound {
				t.Errorf("%s: %s: distance %.3f, more than %.2f", name, what, d, test.bound)
			} else {
				t.Logf("%s: %s: distance %.3f", name, what, d)
			}
		}
		// A few sessions contain a large part of all jobs, so the length of the workload
		// varies.
		days := func(tr *trace.Trace) float64 {
			return float64(tr.Submit[tr.Len()*9/10]-tr.Submit[0]) / float64(trace.Day)
		}
		if r := days(g) / days(original); r < 0.5 || r > 2 {
			t.Errorf("%s: %.1f days for %.1f", name, days(g), days(original))
		}
		again := m.Generate(original.Len(), 1, 1)
		if !slices.Equal(again.Submit, g.Submit) || !slices.Equal(again.Run, g.Run) {
			t.Errorf("%s: the same seed makes another trace", name)
		}
	}
}
