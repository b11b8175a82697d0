package tagsync

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"premix/internal/image"
	"premix/internal/kit/exit"
	"premix/internal/store"
	"premix/internal/store/object"
	"premix/internal/store/tree"
)

// Options configure rounds.
type Options struct {
	Add image.Options // of each image; the round sets platform and progress
	// Eager retries failed images before their time.
	Eager  bool
	Report func(Row) // called for each image when it is done; may be nil

	now       func() time.Time  // of tests
	transport http.RoundTripper // of tests
}

// Action is the result of a round for an image.
type Action string

// The actions. With Failed, Waiting and Vanished the store is unchanged.
const (
	Unchanged Action = "unchanged"
	Added     Action = "added"
	Updated   Action = "updated"
	Removed   Action = "removed"
	Vanished  Action = "gone"    // its registry no longer has it, and it stays for now
	Waiting   Action = "waiting" // it failed before and is not yet retried
	Failed    Action = "failed"
)

// Row describes one image, or an entry that could not be expanded.
type Row struct {
	Action Action        `json:"action"`
	Ref    string        `json:"ref,omitempty"` // in the store; "" for an entry
	Source string        `json:"source"`
	Digest string        `json:"digest,omitempty"` // in the registry
	Record object.Digest `json:"image,omitzero"`
	Bytes  int64         `json:"written,omitempty"` // of new objects
	Gone   time.Time     `json:"gone,omitzero"`
	Retry  time.Time     `json:"retry,omitzero"`
	Error  string        `json:"error,omitempty"`
	Hint   string        `json:"hint,omitempty"`
	Err    error         `json:"-"`
}

// Summary is the result of a round.
type Summary struct {
	Rows  []Row // in the order of references; entries first
	GC    *store.GCResult
	Retry time.Time // the earliest retry of a failed image; zero: none failed
}

// Count returns the number of rows with an action.
func (s *Summary) Count(a Action) (n int) {
	for _, r := range s.Rows {
		if r.Action == a {
			n++
		}
	}
	return n
}

// FailedError reports that a round failed for some images.
type FailedError struct {
	Failed, All int
	Unreachable bool // all failures are registries that did not answer
}

func (e *FailedError) Error() string {
	return fmt.Sprintf("%d of %d images are not up to date with the list", e.Failed, e.All)
}

// ExitCode implements exit.Coded.
func (e *FailedError) ExitCode() exit.Code {
	if e.Unreachable {
		return exit.Origin
	}
	return exit.Failed
}

// Hint returns the hint for the user.
func (e *FailedError) Hint() string {
	return "their copies in the store are unchanged; each is tried again later, or at once with --now"
}

// Err returns nil unless an image failed or waits for a retry.
func (s *Summary) Err() error {
	e := &FailedError{Unreachable: true, All: len(s.Rows)}
	for _, r := range s.Rows {
		if r.Action != Failed && r.Action != Waiting {
			continue
		}
		e.Failed++
		var known *image.Error
		if r.Err != nil && !(errors.As(r.Err, &known) && known.Kind == image.Unreachable) {
			e.Unreachable = false
		}
	}
	if e.Failed == 0 {
		return nil
	}
	return e
}

// Watcher makes rounds of a list. It is not safe for concurrent use.
type Watcher struct {
	store  *store.Store
	list   *List
	o      Options
	dir    string // of states
	file   string
	unlock func()
}

// New takes the list's lock, which Close releases.
func New(s *store.Store, l *List, o Options) (*Watcher, error) {
	if o.Report == nil {
		o.Report = func(Row) {}
	}
	if o.now == nil {
		o.now = time.Now
	}
	w := &Watcher{store: s, list: l, o: o}
	var err error
	if w.dir, err = s.Own("watch"); err != nil {
		return nil, err
	}
	w.file = filepath.Join(w.dir, l.Name+".json")
	// With an ended context the lock is tried once.
	once, cancel := context.WithCancel(context.Background())
	cancel()
	w.unlock, err = s.Lock(once, "watch-"+l.Name)
	if errors.Is(err, context.Canceled) {
		return nil, exit.Errorf(exit.Directory, "wait for it, or stop it; if it syncs another list, give the lists different names (name: ...)", "another premix syncs the list %s into %s", l.Name, s.Dir())
	}
	if err != nil {
		return nil, err
	}
	if err := w.own(); err != nil {
		w.Close()
		return nil, err
	}
	return w, nil
}

// own refuses a list that has the name of another one: images of the other list would
// be removed.
func (w *Watcher) own() error {
	st, err := readState(w.file)
	if err != nil || st.List == "" || st.List == w.list.Path {
		return err
	}
	theirs, err := os.Stat(st.List)
	if err != nil {
		return nil // it was moved here
	}
	ours, err := os.Stat(w.list.Path)
	if err == nil && os.SameFile(ours, theirs) {
		return nil
	}
	return Problems{{File: w.list.Path, Message: fmt.Sprintf("the store already has a list named %s, %s", w.list.Name, st.List),
		Hint: fmt.Sprintf("give this one another name, as in name: %s-2; if it replaces the other list, remove that file", w.list.Name)}}
}

// Close releases the list's lock.
func (w *Watcher) Close() { w.unlock() }

// wanted is an image in the list.
type wanted struct {
	Image
	entry *Entry
}

// round is the state of one round.
type round struct {
	*Watcher
	reg     *registries
	sum     *Summary
	began   time.Time
	expands map[*Entry]*expansion

	// mu guards the fields below, and the file of the state.
	mu      sync.Mutex
	state   *State
	images  map[string]*Image // of the state, by reference
	changed bool              // an image was replaced or removed
}

// expansion is the result of expanding an entry.
type expansion struct {
	err  error
	tags map[string][]string // by name: all tags in the registry, if it was asked
}

// Round makes one round. The error comes from the store or from ctx; the summary has
// the failures of images.
func (w *Watcher) Round(ctx context.Context) (*Summary, error) {
	st, err := readState(w.file)
	if err != nil {
		return nil, err
	}
	owners, err := others(w.dir, w.list.Name)
	if err != nil {
		return nil, err
	}
	r := &round{Watcher: w, sum: &Summary{}, began: w.o.now(), state: st, images: map[string]*Image{}, expands: map[*Entry]*expansion{}}
	if r.reg, err = newRegistries(w.o.now, w.o.transport); err != nil {
		return nil, err
	}
	for _, i := range st.Images {
		r.images[i.Ref] = &i
	}
	st.List, st.Began, st.Finished = w.list.Path, r.began, time.Time{}
	if err := r.save(); err != nil {
		return nil, err
	}
	wants, err := r.expand(ctx, owners)
	if err != nil {
		return nil, err
	}
	if err := r.each(ctx, wants); err != nil {
		return nil, err
	}
	if err := r.remove(ctx, wants); err != nil {
		return nil, err
	}
	if w.list.GC != nil && r.changed {
		if r.sum.GC, err = w.store.GC(ctx, store.GCOptions{Keep: w.list.GC.Keep, KeepFor: w.list.GC.KeepFor}); err != nil {
			return nil, err
		}
	}
	st.Finished = w.o.now()
	slices.SortStableFunc(r.sum.Rows, func(a, b Row) int { return cmp.Compare(a.Ref, b.Ref) })
	return r.sum, r.save()
}

// save writes the state. The caller holds mu, or is alone.
func (r *round) save() error {
	r.state.Images = []Image{}
	for _, i := range r.images {
		r.state.Images = append(r.state.Images, *i)
	}
	return r.state.write(r.file, r.store.Synced())
}

func (r *round) report(row Row) {
	if row.Err != nil {
		row.Error = row.Err.Error()
		var h interface{ Hint() string }
		if errors.As(row.Err, &h) {
			row.Hint = h.Hint()
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sum.Rows = append(r.sum.Rows, row)
	if !row.Retry.IsZero() && (r.sum.Retry.IsZero() || row.Retry.Before(r.sum.Retry)) {
		r.sum.Retry = row.Retry
	}
	r.o.Report(row)
}

// Back-off after failures: it doubles from the first to the last.
const (
	firstRetry = time.Minute
	lastRetry  = 4 * time.Hour
)

// failed counts a failure and sets the time of the next try.
func (r *round) failed(t *RetryState, registry string, err error) {
	t.Failures++
	wait := min(firstRetry<<min(t.Failures-1, 16), lastRetry)
	wait += time.Duration(rand.Int64N(int64(wait / 5))) // spread the retries
	t.Retry, t.Error, t.Hint = r.o.now().Add(wait), err.Error(), ""
	if until := r.reg.patience(registry); until.After(t.Retry) {
		t.Retry = until
	}
	var h interface{ Hint() string }
	if errors.As(err, &h) {
		t.Hint = h.Hint()
	}
}

// waits reports whether a failed item is not yet to be retried.
func (r *round) waits(t *RetryState) bool { return !r.o.Eager && t.Retry.After(r.o.now()) }

// expand asks registries for the images of all entries.
func (r *round) expand(ctx context.Context, owners map[string]string) ([]*wanted, error) {
	troubles := map[string]RetryState{}
	for _, t := range r.state.Entries {
		troubles[t.Entry] = t
	}
	r.state.Entries = nil
	all := map[string]*wanted{}
	for n := range r.list.Entries {
		e := &r.list.Entries[n]
		x := &expansion{tags: map[string][]string{}}
		r.expands[e] = x
		trouble := troubles[e.String()]
		trouble.Entry = e.String()
		if r.waits(&trouble) {
			x.err = errors.New(trouble.Error)
			r.state.Entries = append(r.state.Entries, trouble)
			r.report(Row{Action: Waiting, Source: e.String(), Retry: trouble.Retry, Error: trouble.Error, Hint: trouble.Hint})
			continue
		}
		found, err := r.expandEntry(ctx, e, x)
		if cause := context.Cause(ctx); cause != nil {
			return nil, cause
		}
		if err != nil {
			x.err = err
			r.failed(&trouble, e.Registry, err)
			r.state.Entries = append(r.state.Entries, trouble)
			r.report(Row{Action: Failed, Source: e.String(), Retry: trouble.Retry, Err: err})
			continue
		}
		for _, i := range found {
			first := all[i.Ref]
			have := r.images[i.Ref]
			switch owner := owners[i.Ref]; {
			case first != nil && first.Source() == i.Source():
			case first != nil:
				r.report(Row{Action: Failed, Ref: i.Ref, Source: i.Source(), Err: &image.Error{Kind: image.Usage,
					Reason:   fmt.Sprintf("the name %s is already used by %s (line %d)", i.Ref, first.Source(), first.entry.Line),
					HintText: fmt.Sprintf("give one of them another name, in line %d: as: ...", e.Line)}})
			case owner != "" && (have == nil || !have.Claimed):
				r.report(Row{Action: Failed, Ref: i.Ref, Source: i.Source(), Err: &image.Error{Kind: image.Usage,
					Reason:   fmt.Sprintf("%s belongs to the watch list %s", i.Ref, owner),
					HintText: fmt.Sprintf("remove it from one of the lists, or give it another name in line %d (as: ...); if this list was named %s before, restore that name (name: %s)", e.Line, owner, owner)}})
			default:
				all[i.Ref] = i
			}
		}
	}
	return slices.SortedFunc(maps.Values(all), func(a, b *wanted) int { return cmp.Compare(a.Ref, b.Ref) }), nil
}

func (r *round) expandEntry(ctx context.Context, e *Entry, x *expansion) (found []*wanted, err error) {
	names := []string{e.Name}
	if wild(e.Name) {
		if names, err = r.reg.names(ctx, e.Registry); err != nil {
			return nil, err
		}
	}
	for _, name := range names {
		if !e.fitsName(name) {
			continue
		}
		tags := slices.Clone(e.Tags)
		if e.listed() {
			if tags, err = r.reg.tags(ctx, e.Registry, name); err != nil {
				return nil, err
			}
			x.tags[name] = tags
		}
		for _, tag := range e.choose(tags) {
			ref, err := tree.ParseRef(e.as(name) + ":" + tag)
			if err != nil {
				r.report(Row{Action: Failed, Source: displayed(e.Registry, name, tag), Err: &image.Error{Kind: image.Usage,
					Reason: fmt.Sprintf("the name is not valid in a store: %v", err), HintText: fmt.Sprintf("leave it out (exclude), or rename it, in line %d: as: ...", e.Line), Err: err}})
				continue
			}
			found = append(found, &wanted{Image{Ref: ref.String(), Registry: e.Registry, Name: name, Tag: tag, Platform: e.Platform}, e})
		}
	}
	return found, nil
}

// each updates all wanted images, several at a time.
func (r *round) each(ctx context.Context, wants []*wanted) error {
	var workers sync.WaitGroup
	var once sync.Once
	var fatal error
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	turns := make(chan *wanted)
	for range r.list.Together {
		workers.Go(func() {
			for x := range turns {
				if err := r.one(ctx, x); err != nil {
					once.Do(func() { fatal = err; stop(err) })
				}
			}
		})
	}
	for _, x := range wants {
		if ctx.Err() != nil {
			break
		}
		turns <- x
	}
	close(turns)
	workers.Wait()
	return cmp.Or(fatal, context.Cause(ctx))
}

// one updates an image. Its error ends the round.
func (r *round) one(ctx context.Context, x *wanted) error {
	r.mu.Lock()
	var i Image
	if have := r.images[x.Ref]; have != nil {
		i = *have
	}
	r.mu.Unlock()
	if i.Source() != x.Source() || i.Platform != x.Platform {
		// It was not claimed, or claimed by an entry for another image.
		i = Image{Ref: x.Ref, Registry: x.Registry, Name: x.Name, Tag: x.Tag, Platform: x.Platform, Claimed: i.Claimed, Record: i.Record, Changed: i.Changed}
	}
	row := Row{Ref: i.Ref, Source: i.Source(), Digest: i.Digest, Record: i.Record}
	if r.waits(&i.RetryState) {
		row.Action, row.Retry, row.Error, row.Hint = Waiting, i.Retry, i.Error, i.Hint
		r.report(row)
		return nil
	}
	digest, err := r.reg.digest(ctx, i.Registry, i.Name, i.Tag)
	switch cause := context.Cause(ctx); {
	case cause != nil:
		return cause
	case err == nil && digest == "" && i.Claimed && i.Digest != "":
		return r.vanished(ctx, &i, x.entry.Gone)
	case err == nil && digest == "" && wild(x.entry.Name):
		return nil // not every name has every tag
	case err == nil && digest == "":
		err = &image.Error{Kind: image.Usage, Reason: fmt.Sprintf("the registry does not have %s", i.Source()), HintText: fmt.Sprintf("check name and tag in line %d of the list", x.entry.Line)}
	}
	was := i
	if err == nil {
		i.Checked, i.Gone, row.Digest = r.o.now(), time.Time{}, digest
		if digest == i.Digest && r.stands(&i) {
			i.RetryState = RetryState{}
			row.Action = Unchanged
			r.report(row)
			r.note(&i)
			return nil
		}
		i.Claimed = true
		if err := r.put(&i); err != nil {
			return err
		}
		row.Bytes, err = r.add(ctx, x, &i, digest)
	}
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		r.failed(&i.RetryState, i.Registry, err)
		row.Action, row.Retry, row.Err = Failed, i.Retry, err
		r.report(row)
		return r.put(&i)
	}
	row.Action, row.Record = Added, i.Record
	if !was.Record.IsZero() {
		row.Action = Updated
		if was.Record == i.Record {
			row.Action = Unchanged // another index with the same image
		}
	}
	i.RetryState = RetryState{}
	r.mu.Lock()
	r.changed = r.changed || row.Action == Updated
	r.mu.Unlock()
	r.report(row)
	return r.put(&i)
}

// note records an image, without writing the file.
func (r *round) note(i *Image) {
	c := *i
	r.mu.Lock()
	defer r.mu.Unlock()
	r.images[i.Ref] = &c
}

// put records an image and writes the file.
func (r *round) put(i *Image) error {
	c := *i
	r.mu.Lock()
	defer r.mu.Unlock()
	r.images[i.Ref] = &c
	return r.save()
}

// stands reports whether the store still has the added image.
func (r *round) stands(i *Image) bool {
	ref, err := tree.ParseRef(i.Ref)
	if err != nil {
		return false
	}
	tag, err := r.store.Resolve(image.RecordRef(ref))
	return err == nil && tag.Tree == i.Record
}

// add adds an image by its digest.
func (r *round) add(ctx context.Context, x *wanted, i *Image, digest string) (int64, error) {
	ref, err := tree.ParseRef(i.Ref)
	if err != nil {
		return 0, err
	}
	limited, cancel := context.WithTimeoutCause(ctx, r.list.Timeout, &image.Error{Kind: image.Unreachable,
		Reason: fmt.Sprintf("%s was not fetched within %v", i.Source(), r.list.Timeout), HintText: "check the connection to the registry, or raise timeout: in the list"})
	defer cancel()
	o := r.o.Add
	o.Platform, o.Progress = x.Platform, nil
	added, err := image.Add(limited, r.store, "docker://"+i.Registry+"/"+i.Name+"@"+digest, &ref, o)
	if err != nil {
		return 0, cmp.Or(context.Cause(limited), err)
	}
	i.Digest, i.Record, i.Changed = digest, added.Digest, r.o.now()
	return added.Written, nil
}

// remove removes images that belong to the list and are not wanted.
func (r *round) remove(ctx context.Context, wants []*wanted) error {
	still := map[string]bool{}
	for _, x := range wants {
		still[x.Ref] = true
	}
	for _, ref := range slices.Sorted(maps.Keys(r.images)) {
		if still[ref] {
			continue
		}
		i := *r.images[ref]
		e, answered := r.entryOf(&i)
		var err error
		switch {
		case e != nil && !answered:
			continue // unknown whether it should be removed
		case e != nil && !slices.Contains(r.expands[e].tags[i.Name], i.Tag):
			err = r.vanished(ctx, &i, e.Gone)
		default:
			err = r.removeNow(ctx, &i)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// entryOf returns the entry that matches an image, and whether its registry has
// answered. If several match, one without an answer takes precedence.
func (r *round) entryOf(i *Image) (e *Entry, answered bool) {
	for n := range r.list.Entries {
		x := &r.list.Entries[n]
		if !x.fits(i.Registry, i.Name, i.Tag) || x.as(i.Name)+":"+i.Tag != i.Ref {
			continue
		}
		if r.expands[x].err != nil {
			return x, false
		}
		if e == nil {
			e = x
		}
	}
	return e, true
}

// vanished handles an image of the list that its registry no longer has.
func (r *round) vanished(ctx context.Context, i *Image, gone GonePolicy) error {
	if i.Gone.IsZero() {
		i.Gone = r.o.now()
	}
	i.RetryState = RetryState{}
	if i.Claimed && (gone.Keep || r.o.now().Sub(i.Gone) < gone.After) {
		r.report(Row{Action: Vanished, Ref: i.Ref, Source: i.Source(), Digest: i.Digest, Record: i.Record, Gone: i.Gone})
		return r.put(i)
	}
	return r.removeNow(ctx, i)
}

// removeNow removes an image, if the list had added it.
func (r *round) removeNow(ctx context.Context, i *Image) error {
	drop := func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.images, i.Ref)
		return r.save()
	}
	if !i.Claimed {
		return drop()
	}
	ref, err := tree.ParseRef(i.Ref)
	if err != nil {
		return err
	}
	var none *store.UsageError
	if _, err := r.store.Resolve(image.RecordRef(ref)); errors.As(err, &none) {
		return drop() // it has been removed already
	}
	row := Row{Action: Removed, Ref: i.Ref, Source: i.Source(), Digest: i.Digest, Record: i.Record, Gone: i.Gone}
	if _, err := image.Remove(ctx, r.store, ref); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		row.Action, row.Err = Failed, err
		r.report(row)
		return nil
	}
	r.mu.Lock()
	r.changed = true
	r.mu.Unlock()
	r.report(row)
	return drop()
}
