package explain

import (
	"math"
	"slices"

	"premix/internal/kit/quantile"
	"premix/internal/watch"
)

// track is a series as seconds since the begin of the baseline, and values.
type track struct {
	at    []float64
	value []float64
}

// between returns the points in [from, to).
func (t track) between(from, to float64) track {
	i, _ := slices.BinarySearch(t.at, from)
	j, _ := slices.BinarySearch(t.at, to)
	return track{t.at[i:j], t.value[i:j]}
}

// spacing returns the median distance between points, or 0 for fewer than two.
func (t track) spacing() float64 {
	if len(t.at) < 2 {
		return 0
	}
	d := make([]float64, len(t.at)-1)
	for i := range d {
		d[i] = t.at[i+1] - t.at[i]
	}
	slices.Sort(d)
	return quantile.Sorted(d, 0.5)
}

// floor returns the smallest width that matters in practice, by unit: an idle disk has not
// left its usual range with one write.
func floor(u watch.Unit) float64 {
	switch u {
	case watch.Bytes:
		return 4 << 20
	case watch.BytesPerSecond:
		return 256 << 10
	case watch.PerSecond:
		return 5
	case watch.Seconds:
		return 0.002
	case watch.Cores:
		return 0.1
	case watch.Watts:
		return 10
	case watch.Celsius:
		return 3
	case watch.Ratio:
		return 0.02
	}
	return 1
}

// relative is the smallest width as a fraction of the usual value.
const relative = 0.03

// widths are the usual distances of values above and below the middle, as standard
// deviations of a normal distribution with the same spread and tails. Each is the larger of
// the results from the median absolute deviation and from the outer quantiles, so that
// regular bursts count as usual.
type widths struct{ up, down float64 }

func widthsOf(sorted []float64, middle, least float64) widths {
	dev := make([]float64, len(sorted))
	for i, v := range sorted {
		dev[i] = math.Abs(v - middle)
	}
	slices.Sort(dev)
	common := max(1.4826*quantile.Sorted(dev, 0.5), least)
	return widths{
		up:   max(common, (quantile.Sorted(sorted, 0.95)-middle)/1.645, (quantile.Sorted(sorted, 0.99)-middle)/2.326),
		down: max(common, (middle-quantile.Sorted(sorted, 0.05))/1.645, (middle-quantile.Sorted(sorted, 0.01))/2.326),
	}
}

// z returns a deviation in widths, after subtracting the permitted drift.
func (w widths) z(dev, drift float64) float64 {
	switch {
	case dev > drift:
		return (dev - drift) / w.up
	case dev < -drift:
		return (dev + drift) / w.down
	}
	return 0
}

// model describes the usual values of a series.
type model struct {
	low, high float64 // bounds of 98 % of the baseline

	middle float64
	level  widths
	drift  float64 // the movement of the middle within the baseline

	begin, slope float64 // the trend
	trend        widths

	persistence float64 // V of doc.go
	restless    float64 // the largest sum in the baseline
}

// blocks is the number of parts of a baseline, from which the movement of its middle is
// computed.
const blocks = 8

// enough is the smallest number of points of a baseline.
const enough = 30

// learn returns the model of a baseline, which has at least enough points.
func learn(base track, unit watch.Unit) *model {
	sorted := slices.Sorted(slices.Values(base.value))
	m := &model{low: quantile.Sorted(sorted, 0.01), high: quantile.Sorted(sorted, 0.99), middle: quantile.Sorted(sorted, 0.5)}
	least := max(floor(unit), relative*math.Abs(m.middle))
	m.level = widthsOf(sorted, m.middle, least)

	// The medians of blocks give drift and trend.
	var at, medians, moved []float64
	n := len(base.value)
	for i := range blocks {
		from, to := i*n/blocks, (i+1)*n/blocks
		part := slices.Sorted(slices.Values(base.value[from:to]))
		at = append(at, base.at[(from+to-1)/2])
		medians = append(medians, quantile.Sorted(part, 0.5))
		moved = append(moved, math.Abs(medians[i]-m.middle))
	}
	slices.Sort(moved)
	m.drift = 1.3 * moved[blocks-2] // the largest may come from a single event

	// Theil-Sen estimator: the median of the slopes of all pairs.
	var slopes []float64
	for i := range at {
		for j := range i {
			if at[i] > at[j] {
				slopes = append(slopes, (medians[i]-medians[j])/(at[i]-at[j]))
			}
		}
	}
	slices.Sort(slopes)
	if len(slopes) > 0 {
		m.slope = quantile.Sorted(slopes, 0.5)
	}
	rest := make([]float64, n)
	for i, v := range base.value {
		rest[i] = v - m.slope*base.at[i]
	}
	slices.Sort(rest)
	m.begin = quantile.Sorted(rest, 0.5)
	m.trend = widthsOf(rest, m.begin, least)

	// Compute the autocorrelation of the values, and the largest sum in the baseline.
	var sum, square, product, before float64
	var up, down sums
	for i, v := range base.value {
		z := min(max(m.level.z(v-m.middle, 0), -most), most)
		sum += z
		square += z * z
		if i > 0 {
			product += z * before
		}
		before = z
		worst := m.z(base.at[i], v)
		up.add(worst)
		down.add(-worst)
		m.restless = max(m.restless, up.sum, down.sum)
	}
	mean := sum / float64(n)
	variance := square/float64(n) - mean*mean
	r := 0.0
	if variance > 1e-9 {
		r = (product/float64(n-1) - mean*mean) / variance
	}
	r = min(max(r, 0), 0.9)
	m.persistence = (1 + r) / (1 - r)
	// Correlation over more than one point shows in the means of batches.
	if variance > 1e-9 && n >= 8*batch {
		sum, square, batches := 0.0, 0.0, n/batch
		for i := range batches {
			mean := 0.0
			for _, v := range base.value[i*batch : (i+1)*batch] {
				mean += min(max(m.level.z(v-m.middle, 0), -most), most) / batch
			}
			sum += mean
			square += mean * mean
		}
		between := square/float64(batches) - sum*sum/float64(batches*batches)
		m.persistence = max(m.persistence, batch*between/variance)
	}
	return m
}

// batch is the number of points in a batch.
const batch = 20

// z returns the distance of a value from both level and trend in widths: positive above,
// negative below, and 0 if the two disagree.
func (m *model) z(at, v float64) float64 {
	a := m.level.z(v-m.middle, m.drift)
	b := m.trend.z(v-m.slope*at-m.begin, 0)
	switch {
	case a > 0 && b > 0:
		return min(a, b)
	case a < 0 && b < 0:
		return max(a, b)
	}
	return 0
}

const (
	slack = 2.0  // k: only the excess of z over it counts
	most  = 12.0 // larger z count as this: a single value is not enough
)

// sums is a one-sided CUSUM.
type sums struct {
	sum     float64
	started int // index of the last point at which it was zero
	n       int
}

func (s *sums) add(z float64) {
	step := min(z, most) - slack
	if s.sum == 0 && step > 0 {
		s.started = s.n
	}
	s.sum = max(0, s.sum+step)
	s.n++
}

// excursion is a result of search, as indexes into a track: first is its onset, alarm the
// point at which it was certain, and last its end.
type excursion struct {
	first, alarm, last int
	up                 bool
	z                  float64 // median, absolute
}

// clear is the smallest score of a finding: a series barely outside its range for a while
// usually drifts.
const clear = 3.5

// fewest is the smallest number of points of an excursion.
const fewest = 3

// search returns the first excursion that lasts into the window, which begins at the index
// begin. certainty is ln(n/a).
func (m *model) search(t track, begin int, certainty float64) (excursion, bool) {
	h := max(16, certainty*m.persistence/(2*slack), 2*m.restless)
	z := make([]float64, len(t.value))
	for i, v := range t.value {
		z[i] = m.z(t.at[i], v)
	}
	for _, sign := range []float64{1, -1} {
		var s sums
		for i := range z {
			s.add(sign * z[i])
			if s.sum <= h || i-s.started+1 < fewest {
				continue
			}
			e := excursion{first: s.started, alarm: i, last: i, up: sign > 0}
			inside := 0
			for j := i; j < len(z) && inside < 5; j++ {
				if sign*z[j] > slack {
					e.last, inside = j, 0
				} else {
					inside++
				}
			}
			if e.last < begin {
				s.sum = 0 // it ended before the window
				continue
			}
			outside := []float64{}
			for _, v := range z[e.first : e.last+1] {
				outside = append(outside, max(sign*v, 0))
			}
			slices.Sort(outside)
			e.z = quantile.Sorted(outside, 0.5)
			// Points just before the alarm that are much weaker are noise.
			for e.first < e.alarm && sign*z[e.first] < min(max(slack, 0.2*e.z), 4) {
				e.first++
			}
			if e.z >= clear {
				return e, true
			}
			s.sum = 0
		}
	}
	return excursion{}, false
}
