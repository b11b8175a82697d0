package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"premix/internal/blast/database"
	"premix/internal/kit/units"
	"premix/internal/store"
	"premix/internal/store/erofs"
	"premix/internal/store/object"
)

// peer is another node, as this one last saw it.
type peer struct {
	seen   time.Time
	status *Status // nil: never seen
}

const (
	keepEvery = time.Second
	askAgain  = 10 * time.Second // before a fragment that could not be loaded is tried again
)

// keep loads and drops fragments until the context ends.
func (n *Node) keep(ctx context.Context) {
	tick := time.NewTicker(keepEvery)
	defer tick.Stop()
	for {
		for n.step(ctx) {
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-n.wake:
		}
	}
}

// step loads or drops one fragment. It returns false if there is nothing to do.
func (n *Node) step(ctx context.Context) bool {
	if ctx.Err() != nil {
		return false
	}
	if x := n.leftover(); x != nil {
		if err := n.holdings.Remove(x); err != nil {
			n.o.Log(err.Error())
			return false
		}
		n.o.Log("removed " + x.Name + " from memory")
		return true
	}
	p, f, load := n.next()
	if p == nil {
		return false
	}
	if !load {
		x := n.holdings.Get(p.Name, p.ID)
		err := x.Drop(f)
		n.o.Log(outcome(fmt.Sprintf("dropped fragment %d of %s, which other nodes hold", f, p.Name), err))
		return err == nil
	}
	began := time.Now()
	err := n.load(ctx, p, f)
	if ctx.Err() != nil {
		return false
	}
	n.mu.Lock()
	if p.failed == nil {
		p.failed = map[int]failure{}
	}
	known := false
	if err == nil {
		delete(p.failed, f)
	} else {
		var e *database.Error
		known = p.failed[f].err != nil && p.failed[f].err.Error() == err.Error()
		p.failed[f] = failure{err, errors.As(err, &e) && e.Kind == database.NoRoom, time.Now().Add(askAgain)}
	}
	n.mu.Unlock()
	if known {
		return true
	}
	n.o.Log(outcome(fmt.Sprintf("loaded fragment %d of %s in %v", f, p.Name, time.Since(began).Round(10*time.Millisecond)), err))
	return true
}

// outcome returns the message of an error, or else text.
func outcome(text string, err error) string {
	if err != nil {
		return err.Error()
	}
	return text
}

// leftover returns a database that no placement names any more, or nil.
func (n *Node) leftover() *database.Holding {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, x := range n.holdings.All() {
		if p := n.placed[x.Name]; p == nil || p.ID != x.Desc.ID {
			return x
		}
	}
	return nil
}

// next returns the next fragment to load, or to drop.
func (n *Node) next() (p *placed, fragment int, load bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now()
	for _, p := range n.placed {
		x := n.holdings.Get(p.Name, p.ID)
		for f := range p.Order {
			has := x != nil && x.Has(f)
			wanted := p.wanted(f, func(i int) bool {
				if i == p.Self {
					return has || !p.failed[f].noRoom || now.After(p.failed[f].again)
				}
				s := n.peers[p.Nodes[i]]
				return s != nil && now.Sub(s.seen) < n.o.Lost && !s.refuses(p, f)
			})
			mine := slices.Contains(wanted, p.Self)
			switch {
			case mine && !has && now.After(p.failed[f].again):
				return p, f, true
			case !mine && has && len(wanted) == p.Replicas && !slices.ContainsFunc(wanted, func(i int) bool { return !n.peers[p.Nodes[i]].holds(p, f) }):
				// They must hold it for some time, in which heads learn about it.
				if p.spare == nil {
					p.spare = map[int]time.Time{}
				}
				if since, ok := p.spare[f]; !ok {
					p.spare[f] = now
				} else if now.Sub(since) > n.o.Lost {
					delete(p.spare, f)
					return p, f, false
				}
			default:
				delete(p.spare, f)
			}
		}
	}
	return nil, 0, false
}

// fragment returns the peer's statement about a fragment, or nil.
func (p *peer) fragment(of *placed, f int) *HeldFragment {
	if p == nil || p.status == nil {
		return nil
	}
	for _, d := range p.status.Databases {
		if d.Name != of.Name || d.ID != of.ID {
			continue
		}
		for i := range d.Fragments {
			if d.Fragments[i].Number == f {
				return &d.Fragments[i]
			}
		}
	}
	return nil
}

func (p *peer) refuses(of *placed, f int) bool {
	h := p.fragment(of, f)
	return h != nil && h.NoRoom
}

func (p *peer) holds(of *placed, f int) bool {
	h := p.fragment(of, f)
	return h != nil && h.Complete
}

// watchPeers asks the other nodes for their status until the context ends.
func (n *Node) watchPeers(ctx context.Context) {
	every := max(n.o.Lost/5, 200*time.Millisecond)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		var group errgroup.Group
		group.SetLimit(16)
		for _, address := range n.others() {
			group.Go(func() error {
				short, cancel := context.WithTimeout(ctx, every)
				defer cancel()
				s, err := ask(short, n.client, address, false)
				if err != nil {
					return nil // it counts as lost after some time
				}
				n.mu.Lock()
				n.peers[address].seen, n.peers[address].status = time.Now(), s
				n.mu.Unlock()
				return nil
			})
		}
		_ = group.Wait() // the functions return no errors
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// accept adds a placement. Nodes that were in no placement until now were not asked, and count
// as seen just now, so that this node does not load their fragments before it has asked them.
func (n *Node) accept(p *placed) {
	asked := n.addresses()
	n.placed[p.Name] = p
	for i, address := range p.Nodes {
		if i != p.Self && !slices.Contains(asked, address) {
			n.peers[address] = &peer{seen: time.Now()}
		}
	}
}

// others returns the addresses of the other nodes of all placements.
func (n *Node) others() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.addresses()
}

// addresses does the work of others. The caller holds mu.
func (n *Node) addresses() (list []string) {
	for _, p := range n.placed {
		for i, address := range p.Nodes {
			if i != p.Self && !slices.Contains(list, address) {
				list = append(list, address)
			}
		}
	}
	return list
}

// fetched is a published database.
type fetched struct {
	image *erofs.Image
	desc  *database.Description
}

// open opens the tree of a placement.
func (n *Node) open(ctx context.Context, p *placed) (*fetched, error) {
	if p.tree != nil {
		return p.tree, nil
	}
	d, err := object.ParseDigest(p.Tree)
	if err != nil {
		return nil, err
	}
	t, err := store.FetchTree(d, func(d object.Digest, size int64) ([]byte, error) { return n.o.Object(ctx, d, size) })
	if err != nil {
		return nil, err
	}
	im, err := t.Image()
	if err != nil {
		return nil, err
	}
	f := &fetched{image: im}
	text, err := f.read(database.DescriptionFile)
	if err != nil {
		return nil, err
	}
	if f.desc, err = database.ParseDescription(text); err != nil {
		return nil, err
	}
	if f.desc.ID != p.ID || len(f.desc.Fragments) != len(p.Order) {
		return nil, fmt.Errorf("the tree %s has another database than its placement", d.Short())
	}
	p.tree = f // only the loop that keeps fragments uses it
	return f, nil
}

// read returns a small file of the tree.
func (f *fetched) read(name string) ([]byte, error) {
	nid, size, err := f.find(name)
	if err != nil || size > 256<<20 {
		return nil, errors.Join(err, fmt.Errorf("%s has %d bytes", name, size))
	}
	text := make([]byte, size)
	if _, err := f.image.ReadAt(nid, text, 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return text, nil
}

// find returns the inode and the size of a file at the root of the tree.
func (f *fetched) find(name string) (nid uint64, size int64, err error) {
	if nid, err = f.image.Lookup(f.image.Root(), name); err != nil {
		return 0, 0, fmt.Errorf("%s: %w", name, err)
	}
	i, err := f.image.Inode(nid)
	if err != nil {
		return 0, 0, err
	}
	return nid, i.Size, nil
}

const (
	pieceSize = 4 << 20 // of a file that is fetched
	atOnce    = 8       // pieces
)

// copyTo writes a file of the tree, several pieces at once.
func (f *fetched) copyTo(ctx context.Context, name string, to *os.File) error {
	nid, size, err := f.find(name)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for off := int64(0); off < size && ctx.Err() == nil; off += pieceSize {
		group.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			piece := make([]byte, min(pieceSize, size-off))
			if _, err := f.image.ReadAt(nid, piece, off); err != nil && !errors.Is(err, io.EOF) {
				return err
			}
			_, err := to.WriteAt(piece, off)
			return err
		})
	}
	return group.Wait()
}

// load brings a fragment into memory.
func (n *Node) load(ctx context.Context, p *placed, f int) error {
	t, err := n.open(ctx, p)
	if err != nil {
		return fmt.Errorf("fragment %d of %s: %w", f, p.Name, err)
	}
	b, err := n.holdings.Budget(n.o.Memory)
	if err != nil {
		return err
	}
	used := n.holdings.Bytes()
	if need := t.desc.Sizes()[f]; used+need > b.Bytes {
		return &database.Error{Kind: database.NoRoom, Message: fmt.Sprintf("fragment %d of %s does not fit into memory: it takes %s, %s are in use, and %s may be used (%s)", f, p.Name, units.Size(need), units.Size(used), units.Size(b.Bytes), b)}
	}
	x, err := n.holdings.Add(p.Name, t.desc)
	if err == nil {
		err = x.Load(ctx, f, t.copyTo)
	}
	if err != nil {
		return fmt.Errorf("fragment %d of %s: %w", f, p.Name, err)
	}
	return nil
}
