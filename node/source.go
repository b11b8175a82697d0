package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"premix/lazyfs"
	"premix/store/cache"
	"premix/store/object"
	"premix/store/origin"
	"premix/store/tree"
	"premix/store/trust"
)

// source is where the tree of a mount comes from.
type source struct {
	group    *origin.Group
	resolver *trust.Resolver
}

// source opens the origins of a mount. Nothing is connected to yet.
func (d *daemon) source(r MountRequest) (*source, error) {
	urls, proxies := r.Origins, r.Proxies
	if len(urls) == 0 {
		urls = d.config.Origins
	}
	if len(proxies) == 0 {
		proxies = d.config.Proxies
	}
	if len(urls) == 0 {
		return nil, usage("--origin URL, --store DIR, or origins in "+ConfigFile(), "there is no origin for %s", r.Ref)
	}
	t := d.config.Timeout
	o := origin.Options{
		Proxies: proxies, CAFile: r.CAFile, UserAgent: "premix/" + d.version,
		// One try of several within the time of a fetch.
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
	var list []origin.Origin
	for _, u := range urls {
		one, err := origin.Open(u, o)
		if err != nil {
			return nil, explain(err)
		}
		list = append(list, one)
	}
	return &source{origin.NewGroup(list, o), trust.New(trust.Options{Dir: d.config.Trust, Keys: keys, AllowRollback: r.AllowRollback})}, nil
}

// resolve looks a reference up. The note, if any, is for the user.
func (s *source) resolve(ctx context.Context, ref tree.Ref) (d object.Digest, note string, err error) {
	res, err := s.resolver.Resolve(ctx, s.group, ref)
	if err != nil {
		return d, "", explain(err)
	}
	switch {
	case res.Offline != nil:
		note = fmt.Sprintf("no origin answers (%v): %s is what it was at %s", res.Offline, ref, res.Record.Time.Format(time.RFC3339))
	case res.First:
		var keys []string
		for _, k := range res.Keys {
			keys = append(keys, k.String())
		}
		note = fmt.Sprintf("%s is used for the first time: from now on it is trusted by its key %s", res.Origin, strings.Join(keys, ", "))
	}
	return res.Tree, note, nil
}

// fetcher is what the cache fetches with; nil where there is nothing.
func (s *source) fetcher() cache.Fetcher {
	if s == nil {
		return nil
	}
	return s.group
}

// hinted is an error that knows the way out.
type hinted interface {
	error
	Hint() string
}

// explain makes an [Error] of what a package below said.
func explain(err error) error {
	var known *Error
	if err == nil || errors.As(err, &known) {
		return err
	}
	e := &Error{Kind: kindOf(err), Message: err.Error()}
	var h hinted
	if errors.As(err, &h) {
		e.Way = h.Hint()
	}
	return e
}

// explainFile is explain for a file that the user named.
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
	switch {
	case is(new(*trust.NoTagError)):
		return KindNoTree
	case is(new(*trust.ChangedError), new(*trust.UntrustedError), new(*trust.RollbackError)):
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
