package search

import (
	"premix/internal/blast/database"
)

// plan is the distribution of a search over this machine.
type plan struct {
	parts []share
}

// share is the part of one process.
type share struct {
	fragments []database.Fragment // consecutive
	threads   int
}

// spread distributes fragments to as many processes as cores, or as fragments if these are
// fewer. Each gets consecutive fragments with about the same number of letters. Remaining
// cores become threads.
func spread(fragments []database.Fragment, processes, cores int) plan {
	n := min(processes, len(fragments))
	var total int64
	for _, f := range fragments {
		total += f.Letters
	}
	p := plan{}
	var done int64
	for i := range n {
		// Take at least one, and leave one for each process that follows.
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
		p.parts = append(p.parts, share{fragments[:take], max(1, threads)})
		fragments = fragments[take:]
	}
	return p
}
