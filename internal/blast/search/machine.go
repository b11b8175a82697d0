package search

import (
	"fmt"
	"runtime"
)

// cores returns the number of cores that a search may use.
func (r *Request) cores() int {
	switch {
	case r.Options.Threads > 0:
		return r.Options.Threads
	case r.Settings.Cores > 0:
		return r.Settings.Cores
	}
	return runtime.GOMAXPROCS(0)
}

// manyQueries is the number of queries for each core from which on groups of queries are
// searched for in parallel. Fewer are not worth the start of more processes.
const manyQueries = 16

// chooseMode chooses the mode of a search. why is the reason, for Explain; note is a message for
// the user. See the package documentation for the rule.
func (r *Request) chooseMode(q *queries) (mode Mode, why string, note bool) {
	must := r.must(q)
	// No mode but the whole was asked for, and no option prevents another.
	plain := r.Mode == Auto && (undivided(r.Program) != "" || len(r.Database.Members) > 0)
	switch {
	case r.Remote != nil && must == "":
		return Fragments, "on other machines", false
	case r.Remote != nil:
		return Whole, must, true
	case r.Mode == Whole:
		return Whole, "as asked for", false
	case r.Mode == Fragments && must != "":
		return Whole, must, true
	case r.Mode == Fragments:
		return Fragments, "as asked for", false
	case r.Mode == Queries:
		if why := r.inseparable(q); why != "" {
			return Whole, why, true
		}
		return Queries, "as asked for", false
	}
	switch n := r.cores(); {
	case n == 1 && must == "":
		return Whole, "there is one core", false
	case n > 1 && r.inseparable(q) == "" && q.count >= manyQueries*n && (r.Options.format == 5 || r.Options.format == 15):
		return Queries, fmt.Sprintf("%d queries, whose printing takes as long as the search", q.count), false
	case must != "":
		return Whole, must, !plain
	case q.count < manyQueries*n:
		return Whole, fmt.Sprintf("%d queries: threads on one machine are as fast as fragments", q.count), false
	}
	return Whole, "the search takes longer than printing, and threads share it", false
}
