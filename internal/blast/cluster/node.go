package cluster

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"premix/internal/blast/database"
	"premix/internal/blast/part"
	"premix/internal/kit/access"
	"premix/internal/kit/beneath"
	"premix/internal/kit/bounded"
	"premix/internal/kit/exit"
	"premix/internal/store/object"
)

// Options configure a node.
type Options struct {
	Address string // to listen on
	Token   string // shared by the machines of the cluster
	State   string // directory for placements
	RAM     string // directory on a tmpfs
	Memory  int64  // for fragments, bytes; 0: what is available, less a tenth of the memory
	Cores   int    // 0: all
	Version string // of premix

	Programs part.Programs // that search; the node needs one of them
	Drop     bool          // remove the fragments from memory at the end

	// Object fetches the verified content of an object of the stores.
	Object func(ctx context.Context, d object.Digest, size int64) ([]byte, error)

	Log   func(string)         // gets what changes; may be nil
	Ready func(address string) // called with the address once the node listens; may be nil

	// Lost is the time after which a node that does not answer counts as lost; 0: 15 s.
	Lost time.Duration
}

// Node has fragments of databases in memory and searches them.
type Node struct {
	o        Options
	holdings *database.Holdings
	versions map[database.Program]string // of the programs that are installed
	tls      *tls.Config
	client   *http.Client
	slots    chan struct{} // of searches
	wake     chan struct{} // something changed
	name     string

	mu       sync.Mutex // guards what follows
	placed   map[string]*placed
	peers    map[string]*peer
	searches int
	answered int64
}

// placed is a placement on this node.
type placed struct {
	Placement
	Self int `json:"self"` // index of this node

	failed map[int]failure // fragments that could not be loaded
	spare  map[int]time.Time
	tree   *fetched
}

// failure is the reason why a fragment is not here.
type failure struct {
	err    error
	noRoom bool
	again  time.Time
}

const (
	defaultLost = 15 * time.Second
	keepAlive   = time.Second
	connections = 1024 // at once

	longestOrder   = 1 << 20
	longestQueries = 4 << 30
)

// Run runs a node until the context ends. Its fragments stay in memory, unless they are to be
// dropped.
func Run(ctx context.Context, o Options) (err error) {
	if o.Cores <= 0 {
		o.Cores = runtime.GOMAXPROCS(0)
	}
	if o.Lost <= 0 {
		o.Lost = defaultLost
	}
	if o.Log == nil {
		o.Log = func(string) {}
	}
	n := &Node{o: o, slots: make(chan struct{}, o.Cores), wake: make(chan struct{}, 1), placed: map[string]*placed{}, peers: map[string]*peer{}, versions: map[database.Program]string{}}
	var missing []error
	for _, p := range o.Programs {
		v, err := p.Version(ctx)
		if err != nil {
			missing = append(missing, err)
			continue
		}
		n.versions[p.Name()] = v
	}
	if len(n.versions) == 0 {
		return errors.Join(missing...)
	}
	if n.tls, err = access.Mutual(o.Token); err != nil {
		return err
	}
	n.client = newClient(n.tls)
	defer n.client.CloseIdleConnections()
	if n.holdings, err = database.OpenHoldings(o.RAM); err != nil {
		return err
	}
	defer n.holdings.Close()
	if err := n.holdings.SetDrop(o.Drop); err != nil {
		return err
	}
	removed, err := database.SweepHoldings(o.RAM)
	for _, dir := range removed {
		n.o.Log("removed " + dir + ", which a node that was killed has left")
	}
	if err != nil {
		n.o.Log(err.Error()) // this node works without the memory
	}
	if err := n.readPlacements(); err != nil {
		return err
	}
	l, err := access.Listen(ctx, access.Options{Address: o.Address, Secret: true})
	if err != nil {
		return err
	}
	host, _ := os.Hostname()
	n.name = host + " " + l.Name()
	ctx, cancel := context.WithCancel(ctx)
	few := bounded.New(l, bounded.Options{Total: min(connections, bounded.Descriptors())})
	server := &http.Server{
		Handler: n.handler(), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, ConnState: bounded.TrackState(nil),
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	var loops sync.WaitGroup
	loops.Go(func() { n.keep(ctx) })
	loops.Go(func() { n.watchPeers(ctx) })
	stopped := context.AfterFunc(ctx, func() { _ = server.Close() })
	if o.Ready != nil {
		o.Ready(l.Name())
	}
	err = server.Serve(tls.NewListener(few, n.tls))
	stopped()
	cancel()
	loops.Wait()
	if errors.Is(err, http.ErrServerClosed) {
		err = nil
	}
	if o.Drop {
		for _, x := range n.holdings.All() {
			err = errors.Join(err, n.holdings.Remove(x))
		}
	}
	return err
}

// changed wakes the loop that keeps the fragments.
func (n *Node) changed() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

func (n *Node) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/node", func(w http.ResponseWriter, r *http.Request) {
		s, err := n.status(r.URL.Query().Has("memory"))
		answer(w, s, err)
	})
	mux.HandleFunc("PUT /v1/databases/{name}", func(w http.ResponseWriter, r *http.Request) {
		var p placed
		err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 64<<20)).Decode(&p)
		if err == nil && p.Name != r.PathValue("name") {
			err = fmt.Errorf("the placement is of %q", p.Name)
		}
		if err == nil {
			err = n.place(&p)
		}
		answer(w, struct{}{}, err)
	})
	mux.HandleFunc("DELETE /v1/databases/{name}", func(w http.ResponseWriter, r *http.Request) {
		answer(w, struct{}{}, n.remove(r.PathValue("name")))
	})
	mux.HandleFunc("POST /v1/search", n.search)
	return mux
}

func answer(w http.ResponseWriter, v any, err error) {
	w.Header().Set("Content-Type", "application/json")
	if err != nil {
		code := http.StatusInternalServerError
		switch exit.Of(err) {
		case exit.Usage:
			code = http.StatusConflict
		case exit.Internal:
			code = http.StatusBadRequest
		}
		w.WriteHeader(code)
		v = refusal{err.Error(), hintOf(err)}
	}
	_ = json.NewEncoder(w).Encode(v) // the client notices
}

// refusal is the body of an error.
type refusal struct {
	Text     string `json:"error"`
	HintText string `json:"hint,omitempty"`
}

func hintOf(err error) string {
	var h interface{ Hint() string }
	if errors.As(err, &h) {
		return h.Hint()
	}
	return ""
}

// placementPath returns the file with the placement of a database.
func (n *Node) placementPath(name string) string { return filepath.Join(n.o.State, name+".json") }

// readPlacements reads the placements of before the node was started.
func (n *Node) readPlacements() error {
	if err := os.MkdirAll(n.o.State, 0o700); err != nil {
		return err
	}
	paths, err := filepath.Glob(filepath.Join(n.o.State, "*.json"))
	if err != nil {
		return err
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		var p placed
		if err = json.Unmarshal(text, &p); err == nil {
			err = p.check()
		}
		if err != nil {
			return &database.Error{Kind: database.Damaged, Message: fmt.Sprintf("%s: %v", path, err), HintText: "remove the file, and place the database again: premix blast cluster warm", Err: err}
		}
		n.accept(&p)
	}
	return nil
}

func (p *placed) check() error {
	if p.Self < 0 || p.Self >= len(p.Nodes) {
		return fmt.Errorf("this is node %d of %d", p.Self, len(p.Nodes))
	}
	if _, err := object.ParseDigest(p.Tree); err != nil {
		return err
	}
	return p.Placement.check()
}

// place accepts a placement. An older one than the present one changes nothing.
func (n *Node) place(p *placed) error {
	if err := errors.Join(p.check(), database.CheckName(p.Name)); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if was := n.placed[p.Name]; was != nil && was.Serial >= p.Serial {
		return nil
	}
	text, err := json.Marshal(p)
	if err != nil {
		return err
	}
	if err := beneath.Replace(n.placementPath(p.Name), 0o600, beneath.Durable, append(text, '\n')); err != nil {
		return err
	}
	n.accept(p)
	n.changed()
	return nil
}

// remove forgets a placement, and removes the fragments.
func (n *Node) remove(name string) error {
	if err := database.CheckName(name); err != nil {
		return err
	}
	n.mu.Lock()
	err := os.Remove(n.placementPath(name))
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	if err == nil {
		delete(n.placed, name)
	}
	n.mu.Unlock()
	n.changed()
	return err
}

// status returns the node's status. With memory it asks the kernel what is in memory, which
// takes time.
func (n *Node) status(memory bool) (*Status, error) {
	b, err := n.holdings.Budget(n.o.Memory)
	if err != nil {
		return nil, err
	}
	s := &Status{Node: n.name, Premix: n.o.Version, Programs: n.versions, Cores: n.o.Cores, Budget: b.Bytes, Databases: []HeldDatabase{}, Placed: map[string]Place{}}
	held := map[string]bool{}
	for _, x := range n.holdings.All() {
		s.Used += x.Bytes()
		d := HeldDatabase{Name: x.Name, ID: x.Desc.ID, Fragments: []HeldFragment{}}
		for _, i := range x.Fragments() {
			f := HeldFragment{Number: i, Bytes: x.Size(i), Complete: true}
			if memory {
				if f.InMemory, err = x.InMemory(i); err != nil {
					continue // it was dropped at this moment
				}
			}
			held[fmt.Sprint(x.Name, " ", x.Desc.ID, " ", i)] = true
			d.Fragments = append(d.Fragments, f)
		}
		s.Databases = append(s.Databases, d)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	s.Searches, s.Answered = n.searches, n.answered
	for _, p := range n.placed {
		s.Placed[p.Name] = Place{p.ID, p.Serial}
		d := HeldDatabase{Name: p.Name, ID: p.ID}
		for i, f := range p.failed {
			if !held[fmt.Sprint(p.Name, " ", p.ID, " ", i)] {
				d.Fragments = append(d.Fragments, HeldFragment{Number: i, Error: f.err.Error(), NoRoom: f.noRoom})
			}
		}
		if len(d.Fragments) > 0 {
			s.Databases = append(s.Databases, d)
		}
	}
	return s, nil
}

// search searches fragments for a head.
func (n *Node) search(w http.ResponseWriter, r *http.Request) {
	in := bufio.NewReaderSize(http.MaxBytesReader(w, r.Body, longestQueries), longestOrder)
	line, err := in.ReadSlice('\n')
	var o searchOrder
	if err == nil {
		err = json.Unmarshal(line, &o)
	}
	if err == nil {
		err = n.acceptable(&o)
	}
	if err != nil {
		answer(w, nil, err)
		return
	}
	dir, err := os.MkdirTemp("", "premix-blast-")
	if err != nil {
		answer(w, nil, err)
		return
	}
	defer os.RemoveAll(dir)
	queries := filepath.Join(dir, "queries")
	if err := save(queries, in); err != nil {
		answer(w, nil, err)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	f := &frames{w: w, to: http.NewResponseController(w)}
	ctx, cancel := context.WithCancel(r.Context())
	var beat sync.WaitGroup
	beat.Go(func() {
		tick := time.NewTicker(keepAlive)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				if f.send(frameAlive, nil) != nil {
					cancel() // the head has gone
				}
			case <-ctx.Done():
				return
			}
		}
	})
	e := n.run(ctx, o, queries, f)
	cancel()
	beat.Wait()
	_ = f.end(e) // without it the head searches elsewhere
}

func save(path string, in io.Reader) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, in)
	return errors.Join(err, f.Close())
}

// run searches, in its turn.
func (n *Node) run(ctx context.Context, o searchOrder, queries string, out io.Writer) (e ending) {
	n.count(1)
	defer n.count(-1)
	defer func() {
		if e.Error == "" {
			n.mu.Lock()
			n.answered++
			n.mu.Unlock()
		}
	}()
	select {
	case n.slots <- struct{}{}:
		defer func() { <-n.slots }()
	case <-ctx.Done():
		e.Error = ctx.Err().Error()
		return e
	}
	x := n.holdings.Get(o.Database, o.ID)
	if x == nil {
		e.Error = "no fragment of the database is here"
		return e
	}
	d, err := x.Open(o.Range[0], o.Range[1])
	if err != nil {
		e.Error = "a fragment is not here"
		return e
	}
	defer d.Close()
	threads := o.Threads
	if threads <= 0 || threads > n.o.Cores {
		threads = n.o.Cores
	}
	var stderr strings.Builder
	o.Threads = threads
	// The configuration of the user who started this node does not affect the results.
	err = n.o.Programs.Of(&o.Order).Search(ctx, &o.Order, d, queries, true, out, &stderr)
	var exited *part.ExitError
	switch {
	case ctx.Err() != nil:
		e.Error = "the search was cancelled"
	case errors.As(err, &exited) && exited.Code != 255: // which is a signal
		e.Code, e.Stderr = exited.Code, exited.Stderr
	case err != nil:
		e.Error = err.Error()
	}
	return e
}

func (n *Node) count(by int) {
	n.mu.Lock()
	n.searches += by
	n.mu.Unlock()
}

// acceptable refuses an order that this node cannot, or must not, carry out.
func (n *Node) acceptable(o *searchOrder) error {
	if o.Format != part.OrderFormat {
		return &database.Error{Kind: database.Use, Message: fmt.Sprintf("the node knows searches of the format %q", part.OrderFormat), HintText: "use the same premix on all machines"}
	}
	program, version := n.o.Programs.Of(&o.Order), n.versions[o.Program]
	switch {
	case program == nil || version == "":
		return &database.Error{Kind: database.Use, Message: fmt.Sprintf("the node has no %s", o.Program), HintText: "install it on all machines, and start the nodes again"}
	case o.Version != version:
		return &database.Error{Kind: database.Use, Message: fmt.Sprintf("the node has %s %s, and the search needs %s", o.Program, version, o.Version), HintText: "install the same version on all machines"}
	}
	return program.Check(&o.Order)
}
