package stream

import (
	"io"
	"sync/atomic"
	"time"
)

// kindAlive is sent by either end four times in the time of silence, and means nothing
// else. It has no payload.
const kindAlive = 'a'

// silentError is the error of a copy whose other end has said nothing for too long.
type silentError struct{ time.Duration }

func (e silentError) Error() string { return "the other end has said nothing for " + e.String() }

// epoch is when this process began, as far as [ear] is concerned.
var epoch = time.Now()

// ear is a reader that knows for how long it has been waiting.
type ear struct {
	r     io.Reader
	since atomic.Int64 // of the read under way, after epoch; 0: there is none
}

func (e *ear) Read(p []byte) (int, error) {
	e.since.Store(int64(time.Since(epoch)) + 1)
	defer e.since.Store(0)
	return e.r.Read(p)
}

// waits is for how long nothing has come, where something is waited for.
func (e *ear) waits() time.Duration {
	since := e.since.Load()
	if since == 0 {
		return 0 // what has come is being handled
	}
	return time.Since(epoch) - time.Duration(since)
}

// live sends signs of life until the session is over, and ends a session whose other
// end gives none for the time of silence.
func (x *session) live(silence time.Duration) {
	go func() {
		t := time.NewTicker(silence / 4)
		defer t.Stop()
		for {
			select {
			case <-x.ctx.Done():
				return
			case <-t.C:
				x.ctl.alive()
			}
		}
	}()
	go func() {
		t := time.NewTicker(silence / 40)
		defer t.Stop()
		for {
			select {
			case <-x.ctx.Done():
				return
			case <-t.C:
				if x.ctl.ear.waits() > silence {
					x.cancel(&PeerError{Err: silentError{silence}})
					return
				}
			}
		}
	}()
}

// alive sends a sign of life, unless a frame is on its way, which is one too.
func (c *control) alive() {
	if !c.mu.TryLock() {
		return
	}
	defer c.mu.Unlock()
	if writeFrame(c.out, kindAlive) == nil {
		_ = c.out.Flush() // who reads the connection notices that it broke
	}
}
