package search

import (
	"math"
	"slices"
	"strconv"
)

// edges describes which HSPs blastn may miss at both ends of a batch of queries.
//
// blastn judges a word by an approximate score, of whole groups of four letters
// (s_NuclUngappedExtend of the toolkit), and continues only if that is at least 0.8 of the
// score that an HSP needs. A group that reaches beyond the batch does not count, while a
// group that reaches into the next query does. So a query in the middle of a batch may get
// HSPs that it would not get as the first or the last. The two strands of a query follow
// each other: as a rule its first letters are at the edge, once for each strand.
//
// A run of equal letters that is long enough passes without the groups at its ends: an HSP
// that contains one, as long as a word, is found in any case, unless the run is masked.
type edges struct {
	matter bool
	strong int  // length of a run that is long enough
	strand bool // only one strand is searched: the edges are both ends of the query
}

// edges returns the edges of this search. They do not matter if each word is strong, nor
// for words of less than 11 letters, for which blastn computes the score exactly.
func (r *Request) edges() edges {
	if !r.unlinked() {
		return edges{}
	}
	w := r.wording()
	e := edges{matter: true, strong: math.MaxInt}
	if s := r.Options.values["strand"]; s != "" && s != "both" {
		e.strand = true
	}
	if needed := needed(w.reward, w.penalty); needed > 0 {
		// Depending on the position of the run, up to three letters on each side are not in
		// a whole group.
		groups := int(math.Ceil(needed / float64(4*w.reward)))
		e.strong = max(w.word, 4*groups+3)
		e.matter = w.spaced || w.word >= 11 && w.word < e.strong
	}
	return e
}

// margin is the distance from the edge within which an HSP that depends on the edge begins.
// The group at the edge has at most three letters of the query; one or two groups with a
// negative score may lie between it and the HSP.
const margin = 11

// more reports whether blastn may have found an HSP only because another query comes before
// or after this one.
func (e edges) more(list []hsp) bool {
	return slices.ContainsFunc(list, func(h hsp) bool {
		return (e.strand || h.begin <= margin) && !slices.ContainsFunc(h.runs, func(r run) bool { return r.length >= e.strong })
	})
}

// wording holds the parameters by which blastn finds and scores words.
type wording struct {
	word, reward, penalty int
	spaced                bool // the letters of a word are not adjacent
}

// wording returns the parameters of this search, with 0 for unknown ones.
func (r *Request) wording() wording {
	w := wording{word: 28, reward: 1, penalty: -2}
	switch task := r.Options.values["task"]; task {
	case "", "megablast":
	case "blastn":
		w = wording{word: 11, reward: 2, penalty: -3}
	case "blastn-short":
		w = wording{word: 7, reward: 1, penalty: -3}
	case "dc-megablast":
		w = wording{word: 21, reward: 2, penalty: -3, spaced: true} // the longest template
	default:
		return wording{}
	}
	for name, to := range map[string]*int{"word_size": &w.word, "reward": &w.reward, "penalty": &w.penalty} {
		text, ok := r.Options.values[name]
		if !ok || w.spaced && name == "word_size" {
			continue
		}
		n, err := strconv.Atoi(text)
		if err != nil {
			return wording{}
		}
		*to = n
	}
	return w
}

// needed returns an upper limit of the approximate score that a word needs: 0.8 of 27 bits
// (the trigger of gapped alignments; with weak demands by e-value it is less). It returns 0
// if it is not known.
func needed(reward, penalty int) float64 {
	if reward <= 0 || penalty >= 0 || reward+3*penalty >= 0 {
		return 0
	}
	// Lambda for random letters, of which a quarter of the pairs are equal.
	sum := func(l float64) float64 {
		return math.Exp(l*float64(reward))/4 + 3*math.Exp(l*float64(penalty))/4
	}
	low, high := 0.0, math.Log(4)/float64(reward)
	for range 60 {
		if mid := (low + high) / 2; sum(mid) < 1 {
			low = mid
		} else {
			high = mid
		}
	}
	return 0.8 * 27 * math.Ln2 / low
}
