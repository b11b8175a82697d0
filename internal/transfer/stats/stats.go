package stats

import (
	"cmp"
	"math"
	"slices"

	"gonum.org/v1/gonum/stat/distuv"
)

// Mean returns the mean of values, or NaN for none.
func Mean(v []float64) float64 {
	var sum float64
	for _, x := range v {
		sum += x
	}
	return sum / float64(len(v))
}

// Variance returns the unbiased estimate of the variance, or NaN for fewer than two values.
func Variance(v []float64) float64 {
	if len(v) < 2 {
		return math.NaN()
	}
	m, sum := Mean(v), 0.0
	for _, x := range v {
		sum += (x - m) * (x - m)
	}
	return sum / float64(len(v)-1)
}

// Test is the result of a test.
type Test struct {
	Statistic float64
	DF        float64 // degrees of freedom, for tests that have them
	P         float64
	Low, High float64 // confidence interval of the difference of means; only by Welch
	Exact     bool    // only by MannWhitney
}

// Welch compares the means of two groups of at least two values; confidence is for example
// 0.95. If neither group has any variance and their means are equal, P is NaN.
func Welch(a, b []float64, confidence float64) Test {
	na, nb := float64(len(a)), float64(len(b))
	va, vb := Variance(a)/na, Variance(b)/nb
	se := math.Sqrt(va + vb)
	diff := Mean(a) - Mean(b)
	t := Test{Statistic: diff / se, DF: (va + vb) * (va + vb) / (va*va/(na-1) + vb*vb/(nb-1))}
	if math.IsNaN(t.DF) || math.IsNaN(t.Statistic) {
		t.P, t.Low, t.High = math.NaN(), math.NaN(), math.NaN()
		if se == 0 && diff != 0 {
			t.P, t.Low, t.High = 0, diff, diff
		}
		return t
	}
	d := distuv.StudentsT{Mu: 0, Sigma: 1, Nu: t.DF}
	t.P = min(1, 2*d.CDF(-math.Abs(t.Statistic)))
	half := d.Quantile(0.5+confidence/2) * se
	t.Low, t.High = diff-half, diff+half
	return t
}

// MeanInterval returns the confidence interval of the mean of at least two values.
func MeanInterval(v []float64, confidence float64) (low, high float64) {
	n := float64(len(v))
	half := distuv.StudentsT{Mu: 0, Sigma: 1, Nu: n - 1}.Quantile(0.5+confidence/2) * math.Sqrt(Variance(v)/n)
	return Mean(v) - half, Mean(v) + half
}

// exactLimit is the size of the smaller group up to which the exact distribution is
// computed.
const exactLimit = 8

// MannWhitney compares two groups by ranks. The statistic is the U of the first.
func MannWhitney(a, b []float64) Test {
	type value struct {
		v     float64
		first bool
	}
	var all []value
	for _, x := range a {
		all = append(all, value{x, true})
	}
	for _, x := range b {
		all = append(all, value{x, false})
	}
	slices.SortFunc(all, func(x, y value) int { return cmp.Compare(x.v, y.v) })
	var ranks, ties float64
	for i := 0; i < len(all); {
		j := i
		for j < len(all) && all[j].v == all[i].v {
			j++
		}
		k := float64(j - i)
		ties += k*k*k - k
		for ; i < j; i++ {
			if all[i].first {
				ranks += float64(j) - (k-1)/2
			}
		}
	}
	na, nb := float64(len(a)), float64(len(b))
	t := Test{Statistic: ranks - na*(na+1)/2}
	large := max(t.Statistic, na*nb-t.Statistic)
	if ties == 0 && min(len(a), len(b)) <= exactLimit {
		t.Exact = true
		t.P = min(1, 2*tailU(len(a), len(b), int(large)))
		return t
	}
	n := na + nb
	sigma := math.Sqrt(na * nb / 12 * ((n + 1) - ties/(n*(n-1))))
	z := (large - na*nb/2 - 0.5) / sigma
	t.P = min(1, 2*distuv.UnitNormal.Survival(z))
	if sigma == 0 {
		t.P = 1 // all values are equal
	}
	return t
}

// tailU returns the probability that U is at least u if the groups do not differ. It counts
// the arrangements with each U by the recurrence of Mann and Whitney: the largest value
// belongs to one group or to the other.
func tailU(m, n, u int) float64 {
	// ways[j][k] is the fraction of arrangements of i and j values that have a U of k.
	ways := make([][]float64, n+1)
	for j := range ways {
		ways[j] = make([]float64, m*n+1)
		ways[j][0] = 1
	}
	for i := 1; i <= m; i++ {
		next := make([][]float64, n+1)
		for j := range next {
			next[j] = make([]float64, m*n+1)
			if j == 0 {
				next[j][0] = 1
				continue
			}
			for k := range next[j] {
				s := float64(j) / float64(i+j) * next[j-1][k]
				if k >= j {
					s += float64(i) / float64(i+j) * ways[j][k-j]
				}
				next[j][k] = s
			}
		}
		ways = next
	}
	var p float64
	for k := u; k <= m*n; k++ {
		p += ways[n][k]
	}
	return p
}

// HedgesG returns the difference of means in pooled standard deviations, corrected.
func HedgesG(a, b []float64) float64 {
	na, nb := float64(len(a)), float64(len(b))
	pooled := math.Sqrt(((na-1)*Variance(a) + (nb-1)*Variance(b)) / (na + nb - 2))
	return (Mean(a) - Mean(b)) / pooled * (1 - 3/(4*(na+nb)-9))
}

// CliffsDelta returns the frequency with which a value of a is larger than one of b, minus
// the frequency of the opposite.
func CliffsDelta(a, b []float64) float64 {
	var sum int
	for _, x := range a {
		for _, y := range b {
			sum += cmp.Compare(x, y)
		}
	}
	return float64(sum) / float64(len(a)*len(b))
}

// Holm corrects the P values of many comparisons, and keeps their order. NaN stays NaN, and
// does not count as a comparison.
func Holm(p []float64) []float64 {
	out := slices.Clone(p)
	var order []int
	for i, v := range p {
		if !math.IsNaN(v) {
			order = append(order, i)
		}
	}
	slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(p[i], p[j]) })
	least := 0.0 // a result is at least the result for a smaller P
	for rank, i := range order {
		least = max(least, min(1, p[i]*float64(len(order)-rank)))
		out[i] = least
	}
	return out
}
