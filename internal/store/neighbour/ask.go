package neighbour

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
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
	heard    time.Time // a byte came from it
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

// flightKey names a flight. One for another neighbour does not wait for one of this node: see ask.
type flightKey struct {
	digest object.Digest
	again  bool
}

// flight is one request to neighbours for an object, shared by all its callers.
type flight struct {
	done            chan struct{}
	stored, content []byte
}

// Object returns an object from a neighbour, verified, or nil if this node is to ask the
// origin. It implements origin.Near.
func (h *Share) Object(ctx context.Context, d object.Digest) (stored, content []byte) {
	return h.object(ctx, d, false)
}

// object is Object; again is true if it is for another neighbour.
func (h *Share) object(ctx context.Context, d object.Digest, again bool) (stored, content []byte) {
	s := h.site
	if stored := s.remembered(d); stored != nil {
		if content, err := object.Decode(nil, d, -1, stored); err == nil {
			return stored, content
		}
	}
	s.mu.Lock()
	key := flightKey{d, again}
	f := s.flights[key]
	if f == nil {
		f = &flight{done: make(chan struct{})}
		s.flights[key] = f
		go func() { // it continues for others if ctx ends; the time for each neighbour is limited
			f.stored, f.content = h.ask(context.WithoutCancel(ctx), d, again)
			s.mu.Lock()
			delete(s.flights, key)
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

// owners returns the owners of an object that this node asks: none if it is the first itself.
func (s *Site) owners(d object.Digest) []string {
	list := s.ranked(d)
	if i := slices.Index(list, s.me()); i >= 0 {
		list = list[:i]
	}
	return list
}

// ask asks the owners of an object: the next when one has failed or is silent. A request to a
// silent one continues, since a busy machine has done work for it that would have to be done again.
func (h *Share) ask(ctx context.Context, d object.Digest, again bool) (stored, content []byte) {
	s := h.site
	owners := s.owners(d)
	// An answer to a neighbour never waits for a request of this node: nodes would wait for each
	// other.
	if !again && len(owners) > 0 {
		s.asking <- struct{}{} // each holder has a time limit
		defer func() { <-s.asking }()
		owners = s.owners(d) // some may be left out by now
	}
	if len(owners) == 0 {
		return nil, nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, whole, fmt.Errorf("%w: no whole object within %v", errSlow, whole))
	defer cancel()
	type answer struct {
		stored, content []byte
		err             error
	}
	answers, silent := make(chan answer, len(owners)), make(chan struct{}, len(owners))
	pending := 0
	var patience time.Duration // with the neighbour that was asked last
	next := func() {
		a := owners[0]
		owners = owners[1:]
		pending++
		patience = s.patience(a)
		wait := patience
		go func() {
			quiet := time.AfterFunc(wait, func() {
				s.note(a, 0, fmt.Errorf("%w: no byte for %v", errSlow, wait))
				select {
				case silent <- struct{}{}:
				default: // it was silent before
				}
			})
			stored, content, err := s.get(ctx, a, h.key, d, again, func() { quiet.Reset(silence) })
			quiet.Stop()
			if ctx.Err() == nil || err == nil || errors.Is(err, errSlow) {
				s.note(a, len(stored), err)
			}
			answers <- answer{stored, content, err}
		}()
	}
	next()
	var last <-chan time.Time // the end of the wait, when all are silent
	for pending > 0 {
		select {
		case got := <-answers:
			pending--
			if got.err == nil {
				return got.stored, got.content
			}
			if len(owners) > 0 {
				next()
			}
		case <-silent:
			if len(owners) > 0 {
				next()
			} else if last == nil {
				last = time.After(patience)
			}
		case <-last:
			return nil, nil
		}
	}
	return nil, nil
}

// errSlow is the error of a neighbour that may be alive.
var errSlow = errors.New("it is slow")

// errBusy and errOrigin say nothing about the health of a neighbour.
var (
	errBusy   = errors.New("it has too many requests")
	errOrigin = errors.New("it could not fetch the object")
)

// get gets an object from a neighbour, and verifies it. It calls alive when bytes arrive.
func (s *Site) get(ctx context.Context, address, key string, d object.Digest, again bool, alive func()) (stored, content []byte, err error) {
	defer func() {
		if err != nil && context.Cause(ctx) != nil {
			err = context.Cause(ctx)
		}
	}()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address+"/v1/origins/"+key+"/objects/"+d.String(), nil)
	if err != nil {
		return nil, nil, err
	}
	if again {
		r.Header.Set(relayed, "1")
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
	body := bufio.NewReader(&heard{answer.Body, func() { alive(); s.heard(address) }})
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

// heard is a body for whose every byte a function is called.
type heard struct {
	io.Reader
	got func()
}

func (h *heard) Read(p []byte) (int, error) {
	n, err := h.Reader.Read(p)
	if n > 0 {
		h.got()
	}
	return n, err
}

// patience returns how long a neighbour may be silent: a short time if it failed the last time, so
// that one that hangs costs the long time once.
func (s *Site) patience(address string) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.peers[address]; p != nil && p.fails > 0 {
		return silence / 8
	}
	return silence
}

// heard records that a neighbour is alive.
func (s *Site) heard(address string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.peers[address]; p != nil {
		p.heard = time.Now()
	}
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
		p.fails, p.until = 0, time.Time{}
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
	if now.Sub(p.heard) < silence && (errors.Is(err, errSlow) || os.IsTimeout(err)) {
		return // it is slow, and answers
	}
	rest := min(restFirst<<min(p.fails, 10), restMost)
	p.fails++
	switch {
	case object.IsCorrupt(err):
		p.corrupt++
		rest = restLiar
	case errors.Is(err, errSlow):
		rest = max(rest, silence) // those who wait for it do not ask it again meanwhile
	}
	p.until = now.Add(rest)
	s.o.Log.Warn("a neighbour is left out", "neighbour", address, "for", rest, "error", err)
}
