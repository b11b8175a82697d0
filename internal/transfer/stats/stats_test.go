package stats

import (
	"encoding/json"
	"math"
	"os"
	"os/exec"
	"testing"
)

// golden is the output of testdata/golden.py.
type golden struct {
	Cases []struct {
		A, B                []float64
		T, DF, P, Low, High float64
		U, UP               float64
		MeanLow             float64 `json:"mean_low"`
		MeanHigh            float64 `json:"mean_high"`
	}
}

// near reports whether two numbers agree to nine digits.
func near(a, b float64) bool {
	return a == b || math.IsNaN(a) && math.IsNaN(b) || math.Abs(a-b) <= 1e-9*max(math.Abs(a), math.Abs(b), 1e-3)
}

func (g *golden) check(t *testing.T) {
	t.Helper()
	for i, c := range g.Cases {
		w := Welch(c.A, c.B, 0.95)
		u := MannWhitney(c.A, c.B)
		low, high := MeanInterval(c.A, 0.95)
		for _, v := range []struct {
			name      string
			got, want float64
		}{{"t", w.Statistic, c.T}, {"df", w.DF, c.DF}, {"p", w.P, c.P}, {"low", w.Low, c.Low}, {"high", w.High, c.High},
			{"U", u.Statistic, c.U}, {"p of U", u.P, c.UP}, {"low of mean", low, c.MeanLow}, {"high of mean", high, c.MeanHigh}} {
			if !near(v.got, v.want) {
				t.Errorf("case %d (%d and %d values): %s is %.12g, SciPy says %.12g", i, len(c.A), len(c.B), v.name, v.got, v.want)
			}
		}
	}
}

// The results agree with the results of SciPy that testdata/golden.py has recorded.
func TestAgreesWithSciPy(t *testing.T) {
	text, err := os.ReadFile("testdata/golden.json")
	if err != nil {
		t.Fatal(err)
	}
	var g golden
	if err := json.Unmarshal(text, &g); err != nil {
		t.Fatal(err)
	}
	if len(g.Cases) < 20 {
		t.Fatalf("only %d cases", len(g.Cases))
	}
	g.check(t)
}

// The results also agree with the SciPy of this machine.
func TestAgreesWithSciPyHere(t *testing.T) {
	if os.Getenv("PREMIX_SOAK") == "" {
		t.Skip("part of make soak")
	}
	python := os.Getenv("PREMIX_PYTHON")
	if python == "" {
		python = "python3"
	}
	if err := exec.Command(python, "-c", "import scipy").Run(); err != nil {
		t.Skipf("%s has no scipy: pip install scipy, or name another one in PREMIX_PYTHON", python)
	}
	out, err := exec.Command(python, "testdata/golden.py").Output()
	if err != nil {
		t.Fatal(err)
	}
	var g golden
	if err := json.Unmarshal(out, &g); err != nil {
		t.Fatal(err)
	}
	g.check(t)
}

func TestCorrections(t *testing.T) {
	p := []float64{0.01, 0.04, math.NaN(), 0.03, 0.005}
	for name, c := range map[string]struct{ got, want []float64 }{
		"Holm": {Holm(p), []float64{0.03, 0.06, math.NaN(), 0.06, 0.02}},
	} {
		for i := range c.want {
			if !near(c.got[i], c.want[i]) {
				t.Errorf("%s: %v, want %v", name, c.got, c.want)
				break
			}
		}
	}
	if Holm(nil) != nil && len(Holm(nil)) != 0 {
		t.Error("a correction of nothing")
	}
}

func TestEffects(t *testing.T) {
	a, b := []float64{4, 5, 6}, []float64{1, 2, 3}
	if got := CliffsDelta(a, b); got != 1 {
		t.Errorf("Cliff's delta %g, want 1", got)
	}
	if got := CliffsDelta(a, a); got != 0 {
		t.Errorf("Cliff's delta of equal groups %g", got)
	}
	// The difference is 3 standard deviations, corrected by the factor 1 - 3/15.
	if got := HedgesG(a, b); !near(got, 2.4) {
		t.Errorf("Hedges' g %g, want 2.4", got)
	}
	same := []float64{2, 2, 2}
	if w := Welch(same, same, 0.95); !math.IsNaN(w.P) {
		t.Errorf("P of %g for equal constants", w.P)
	}
	if u := MannWhitney(same, same); u.P != 1 {
		t.Errorf("P of %g for equal constants", u.P)
	}
}
