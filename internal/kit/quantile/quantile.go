package quantile

import (
	"math"
	"slices"
)

// Of returns the quantile q of values in any order; NaN without values.
func Of(v []float64, q float64) float64 { return Sorted(slices.Sorted(slices.Values(v)), q) }

// Sorted is [Of] for values in ascending order.
func Sorted(v []float64, q float64) float64 {
	if len(v) == 0 {
		return math.NaN()
	}
	at := q * float64(len(v)-1)
	i := int(at)
	if i+1 >= len(v) {
		return v[len(v)-1]
	}
	return v[i] + (at-float64(i))*(v[i+1]-v[i])
}

// Median returns the median of at least one value, in any order.
func Median[T ~int64 | ~float64](v []T) T {
	s := slices.Sorted(slices.Values(v))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}
