package search

import (
	"premix/blast/database"
)

// plan says how a search is spread over this machine.
type plan struct {
	parts []part
}

// part is what one process searches.
type part struct {
	fragments []database.Fragment // neighbours
	threads   int
}

// spread gives each of as many processes as cores, or as there are fragments, a run of
// neighbouring fragments with about as many letters as the others have, and the cores
// that are left over, if any, as threads.
func spread(fragments []database.Fragment, processes, cores int) plan {
	n := min(processes, len(fragments))
	var total int64
	for _, f := range fragments {
		total += f.Letters
	}
	p := plan{}
	var done int64
	for i := range n {
		// At least one, and one for each of those that follow.
		take := 1
		done += fragments[0].Letters
		for take < len(fragments)-(n-i-1) && i+1 < n && done+fragments[take].Letters/2 < total*int64(i+1)/int64(n) {
			done += fragments[take].Letters
			take++
		}
		if i+1 == n {
			take = len(fragments)
		}
		threads := cores / n
		if i < cores%n {
			threads++
		}
		p.parts = append(p.parts, part{fragments[:take], max(1, threads)})
		fragments = fragments[take:]
	}
	return p
}
