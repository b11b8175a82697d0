package policy

import (
	"cmp"
	"math/rand/v2"
	"slices"
)

// order orders candidates by falling weight, and those of equal weight as in the scan. No
// two candidates are equal.
func (a candidate) order(b candidate) int {
	if c := cmp.Compare(b.weight, a.weight); c != 0 {
		return c
	}
	return a.compare(b.ref)
}

func (a *candidate) before(b *candidate) bool {
	if a.weight != b.weight {
		return a.weight > b.weight
	}
	return a.compare(b.ref) < 0
}

// heaviest moves the heaviest candidates to the front, in any order. It returns how many of
// them are needed to free a number of bytes, or all if they do not suffice. It takes time
// in proportion to the list, where sorting would take most of the time of a plan.
func heaviest(list []candidate, bytes int64) (n int, freed int64) {
	low, high := 0, len(list) // the result lies between them; freed are the bytes before low
	for high-low > sortBelow {
		at := low + split(list[low:high])
		sum := int64(0)
		for i := range list[low:at] {
			sum += list[low+i].allocated
		}
		if freed+sum >= bytes {
			high = at
			continue
		}
		freed += sum + list[at].allocated
		if low = at + 1; freed >= bytes {
			return low, freed
		}
	}
	slices.SortFunc(list[low:high], candidate.order)
	for ; low < high && freed < bytes; low++ {
		freed += list[low].allocated
	}
	return low, freed
}

// foremost moves the first n of a list in order to its front, in any order, and returns
// them.
func foremost(list []candidate, n int) []candidate {
	n = min(n, len(list))
	for low, high := 0, len(list); high-low > 1 && n < len(list); {
		at := low + split(list[low:high])
		switch {
		case at == n:
			return list[:n]
		case at < n:
			low = at + 1
		default:
			high = at
		}
	}
	return list[:n]
}

// sortBelow is the length up to which a list is sorted and not split.
const sortBelow = 64

// split chooses an element of a list, moves the elements that order before it to the front,
// and returns its index after them.
func split(list []candidate) int {
	pick := func() int { return rand.IntN(len(list)) }
	a, b, c := pick(), pick(), pick()
	if list[b].before(&list[a]) {
		a, b = b, a
	}
	if list[c].before(&list[b]) {
		b = c
		if list[b].before(&list[a]) {
			b = a
		}
	}
	list[0], list[b] = list[b], list[0]
	chosen, i, j := list[0], 1, len(list)-1
	for {
		for i <= j && list[i].before(&chosen) {
			i++
		}
		for i <= j && chosen.before(&list[j]) {
			j--
		}
		if i >= j {
			break
		}
		list[i], list[j] = list[j], list[i]
		i++
		j--
	}
	list[0], list[j] = list[j], list[0]
	return j
}
