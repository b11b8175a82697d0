package dial

import (
	"context"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Connections that are opened ahead are used, or closed after a time limit.
func TestSpareConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var theirs []net.Conn
		closed := 0
		s := New(func(context.Context, string, string) (net.Conn, error) {
			ours, other := net.Pipe()
			mu.Lock()
			theirs = append(theirs, other)
			mu.Unlock()
			go func() {
				_, _ = other.Read(make([]byte, 1)) // returns when ours is closed
				mu.Lock()
				closed++
				mu.Unlock()
			}()
			return ours, nil
		})
		dial := func() net.Conn {
			c, err := s.DialContext(t.Context(), "tcp", "a:1")
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		count := func(what string, dialled, finished int) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if len(theirs) != dialled || closed != finished {
				t.Errorf("%s: %d were dialled, %d closed; want %d and %d", what, len(theirs), closed, dialled, finished)
			}
		}
		used := []net.Conn{dial()}
		count("without a wish", 1, 0)
		s.Want()
		used = append(used, dial())
		count("with one", 2+Spares, 0)
		used = append(used, dial(), dial())
		count("two of the spare ones", 2+Spares, 0)
		time.Sleep(2 * spareTime)
		count("after their time", 2+Spares, Spares-2)
		used = append(used, dial())
		count("then", 3+Spares, Spares-2)
		for _, c := range used {
			_ = c.Close()
		}
		count("at the end", 3+Spares, 3+Spares)
	})
}
