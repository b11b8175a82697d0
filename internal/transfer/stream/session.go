package stream

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// lastWords is the time that an end waits for the other one to report why a connection
// broke.
const lastWords = 3 * time.Second

// session is one copy, at either end.
type session struct {
	ctl    *control
	outer  context.Context // done when the copy was interrupted
	ctx    context.Context
	cancel context.CancelCauseFunc
	work   *errgroup.Group
	told   chan struct{} // closed when the other end has sent its last frame
	keep   Keep
	reason error // the error that it reported, valid when told is closed; nil: none

	mu     sync.Mutex
	conns  []*stream
	over   bool          // no stream may join any more, and connections may break
	closed chan struct{} // closed by close
}

func newSession(ctx context.Context, ctl *control, silence time.Duration) *session {
	x := &session{ctl: ctl, outer: ctx, told: make(chan struct{}), closed: make(chan struct{})}
	ctx, x.cancel = context.WithCancelCause(ctx)
	x.work, x.ctx = errgroup.WithContext(ctx)
	// Keep one goroutine in the group while streams may still join, so that no goroutine
	// starts while Wait returns.
	x.work.Go(func() error { <-x.closed; return nil })
	context.AfterFunc(x.ctx, x.close)
	x.live(silence)
	return x
}

// close closes all streams. It may be called several times.
func (x *session) close() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.over = true
	cause := context.Cause(x.ctx)
	for _, s := range x.conns {
		if cause != nil && !errors.Is(cause, context.Canceled) {
			// Discard unsent data: it must not arrive during another attempt.
			_ = s.raw.SetLinger(0)
		}
		s.raw.Close() // ends reads and writes
	}
	select {
	case <-x.closed:
	default:
		close(x.closed)
	}
}

// begin starts work in a goroutine, unless the copy is over.
func (x *session) begin(do func() error) (started bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.over {
		return false
	}
	x.work.Go(do)
	return true
}

// join adds a stream and starts work with it, unless the copy is over.
func (x *session) join(s *stream, do func(*stream) error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.over {
		s.raw.Close()
		return
	}
	x.conns = append(x.conns, s)
	x.work.Go(func() error {
		err := do(s)
		x.mu.Lock()
		defer x.mu.Unlock()
		if x.over {
			return nil
		}
		return err
	})
}

// read handles the frames of the control connection until it ends. handle may use its
// buffer until it returns.
func (x *session) read(handle func(kind byte, payload []byte) error) {
	defer close(x.told)
	buf := make([]byte, 0, 64<<10)
	for {
		kind, payload, err := readFrame(x.ctl.in, &buf)
		if err != nil {
			x.cancel(&PeerError{Err: err})
			return
		}
		if kind == kindError {
			var f failure
			if err := json.Unmarshal(payload, &f); err != nil {
				f = failure{"other", "it failed"}
			}
			x.reason = f.err()
			x.cancel(x.reason)
			return
		}
		if x.ctx.Err() != nil || kind == kindAlive {
			continue // only the other end's error still matters
		}
		if err := handle(kind, payload); err != nil {
			x.cancel(err)
		}
	}
}

// settle returns the final error of a session: the other end's error, if this end only
// noticed that the connection broke. It reports this end's error to the other end.
func (x *session) settle(err error) error {
	if err == nil {
		return nil
	}
	if cause := context.Cause(x.ctx); cause != nil && errors.Is(err, context.Canceled) {
		err = cause
	}
	var gone *PeerError
	if errors.As(err, &gone) {
		select {
		case <-x.told:
			if x.reason != nil {
				return x.reason
			}
		case <-time.After(lastWords):
		case <-x.outer.Done():
		}
		return err
	}
	if err != x.reason {
		_ = x.ctl.sendJSON(kindError, toWire(err)) // the other end may be gone
	}
	return err
}

// send is the sender's side of a session. It calls setup with the work of each stream, and
// more with the number of further streams that would help. none is closed when there will
// be no stream; it is nil if the other end reports that. how is nil if the receiver is to
// send it.
func (x *session) send(at place, how *start, none chan struct{}, fixed bool, setup func(do func(*stream) error), more func(n int) error) (*totals, error) {
	s := newSender(x.ctl, at)
	s.keep = x.keep
	alone := func() {} // this end has closed none
	if none == nil {
		none = make(chan struct{})
		alone = sync.OnceFunc(func() { close(none) })
	}
	begin := make(chan *start, 1)
	if how != nil {
		begin <- how
	}
	done := make(chan *totals, 1)
	go x.read(func(kind byte, payload []byte) error {
		switch kind {
		case kindStart:
			var told start
			if err := json.Unmarshal(payload, &told); err != nil {
				return errForm
			}
			select {
			case begin <- &told:
				return nil
			default:
				return errForm
			}
		case kindWants:
			return s.answer(x.ctx, payload)
		case kindNone:
			alone()
			return nil
		case kindDone:
			t := &totals{}
			if err := json.Unmarshal(payload, t); err != nil {
				return errForm
			}
			x.mu.Lock()
			x.over = true
			x.mu.Unlock()
			select {
			case done <- t:
				return nil
			default: // it was closed before
				return errForm
			}
		}
		return errForm
	})
	select {
	case how = <-begin:
	case <-x.ctx.Done():
		return nil, x.settle(context.Cause(x.ctx))
	}
	hands := crew{gone: make(chan struct{})}
	hands.join()
	x.work.Go(func() error {
		defer hands.leave()
		return s.inline(x.ctx, none)
	})
	setup(func(t *stream) error {
		if !hands.join() {
			return nil
		}
		defer hands.leave()
		return s.serve(x.ctx, t)
	})
	pace, stop := context.WithCancel(x.ctx)
	defer stop()
	if !fixed {
		x.work.Go(func() error { return s.grow(pace, more) })
	}
	var result *totals
	x.work.Go(func() error {
		defer stop()
		if err := s.run(x.ctx, *how); err != nil {
			return err
		}
		// The queue may be full while there is no stream yet.
		hands.dismiss()
		select {
		case <-hands.gone:
		case <-x.ctx.Done():
			return context.Cause(x.ctx)
		}
		stop()
		s.mu.Lock()
		t := s.total
		s.mu.Unlock()
		t.Sent = s.sent.Load()
		if err := x.ctl.sendJSON(kindEnd, &t); err != nil {
			return err
		}
		select {
		case result = <-done:
		case <-x.ctx.Done():
			// The other end may close the connection after it has sent that it is done.
			select {
			case result = <-done:
			default:
				return context.Cause(x.ctx)
			}
		}
		x.close()
		return nil
	})
	if err := x.work.Wait(); err != nil {
		return nil, x.settle(err)
	}
	result.lost = s.lost
	return result, nil
}

// crew are the goroutines that send chunks. They may join until the queue is closed and all
// members have left.
type crew struct {
	gone chan struct{} // closed at that moment

	mu   sync.Mutex
	busy int
	last bool // the queue is closed
}

// join reports whether there may still be chunks to send. A goroutine that has joined must
// leave.
func (c *crew) join() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last && c.busy == 0 {
		return false
	}
	c.busy++
	return true
}

func (c *crew) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.busy--
	c.look()
}

// dismiss is called once, after the queue was closed.
func (c *crew) dismiss() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = true
	c.look()
}

func (c *crew) look() {
	if c.last && c.busy == 0 {
		close(c.gone)
	}
}

// hooks are functions that a receiver calls if they are not nil: begin as in [Copy], and
// done when all data has arrived, before the sender is informed. If one returns an error,
// the copy ends.
type hooks struct {
	begin func(size int64) error
	done  func() error
}

// receive is the receiver's side of a session, whose settings the sender knows.
func (x *session) receive(at place, have []string, how *start, on hooks, setup func(do func(*stream) error), more func(n int) error) (*totals, error) {
	var had *index
	if len(have) > 0 {
		var err error
		if had, err = newIndex(x.ctx, have); err != nil {
			close(x.told)
			return nil, x.settle(err)
		}
	}
	r := newReceiver(x.ctl, at, had, how.Resumed)
	r.begin, r.keep = on.begin, x.keep
	defer r.close()
	looks := make(chan struct{}, runtime.GOMAXPROCS(0))
	go x.read(func(kind byte, payload []byte) error {
		switch kind {
		case kindEntries:
			return r.list(payload)
		case kindLost:
			return r.lose(payload)
		case kindData:
			return r.data(x.ctx, payload, r.known)
		case kindChunks:
			batch := append([]byte(nil), payload...)
			looks <- struct{}{}
			if !x.begin(func() error {
				defer func() { <-looks }()
				return r.offered(x.ctx, batch)
			}) {
				<-looks
			}
			return nil
		case kindGrow:
			if len(payload) != 4 {
				return errForm
			}
			return more(int(binary.LittleEndian.Uint32(payload)))
		case kindEnd:
			t := &totals{}
			if err := json.Unmarshal(payload, t); err != nil {
				return errForm
			}
			r.end(t)
			return nil
		case kindNone:
			return nil
		}
		return errForm
	})
	setup(func(s *stream) error { return r.take(x.ctx, s) })
	var result *totals
	x.work.Go(func() error {
		t, err := r.finish(x.ctx)
		if err == nil && on.done != nil {
			err = on.done()
		}
		if err != nil {
			return err
		}
		result = t
		// Errors of streams do not matter any more.
		x.close()
		return nil
	})
	if err := x.work.Wait(); err != nil {
		return nil, x.settle(err)
	}
	if err := x.ctl.sendJSON(kindDone, result); err != nil {
		return nil, err
	}
	return result, nil
}
