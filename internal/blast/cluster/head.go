package cluster

import (
	"bytes"
	"cmp"
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
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"premix/internal/blast/database"
	"premix/internal/blast/part"
	"premix/internal/kit/access"
	"premix/internal/kit/exit"
)

// Head plans, and searches with nodes.
type Head struct {
	// Explain gets the time that each node takes for its part of a search; may be nil.
	Explain func(string)

	nodes  []string // addresses
	client *http.Client
	note   func(string)
	silent time.Duration // after which a node that searches counts as lost
}

// silence is the time after which a node that searches and does not send a frame is lost. After
// half of it other nodes begin to search its fragments.
const silence = 4 * time.Second

// dialTime is the time for a connection, with its handshake.
const dialTime = 3 * time.Second

// NewHead returns a head for nodes with these addresses, which share a token. note gets
// messages for the user, and may be nil.
func NewHead(nodes []string, token string, note func(string)) (*Head, error) {
	config, err := access.Mutual(token)
	if err != nil {
		return nil, err
	}
	if note == nil {
		note = func(string) {}
	}
	return &Head{nodes: nodes, client: newClient(config), note: note, silent: silence}, nil
}

// Close closes idle connections.
func (h *Head) Close() { h.client.CloseIdleConnections() }

func newClient(config *tls.Config) *http.Client {
	return &http.Client{Transport: &http.Transport{
		TLSClientConfig: config, TLSHandshakeTimeout: dialTime, MaxIdleConnsPerHost: 4, IdleConnTimeout: time.Minute,
		DialContext: (&net.Dialer{Timeout: dialTime}).DialContext,
	}}
}

// NodeError is the error of one node.
type NodeError struct {
	Node     string
	Err      error
	HintText string
}

func (e *NodeError) Error() string { return "node " + e.Node + ": " + e.Err.Error() }
func (e *NodeError) Unwrap() error { return e.Err }

// ExitCode implements exit.Coded.
func (*NodeError) ExitCode() exit.Code { return exit.Origin }

// Hint returns the hint of the node, if it gave one.
func (e *NodeError) Hint() string {
	switch {
	case e.HintText != "":
		return e.HintText
	case errors.Is(e.Err, access.ErrOtherToken) || strings.Contains(e.Err.Error(), "tls: bad certificate"):
		return "give all machines of the cluster the same file with --key"
	}
	return "see whether premix blast node runs there, and whether its address can be reached"
}

// do sends a request to a node and decodes its answer into v.
func do(ctx context.Context, c *http.Client, method, address, path string, body, v any) error {
	var in io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return err
		}
		in = bytes.NewReader(text)
	}
	r, err := http.NewRequestWithContext(ctx, method, "https://"+address+path, in)
	if err != nil {
		return &NodeError{Node: address, Err: err}
	}
	res, err := c.Do(r)
	if err != nil {
		return &NodeError{Node: address, Err: errors.Unwrap(err)}
	}
	defer res.Body.Close()
	if err := refused(address, res); err != nil {
		return err
	}
	if err := json.NewDecoder(io.LimitReader(res.Body, 256<<20)).Decode(v); err != nil {
		return &NodeError{Node: address, Err: err}
	}
	return nil
}

// refused returns the error of an answer.
func refused(address string, res *http.Response) error {
	if res.StatusCode == http.StatusOK {
		return nil
	}
	var no refusal
	text, _ := io.ReadAll(io.LimitReader(res.Body, 64<<10))
	if json.Unmarshal(text, &no) != nil || no.Text == "" {
		no.Text = res.Status
	}
	return &NodeError{Node: address, Err: errors.New(no.Text), HintText: no.HintText}
}

func ask(ctx context.Context, c *http.Client, address string, memory bool) (*Status, error) {
	path := "/v1/node"
	if memory {
		path += "?memory"
	}
	var s Status
	if err := do(ctx, c, http.MethodGet, address, path, nil, &s); err != nil {
		return nil, err
	}
	return &s, nil
}

// Answer is the status of a node, or the reason why there is none.
type Answer struct {
	Address string
	Status  *Status
	Err     error
}

// Ask returns the status of all nodes, in their order.
func (h *Head) Ask(ctx context.Context, memory bool) []Answer {
	limit := dialTime
	if memory {
		limit = time.Minute
	}
	return h.ask(ctx, memory, limit, 0, func([]Answer) bool { return false })
}

// straggle is the time for which a search waits for further nodes once those that have
// answered have all fragments, for each piece of the queries.
const straggle = 250 * time.Millisecond

// errSilent is the error of a node that has not answered in time.
var errSilent = errors.New("it has not answered yet")

// ask asks all nodes, until all have answered, or limit has passed, or those that have
// answered were enough for the time further.
func (h *Head) ask(ctx context.Context, memory bool, limit, further time.Duration, enough func([]Answer) bool) []Answer {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	type numbered struct {
		i int
		Answer
	}
	got := make(chan numbered, len(h.nodes)) // late ones stay in it
	answers := make([]Answer, len(h.nodes))
	for i, address := range h.nodes {
		answers[i] = Answer{address, nil, &NodeError{Node: address, Err: errSilent}}
		go func() {
			s, err := ask(ctx, h.client, address, memory)
			got <- numbered{i, Answer{address, s, err}}
		}()
	}
	var late <-chan time.Time
	for range h.nodes {
		select {
		case a := <-got:
			answers[a.i] = a.Answer
			if late == nil && enough(answers) {
				late = time.After(further)
			}
		case <-late:
			return answers
		}
	}
	return answers
}

// Plan returns a placement of a database on the nodes that answer, within their budgets.
func (h *Head) Plan(ctx context.Context, name string, d *database.Description, tree string, replicas int) (*Placement, []Answer, error) {
	if tree == "" {
		return nil, nil, &database.Error{Kind: database.Use, Message: fmt.Sprintf("the database %s is not in a store, from which nodes fetch it", name), HintText: "add it again with --store DIR: premix blast db add; or give --tree DIGEST if it was added from a mounted tree"}
	}
	answers := h.Ask(ctx, false)
	p := &Placement{Format: placementFormat, Name: name, ID: d.ID, Tree: tree, Serial: time.Now().UnixNano(), Replicas: replicas}
	var budgets []int64
	for _, a := range answers {
		if a.Err != nil {
			h.note(a.Err.Error() + ": the plan leaves it out")
			continue
		}
		free := a.Status.Budget - a.Status.Used
		for _, held := range a.Status.Databases {
			if held.Name == name { // they are replaced, or needed again
				for _, f := range held.Fragments {
					if f.Complete {
						free += f.Bytes
					}
				}
			}
		}
		p.Nodes = append(p.Nodes, a.Address)
		budgets = append(budgets, max(0, free))
		// The clock of another head may be ahead.
		p.Serial = max(p.Serial, a.Status.Placed[name].Serial+1)
	}
	if len(p.Nodes) == 0 {
		return nil, answers, answers[0].Err
	}
	var err error
	p.Order, err = order(d.Sizes(), budgets, replicas)
	return p, answers, err
}

// Place gives a placement to its nodes. All of them must accept it.
func (h *Head) Place(ctx context.Context, p *Placement) error {
	errs := make([]error, len(p.Nodes))
	var all sync.WaitGroup
	for i, address := range p.Nodes {
		all.Go(func() {
			errs[i] = do(ctx, h.client, http.MethodPut, address, "/v1/databases/"+p.Name, placed{Placement: *p, Self: i}, &struct{}{})
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// Progress is the state of a placement.
type Progress struct {
	Fragments, Placed int   // replicas of fragments: wanted, and complete
	Bytes             int64 // complete
	Problems          []string
}

// stuckAfter is the time without progress after which [Head.Wait] returns the problem of a
// node.
const stuckAfter = 15 * time.Second

// Wait waits until each fragment has as many holders as the placement says, and calls report
// from time to time. It fails if nodes report problems and nothing is loaded for some time.
func (h *Head) Wait(ctx context.Context, p *Placement, report func(Progress)) error {
	var before int64
	moved := time.Now()
	for {
		state := Progress{Fragments: p.Replicas * len(p.Order)}
		counts := make([]int, len(p.Order))
		answers := h.Ask(ctx, false)
		for _, a := range answers {
			if a.Err != nil {
				continue
			}
			for _, d := range a.Status.Databases {
				if d.Name != p.Name || d.ID != p.ID {
					continue
				}
				for _, f := range d.Fragments {
					switch {
					case f.Number < 0 || f.Number >= len(counts):
					case f.Complete:
						counts[f.Number]++
						state.Bytes += f.Bytes
					case f.Error != "":
						state.Problems = append(state.Problems, "node "+a.Address+": "+f.Error)
					}
				}
			}
		}
		for _, c := range counts {
			state.Placed += min(c, p.Replicas)
		}
		report(state)
		if state.Placed == state.Fragments {
			return nil
		}
		if state.Bytes != before {
			before, moved = state.Bytes, time.Now()
		}
		if len(state.Problems) > 0 && time.Since(moved) > stuckAfter {
			return &database.Error{Kind: database.Failed, Message: state.Problems[0], HintText: "the nodes go on trying; premix blast cluster ls shows them, and premix blast cluster evict " + p.Name + " ends it"}
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(300 * time.Millisecond):
		}
	}
}

// Remove removes a database from all nodes that answer. It returns their errors.
func (h *Head) Remove(ctx context.Context, name string) error {
	errs := make([]error, len(h.nodes))
	var all sync.WaitGroup
	for i, address := range h.nodes {
		all.Go(func() {
			errs[i] = do(ctx, h.client, http.MethodDelete, address, "/v1/databases/"+name, nil, &struct{}{})
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// Remote returns the search of a database's fragments on the nodes by a program, which this
// machine has, too. Its results are in dir.
func (h *Head) Remote(program part.Program, db *database.Database, dir string) part.Remote {
	return func(ctx context.Context, o part.Order, queries []string) ([]part.Result, error) {
		version, err := program.Version(ctx)
		if err != nil {
			return nil, err
		}
		s := &scattered{h: h, db: db, program: program, order: o, queries: queries, dir: dir, version: version, lost: map[string]bool{}}
		defer s.running.Wait()
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		if err := s.measure(); err != nil {
			return nil, err
		}
		results, err := s.all(ctx)
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err != nil {
			return nil, err
		}
		slices.SortFunc(results, func(a, b part.Result) int {
			return cmp.Or(cmp.Compare(a.Piece, b.Piece), cmp.Compare(a.First, b.First))
		})
		return results, nil
	}
}

// scattered is one search on nodes.
type scattered struct {
	h       *Head
	db      *database.Database
	program part.Program
	order   part.Order
	queries []string
	sizes   []int64 // of the queries, bytes
	dir     string
	version string         // of the program
	running sync.WaitGroup // searches of nodes, also of those whose results are not needed any more

	mu    sync.Mutex      // guards what follows
	known []holder        // nodes that have answered
	lost  map[string]bool // addresses of nodes that get no more work
	noted map[string]bool
	count int
}

// measure determines the sizes of the queries.
func (s *scattered) measure() error {
	for _, path := range s.queries {
		st, err := os.Stat(path)
		if err != nil {
			return err
		}
		s.sizes = append(s.sizes, st.Size())
	}
	return nil
}

// all searches all fragments.
func (s *scattered) all(ctx context.Context) ([]part.Result, error) {
	fragments := make([]int, len(s.db.Fragments))
	for i := range fragments {
		fragments[i] = i
	}
	holders := s.holders(ctx, fragments)
	shares := s.distributed(fragments, holders, part.Range{0, len(s.queries)})
	if len(s.queries) > 1 {
		shares = divide(fragments, s.letters, holders, s.sizes)
	}
	if s.h.Explain != nil {
		nodes := map[int]bool{}
		for _, run := range shares {
			nodes[run.node] = true
		}
		delete(nodes, -1) // this machine
		s.h.Explain(fmt.Sprintf("%d of %d nodes take part", len(nodes), len(s.h.nodes)))
	}
	return s.search(ctx, holders, shares)
}

// again searches the fragments of a share on other nodes. The share keeps its queries, so that
// the results fit the others.
func (s *scattered) again(ctx context.Context, run share) ([]part.Result, error) {
	holders := s.holders(ctx, run.fragments())
	return s.search(ctx, holders, s.distributed(run.fragments(), holders, run.queries))
}

func (s *scattered) letters(f int) int64 { return s.db.Fragments[f].Letters }

// distributed distributes fragments for some of the queries.
func (s *scattered) distributed(fragments []int, holders []holder, queries part.Range) []share {
	shares := distribute(fragments, s.letters, holders)
	for i := range shares {
		shares[i].queries = queries
	}
	return shares
}

// holders returns the nodes that may search fragments. It asks the nodes only if a fragment has
// no holder among the nodes that have answered before and are not lost: the search of a lost
// node begins elsewhere at once.
func (s *scattered) holders(ctx context.Context, fragments []int) []holder {
	if list := s.left(); covered(fragments, list) {
		return list
	}
	limit := straggle
	if n := len(s.queries); n > 1 {
		limit = min(time.Duration(n)*straggle, dialTime) // the more work there is, the more a further node is worth
	}
	answers := s.h.ask(ctx, false, dialTime, limit, func(answers []Answer) bool {
		var list []holder
		for _, a := range answers {
			if h, _ := s.holder(a); h != nil {
				list = append(list, *h)
			}
		}
		return covered(fragments, list)
	})
	var list []holder
	for _, a := range answers {
		h, note := s.holder(a)
		if h != nil {
			list = append(list, *h)
		} else if note != "" {
			s.note(note)
		}
	}
	s.mu.Lock()
	s.known = list
	s.mu.Unlock()
	return s.left()
}

// left returns the nodes that have answered and are not lost.
func (s *scattered) left() []holder {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.known), func(h holder) bool { return s.lost[h.address] })
}

// covered reports whether each of the fragments has a holder.
func covered(fragments []int, holders []holder) bool {
	return !slices.ContainsFunc(fragments, func(f int) bool {
		return !slices.ContainsFunc(holders, func(h holder) bool { return h.has[f] })
	})
}

// holder returns the node of an answer as a holder, or the reason why it cannot search, "" for a
// node that is lost.
func (s *scattered) holder(a Answer) (h *holder, note string) {
	if a.Err != nil {
		return nil, a.Err.Error()
	}
	s.mu.Lock()
	lost := s.lost[a.Address]
	s.mu.Unlock()
	if lost {
		return nil, ""
	}
	switch version := a.Status.Programs[s.program.Name()]; version {
	case s.version:
	case "":
		return nil, fmt.Sprintf("node %s has no %s: it is not used", a.Address, s.program.Name())
	default:
		return nil, fmt.Sprintf("node %s has %s %s, and this machine %s: it is not used", a.Address, s.program.Name(), version, s.version)
	}
	h = &holder{address: a.Address, speed: float64(a.Status.Cores) / float64(1+a.Status.Searches), has: map[int]bool{}}
	for _, d := range a.Status.Databases {
		if d.Name == s.db.Name && d.ID == s.db.ID {
			for _, f := range d.Fragments {
				if f.Complete {
					h.has[f.Number] = true
				}
			}
		}
	}
	return h, ""
}

// search searches shares at the same time.
func (s *scattered) search(ctx context.Context, holders []holder, shares []share) ([]part.Result, error) {
	group, ctx := errgroup.WithContext(ctx)
	lists := make([][]part.Result, len(shares))
	for i, run := range shares {
		group.Go(func() (err error) {
			if run.node < 0 {
				lists[i], err = s.here(ctx, run)
			} else {
				lists[i], err = s.share(ctx, holders[run.node].address, run)
			}
			return err
		})
	}
	err := group.Wait()
	return slices.Concat(lists...), err
}

// share searches a share on a node, and on others if the node is lost.
//
// A node that closes the connection, or refuses, is lost at once. One that has been silent for a
// while is suspected: other nodes that hold its fragments begin to search them, and the results
// that are complete first are used. After twice this time it is lost.
func (s *scattered) share(ctx context.Context, address string, run share) ([]part.Result, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // the search that is not needed any more
	type outcome struct {
		results []part.Result
		err     error
		again   bool
	}
	ended, running := make(chan outcome, 2), 0
	begin := func(again bool, search func() ([]part.Result, error)) {
		running++
		s.running.Go(func() {
			results, err := search()
			ended <- outcome{results, err, again}
		})
	}
	suspected, redone := make(chan struct{}, 1), false
	redo := func() {
		redone = true
		s.mu.Lock()
		s.lost[address] = true
		s.mu.Unlock()
		begin(true, func() ([]part.Result, error) { return s.again(ctx, run) })
	}
	elsewhere := func(err error) { s.note(err.Error() + ": other nodes search its fragments") }
	began := time.Now()
	begin(false, func() ([]part.Result, error) { return s.there(ctx, address, run, suspected) })
	for {
		select {
		case <-suspected:
			others := slices.DeleteFunc(s.left(), func(h holder) bool { return h.address == address })
			if !redone && covered(run.fragments(), others) {
				redo()
			}
		case o := <-ended:
			running--
			var node *NodeError
			lost := !o.again && errors.As(o.err, &node)
			if lost && ctx.Err() == nil {
				elsewhere(o.err)
				if !redone {
					redo()
				}
			}
			switch {
			case o.err == nil && o.again && running > 0:
				elsewhere(&NodeError{Node: address, Err: fmt.Errorf("it was silent for %v", s.h.silent/2)})
				return o.results, nil
			case o.err == nil && !o.again && s.h.Explain != nil:
				s.h.Explain(fmt.Sprintf("node %s searched fragments %d-%d in %.3f s%s", address, run.first, run.end-1, time.Since(began).Seconds(), s.which(run)))
				return o.results, nil
			case o.err == nil, ctx.Err() != nil, !lost && !o.again, running == 0:
				return o.results, o.err
			}
		}
	}
}

// which describes the queries of a share, if it has not all of them.
func (s *scattered) which(run share) string {
	if run.queries[1]-run.queries[0] == len(s.queries) {
		return ""
	}
	return fmt.Sprintf(", for the parts %d-%d of the queries, of %d", run.queries[0]+1, run.queries[1], len(s.queries))
}

// note passes on a message, once.
func (s *scattered) note(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.noted[text] {
		return
	}
	if s.noted == nil {
		s.noted = map[string]bool{}
	}
	s.noted[text] = true
	s.h.note(text)
}

// file makes the file for the results of a share. A share that is searched again has another
// file.
func (s *scattered) file(run share) (*os.File, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count++
	return os.Create(filepath.Join(s.dir, fmt.Sprintf("%d-%d.part", run.first, s.count)))
}

// found returns the complete results of a share.
func found(run share, f *os.File) ([]part.Result, error) {
	return []part.Result{{Piece: run.queries[0], First: run.first, Path: f.Name()}}, f.Close()
}

// here searches fragments that no node has, in this machine's copy.
func (s *scattered) here(ctx context.Context, run share) ([]part.Result, error) {
	s.note(fmt.Sprintf("no node that answers has fragment %d of %s: this machine searches what they lack", run.first, s.db.Name))
	out, err := s.file(run)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	d := *s.db
	d.Fragments = s.db.Fragments[run.first:run.end]
	queries, err := s.joined(run)
	if err != nil {
		return nil, err
	}
	if err := s.program.Search(ctx, &s.order, &d, queries, true, out, io.Discard); err != nil {
		return nil, err
	}
	return found(run, out)
}

// joined returns a file with the queries of a share.
func (s *scattered) joined(run share) (string, error) {
	pieces := s.queries[run.queries[0]:run.queries[1]]
	if len(pieces) == 1 {
		return pieces[0], nil
	}
	in, err := part.OpenQueries(pieces)
	if err != nil {
		return "", err
	}
	defer in.Close()
	s.mu.Lock()
	s.count++
	path := filepath.Join(s.dir, fmt.Sprintf("queries-%d", s.count))
	s.mu.Unlock()
	return path, save(path, in)
}

// there searches fragments on a node. A [NodeError] says that another node may do it. suspected
// gets a value when the node has been silent for half of the time after which it is lost.
func (s *scattered) there(ctx context.Context, address string, run share, suspected chan<- struct{}) ([]part.Result, error) {
	queries, err := part.OpenQueries(s.queries[run.queries[0]:run.queries[1]])
	if err != nil {
		return nil, err
	}
	defer queries.Close()
	head, err := json.Marshal(searchOrder{
		Order:   part.Order{Format: part.OrderFormat, Program: s.order.Program, Tool: s.order.Tool, Database: s.db.Name, ID: s.db.ID, Args: s.order.Args, Batch: s.order.Batch},
		Version: s.version, Range: part.Range{run.first, run.end},
	})
	if err != nil {
		return nil, err
	}
	out, err := s.file(run)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	silent := &NodeError{Node: address, Err: fmt.Errorf("it was silent for %v", s.h.silent)}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watchdog := time.AfterFunc(s.h.silent, func() { cancel(silent) })
	defer watchdog.Stop()
	doubt := time.AfterFunc(s.h.silent/2, func() {
		select {
		case suspected <- struct{}{}:
		default:
		}
	})
	defer doubt.Stop()
	alive := func() {
		watchdog.Reset(s.h.silent)
		doubt.Reset(s.h.silent / 2)
	}
	sent := &watched{queries, alive}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+address+"/v1/search", io.MultiReader(bytes.NewReader(append(head, '\n')), sent))
	if err != nil {
		return nil, err
	}
	res, err := s.h.client.Do(r)
	if err == nil {
		defer res.Body.Close()
		err = refused(address, res)
	} else {
		err = errors.Unwrap(err) // without the URL
	}
	var e ending
	if err == nil {
		e, err = receive(res.Body, out, alive)
	}
	var known *NodeError
	switch {
	case errors.Is(context.Cause(ctx), silent):
		return nil, silent
	case errors.As(err, &known):
		return nil, known
	case err != nil:
		return nil, &NodeError{Node: address, Err: err}
	case e.Error != "":
		return nil, &NodeError{Node: address, Err: errors.New(e.Error)}
	case e.Code != 0:
		return nil, &part.ExitError{Program: s.order.Tool, Code: e.Code, Stderr: e.Stderr}
	}
	return found(run, out)
}

// watched calls a function for each read.
type watched struct {
	in   io.Reader
	each func()
}

func (w *watched) Read(p []byte) (int, error) {
	w.each()
	return w.in.Read(p)
}
