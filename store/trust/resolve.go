package trust

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"premix/store/object"
	"premix/store/origin"
	"premix/store/tree"
)

// Options say whom to trust. The zero value trusts on first use.
type Options struct {
	// Dir is where pins and records are kept; see [Dir].
	Dir string
	// Keys are believed, and no others, where there are any.
	Keys []tree.PublicKey
	// AllowRollback takes a record whatever was seen before, once.
	AllowRollback bool
}

// Dir returns where pins and records are kept by default: home, which is usually
// $PREMIX_HOME, or the user's configuration directory for premix where home is "".
func Dir(home string) (string, error) {
	if home == "" {
		config, err := os.UserConfigDir()
		if err != nil {
			return "", err
		}
		home = filepath.Join(config, "premix")
	}
	return filepath.Join(home, "trust"), nil
}

// Resolver turns references into trees. It may be used by any number of
// goroutines, and its directory by any number of processes.
type Resolver struct {
	o Options
	s state

	mu     sync.Mutex
	stores map[string]*tree.Info // as they were believed last, by origin
}

// New returns a resolver. Nothing is read yet.
func New(o Options) *Resolver {
	return &Resolver{o: o, s: state{o.Dir}, stores: map[string]*tree.Info{}}
}

// Resolved is what a reference stands for.
type Resolved struct {
	Ref  tree.Ref
	Tree object.Digest
	// What follows is empty for a reference with a digest.
	Record *tree.TagRecord
	Signed []byte           // the record as it lies in the store
	Store  string           // id
	Keys   []tree.PublicKey // that are believed for this store
	Origin string           // who gave the record
	First  bool             // the origin was used for the first time, and its keys were taken on trust
	// Opening is what came with the record; nil where nothing did.
	Opening *Opening
	keep    *keeping
	// Offline is why no origin could be asked, where the record is the one that
	// was seen last. Whether that will do is for the caller to decide.
	Offline error
}

// Resolve returns the tree that ref stands for, by the word of the first origin
// that can be believed. Errors are those of this package and of package origin.
func (r *Resolver) Resolve(ctx context.Context, g *origin.Group, ref tree.Ref) (*Resolved, error) {
	return r.resolve(ctx, g, ref, "")
}

// Open is Resolve for somebody who is about to mount the tree with a profile, by its
// name: what a mount needs comes with the answer, where the origin has it together.
func (r *Resolver) Open(ctx context.Context, g *origin.Group, ref tree.Ref, profile string) (*Resolved, error) {
	if err := tree.ParseProfileName(profile); err != nil {
		return nil, err
	}
	return r.resolve(ctx, g, ref, profile)
}

// Last returns what a reference stood for when one of these origins was last asked,
// and whether one was.
func (r *Resolver) Last(g *origin.Group, ref tree.Ref) (object.Digest, bool) {
	if !ref.Digest.IsZero() {
		return ref.Digest, true
	}
	var names []string
	for _, s := range g.Stats() {
		names = append(names, s.Origin)
	}
	res := r.offline(names, ref, nil)
	if res == nil {
		return object.Digest{}, false
	}
	return res.Tree, true
}

func (r *Resolver) resolve(ctx context.Context, g *origin.Group, ref tree.Ref, profile string) (*Resolved, error) {
	if !ref.Digest.IsZero() {
		return &Resolved{Ref: ref, Tree: ref.Digest}, nil
	}
	var (
		res    *Resolved
		denied error // an origin gave something that is not believed
		asked  []string
		mute   int
	)
	err := g.Each(ctx, func(ctx context.Context, o origin.Origin) (err error) {
		asked = append(asked, o.String())
		res, err = r.ask(ctx, o, ref, profile)
		switch {
		case err == nil, errors.Is(err, origin.ErrNotFound):
		case silent(err):
			mute++
		case denied == nil:
			denied = err
		}
		return err
	})
	switch {
	case err == nil:
		return res, nil
	case errors.Is(ctx.Err(), context.Canceled):
		return nil, err
	case denied != nil:
		return nil, denied // rather than that others were silent
	case mute == 0:
		return nil, &NoTagError{ref, asked, err}
	}
	if res := r.offline(asked, ref, err); res != nil {
		return res, nil
	}
	return nil, err
}

// silent tells whether err says that an origin did not answer: nothing that it
// says of a tag is known then.
func silent(err error) bool {
	switch origin.KindOf(err) {
	case origin.Unreachable, origin.Certificate, origin.TimedOut, origin.Stalled, origin.Truncated,
		origin.Broken, origin.Unexpected, origin.Redirected:
		return true
	}
	return errors.Is(err, context.DeadlineExceeded)
}

// Store returns the store of an origin as it is believed: its keys are those
// that count, and none else. It pins what is new.
func (r *Resolver) Store(ctx context.Context, o origin.Origin) (info *tree.Info, first bool, err error) {
	content, err := o.File(ctx, tree.InfoPath)
	if err != nil {
		return nil, false, err
	}
	return r.believe(o, content, true)
}

// believe is Store for an origin that has said what its store is. What is new it only
// pins where keep is true.
func (r *Resolver) believe(o origin.Origin, content []byte, keep bool) (info *tree.Info, first bool, err error) {
	info, err = tree.ParseInfo(content)
	if err != nil {
		return nil, false, &UntrustedError{o.String(), err}
	}
	err = r.s.locked(func() error {
		keys, isNew, err := r.believed(o, info)
		if err != nil {
			return err
		}
		if isNew {
			first = len(r.o.Keys) == 0
			if keep {
				err = r.s.pin(Known{o.String(), info.ID, keys, time.Now().UTC().Truncate(time.Second)})
			}
		}
		info.Keys = keys
		return err
	})
	if err != nil {
		return nil, false, err
	}
	r.mu.Lock()
	r.stores[o.String()] = info
	r.mu.Unlock()
	return info, first, nil
}

// file is a file of an origin on its way.
type file struct {
	done    chan struct{}
	content []byte
	err     error
}

// begin asks an origin for a file. What is asked for together takes one round trip.
func begin(ctx context.Context, o origin.Origin, name string) *file {
	f := &file{done: make(chan struct{})}
	go func() {
		defer close(f.done)
		f.content, f.err = o.File(ctx, name)
	}()
	return f
}

func (f *file) wait() ([]byte, error) {
	<-f.done
	return f.content, f.err
}

// believed returns the keys that count for what an origin says, and whether that
// has to be pinned.
func (r *Resolver) believed(o origin.Origin, info *tree.Info) (keys []tree.PublicKey, isNew bool, err error) {
	all, err := r.s.known()
	if err != nil {
		return nil, false, err
	}
	var here, elsewhere *Known
	for i := range all {
		k := &all[i]
		if k.Origin == o.String() {
			here = k
		} else if k.Store == info.ID && elsewhere == nil {
			elsewhere = k
		}
	}
	if len(r.o.Keys) > 0 {
		isNew := here == nil || here.Store != info.ID || !slices.Equal(here.Keys, r.o.Keys)
		return r.o.Keys, isNew, nil
	}
	_, local := o.(*origin.Dir)
	pinned := here
	if local || pinned == nil {
		pinned = elsewhere
		isNew = here == nil || local && here.Store != info.ID
	}
	if pinned == nil {
		if local && here != nil && here.Store == info.ID && slices.Equal(here.Keys, info.Keys) {
			return here.Keys, false, nil
		}
		return info.Keys, true, nil
	}
	trusted := slices.ContainsFunc(info.Keys, func(k tree.PublicKey) bool { return slices.Contains(pinned.Keys, k) })
	if pinned.Store != info.ID || !trusted {
		return nil, false, &ChangedError{o.String(), *pinned, info.ID, info.Keys, r.s.knownFile()}
	}
	return pinned.Keys, isNew, nil
}

// ask has one origin say what a tag stands for, and believes it or not.
func (r *Resolver) ask(ctx context.Context, o origin.Origin, ref tree.Ref, profile string) (*Resolved, error) {
	if opener, ok := o.(origin.Opener); ok && profile != "" {
		// An opening may lag behind what it repeats: where it is not believed, or not
		// there, the files themselves decide. Servers answer in many ways for what is
		// not there.
		res, err := r.askOpening(ctx, opener, ref, profile)
		if err == nil || ctx.Err() != nil {
			return res, err
		}
		switch origin.KindOf(err) {
		case origin.Unreachable, origin.Certificate, origin.TimedOut, origin.Stalled:
			return nil, err // as the files would be
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // where the store is wrong its tag is not waited for
	tag := begin(ctx, o, ref.TagPath())
	info, first, err := r.Store(ctx, o)
	if err != nil {
		return nil, err
	}
	signed, err := tag.wait()
	if err != nil {
		return nil, err
	}
	return r.judge(o, ref, info, first, signed, true)
}

// judge believes a tag's record or not. It only keeps it where keep is true.
func (r *Resolver) judge(o origin.Origin, ref tree.Ref, info *tree.Info, first bool, signed []byte, keep bool) (*Resolved, error) {
	record, err := tree.OpenTag(signed, info.ID, ref, info.Keys)
	if err != nil {
		return nil, &UntrustedError{o.String(), err}
	}
	res := &Resolved{Ref: ref, Tree: record.Tree, Record: record, Signed: signed, Store: info.ID, Keys: info.Keys, Origin: o.String(), First: first}
	return res, r.s.locked(func() error {
		seen, err := r.s.seen(info.ID, ref)
		if err != nil {
			return err
		}
		if seen != nil && !r.o.AllowRollback {
			old, err := tree.OpenTag(seen, info.ID, ref, info.Keys)
			switch {
			case tree.IsInvalid(err):
				return &StateError{r.s.seenFile(info.ID, ref), 0, err}
			case err != nil:
				// It was signed with a key that is no longer believed.
			case record.Serial < old.Serial, record.Serial == old.Serial && record.Tree != old.Tree:
				return &RollbackError{o.String(), ref, record.Serial, old.Serial}
			case record.Serial == old.Serial:
				return nil
			}
		}
		if !keep {
			return nil
		}
		return replace(r.s.seenFile(info.ID, ref), signed)
	})
}

// keeping is what was believed on its way to the disk.
type keeping struct {
	done chan struct{}
	err  error
}

// Kept returns when what was believed is remembered on disk, so that nothing older
// will be. Who acts on what an opening said calls it before that is to be seen.
func (res *Resolved) Kept(ctx context.Context) error {
	if res.keep == nil {
		return nil
	}
	select {
	case <-res.keep.done:
		return res.keep.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// offline returns what was seen of a tag of the store that these origins had,
// nil where nothing was.
func (r *Resolver) offline(origins []string, ref tree.Ref, cause error) *Resolved {
	all, err := r.s.known()
	if err != nil {
		return nil // the cause says more
	}
	for _, k := range all {
		if !slices.Contains(origins, k.Origin) {
			continue
		}
		keys := k.Keys
		if len(r.o.Keys) > 0 {
			keys = r.o.Keys
		}
		signed, err := r.s.seen(k.Store, ref)
		if err != nil || signed == nil {
			continue
		}
		record, err := tree.OpenTag(signed, k.Store, ref, keys)
		if err != nil {
			continue
		}
		return &Resolved{Ref: ref, Tree: record.Tree, Record: record, Signed: signed, Store: k.Store, Keys: keys, Origin: k.Origin, Offline: cause}
	}
	return nil
}

// ProfileRecord returns the record of a profile of a tree, by its name, and its
// signed form. Where an origin says that it has none, and no other one has it, the
// error is an origin.ErrNotFound: nobody waits for a profile. An origin that was
// believed before is not asked again what its store is.
func (r *Resolver) ProfileRecord(ctx context.Context, g *origin.Group, d object.Digest, name string) (record *tree.ProfileRecord, signed []byte, err error) {
	if err := tree.ParseProfileName(name); err != nil {
		return nil, nil, err
	}
	var missing, denied error
	err = g.Each(ctx, func(ctx context.Context, o origin.Origin) error {
		r.mu.Lock()
		info := r.stores[o.String()]
		r.mu.Unlock()
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		var store *file
		if info == nil {
			store = begin(ctx, o, tree.InfoPath)
		}
		content, err := o.File(ctx, tree.ProfilePath(d, name))
		if err != nil {
			if errors.Is(err, origin.ErrNotFound) {
				missing = err
			}
			return err
		}
		if store != nil {
			var said []byte
			if said, err = store.wait(); err == nil {
				info, _, err = r.believe(o, said, true)
			}
		}
		if err == nil {
			if record, err = tree.OpenProfile(content, info.ID, d, name, info.Keys); err != nil {
				err = &UntrustedError{o.String(), err}
			}
		}
		if err != nil {
			denied = err
			return err
		}
		signed = content
		return nil
	})
	switch {
	case err == nil:
		return record, signed, nil
	case denied != nil:
		return nil, nil, denied
	case missing != nil && ctx.Err() == nil:
		return nil, nil, missing
	}
	return nil, nil, err
}

// ReadKeys reads public keys from a file: each line may have one, with words
// before it, as `premix store key` prints it. Lines without any are passed over.
func ReadKeys(path string) ([]tree.PublicKey, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var keys []tree.PublicKey
	n := 0
	for line := range strings.Lines(string(content)) {
		n++
		i := strings.Index(line, keyPrefix)
		if i < 0 {
			continue
		}
		k, err := tree.ParsePublicKey(line[i:])
		if err != nil {
			return nil, &KeyFileError{path, n, err}
		}
		keys = append(keys, k)
	}
	if len(keys) == 0 {
		return nil, &KeyFileError{path, 0, fmt.Errorf("it has no public key, which begins with %q", keyPrefix)}
	}
	return keys, nil
}

// keyPrefix is what every public key begins with: see [tree.PublicKey].
const keyPrefix = "premix-ed25519 "

// Profile returns the content of a profile's object, by the name of the profile:
// see [tree.ParseProfile]. Where no origin has it the error is an
// origin.ErrNotFound.
func (r *Resolver) Profile(ctx context.Context, g *origin.Group, d object.Digest, name string) ([]byte, error) {
	record, _, err := r.ProfileRecord(ctx, g, d, name)
	if err != nil {
		return nil, err
	}
	return g.Verified(ctx, record.Profile, -1)
}
