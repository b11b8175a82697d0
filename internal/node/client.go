package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/kit/unixpeer"
	"premix/internal/store/cache"
)

// Client sends requests to a node. It is safe for concurrent use.
type Client struct {
	dir  string
	http *http.Client
}

// NewClient returns a client of the node whose directory is dir. It connects when it is
// used.
func NewClient(dir string) *Client {
	dial := func(ctx context.Context, _, _ string) (conn net.Conn, err error) {
		err = short(dir, func(dir string) error {
			conn, err = new(net.Dialer).DialContext(ctx, "unix", socketPath(dir))
			return err
		})
		if err != nil {
			return nil, err
		}
		// Another user could have put a socket there, and would receive the requests
		// and answer them.
		if err := unixpeer.Check(conn); err != nil {
			conn.Close()
			return nil, err
		}
		return conn, nil
	}
	// A mount may take as long as its origins.
	return &Client{dir, &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}}
}

// lostError means that the connection broke before the answer was received.
type lostError struct{ err error }

func (e *lostError) Error() string { return "the connection to the node broke: " + e.err.Error() }
func (e *lostError) Unwrap() error { return e.err }

// do makes one request. out may be nil.
func (c *Client) do(ctx context.Context, method, path string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://node"+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED) {
			return notRunning(c.dir)
		}
		if errors.Is(err, os.ErrPermission) {
			return &Error{Kind: KindUsage, Message: "the node in " + c.dir + " belongs to another user", HintText: "run the command as that user, or set PREMIX_HOME to a directory of your own"}
		}
		return &lostError{err}
	}
	defer resp.Body.Close()
	content, err := io.ReadAll(resp.Body)
	if err != nil {
		return &lostError{err}
	}
	if resp.StatusCode/100 != 2 {
		var e Error
		if err := json.Unmarshal(content, &e); err != nil || e.Message == "" {
			return &Error{Kind: KindInternal, Message: fmt.Sprintf("the node answered %s to %s", resp.Status, path), HintText: "it may have another version: premix node restart"}
		}
		return &e
	}
	switch out := out.(type) {
	case nil:
		return nil
	case *[]byte:
		*out = content
		return nil
	}
	if err := json.Unmarshal(content, out); err != nil {
		return fmt.Errorf("the node's answer to %s: %w", path, err)
	}
	return nil
}

func notRunning(dir string) error {
	return &Error{Kind: KindNotRunning, Message: "no node is running in " + dir, HintText: "premix node start; premix mount starts one too"}
}

// retry repeats an idempotent request while a dead worker is being replaced.
func (c *Client) retry(ctx context.Context, method, path string, in, out any) error {
	for started := time.Now(); ; {
		err := c.do(ctx, method, path, in, out)
		var lost *lostError
		if !errors.As(err, &lost) || time.Since(started) > 30*time.Second {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// ping returns nil if the node answers.
func (c *Client) ping(ctx context.Context) error {
	return c.retry(ctx, http.MethodGet, "/v1/ping", nil, nil)
}

// Mount mounts a tree and returns when it can be used.
func (c *Client) Mount(ctx context.Context, r MountRequest) (*Mounted, error) {
	var m Mounted
	if err := c.retry(ctx, http.MethodPost, "/v1/mount", r, &m); err != nil {
		return nil, err
	}
	return &m, nil
}

// Umount ends mounts, and returns those that have ended.
func (c *Client) Umount(ctx context.Context, r UmountRequest) ([]Mounted, error) {
	var list []Mounted
	var lost *lostError
	err := c.do(ctx, http.MethodPost, "/v1/umount", r, &list)
	if errors.As(err, &lost) {
		// The worker that died may have done it, or its successor may.
		err = c.retry(ctx, http.MethodPost, "/v1/umount", r, &list)
		if IsKind(err, KindNotMounted) {
			err = nil
		}
	}
	return list, err
}

// Status returns the node's status.
func (c *Client) Status(ctx context.Context) (*Status, error) {
	var s Status
	if err := c.retry(ctx, http.MethodGet, "/v1/status", nil, &s); err != nil {
		return nil, err
	}
	return &s, nil
}

// Metrics returns the metrics in Prometheus' text format.
func (c *Client) Metrics(ctx context.Context) ([]byte, error) {
	var text []byte
	err := c.retry(ctx, http.MethodGet, "/v1/metrics", nil, &text)
	return text, err
}

// Restart replaces the worker, and returns when the new one serves.
func (c *Client) Restart(ctx context.Context, r RestartRequest) (*Status, error) {
	before, err := c.Status(ctx)
	if err != nil {
		return nil, err
	}
	var lost *lostError
	// The worker that should answer is the one that ends.
	if err := c.do(ctx, http.MethodPost, "/v1/restart", r, nil); err != nil && !errors.As(err, &lost) {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	for {
		now, err := c.Status(ctx)
		if err != nil {
			return nil, err
		}
		if now.Worker != before.Worker {
			return now, nil
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// Stop unmounts everything and ends the node. It returns when the node is gone.
func (c *Client) Stop(ctx context.Context, r StopRequest) error {
	var lost *lostError
	if err := c.do(ctx, http.MethodPost, "/v1/stop", r, nil); err != nil && !errors.As(err, &lost) {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	for {
		lock, err := takeLock(c.dir)
		if err == nil {
			defer lock.Close()
			if j, err := readJournal(c.dir); err != nil || len(j.Mounts) > 0 {
				return notRunning(c.dir) // it was killed before it could answer
			}
			return nil
		}
		if !errors.Is(err, errLocked) {
			return err
		}
		select {
		case <-ctx.Done():
			return &Error{Kind: KindInternal, Message: "the node does not end", HintText: "see its log " + logPath(c.dir)}
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// Cache returns the content of the cache.
func (c *Client) Cache(ctx context.Context) (*CacheStatus, error) {
	var s CacheStatus
	if err := c.retry(ctx, http.MethodGet, "/v1/cache", nil, &s); err != nil {
		return nil, err
	}
	return &s, nil
}

// Drop removes trees from the cache.
func (c *Client) Drop(ctx context.Context, r TreeRequest) (*CacheChange, error) {
	return c.change(ctx, "drop", r)
}

// Pin protects trees in the cache from eviction.
func (c *Client) Pin(ctx context.Context, r TreeRequest) (*CacheChange, error) {
	return c.change(ctx, "pin", r)
}

// Unpin permits eviction of trees again.
func (c *Client) Unpin(ctx context.Context, r TreeRequest) (*CacheChange, error) {
	return c.change(ctx, "unpin", r)
}

func (c *Client) change(ctx context.Context, verb string, r TreeRequest) (*CacheChange, error) {
	var done CacheChange
	if err := c.retry(ctx, http.MethodPost, "/v1/cache/"+verb, r, &done); err != nil {
		return nil, err
	}
	return &done, nil
}

// Check hashes all chunks in the cache.
func (c *Client) Check(ctx context.Context) (*cache.CheckReport, error) {
	var r cache.CheckReport
	if err := c.retry(ctx, http.MethodPost, "/v1/cache/check", struct{}{}, &r); err != nil {
		return nil, err
	}
	return &r, nil
}
