package web

import (
	"maps"
	"math"
	"slices"

	"premix/internal/kit/quantile"
)

// exactly is the number of values up to which a spread is exact.
const exactly = 1024

// growth is the ratio of the bounds of a class: a quantile is off by less than half a
// percent.
const growth = 1.01

// spread holds the distribution of values that are not negative, in bounded memory. It
// keeps a number of values exactly, and beyond that counts them in classes whose bounds
// grow by a factor (as DDSketch does, Masson and others, VLDB 2019).
type spread struct {
	n       int
	sum     float64
	exact   []float64
	classes map[int]int // by the logarithm, rounded up; nil while all are in exact
	zeros   int
}

func (s *spread) add(v float64) {
	s.n++
	s.sum += v
	if s.classes == nil && len(s.exact) < exactly {
		s.exact = append(s.exact, v)
		return
	}
	if s.classes == nil {
		s.classes = make(map[int]int)
		for _, e := range s.exact {
			s.count(e)
		}
		s.exact = nil
	}
	s.count(v)
}

func (s *spread) count(v float64) {
	if v <= 0 {
		s.zeros++
		return
	}
	s.classes[int(math.Ceil(math.Log(v)/math.Log(growth)))]++
}

func (s *spread) median() float64 { return s.quantile(0.5) }

// quantile returns the value that a fraction q of the values do not exceed; 0 without
// values.
func (s *spread) quantile(q float64) float64 {
	if s.n == 0 {
		return 0
	}
	if s.classes == nil {
		return quantile.Of(s.exact, q)
	}
	rank := int(q * float64(s.n-1))
	passed := s.zeros
	if rank < passed {
		return 0
	}
	keys := slices.Sorted(maps.Keys(s.classes))
	for _, k := range keys {
		if passed += s.classes[k]; rank < passed {
			return 2 * math.Pow(growth, float64(k)) / (1 + growth)
		}
	}
	return 0 // not reached: the classes contain all values
}
