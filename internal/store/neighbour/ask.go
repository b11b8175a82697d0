package neighbour

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"premix/internal/store/object"
)

const (
	restFirst = time.Second
	restMost  = time.Minute
	// restLiar is how long a neighbour that gave wrong bytes is left out.
	restLiar = 10 * time.Minute
)

// peer is a neighbour with its health. Its fields are guarded by Site.mu.
type peer struct {
	address  string
	until    time.Time // it is left out
	fails    int       // in a row
	requests int64
	objects  int64
	bytes    int64
	errs     int64
	corrupt  int64
	last     string
}

// Status is the state of a neighbour.
type Status struct {
	Address   string    `json:"address"`
	LeftOut   bool      `json:"left_out"`
	Until     time.Time `json:"until,omitzero"` // end of the time for which it is left out
	Requests  int64     `json:"requests"`
	Objects   int64     `json:"objects"` // received
	Bytes     int64     `json:"bytes"`
	Errors    int64     `json:"errors"`
	Corrupt   int64     `json:"corrupt"` // wrong objects, included in Errors
	LastError string    `json:"last_error,omitempty"`
}

func (p *peer) status() Status {
	s := Status{Address: p.address, Requests: p.requests, Objects: p.objects, Bytes: p.bytes, Errors: p.errs, Corrupt: p.corrupt, LastError: p.last}
	if time.Now().Before(p.until) {
		s.LeftOut, s.Until = true, p.until
	}
	return s
}

// flight is one request to neighbours for an object, shared by all its callers.
type flight struct {
	done            chan struct{}
	stored, content []byte
}

// Object returns an object from a neighbour, verified, or nil if this node is to ask the
// origin. It implements origin.Near.
func (h *Share) Object(ctx context.Context, d object.Digest) (stored, content []byte) {
	s := h.site
	if stored := s.remembered(d); stored != nil {
		if content, err := object.Decode(nil, d, -1, stored); err == nil {
			return stored, content
		}
	}
	s.mu.Lock()
	f := s.flights[d]
	if f == nil {
		f = &flight{done: make(chan struct{})}
		s.flights[d] = f
		go func() { // it continues for others if ctx ends; the time for each neighbour is limited
			f.stored, f.content = h.ask(context.WithoutCancel(ctx), d)
			s.mu.Lock()
			delete(s.flights, d)
			s.mu.Unlock()
			close(f.done)
		}()
	}
	s.mu.Unlock()
	select {
	case <-f.done:
		return f.stored, f.content
	case <-ctx.Done():
		return nil, nil
	}
}

// Keep keeps an object that came from the origin, if neighbours will ask this node for it. It
// implements origin.Near.
func (h *Share) Keep(d object.Digest, stored []byte) {
	for _, a := range h.site.ranked(d) {
		if a == h.site.me() {
			h.site.keep(d, stored)
		}
	}
}

func (s *Site) me() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.self
}

// ask asks the owners of an object, one after the other.
func (h *Share) ask(ctx context.Context, d object.Digest) (stored, content []byte) {
	s := h.site
	for _, a := range s.ranked(d) {
		if a == s.me() {
			return nil, nil
		}
		stored, content, err := s.get(ctx, a, h.key, d)
		s.note(a, len(stored), err)
		if err == nil {
			return stored, content
		}
	}
	return nil, nil
}

// errBusy and errOrigin say nothing about the health of a neighbour.
var (
	errBusy   = errors.New("it has too many requests")
	errOrigin = errors.New("it could not fetch the object")
)

// get gets an object from a neighbour, and verifies it.
func (s *Site) get(ctx context.Context, address, key string, d object.Digest) (stored, content []byte, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, whole, fmt.Errorf("no whole object within %v", whole))
	defer cancel()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	quiet := time.AfterFunc(connectTime+silence, func() { stop(fmt.Errorf("no byte for %v", silence)) })
	defer quiet.Stop()
	defer func() {
		if err != nil && context.Cause(ctx) != nil {
			err = context.Cause(ctx)
		}
	}()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address+"/v1/origins/"+key+"/objects/"+d.String(), nil)
	if err != nil {
		return nil, nil, err
	}
	answer, err := s.client.Do(r)
	if err != nil {
		return nil, nil, err
	}
	defer answer.Body.Close()
	switch answer.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound:
		return nil, nil, errShare
	case http.StatusServiceUnavailable:
		return nil, nil, errBusy
	default:
		return nil, nil, fmt.Errorf("it answers %s", answer.Status)
	}
	body := bufio.NewReader(&heard{answer.Body, quiet})
	for {
		b, err := body.ReadByte()
		if err != nil {
			return nil, nil, fmt.Errorf("its answer ends: %w", err)
		}
		switch b {
		case waiting:
			continue
		case missing, failed:
			return nil, nil, errOrigin
		case follows:
		default:
			return nil, nil, fmt.Errorf("its answer has a byte %#x", b)
		}
		break
	}
	if stored, err = io.ReadAll(io.LimitReader(body, object.MaxStored+1)); err != nil {
		return nil, nil, fmt.Errorf("its answer ends: %w", err)
	}
	if content, err = object.Decode(nil, d, -1, stored); err != nil {
		return nil, nil, err
	}
	if content == nil {
		content = []byte{}
	}
	return stored, content, nil
}

// heard is a body whose every byte postpones the end of the patience.
type heard struct {
	io.Reader
	quiet *time.Timer
}

func (h *heard) Read(p []byte) (int, error) {
	n, err := h.Reader.Read(p)
	if n > 0 {
		h.quiet.Reset(silence)
	}
	return n, err
}

// note records the outcome of a request to a neighbour.
func (s *Site) note(address string, bytes int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.peers[address]
	if p == nil {
		return // it is no longer in the list
	}
	p.requests++
	switch {
	case err == nil:
		p.objects++
		p.bytes += int64(bytes)
		p.fails = 0
		return
	case errors.Is(err, errShare), errors.Is(err, errBusy), errors.Is(err, errOrigin):
		return
	}
	p.errs++
	p.last = err.Error()
	now := time.Now()
	if now.Before(p.until) {
		return // of a request from before
	}
	rest := min(restFirst<<min(p.fails, 10), restMost)
	p.fails++
	if object.IsCorrupt(err) {
		p.corrupt++
		rest = restLiar
	}
	p.until = now.Add(rest)
	s.o.Log.Warn("a neighbour is left out", "neighbour", address, "for", rest, "error", err)
}
