package diamond

import (
	"math"
	"strconv"
	"strings"

	"premix/internal/kit/exit"
)

// gumbel are the parameters of the statistics of alignments with BLOSUM62, by the penalties for
// opening and extending a gap: lambda, K, alpha, its variance and sigma.
var gumbel = map[[2]int][5]float64{
	{11, 2}: {0.297, 0.082, 1.1, 12.673800, 12.757600},
	{10, 2}: {0.291, 0.075, 1.3, 16.474000, 16.602600},
	{9, 2}:  {0.279, 0.058, 1.5, 22.751900, 22.950000},
	{8, 2}:  {0.264, 0.045, 1.8, 35.483800, 35.821300},
	{7, 2}:  {0.239, 0.027, 2.5, 61.238300, 61.886000},
	{6, 2}:  {0.201, 0.012, 3.3, 140.417000, 141.882000},
	{13, 1}: {0.292, 0.071, 1.2, 19.506300, 19.893100},
	{12, 1}: {0.283, 0.059, 1.5, 27.856200, 28.469900},
	{11, 1}: {0.267, 0.041, 1.9, 42.602800, 43.636200},
	{10, 1}: {0.243, 0.024, 2.5, 83.178700, 85.065600},
	{9, 1}:  {0.206, 0.010, 4.0, 210.333000, 214.842000},
}

// The same of alignments without gaps.
const (
	ungappedAlpha    = 0.7916
	ungappedVariance = 4.964660
)

// scoring computes the e-values of a search, with the finite size correction of the ALP library
// (pvalues::get_appr_tail_prob_with_cov_without_errors).
type scoring struct {
	translated bool
	letters    float64 // of the whole database

	lambda, k                     float64
	mean, meanOffset              float64
	variance, varianceOffset      float64
	covariance, covarianceOffset  float64
	leastVariance, leastCovariate float64
}

// scoring returns the scoring of a search by tool in a database with so many letters.
func (o *Options) scoring(tool string, letters int64) (*scoring, error) {
	if m, ok := o.values["matrix"]; ok && !strings.EqualFold(m, "BLOSUM62") {
		return nil, exit.Errorf(exit.Usage, "leave --matrix out, or run diamond itself", "the e-values of the matrix %s are not known here, by which results are merged", m)
	}
	penalty := [2]int{11, 1}
	for i, name := range []string{"gapopen", "gapextend"} {
		if text, ok := o.values[name]; ok {
			n, err := strconv.Atoi(text)
			if err != nil {
				return nil, exit.Errorf(exit.Usage, "as in --gapopen 11", "%q is not a penalty", text)
			}
			penalty[i] = n
		}
	}
	p, ok := gumbel[penalty]
	if !ok {
		return nil, exit.Errorf(exit.Usage, "as in --gapopen 11 --gapextend 1", "BLOSUM62 has no statistics for the gap penalties %d and %d", penalty[0], penalty[1])
	}
	if text, ok := o.values["dbsize"]; ok {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n <= 0 {
			return nil, exit.Errorf(exit.Usage, "as in --dbsize 1000000000", "%q is not a number of letters", text)
		}
		letters = n
	}
	gap := 2 * float64(penalty[0]+penalty[1])
	s := &scoring{translated: tool == "blastx", letters: float64(letters), lambda: p[0], k: p[1], mean: p[2], variance: p[3], covariance: p[4]}
	s.meanOffset = gap * (ungappedAlpha - s.mean)
	s.varianceOffset, s.covarianceOffset = gap*(ungappedVariance-s.variance), gap*(ungappedVariance-s.covariance)
	s.leastVariance, s.leastCovariate = 2*s.variance/s.lambda, 2*s.covariance/s.lambda
	return s, nil
}

// interval is a range of numbers, in which an e-value of DIAMOND is.
type interval struct{ low, high float64 }

// evalue returns the e-value of an alignment. frame is the one of a translated query, from 1 or
// from -1 downward.
//
// The last bits depend on the mathematical library. Below 1e-308 numbers have few bits, down to
// the smallest one above 0.
func (s *scoring) evalue(score, query, frame, subject int) interval {
	y := float64(score)
	p1, f1 := s.length(y, float64(s.queryLength(query, frame)))
	p2, f2 := s.length(y, float64(subject))
	area := p1*p2 + max(s.leastCovariate, s.covariance*y+s.covarianceOffset)*(f1*f2)
	density := s.k * math.Exp(-s.lambda*y)
	whole := func(density, factor float64) float64 { return area * density * s.letters / float64(subject) * factor }
	const few = 4 * math.SmallestNonzeroFloat64
	return interval{max(0, whole(max(0, density-few), 1-1e-9)-few), whole(density+few, 1+1e-9) + few}
}

// queryLength returns the length of the compared sequence of a query.
func (s *scoring) queryLength(query, frame int) int {
	if !s.translated {
		return query
	}
	return (query - max(frame, -frame) + 1) / 3
}

// length returns the expected number of positions in a sequence at which an alignment of the score
// y can begin, and the probability that there are any.
func (s *scoring) length(y, letters float64) (positions, probability float64) {
	left := letters - (s.mean*y + s.meanOffset)
	deviation := math.Sqrt(max(s.leastVariance, s.variance*y+s.varianceOffset))
	f := left / deviation
	p := math.Erfc(-f/math.Sqrt2) / 2
	return left*p + deviation*math.Exp(-f*f/2)/math.Sqrt(2*math.Pi), p
}

// printed returns the part of an interval whose numbers DIAMOND prints as text, with three
// digits. It reports whether there are any.
func (e interval) printed(text string) (interval, bool) {
	p, err := strconv.ParseFloat(text, 64)
	if err != nil || p < 0 || math.IsInf(p, 0) || math.IsNaN(p) {
		return e, false
	}
	if p > 0 {
		const few = 4 * math.SmallestNonzeroFloat64
		e.low, e.high = max(e.low, p*(1-0.0051)-few), min(e.high, p*(1+0.0051)+few)
		return e, e.low <= e.high
	}
	return interval{}, e.low == 0 // only 0 is printed as 0.0
}
