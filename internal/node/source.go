package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"premix/internal/cvmfs"
	"premix/internal/image/lazylayer"
	"premix/internal/lazyfs"
	"premix/internal/store/cache"
	"premix/internal/store/neighbour"
	"premix/internal/store/object"
	"premix/internal/store/origin"
	"premix/internal/store/tree"
	"premix/internal/store/trust"
)

// source holds the origins of a mount's tree.
type source struct {
	group     *origin.Group
	resolver  *trust.Resolver
	bootstrap *trust.Bootstrap // that came with the tag's record; may be nil
	resolved  *trust.Resolved
	share     *neighbour.Share // nil: neighbours are not asked, and get nothing
}

// source opens the origins of a mount. It makes no connection.
func (d *daemon) source(r MountRequest) (*source, error) {
	urls, proxies := r.Origins, r.Proxies
	if len(urls) == 0 {
		urls = d.config.Origins
	}
	if len(proxies) == 0 {
		proxies = d.config.Proxies
	}
	if len(urls) == 0 {
		return nil, usage("give --origin URL or --store DIR, or set origins in "+ConfigFile(), "there is no origin for %s", r.Ref)
	}
	t := d.config.Timeout
	o := origin.Options{
		Proxies: proxies, CAFile: r.CAFile, UserAgent: "premix/" + d.version,
		// Several tries fit into the time of a fetch.
		Connect: t / 4, Header: t / 2, Stall: t / 2, Patience: t / 2,
	}
	if r.Credentials != "" {
		c, err := origin.ReadCredentials(r.Credentials)
		if err != nil {
			return nil, explainFile(err)
		}
		o.Credentials = c
	}
	var keys []tree.PublicKey
	if r.KeyFile != "" {
		var err error
		if keys, err = trust.ReadKeys(r.KeyFile); err != nil {
			return nil, explainFile(err)
		}
	}
	list, err := d.origins.open(urls, o, r.Credentials)
	if err != nil {
		return nil, explain(err)
	}
	src := &source{share: d.share(urls, r.Credentials)}
	if src.share != nil {
		o.Near = src.share
	}
	src.group = origin.NewGroup(list, o)
	src.resolver = trust.New(trust.Options{Dir: d.config.Trust, Keys: keys, AllowRollback: r.AllowRollback, Doubtful: r.Within != ""})
	if src.share != nil {
		src.share.From(d.shared(src.group))
	}
	return src, nil
}

// mostOrigins bounds the remembered lists of origins.
const mostOrigins = 64

// origins holds origins that were opened before. Mounts with the same origins share
// connections: an image has many layers, and a new connection costs a round trip. The
// health of an origin is tracked for each mount separately.
type origins struct {
	mu    sync.Mutex // a leaf: nothing is locked or connected to under it
	known map[string][]origin.Origin
}

// open opens origins, or returns those opened before. If a file of their options has
// changed, they are opened again.
func (k *origins) open(urls []string, o origin.Options, credentials string) ([]origin.Origin, error) {
	key := fmt.Sprintf("%q %q %s %s", urls, o.Proxies, stateOf(o.CAFile), stateOf(credentials))
	k.mu.Lock()
	defer k.mu.Unlock()
	if list := k.known[key]; list != nil {
		return list, nil
	}
	var list []origin.Origin
	for _, u := range urls {
		one, err := origin.Open(u, o)
		if err != nil {
			return nil, err
		}
		list = append(list, one)
	}
	if k.known == nil || len(k.known) >= mostOrigins {
		k.known = map[string][]origin.Origin{} // mounts keep theirs
	}
	k.known[key] = list
	return list, nil
}

// stateOf returns a text that changes when a file does.
func stateOf(file string) string {
	if file == "" {
		return ""
	}
	st, err := os.Stat(file)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%q %d %d", file, st.Size(), st.ModTime().UnixNano())
}

// resolve resolves the reference of a mount. The note, if any, is for the user.
func (d *daemon) resolve(ctx context.Context, s *source, ref tree.Ref, r MountRequest) (digest object.Digest, note string, err error) {
	var res *trust.Resolved
	// A bootstrap would come from the origin, for each of the neighbours.
	if s.share != nil || d.knows(s, ref) {
		res, err = s.resolver.Resolve(ctx, s.group, ref)
	} else {
		res, err = s.resolver.Open(ctx, s.group, ref, bootstrapOf(r))
	}
	if err != nil {
		return digest, "", explain(err)
	}
	s.bootstrap, s.resolved = res.Bootstrap, res
	switch {
	case res.Offline != nil:
		note = fmt.Sprintf("no origin answers (%v): using %s as it was at %s", res.Offline, ref, res.Record.Time.Format(time.RFC3339))
	case res.First:
		var keys []string
		for _, k := range res.Keys {
			keys = append(keys, k.String())
		}
		note = fmt.Sprintf("%s is used for the first time: from now on it is trusted by its key %s", res.Origin, strings.Join(keys, ", "))
	}
	return res.Tree, note, nil
}

// knows reports whether the last known tree of the reference is in the cache: an
// bootstrap would bring nothing new then.
func (d *daemon) knows(s *source, ref tree.Ref) bool {
	last, ok := s.resolver.Last(s.group, ref)
	if !ok {
		return false
	}
	t, err := d.cache.Tree(d.ctx, last, nil)
	if err != nil {
		return false
	}
	_ = t.Close() // only decrements a count, and cannot fail
	return true
}

// bootstrapOf returns the profile whose bootstrap a mount uses.
func bootstrapOf(r MountRequest) string {
	if r.Profile == "" || r.Profile == noProfile {
		return tree.DefaultProfile
	}
	return r.Profile
}

// kept waits until the source's pins and records are on disk.
func (s *source) kept(ctx context.Context) error {
	if s.resolved == nil {
		return nil
	}
	return explain(s.resolved.Kept(ctx))
}

// fetcher returns the fetcher for the cache, nil if there is none.
func (s *source) fetcher() cache.Fetcher {
	switch {
	case s == nil:
		return nil
	case s.bootstrap != nil:
		return &opened{s.group, s.bootstrap}
	}
	return s.group
}

// opened fetches objects from a bootstrap first, and then from origins.
type opened struct {
	*origin.Group
	bootstrap *trust.Bootstrap
}

// Verified implements cache.Fetcher.
func (o *opened) Verified(ctx context.Context, d object.Digest, size int64) ([]byte, error) {
	if content := o.bootstrap.Object(ctx, d); content != nil && (size < 0 || int64(len(content)) == size) {
		return content, nil
	}
	return o.Group.Verified(ctx, d, size)
}

// Stream implements cache.Streamer.
func (o *opened) Stream(ctx context.Context, d object.Digest, size int64, got func(soFar []byte)) ([]byte, error) {
	if content := o.bootstrap.Stream(ctx, d, size, got); content != nil {
		return content, nil
	}
	return o.Group.Stream(ctx, d, size, got)
}

// profile returns the content of a profile's object, nil if the store has no profile of
// this name.
func (s *source) profile(ctx context.Context, d object.Digest, name string) ([]byte, error) {
	if s.bootstrap != nil {
		if content, ok := s.bootstrap.Profile(d, name); ok {
			return content, nil
		}
	}
	content, err := s.resolver.Profile(ctx, s.group, d, name)
	if errors.Is(err, origin.ErrNotFound) {
		return nil, nil
	}
	return content, err
}

// hinted is an error with a hint.
type hinted interface {
	error
	Hint() string
}

// explain converts an error of another package to an [Error].
func explain(err error) error {
	var known *Error
	if err == nil || errors.As(err, &known) {
		return err
	}
	e := &Error{Kind: kindOf(err), Message: err.Error()}
	var h hinted
	if errors.As(err, &h) {
		e.HintText = h.Hint()
	}
	return e
}

// explainFile is explain for a file named by the user.
func explainFile(err error) error {
	var path *os.PathError
	if errors.As(err, &path) {
		return usage("name an existing file that this user may read", "%v", err)
	}
	return explain(err)
}

func kindOf(err error) Kind {
	is := func(targets ...any) bool {
		for _, t := range targets {
			if errors.As(err, t) {
				return true
			}
		}
		return false
	}
	var repository *cvmfs.Error
	var layer *lazylayer.Error
	switch {
	case errors.As(err, &layer):
		return map[lazylayer.Kind]Kind{lazylayer.Unsuitable: KindUnavailable, lazylayer.Unreachable: KindOrigin, lazylayer.Wrong: KindTrust}[layer.Kind]
	case errors.As(err, &repository):
		return map[cvmfs.Kind]Kind{cvmfs.Origin: KindOrigin, cvmfs.Trust: KindTrust, cvmfs.Cannot: KindUnavailable, cvmfs.Missing: KindUsage, cvmfs.Usage: KindUsage}[repository.Kind]
	case is(new(*trust.NoTagError)):
		return KindNoTree
	case is(new(*trust.ChangedError), new(*trust.UntrustedError), new(*trust.RollbackError), new(*UnsoundError)):
		return KindTrust
	case is(new(*lazyfs.UnavailableError)):
		return KindUnavailable
	case is(new(*cache.BusyError)):
		return KindBusy
	case is(new(*cache.NotCachedError), new(*cache.NoRoomError), new(*cache.FormatError), new(*cache.InUseError),
		new(*trust.StateError), new(*trust.KeyFileError), new(*origin.OpenError), new(*origin.CredentialsError)):
		return KindUsage
	case errors.Is(err, origin.ErrNotFound):
		return KindUsage
	case origin.KindOf(err) != "", errors.Is(err, context.DeadlineExceeded), object.IsCorrupt(err), tree.IsInvalid(err):
		return KindOrigin
	}
	return KindInternal
}
