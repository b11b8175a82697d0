package origin

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"premix/internal/store/object"
)

// State is the health of an origin.
type State string

// The states of an origin.
const (
	Healthy State = "healthy"
	Demoted State = "demoted" // used last, after a wrong object
	Resting State = "resting" // not used, after a failure
	Probing State = "probing" // one request tests whether it has recovered
)

// Slow records a fetch that took long.
type Slow struct {
	Object object.Digest `json:"object"`
	Took   time.Duration `json:"took"`
}

// OriginStats counts the requests to one origin since the group was made.
type OriginStats struct {
	Origin    string        `json:"origin"`
	State     State         `json:"state"`
	Requests  int64         `json:"requests"`
	Bytes     int64         `json:"bytes"`
	Errors    int64         `json:"errors"`    // failures of all kinds but NotFound
	NotFound  int64         `json:"not_found"` // the origin does not have the object or file
	Corrupt   int64         `json:"corrupt"`   // wrong objects, included in Errors
	P99       time.Duration `json:"p99"`       // of the last fetches that succeeded
	Slowest   []Slow        `json:"slowest,omitempty"`
	LastError string        `json:"last_error,omitempty"`
	Until     time.Time     `json:"until,omitzero"` // end of its rest
}

const (
	keepTimes   = 128
	keepSlowest = 5
	// hedgeAfter is the shortest time before a second origin is used.
	hedgeAfter = 20 * time.Millisecond
)

// member is an origin with its health.
type member struct {
	Origin
	o *Options

	mu       sync.Mutex
	fails    int       // in a row
	failed   time.Time // when the last failure was noted
	until    time.Time // end of the rest
	probing  bool
	demoted  time.Time // used last until then
	stats    OriginStats
	times    [keepTimes]time.Duration
	measured int
	lastErr  error
}

// backOff returns the time to rest after n failures in a row: a random time between
// half and all of one that doubles with n.
func backOff(first, most time.Duration, n int) time.Duration {
	d := min(first<<min(n-1, 20), most)
	if d <= 0 {
		d = most
	}
	return d/2 + rand.N(d/2+1)
}

// state returns the state of m; wait is the remainder of its rest.
func (m *member) state(now time.Time) (s State, wait time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.stateLocked(now)
}

func (m *member) stateLocked(now time.Time) (State, time.Duration) {
	switch {
	case m.fails > 0 && (m.probing || now.Before(m.until)):
		if m.probing {
			return Probing, m.o.RestMost
		}
		return Resting, m.until.Sub(now)
	case m.fails > 0:
		return Probing, 0 // the next request probes it
	case now.Before(m.demoted):
		return Demoted, 0
	}
	return Healthy, 0
}

// probe claims the right to probe a member whose rest is over.
func (m *member) probe(now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fails == 0 || m.probing || now.Before(m.until) {
		return false
	}
	m.probing = true
	return true
}

// note records the outcome of a request that began at the given time, and reports
// whether the member has recovered.
func (m *member) note(began time.Time, err error) (recovered bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.probing = false
	if err == nil || errors.Is(err, ErrNotFound) {
		recovered = m.fails > 0
		if err != nil {
			m.stats.NotFound++
		}
		m.fails, m.until = 0, time.Time{}
		return recovered
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) && KindOf(err) == "" {
		return false // the caller gave up: the outcome says nothing about the origin
	}
	m.stats.Errors++
	m.lastErr, m.stats.LastError = err, err.Error()
	e, ok := errors.AsType[*Error](err)
	switch {
	case object.IsCorrupt(err), ok && (e.Kind == Corrupt || e.Kind == Unexpected || e.Kind == TooLarge || e.Kind == Redirected):
		if object.IsCorrupt(err) || e.Kind == Corrupt {
			m.stats.Corrupt++
		}
		recovered = m.fails > 0
		m.fails, m.until = 0, time.Time{}
		m.demoted = time.Now().Add(m.o.Cooldown)
	case ok && e.Kind != Refused && e.Kind != Misnamed:
		if began.Before(m.failed) {
			return false // it was already under way when another request failed
		}
		m.fails++
		m.failed = time.Now()
		m.until = m.failed.Add(max(backOff(m.o.Rest, m.o.RestMost, m.fails), e.After))
	}
	return recovered
}

// measure counts a request.
func (m *member) measure(d object.Digest, bytes int, took time.Duration, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stats.Requests++
	m.stats.Bytes += int64(bytes)
	if err != nil || d.IsZero() {
		return
	}
	m.times[m.measured%keepTimes] = took
	m.measured++
	s := m.stats.Slowest
	i, _ := slices.BinarySearchFunc(s, took, func(s Slow, t time.Duration) int { return int(t - s.Took) }) // descending
	if i < keepSlowest {
		s = slices.Insert(s, i, Slow{d, took})
		m.stats.Slowest = s[:min(len(s), keepSlowest)]
	}
}

// p99 returns the time below which 99 of 100 recent fetches stayed, or 0 if there are
// too few.
func (m *member) p99() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.p99Locked()
}

func (m *member) p99Locked() time.Duration {
	n := min(m.measured, keepTimes)
	if n < 16 {
		return 0
	}
	sorted := slices.Clone(m.times[:n])
	slices.Sort(sorted)
	return sorted[(n*99+99)/100-1]
}

func (m *member) snapshot() OriginStats {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.stats
	s.Origin = m.String()
	s.State, _ = m.stateLocked(time.Now())
	s.P99 = m.p99Locked()
	s.Slowest = slices.Clone(s.Slowest)
	if s.State == Resting {
		s.Until = m.until
	}
	return s
}
