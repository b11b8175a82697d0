package stream

import (
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestJoinLate checks that a session waits for all work that has begun, and that none
// begins afterwards, if streams join and other work begins while a copy fails. The race
// detector reports work that begins at the same time as the wait.
func TestJoinLate(t *testing.T) {
	failed := errors.New("failed")
	for range 200 {
		x := newSession(t.Context(), newControl(strings.NewReader(""), io.Discard), time.Minute)
		x.work.Go(func() error { return failed })
		var open, started atomic.Int64
		do := func() error {
			started.Add(1)
			open.Add(1)
			defer open.Add(-1)
			<-x.ctx.Done()
			return nil
		}
		var late sync.WaitGroup
		for range 4 {
			late.Go(func() {
				for range 20 {
					x.join(&stream{raw: &net.TCPConn{}}, func(*stream) error { return do() })
					x.begin(do)
				}
			})
		}
		if err := x.work.Wait(); err != failed {
			t.Fatal(err)
		}
		then := started.Load()
		if n := open.Load(); n != 0 {
			t.Fatalf("%d are still at work", n)
		}
		late.Wait()
		if x.begin(do) || started.Load() != then {
			t.Fatal("work began when the copy was over")
		}
	}
}

// TestCrew checks that hands can join and leave at any time, that the end is reported once,
// when no hand is left, and that no hand joins afterwards.
func TestCrew(t *testing.T) {
	for range 200 {
		c := crew{gone: make(chan struct{})}
		var open atomic.Int64
		var hands sync.WaitGroup
		for range 4 {
			hands.Go(func() {
				for range 20 {
					if c.join() {
						open.Add(1)
						open.Add(-1)
						c.leave()
					}
				}
			})
		}
		c.dismiss()
		<-c.gone
		if n := open.Load(); n != 0 {
			t.Fatalf("%d are still there", n)
		}
		hands.Wait()
		if c.join() {
			t.Fatal("somebody joined after the end")
		}
	}
}
