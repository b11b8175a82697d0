package stream

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Clients that connect and send nothing do not keep out a client with the key, whether they
// come from one address or from many, and whether or not they connect again.
func TestStandingIdle(t *testing.T) {
	const crowd = 5000
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	old := limit
	if limit.Cur = max(limit.Cur, 3*crowd); limit.Cur > limit.Max {
		if limit.Max = limit.Cur; unix.Geteuid() != 0 {
			t.Skipf("the limit of open files is %d, and only root can raise it to %d", old.Max, limit.Cur)
		}
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
			t.Error(err)
		}
	}()
	for name, addresses := range map[string]int{"one address": 1, "many addresses": 250} {
		t.Run(name, func(t *testing.T) {
			k, key := keys(t)
			dir := t.TempDir()
			write(t, filepath.Join(dir, "file"), random(5, 3<<20))
			address, _ := stand(t, &Server{Dir: dir, Keys: k})
			// A copy that has begun before is not interrupted.
			early, err := dial(t.Context(), address, &hello{Certificate: key.certificate,
				Secret: append(append(append([]byte(nil), key.secret...), make([]byte, visitSize)...), roleControl)}, "", func(time.Duration) {})
			if err != nil {
				t.Fatal(err)
			}
			defer early.raw.Close()
			calm := time.Now()
			run(t, Copy{Server: address, Key: key, Local: filepath.Join(t.TempDir(), "calm"), Remote: "file"})
			limit := 2*time.Second + 20*time.Since(calm) // the machine may be slow
			ctx, cancel := context.WithCancel(t.Context())
			var open sync.WaitGroup
			var mu sync.Mutex
			var conns []net.Conn
			defer func() {
				cancel()
				mu.Lock()
				for _, c := range conns {
					c.Close()
				}
				mu.Unlock()
				open.Wait()
			}()
			connect := func(i int) (net.Conn, error) {
				from := net.IPv4(127, 1, byte(i%addresses/200), byte(1+i%addresses%200))
				c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: from}}).DialContext(ctx, "tcp", address)
				if err == nil {
					mu.Lock()
					conns = append(conns, c)
					mu.Unlock()
				}
				return c, err
			}
			for i := range crowd {
				c, err := connect(i)
				if err != nil {
					t.Fatal(err)
				}
				if i%10 == 0 {
					// One client in ten connects again each time the server closes its
					// connection.
					open.Go(func() {
						for ctx.Err() == nil {
							_, _ = c.Read(make([]byte, 1))
							if c, err = connect(i); err != nil {
								return
							}
						}
					})
				}
			}
			for i := range 5 {
				begin := time.Now()
				j := Copy{Server: address, Key: key, Local: filepath.Join(t.TempDir(), fmt.Sprint(i)), Remote: "file"}
				run(t, j)
				took := time.Since(begin)
				t.Logf("a copy took %v", took)
				if took > limit {
					t.Errorf("a copy took %v", took)
				}
				same(t, filepath.Join(dir, "file"), j.Local)
			}
			_ = early.raw.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
			// The server closes a connection without a request when its time is over.
			if _, err := early.tls.Read(make([]byte, 1)); time.Since(calm) < joinTime && !isTimeout(err) {
				t.Errorf("a connection with the key was cut off: %v", err)
			}
		})
	}
}

func isTimeout(err error) bool {
	e, ok := err.(net.Error)
	return ok && e.Timeout()
}
