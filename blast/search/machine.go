package search

import "runtime"

// cores are those that a search may use.
func (r *Request) cores() int {
	switch {
	case r.Options.Threads > 0:
		return r.Options.Threads
	case r.Settings.Cores > 0:
		return r.Settings.Cores
	}
	return runtime.GOMAXPROCS(0)
}

// prefersFragments decides what Auto means.
func (r *Request) prefersFragments(q *queries) bool {
	switch r.Mode {
	case Fragments:
		return true
	case Whole:
		return false
	}
	return false
}
