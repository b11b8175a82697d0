package quantile

import (
	"math"
	"testing"
	"time"
)

func TestOf(t *testing.T) {
	for _, c := range []struct {
		v    []float64
		q    float64
		want float64
	}{
		{[]float64{3}, 0.95, 3}, {[]float64{3, 1}, 0.5, 2}, {[]float64{3, 1, 2}, 0.5, 2}, {[]float64{0, 10}, 0.95, 9.5}, {[]float64{2, 1}, 1, 2}, {[]float64{2, 1}, 0, 1},
		{[]float64{5, 1, 4, 2, 3}, 0.25, 2}, {[]float64{1, 2, 3, 4}, 0.1, 1.3},
	} {
		was := append([]float64(nil), c.v...)
		if got := Of(c.v, c.q); math.Abs(got-c.want) > 1e-12 {
			t.Errorf("Of(%v, %v) = %v, want %v", c.v, c.q, got, c.want)
		}
		for i := range was {
			if was[i] != c.v[i] {
				t.Errorf("Of has sorted %v", was)
			}
		}
	}
	if got := Of(nil, 0.5); !math.IsNaN(got) {
		t.Errorf("%v of no values", got)
	}
}

func TestMedian(t *testing.T) {
	if got := Median([]float64{3, 1, 2}); got != 2 {
		t.Errorf("%v, want 2", got)
	}
	if got := Median([]float64{4, 1}); got != 2.5 {
		t.Errorf("%v, want 2.5", got)
	}
	if got := Median([]time.Duration{7, 1, 5, 3}); got != 4 {
		t.Errorf("%v, want 4", got)
	}
}
