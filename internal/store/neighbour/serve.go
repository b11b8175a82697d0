package neighbour

import (
	"context"
	"crypto/tls"
	"errors"
	"log"
	"net/http"
	"slices"
	"strings"
	"time"

	"premix/internal/kit/access"
	"premix/internal/kit/bounded"
	"premix/internal/store/object"
)

const (
	// requestsMost is how many requests of neighbours are answered at once, and waitingMost how
	// many wait for their turn, which their askers are told.
	requestsMost = 256
	waitingMost  = 8192
	// connections of neighbours, and of one address. Many nodes may be behind one.
	connectionsMost = 4096
	// alive is the time between two signs of life.
	alive = 2 * time.Second
	// stall is the longest time in which a neighbour must take one MiB.
	stall = 30 * time.Second
)

// Bytes of the protocol.
const (
	waiting = '.'
	follows = 'O'
	missing = 'N'
	failed  = 'E'
)

// relayed is a field of the header of a request that a neighbour makes for another one. The
// node that gets it asks only the origin, so that requests do not go round.
const relayed = "Premix-Relayed"

// ErrNone is the error of a [Source] that does not have an object.
var ErrNone = errors.New("the origins do not have the object")

// Source gives the objects of a share.
type Source struct {
	// Origin asks the origins for an object, and returns its verified stored form. The
	// error is an ErrNone if they do not have it.
	Origin func(ctx context.Context, d object.Digest) ([]byte, error)
	// Cached returns the verified content of an object that is in the cache of this
	// machine, in one of the trees for which shared is true.
	Cached func(d object.Digest, shared func(tree object.Digest) bool) ([]byte, bool)
}

// Share is a set of origins whose objects a node gives to its neighbours.
type Share struct {
	site *Site
	key  string
	from Source // guarded by Site.mu
	// used is when it was last given to a mount; trees came from these origins.
	used  time.Time
	trees map[object.Digest]bool
}

// Share returns the share of origins that need no credentials.
func (s *Site) Share(urls []string) *Share {
	list := slices.Clone(urls)
	for i, u := range list {
		list[i] = strings.TrimRight(u, "/")
	}
	slices.Sort(list)
	sum := object.Sum([]byte(strings.Join(slices.Compact(list), "\n")))
	key := sum.String()
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.shares[key]
	if h == nil {
		if len(s.shares) >= sharesMost {
			var oldest *Share
			for _, o := range s.shares {
				if oldest == nil || o.used.Before(oldest.used) {
					oldest = o
				}
			}
			delete(s.shares, oldest.key)
		}
		h = &Share{site: s, key: key, trees: map[object.Digest]bool{}}
		s.shares[key] = h
	}
	h.used = time.Now()
	return h
}

// From sets the source of the share's objects.
func (h *Share) From(src Source) {
	h.site.mu.Lock()
	defer h.site.mu.Unlock()
	h.from = src
}

// Tree records that a tree came from these origins: its chunks in the cache may be given to
// neighbours.
func (h *Share) Tree(d object.Digest) {
	h.site.mu.Lock()
	defer h.site.mu.Unlock()
	h.trees[d] = true
}

func (h *Share) has(d object.Digest) bool {
	h.site.mu.Lock()
	defer h.site.mu.Unlock()
	return h.trees[d]
}

// listen serves neighbours at the address of the options.
func (s *Site) listen(config *tls.Config) error {
	l, err := access.Listen(context.Background(), access.Options{Address: s.o.Listen, Secret: true})
	if err != nil {
		return err
	}
	s.listener = l
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/origins/{share}/objects/{digest}", s.answer)
	s.server = &http.Server{
		Handler: mux, TLSConfig: config, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10,
		ConnState: bounded.TrackState(nil), ErrorLog: log.New(nowhere{}, "", 0), HTTP2: &http.HTTP2Config{MaxConcurrentStreams: 64},
	}
	few := bounded.New(l, bounded.Options{Total: min(connectionsMost, bounded.Descriptors()), Source: min(connectionsMost, bounded.Descriptors()) / 2, Stall: stall})
	go func() {
		if err := s.server.ServeTLS(few, "", ""); !errors.Is(err, http.ErrServerClosed) {
			s.o.Log.Error("neighbours are not served", "error", err)
		}
	}()
	return nil
}

// nowhere discards the errors of connections, such as those of scanners.
type nowhere struct{}

func (nowhere) Write(b []byte) (int, error) { return len(b), nil }

// answer answers a neighbour.
func (s *Site) answer(w http.ResponseWriter, r *http.Request) {
	d, err := object.ParseDigest(r.PathValue("digest"))
	s.mu.Lock()
	h := s.shares[r.PathValue("share")]
	var from Source
	if h != nil {
		from = h.from
	}
	s.mu.Unlock()
	if err != nil || from.Origin == nil {
		http.Error(w, errShare.Error(), http.StatusNotFound)
		return
	}
	defer s.waiting.Add(-1)
	if s.waiting.Add(1) > waitingMost {
		http.Error(w, errBusy.Error(), http.StatusServiceUnavailable)
		return
	}
	type result struct {
		stored []byte
		err    error
	}
	ctx, cancel := context.WithTimeout(r.Context(), whole)
	defer cancel()
	done := make(chan result, 1)
	go func() {
		stored, err := s.inTurn(ctx, h, from, d, r.Header.Get(relayed) != "")
		done <- result{stored, err}
	}()
	out := http.NewResponseController(w)
	w.Header().Set("Content-Type", "application/octet-stream")
	w.WriteHeader(http.StatusOK)
	tick := time.NewTicker(alive)
	defer tick.Stop()
	for {
		select {
		case got := <-done:
			kind := byte(follows)
			if errors.Is(got.err, ErrNone) {
				kind = missing
			} else if got.err != nil {
				kind = failed
			}
			_, err := w.Write([]byte{kind})
			if kind != follows {
				return
			}
			// The bytes are shared with other answers.
			if _, err2 := w.Write(got.stored); err == nil && err2 == nil {
				s.mu.Lock()
				s.served.Objects++
				s.served.Bytes += int64(len(got.stored))
				s.mu.Unlock()
			}
			return
		case <-tick.C:
			if _, err := w.Write([]byte{waiting}); err != nil || out.Flush() != nil {
				return
			}
		}
	}
}

// inTurn returns the stored form of an object when it is its turn. again is true for a
// request that a neighbour has relayed.
func (s *Site) inTurn(ctx context.Context, h *Share, from Source, d object.Digest, again bool) ([]byte, error) {
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	stored, err := s.object(ctx, h, from, d, again)
	if err == nil && s.limit != nil {
		err = s.limit.WaitN(ctx, len(stored))
	}
	return stored, err
}

// object returns the stored form of an object. In memory are only objects of shares, which need no
// credentials. It comes from memory, from the cache, from a neighbour before this one in the
// order of owners, which the asker may have found too slow, or from the origin.
func (s *Site) object(ctx context.Context, h *Share, from Source, d object.Digest, again bool) ([]byte, error) {
	if stored := s.remembered(d); stored != nil {
		return stored, nil
	}
	if content, ok := from.Cached(d, h.has); ok {
		stored := object.Encode(nil, content)
		s.keep(d, stored)
		return stored, nil
	}
	if !again {
		if stored, _ := h.object(ctx, d, true); stored != nil {
			s.keep(d, stored)
			return stored, nil
		}
	}
	stored, err := from.Origin(ctx, d)
	if err == nil {
		s.keep(d, stored)
	}
	return stored, err
}
