package stream

import (
	"io"
	"sync/atomic"
	"time"
)

// kindAlive is a frame without payload that either end sends four times in the time of
// silence, as a sign of life.
const kindAlive = 'a'

// silentError is the error of a copy whose other end has sent nothing for too long.
type silentError struct{ time.Duration }

func (e silentError) Error() string { return "the other end has said nothing for " + e.String() }

// epoch is the start of this process, to which [ear] refers.
var epoch = time.Now()

// ear is a reader that records since when it has been waiting.
type ear struct {
	r     io.Reader
	since atomic.Int64 // begin of the pending read, after epoch; 0: none is pending
}

func (e *ear) Read(p []byte) (int, error) {
	e.since.Store(int64(time.Since(epoch)) + 1)
	defer e.since.Store(0)
	return e.r.Read(p)
}

// waits returns for how long a read has been pending without data, or 0 if none is.
func (e *ear) waits() time.Duration {
	since := e.since.Load()
	if since == 0 {
		return 0 // the last frame is being handled
	}
	return time.Since(epoch) - time.Duration(since)
}

// live sends signs of life until the session is over. It ends the session if the other end
// sends none for the time of silence.
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

// alive sends a sign of life, unless another frame is being sent.
func (c *control) alive() {
	if !c.mu.TryLock() {
		return
	}
	defer c.mu.Unlock()
	if writeFrame(c.out, kindAlive) == nil {
		_ = c.out.Flush() // the reader of the connection notices if it broke
	}
}
