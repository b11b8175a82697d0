package fuse

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// Buckets is the number of classes of latency. Class i counts requests of less than 2^i
// microseconds that do not belong to the class before; the last class counts the rest.
const Buckets = 28

// OpStats counts the requests of one operation.
type OpStats struct {
	Count   uint64
	Errors  uint64          // answered with an error other than ENOENT, ENODATA and ENOSYS
	Bytes   uint64          // of content sent
	Total   time.Duration   // of all
	Slowest time.Duration   // of one
	Latency [Buckets]uint64 // see Buckets
}

// Stats counts the work of a server since it began to serve; a resumed server begins at
// zero.
type Stats struct {
	Ops       map[string]OpStats // by the operation's name in lower case, without operations that did not occur
	InFlight  int                // requests being answered now
	Timeouts  uint64             // answered EIO because of Options.Timeout
	Cancelled uint64             // cancelled because the reader was killed
	Resent    uint64             // delivered again after a restart
}

// counter is an OpStats that many goroutines update.
type counter struct {
	count, errors, bytes atomic.Uint64
	total, slowest       atomic.Int64
	latency              [Buckets]atomic.Uint64
}

func (c *counter) add(took time.Duration, bytes int, failed bool) {
	c.count.Add(1)
	if failed {
		c.errors.Add(1)
	}
	c.bytes.Add(uint64(bytes))
	c.total.Add(int64(took))
	for {
		old := c.slowest.Load()
		if int64(took) <= old || c.slowest.CompareAndSwap(old, int64(took)) {
			break
		}
	}
	c.latency[min(bits.Len64(uint64(took.Microseconds())), Buckets-1)].Add(1)
}

// Stats returns a copy of the counters.
func (s *Server) Stats() Stats {
	st := Stats{
		Ops:       map[string]OpStats{},
		InFlight:  int(s.busy.Load()),
		Timeouts:  s.timeouts.Load(),
		Cancelled: s.cancelled.Load(),
		Resent:    s.resent.Load(),
	}
	for op := range s.counters {
		c := &s.counters[op]
		if c.count.Load() == 0 {
			continue
		}
		o := OpStats{
			Count:   c.count.Load(),
			Errors:  c.errors.Load(),
			Bytes:   c.bytes.Load(),
			Total:   time.Duration(c.total.Load()),
			Slowest: time.Duration(c.slowest.Load()),
		}
		for i := range o.Latency {
			o.Latency[i] = c.latency[i].Load()
		}
		st.Ops[opNames[op]] = o
	}
	return st
}
