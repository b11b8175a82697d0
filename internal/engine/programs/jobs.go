package programs

import "time"

// NamePrefix begins the names of premix's jobs in a batch system.
const NamePrefix = "premix-"

// JobName returns the name of the jobs of a wave with a token.
func JobName(token string) string { return NamePrefix + token }

// FirstSeen is the time at which an engine first heard of each of its jobs, by their ids. A job
// that a listing lacks is gone only if the listing was begun later.
type FirstSeen map[string]time.Time

// Add notes a job, unless it was heard of before.
func (h FirstSeen) Add(id string) {
	if _, ok := h[id]; !ok {
		h[id] = time.Now()
	}
}

// Jobs returns the ids of the n jobs of a wave, and notes them.
func (h FirstSeen) Jobs(n int, id func(i int) string) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = id(i)
		h.Add(list[i])
	}
	return list
}

// Find returns the first entry of a listing that belongs to the wave with a token; nil if there
// is none.
func Find[J any](listing []J, token string, name func(*J) string) *J {
	for i := range listing {
		if name(&listing[i]) == JobName(token) {
			return &listing[i]
		}
	}
	return nil
}
