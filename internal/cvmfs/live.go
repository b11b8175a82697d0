package cvmfs

import (
	"context"
	"crypto/rsa"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/store/cache"
)

// LiveOptions configure a Live.
type LiveOptions struct {
	Options
	Path    string         // of the directory that becomes the root: "" or "/a/b"
	Objects *cache.Objects // for catalogs and contents
	// Numbers is a file that keeps the numbers of catalogs, so that a later Live of the
	// same mount has the same nodes; "" means memory.
	Numbers string
	// Pin is the content that is shown, instead of the newest revision: neither a server nor
	// a valid whitelist is needed for it. nil means the newest revision.
	Pin *Pin
	// Kept begins with the newest revision seen, without the network.
	Kept      bool
	Variables map[string]string // for targets of symbolic links
	Profiles  []*Profile        // to be fetched ahead of readers
	// Log is called with events: a name, and its reason. It may be nil.
	Log func(event, reason string)
}

// Events of a Live.
const (
	EventRefused     = "refused"        // a server gave data that is not trusted
	EventUnreachable = "unreachable"    // no server answers
	EventDamaged     = "damaged"        // an object in the cache is wrong, and was removed
	EventUnreadable  = "cannot be read" // for another reason
	EventOffline     = "offline"        // the newest revision seen is shown, since no server answers
	EventRevision    = "revision"       // a new revision is shown
)

// Live is a repository that is mounted: a fuse.Files of its newest revision. Nodes of
// older revisions keep their content.
//
// A node is the number of a catalog, plus one, in the upper half, and the number of a
// row of the catalog in the lower half. Catalogs never change, so that nodes need no
// memory, and are the same in all processes. The names of a group of hard links have the
// node of the first of them in their directory.
type Live struct {
	o       LiveOptions
	r       *Repository // for its fetcher and name
	keys    []*rsa.PublicKey
	cached  *cached
	numbers *numbers
	shelf   shelf
	dirs    *lru[uint64, string] // paths of directories
	files   *lru[uint64, *openFile]
	now     atomic.Pointer[revision]

	recorder atomic.Pointer[Recorder]
	profiles []*profiled

	ctx     context.Context
	end     context.CancelFunc
	pending sync.WaitGroup

	mu     sync.Mutex
	last   error
	said   string
	saidAt time.Time
	note   string
}

// revision is a revision that is shown.
type revision struct {
	manifest Manifest
	catalog  int    // the uppermost one: the root catalog, or the one of a Pin
	top      string // the path of its root
	root     uint64 // node of the root of the mount
	inner    int    // the catalog that has it
}

// What the memory of a Live holds: some 10 MB at most.
const (
	dirsKept  = 16384
	filesKept = 512
)

// OpenLive verifies the newest revision of a repository, or, if no server answers, the
// newest that was seen, and follows new ones until Close.
func OpenLive(ctx context.Context, o LiveOptions) (*Live, error) {
	r, keys, err := prepare(o.Options)
	if err != nil {
		return nil, err
	}
	l := &Live{o: o, r: r, keys: keys, dirs: newLRU[uint64, string](dirsKept), files: newLRU[uint64, *openFile](filesKept)}
	l.shelf.open = map[int]*shelved{}
	l.ctx, l.end = context.WithCancel(context.Background())
	l.cached = &cached{getter: o.Objects.Getter(l.ctx), f: r.f}
	if l.numbers, err = openNumbers(o.Numbers); err != nil {
		return nil, err
	}
	wait := time.Duration(0)
	if err = l.first(ctx, &wait); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	l.o.AllowRollback = false // it was for once
	for _, p := range o.Profiles {
		l.profiles = append(l.profiles, newProfiled(p))
	}
	l.prefetchAll()
	if l.o.Pin == nil {
		l.pending.Go(func() { l.follow(wait) })
	}
	return l, nil
}

// first shows a revision for the first time, and sets the time until the next is asked for.
func (l *Live) first(ctx context.Context, wait *time.Duration) error {
	if l.o.Pin != nil {
		return l.showPin(ctx)
	}
	if l.o.Kept {
		if l.r.remembered(ctx, l.o.Options, l.keys) == nil && l.show(ctx) == nil {
			return nil
		}
	}
	err := l.r.newest(ctx, l.o.Options, l.keys)
	var known *Error
	if errors.As(err, &known) && known.Kind == Origin {
		e := l.r.remembered(ctx, l.o.Options, l.keys)
		if errors.Is(e, fs.ErrNotExist) {
			return err
		}
		if e != nil {
			return &Error{Kind: Origin, Reason: fmt.Sprintf("%v; and the newest revision seen cannot be shown: %v", err, e), HintText: known.HintText, Err: err}
		}
		if err := l.show(ctx); err != nil {
			return err
		}
		l.note = fmt.Sprintf("no server of %s answers: revision %d, the newest seen, is shown", l.r.name, l.r.manifest.Revision)
		l.event(EventOffline, err)
		*wait = l.period()
		return nil
	}
	if err != nil {
		return err
	}
	if err := l.show(ctx); err != nil {
		return err
	}
	*wait = l.period()
	return l.r.remember(l.o.Options)
}

// show makes the revision of l.r the one that is shown.
func (l *Live) show(ctx context.Context) error {
	m := *l.r.manifest
	return l.showFrom(ctx, m, m.Root, m.RootSize, "")
}

// showFrom shows a revision, or the part of it that is below a catalog.
func (l *Live) showFrom(ctx context.Context, m Manifest, catalog Hash, size int64, top string) error {
	n, err := l.numbers.of(catalog, size, top)
	if err != nil {
		return err
	}
	inner, e, err := l.walk(ctx, m, n, top)
	if err != nil {
		return err
	}
	if !e.IsDir() {
		return &Error{Kind: Usage, Reason: fmt.Sprintf("%s in %s is not a directory", l.o.Path, l.r.name), HintText: "name a directory"}
	}
	node, err := nodeOf(inner, e.row)
	if err != nil {
		return err
	}
	l.now.Store(&revision{manifest: m, catalog: n, top: top, root: node, inner: inner})
	return nil
}

// walk finds the root of the mount, from the root of a catalog on. It returns its entry, and
// the catalog that has it.
func (l *Live) walk(ctx context.Context, m Manifest, n int, top string) (int, *Entry, error) {
	e, err := l.rootOf(ctx, n)
	if err != nil {
		return 0, nil, err
	}
	for at := len(top) + 1; at < len(l.o.Path); {
		end := at
		for end < len(l.o.Path) && l.o.Path[end] != '/' {
			end++
		}
		if !e.IsDir() {
			return 0, nil, missingIn(m, l.o.Path)
		}
		if n, e, err = l.step(ctx, n, l.o.Path[:end]); err != nil {
			return 0, nil, err
		}
		if e == nil {
			return 0, nil, missingIn(m, l.o.Path)
		}
		at = end + 1
	}
	return n, e, nil
}

// TTLs below the least, of a mount whose publisher asks for more requests, are raised.
const leastTTL = time.Second

func (l *Live) ttl() time.Duration { return max(leastTTL, l.now.Load().manifest.TTL) }

// period returns the time between requests for the manifest. Together with Valid it is
// the TTL.
func (l *Live) period() time.Duration { return l.ttl() * 3 / 4 }

// Valid implements fuse.Files.
func (l *Live) Valid() time.Duration { return min(l.ttl()/4, time.Minute) }

// follow shows new revisions.
func (l *Live) follow(wait time.Duration) {
	for {
		select {
		case <-l.ctx.Done():
			return
		case <-time.After(wait):
		}
		l.refresh()
		wait = l.period()
	}
}

// refresh shows the newest revision, unless it is not trusted or cannot be reached.
func (l *Live) refresh() {
	ctx, cancel := context.WithTimeout(l.ctx, 5*time.Minute)
	defer cancel()
	before := l.now.Load().manifest
	if err := l.r.newest(ctx, l.o.Options, l.keys); err != nil {
		if l.ctx.Err() == nil {
			l.failed(err)
		}
		return
	}
	if m := l.r.manifest; m.Revision < before.Revision || m.Revision == before.Revision && m.Root != before.Root {
		l.failed(distrust("", "the servers of %s show revision %d after revision %d", l.r.name, m.Revision, before.Revision))
		return
	}
	if l.r.manifest.Revision != before.Revision {
		if err := l.show(ctx); err != nil {
			l.failed(err)
			return
		}
		l.event(EventRevision, fmt.Errorf("%d of %s is shown", l.r.manifest.Revision, l.r.name))
		l.prefetchAll()
	}
	l.mu.Lock()
	l.note = ""
	l.mu.Unlock()
	if err := l.r.remember(l.o.Options); err != nil {
		l.failed(err)
	}
}

// failed notes a failure as an event, and returns EIO.
func (l *Live) failed(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, context.Canceled) {
		return err
	}
	name := EventUnreadable
	var known *Error
	var wrong *cache.WrongError
	var damaged *damagedError
	switch {
	case errors.As(err, &wrong), errors.As(err, &damaged):
		name = EventDamaged
	case errors.As(err, &known) && known.Kind == Trust:
		name = EventRefused
	case errors.As(err, &known) && known.Kind == Origin:
		name = EventUnreachable
	}
	l.event(name, err)
	return unix.EIO
}

// repeat is the time for which equal events are not logged again.
const repeat = 10 * time.Second

func (l *Live) event(name string, err error) {
	l.mu.Lock()
	text := name + ": " + err.Error()
	again := text == l.said && time.Since(l.saidAt) < repeat
	if !again {
		l.said, l.saidAt = text, time.Now()
	}
	if name != EventRevision {
		l.last = errors.New(text)
	}
	l.mu.Unlock()
	if l.o.Log != nil && !again {
		l.o.Log(name, err.Error())
	}
}

// LastError returns the last event that was a failure, or nil.
func (l *Live) LastError() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}

// Note returns a note for the user, or "".
func (l *Live) Note() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.note
}

// Manifest returns the description of the revision that is shown.
func (l *Live) Manifest() Manifest { return l.now.Load().manifest }

// Close ends all work. Nothing may be read any more.
func (l *Live) Close() error {
	l.end()
	l.pending.Wait()
	l.cached.getter.Wait()
	l.shelf.close()
	return errors.Join(l.r.Close(), l.numbers.close())
}
