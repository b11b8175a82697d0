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

	"premix/internal/store/object"
	"premix/internal/store/origin"
	"premix/internal/store/tree"
)

// Options say which keys to trust. The zero value trusts on first use.
type Options struct {
	// Dir is the directory of pins and seen records; see [Dir].
	Dir string
	// Keys, if there are any, are the only keys trusted.
	Keys []tree.PublicKey
	// AllowRollback accepts a record whatever record was seen before, once.
	AllowRollback bool
	// Doubtful is set if references are often missing, as those of layers are whose image
	// is in no store. [Resolver.Open] then requests the record together with the bootstrap
	// if it has to connect first, so that it knows sooner.
	Doubtful bool
}

// Dir returns the default directory of pins and seen records: home, which is usually
// $PREMIX_HOME, or the user's configuration directory for premix if home is "".
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

// Resolver turns references into trees. Any number of goroutines may use it, and any
// number of processes its directory.
type Resolver struct {
	o Options
	s state

	mu     sync.Mutex
	stores map[string]*tree.Info // as last trusted, by origin
}

// New returns a resolver. Nothing is read yet.
func New(o Options) *Resolver {
	return &Resolver{o: o, s: state{o.Dir}, stores: map[string]*tree.Info{}}
}

// Resolved is the result of resolving a reference.
type Resolved struct {
	Ref  tree.Ref
	Tree object.Digest
	// The fields below are empty for a reference with a digest.
	Record *tree.TagRecord
	Signed []byte           // the record as it lies in the store
	Store  string           // id
	Keys   []tree.PublicKey // that are trusted for this store
	Origin string           // that gave the record
	First  bool             // the origin was used for the first time, and its keys were taken on trust
	// Bootstrap holds the copies that came with the record; nil if there were none.
	Bootstrap *Bootstrap
	keep      *pendingWrite
	// Offline is the reason why no origin could be asked, if the record is the seen
	// one. The caller decides whether that is good enough.
	Offline error
}

// Resolve returns the tree that ref stands for, from the first origin whose answer is
// trusted. Errors are those of this package and of package origin.
func (r *Resolver) Resolve(ctx context.Context, g *origin.Group, ref tree.Ref) (*Resolved, error) {
	return r.resolve(ctx, g, ref, "")
}

// Open is Resolve for a caller that is about to mount the tree with the named profile:
// if the origin has a bootstrap, the answer includes it.
func (r *Resolver) Open(ctx context.Context, g *origin.Group, ref tree.Ref, profile string) (*Resolved, error) {
	if err := tree.ParseProfileName(profile); err != nil {
		return nil, err
	}
	return r.resolve(ctx, g, ref, profile)
}

// Last returns the tree of ref when one of these origins was last asked, and whether
// one was.
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
		denied error // an origin's answer is not trusted
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
		return nil, denied // more telling than origins that do not answer
	case mute == 0:
		return nil, &NoTagError{ref, asked, err}
	}
	if res := r.offline(asked, ref, err); res != nil {
		return res, nil
	}
	return nil, err
}

// silent reports whether err means that an origin did not answer, so that the state of
// a tag there is unknown.
func silent(err error) bool {
	switch origin.KindOf(err) {
	case origin.Unreachable, origin.Certificate, origin.TimedOut, origin.Stalled, origin.Truncated,
		origin.Broken, origin.Unexpected, origin.Redirected:
		return true
	}
	return errors.Is(err, context.DeadlineExceeded)
}

// Store returns the store of an origin, with the keys that are trusted and no others.
// It pins new ones.
func (r *Resolver) Store(ctx context.Context, o origin.Origin) (info *tree.Info, first bool, err error) {
	content, err := o.File(ctx, tree.InfoPath)
	if err != nil {
		return nil, false, err
	}
	return r.verifyStore(o, content, true)
}

// verifyStore is Store for the given content of store.json. It pins only if keep is true.
func (r *Resolver) verifyStore(o origin.Origin, content []byte, keep bool) (info *tree.Info, first bool, err error) {
	info, err = tree.ParseInfo(content)
	if err != nil {
		return nil, false, &UntrustedError{o.String(), err}
	}
	err = r.s.locked(func() error {
		keys, isNew, err := r.trustedKeys(o, info)
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

// file is a file that is being fetched from an origin.
type file struct {
	done    chan struct{}
	content []byte
	err     error
}

// begin starts to fetch a file from an origin. Files fetched at the same time cost one
// round trip.
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

// trustedKeys returns the keys that are trusted for an origin, and whether they have to be
// pinned.
func (r *Resolver) trustedKeys(o origin.Origin, info *tree.Info) (keys []tree.PublicKey, isNew bool, err error) {
	all, err := r.s.known()
	if err != nil {
		return nil, false, err
	}
	var here, remote *Known
	for i := range all {
		k := &all[i]
		if k.Origin == o.String() {
			here = k
		} else if k.Store == info.ID && remote == nil {
			remote = k
		}
	}
	if len(r.o.Keys) > 0 {
		isNew := here == nil || here.Store != info.ID || !slices.Equal(here.Keys, r.o.Keys)
		return r.o.Keys, isNew, nil
	}
	_, local := o.(*origin.Dir)
	pinned := here
	if local || pinned == nil {
		pinned = remote
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

// ask asks one origin for the record of a tag, and verifies it.
func (r *Resolver) ask(ctx context.Context, o origin.Origin, ref tree.Ref, profile string) (*Resolved, error) {
	var store, tag *file
	if opener, ok := o.(origin.Opener); ok && profile != "" {
		if r.o.Doubtful && opener.Cold() {
			store, tag = begin(ctx, o, tree.InfoPath), begin(ctx, o, ref.TagPath())
		}
		// A bootstrap may be older than the files that it repeats: if it is missing or
		// not trusted, the files themselves decide. Servers answer in many ways for a
		// missing file.
		res, err := r.askBootstrap(ctx, opener, ref, profile)
		if err == nil || ctx.Err() != nil {
			return res, err
		}
		switch origin.KindOf(err) {
		case origin.Unreachable, origin.Certificate, origin.TimedOut, origin.Stalled:
			return nil, err // the files would give the same error
		}
	}
	if tag == nil {
		var cancel func()
		ctx, cancel = context.WithCancel(ctx)
		defer cancel() // if the store is wrong, its tag is not waited for
		store, tag = begin(ctx, o, tree.InfoPath), begin(ctx, o, ref.TagPath())
	}
	content, err := store.wait()
	if err != nil {
		return nil, err
	}
	info, first, err := r.verifyStore(o, content, true)
	if err != nil {
		return nil, err
	}
	signed, err := tag.wait()
	if err != nil {
		return nil, err
	}
	return r.judge(o, ref, info, first, signed, true)
}

// judge verifies a tag's record. It keeps it as seen only if keep is true.
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
				// It was signed with a key that is no longer trusted.
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

// pendingWrite is the writing of pins and records in the background.
type pendingWrite struct {
	done chan struct{}
	err  error
}

// Kept waits until pins and records are on disk, so that no older record will be
// accepted later. A caller that acts on a bootstrap calls it before the effect becomes
// visible.
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

// offline returns the seen record of a tag of the store that these origins had, or nil
// if there is none.
func (r *Resolver) offline(origins []string, ref tree.Ref, cause error) *Resolved {
	all, err := r.s.known()
	if err != nil {
		return nil // the cause says more to the user
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

// ProfileRecord returns the record of a profile of a tree, by its name, and the
// record's signed form. If one origin says that it has none, and no other has it, the
// error is an origin.ErrNotFound: a profile is never waited for. store.json of an
// origin that was trusted before is not fetched again.
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
			var content []byte
			if content, err = store.wait(); err == nil {
				info, _, err = r.verifyStore(o, content, true)
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

// ReadKeys reads public keys from a file. Each line may have one key, with words before
// it, as `premix store key` prints it. Lines without a key are skipped.
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

// keyPrefix is the beginning of every public key: see [tree.PublicKey].
const keyPrefix = "premix-ed25519 "

// Profile returns the content of a profile's object, by the name of the profile: see
// [tree.ParseProfile]. If no origin has it, the error is an origin.ErrNotFound.
func (r *Resolver) Profile(ctx context.Context, g *origin.Group, d object.Digest, name string) ([]byte, error) {
	record, _, err := r.ProfileRecord(ctx, g, d, name)
	if err != nil {
		return nil, err
	}
	return g.Verified(ctx, record.Profile, -1)
}
