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

// TestJoinLate has streams join, and other work begin, while a copy fails: all that has
// begun is waited for, and nothing begins afterwards. The race detector shows who begins
// beside the wait.
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

// TestCrew has hands join and leave while the end is told: it comes once, when nobody is
// there, and nobody joins afterwards.
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
