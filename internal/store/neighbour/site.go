package neighbour

import (
	"container/list"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"premix/internal/kit/access"
	"premix/internal/store/object"
)

const (
	// asked is how many neighbours are asked for an object.
	asked = 2
	// connectTime limits connecting, and whole the time until an answer is complete. A reader
	// waits for 45 seconds, and the origin is asked after this.
	connectTime = 2 * time.Second
	whole       = 30 * time.Second
	// atOnce is how many objects are asked of neighbours at the same time. When all nodes of a
	// site start, more of them would only make the owners slower.
	atOnce = 8
	// lookUp is how often names are looked up.
	lookUp = 30 * time.Second
	// recentBytes bounds the objects in memory that a node has fetched as their owner.
	recentBytes = 64 << 20
	// sharesMost bounds the shares that a node remembers.
	sharesMost = 64
)

// silence is the time without a byte of an answer after which the next owner is asked too. It is
// variable for tests.
var silence = 15 * time.Second

// DNS begins a list whose addresses are those of one name: dns:NAME:PORT.
const DNS = "dns:"

// Options configure a site.
type Options struct {
	Token  string       // of the site
	Listen string       // HOST:PORT at which neighbours ask this node; "" for none
	List   string       // of the neighbours: HOST:PORT,HOST:PORT or dns:NAME:PORT; this node may be among them
	Rate   int64        // bytes for neighbours in each second; 0: no limit
	Log    *slog.Logger // of events
}

// ListError reports an invalid list of neighbours.
type ListError struct{ Item string }

func (e *ListError) Error() string {
	return fmt.Sprintf("%q is not the address of a neighbour", e.Item)
}

// Hint returns the hint for the user.
func (*ListError) Hint() string {
	return "write HOST:PORT,HOST:PORT or dns:NAME:PORT"
}

// CheckList returns a [ListError] if a list is invalid.
func CheckList(list string) error {
	_, err := parseList(list)
	return err
}

func parseList(list string) ([]string, error) {
	var all []string
	name, isName := strings.CutPrefix(list, DNS)
	if isName {
		list = name
	}
	for item := range strings.SplitSeq(list, ",") {
		item = strings.TrimSpace(item)
		if item == "" && !isName {
			continue
		}
		host, port, err := net.SplitHostPort(item)
		if err != nil || host == "" || port == "" || port == "0" || strings.ContainsAny(item, "/@ ") {
			return nil, &ListError{item}
		}
		all = append(all, item)
	}
	return all, nil
}

// Site is a node's view of its neighbours.
type Site struct {
	o        Options
	listener *access.Listener
	server   *http.Server
	client   *http.Client
	limit    *rate.Limiter // nil for none
	asking   chan struct{} // of requests to neighbours
	slots    chan struct{} // of requests from neighbours
	waiting  atomic.Int64  // requests that have a slot, or wait for one
	end      context.CancelFunc

	mu        sync.Mutex
	peers     map[string]*peer // by address
	order     []string         // addresses, this node's too
	self      string           // "" if this node is not in the list
	shares    map[string]*Share
	flights   map[flightKey]*flight
	recent    map[object.Digest]*list.Element
	lru       *list.List // of *kept, most recently used first
	keptBytes int64
	served    Counts
}

// Counts are the objects that a node gave to its neighbours.
type Counts struct {
	Objects int64 `json:"objects"`
	Bytes   int64 `json:"bytes"`
}

type kept struct {
	digest object.Digest
	stored []byte
}

// Open listens for neighbours, if the options say so, and looks up the list. The error may be
// a [ListError] or one of package access.
func Open(o Options) (*Site, error) {
	if _, err := parseList(o.List); err != nil {
		return nil, err
	}
	config, err := access.Mutual(o.Token)
	if err != nil {
		return nil, err
	}
	s := &Site{
		o: o, asking: make(chan struct{}, atOnce), slots: make(chan struct{}, requestsMost),
		peers: map[string]*peer{}, shares: map[string]*Share{}, flights: map[flightKey]*flight{},
		recent: map[object.Digest]*list.Element{}, lru: list.New(),
	}
	if o.Rate > 0 {
		s.limit = rate.NewLimiter(rate.Limit(o.Rate), int(max(o.Rate, object.MaxStored)))
	}
	client := config.Clone()
	client.NextProtos = []string{"h2", "http/1.1"}
	s.client = &http.Client{Transport: &http.Transport{
		TLSClientConfig: client, ForceAttemptHTTP2: true, MaxIdleConnsPerHost: 1, IdleConnTimeout: time.Minute,
		DialContext: (&net.Dialer{Timeout: connectTime}).DialContext, TLSHandshakeTimeout: whole, DisableCompression: true,
	}}
	if o.Listen != "" {
		if err := s.listen(config); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.end = cancel
	s.lookUp(ctx)
	go func() {
		tick := time.NewTicker(lookUp)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				s.lookUp(ctx)
			case <-ctx.Done():
				return
			}
		}
	}()
	return s, nil
}

// Close ends all connections.
func (s *Site) Close() error {
	s.end()
	s.client.CloseIdleConnections()
	if s.server == nil {
		return nil
	}
	return s.server.Close()
}

// Addr returns the address at which neighbours ask this node.
func (s *Site) Addr() string {
	if s.listener == nil {
		return ""
	}
	return s.listener.Name()
}

// lookUp finds the neighbours of the list. If a name is not found, the addresses of the last
// time remain.
func (s *Site) lookUp(ctx context.Context) {
	items, _ := parseList(s.o.List)
	ctx, cancel := context.WithTimeout(ctx, lookUp/2)
	defer cancel()
	var order []string
	if strings.HasPrefix(s.o.List, DNS) {
		host, port, _ := net.SplitHostPort(items[0])
		found, err := net.DefaultResolver.LookupHost(ctx, host)
		if err != nil {
			s.o.Log.Warn("the neighbours are not looked up", "name", host, "error", err)
			return
		}
		for _, a := range found {
			order = append(order, net.JoinHostPort(a, port))
		}
	} else {
		order = items
	}
	slices.Sort(order)
	order = slices.Compact(order)
	self := ""
	for _, a := range order {
		if s.own(ctx, a) {
			self = a
			break
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.order, s.self = order, self
	for a := range s.peers {
		if !slices.Contains(order, a) {
			delete(s.peers, a)
		}
	}
	for _, a := range order {
		if s.peers[a] == nil && a != self {
			s.peers[a] = &peer{address: a}
		}
	}
}

// own reports whether an address is this node's.
func (s *Site) own(ctx context.Context, address string) bool {
	if s.listener == nil {
		return false
	}
	_, mine, err := net.SplitHostPort(s.listener.Name())
	host, port, err2 := net.SplitHostPort(address)
	if err != nil || err2 != nil || mine != port {
		return false
	}
	found, err := net.DefaultResolver.LookupHost(ctx, host)
	if err != nil {
		return false
	}
	local, err := net.InterfaceAddrs()
	if err != nil {
		return false
	}
	for _, a := range found {
		ip := net.ParseIP(a)
		for _, l := range local {
			if n, ok := l.(*net.IPNet); ok && ip != nil && n.IP.Equal(ip) {
				return true
			}
		}
	}
	return false
}

// ranked returns the addresses that own an object, first the owner, without those that are
// left out now.
func (s *Site) ranked(d object.Digest) []string {
	now := time.Now()
	type ranked struct {
		address string
		weight  uint64
	}
	var best [asked]ranked
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.order {
		if p := s.peers[a]; p != nil && now.Before(p.until) {
			continue
		}
		sum := object.Sum(append(d[:len(d):len(d)], a...))
		r := ranked{a, binary.LittleEndian.Uint64(sum[:])}
		for i := range best {
			if best[i].address == "" || r.weight > best[i].weight {
				best[i], r = r, best[i]
			}
		}
	}
	var list []string
	for _, r := range best {
		if r.address != "" {
			list = append(list, r.address)
		}
	}
	return list
}

// keep keeps an object in memory for neighbours.
func (s *Site) keep(d object.Digest, stored []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.recent[d] != nil {
		return
	}
	s.recent[d] = s.lru.PushFront(&kept{d, stored})
	s.keptBytes += int64(len(stored))
	for s.keptBytes > recentBytes {
		k := s.lru.Remove(s.lru.Back()).(*kept)
		delete(s.recent, k.digest)
		s.keptBytes -= int64(len(k.stored))
	}
}

func (s *Site) remembered(d object.Digest) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.recent[d]
	if e == nil {
		return nil
	}
	s.lru.MoveToFront(e)
	return e.Value.(*kept).stored
}

// Served returns what this node gave to its neighbours.
func (s *Site) Served() Counts {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.served
}

// Status returns the state of each neighbour, in order of addresses.
func (s *Site) Status() []Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := []Status{}
	for _, a := range s.order {
		if p := s.peers[a]; p != nil {
			list = append(list, p.status())
		}
	}
	return list
}

var errShare = errors.New("it does not share these origins")
