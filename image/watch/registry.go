package watch

import (
	"context"
	"errors"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"premix/image"
)

// registries asks registries for one round. Credentials are read anew in each
// round, and each repository is greeted once.
type registries struct {
	puller *remote.Puller
	now    func() time.Time

	// mu guards what follows. It is never held while a registry is asked.
	mu     sync.Mutex
	asks   map[string]time.Time // by host: until when it asks for patience
	silent map[string]error     // by registry: why it is asked no more in this round, as it was learned
}

// maxPatience bounds what a Retry-After can ask for.
const maxPatience = 6 * time.Hour

func newRegistries(now func() time.Time, base http.RoundTripper) (*registries, error) {
	r := &registries{now: now, asks: map[string]time.Time{}, silent: map[string]error{}}
	if base == nil {
		base = remote.DefaultTransport
	}
	var err error
	r.puller, err = remote.NewPuller(remote.WithAuthFromKeychain(authn.DefaultKeychain), remote.WithUserAgent("premix"),
		remote.WithTransport(&listening{base, r}),
		// One more try at once, for connections that were just closed; after
		// that the round's own back-off is at work.
		remote.WithRetryBackoff(remote.Backoff{Duration: 200 * time.Millisecond, Factor: 1, Steps: 2}),
		remote.WithRetryStatusCodes(http.StatusBadGateway, http.StatusGatewayTimeout))
	return r, err
}

// listening notes for how long a registry wants to be left alone.
type listening struct {
	http.RoundTripper
	r *registries
}

func (l *listening) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := l.RoundTripper.RoundTrip(req)
	if err != nil || resp.StatusCode != http.StatusTooManyRequests && resp.StatusCode != http.StatusServiceUnavailable {
		return resp, err
	}
	now, until := l.r.now(), time.Time{}
	after := resp.Header.Get("Retry-After")
	if n, err := strconv.Atoi(after); err == nil && n >= 0 {
		until = now.Add(min(time.Duration(min(n, 1<<20))*time.Second, maxPatience))
	} else if t, err := http.ParseTime(after); err == nil {
		until = now.Add(min(t.Sub(now), maxPatience))
	}
	l.r.mu.Lock()
	defer l.r.mu.Unlock()
	if until.After(l.r.asks[req.URL.Host]) {
		l.r.asks[req.URL.Host] = until
	}
	return resp, nil
}

// patience is until when a registry wants to be left alone; zero for as long as
// anybody.
func (r *registries) patience(registry string) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.asks[registry]
}

// ask asks a registry, unless it is to be left alone in this round. The error names
// what was asked for here, whoever it was that the registry failed first.
func (r *registries) ask(ctx context.Context, registry, what string, question func() error) error {
	r.mu.Lock()
	cause := r.silent[registry]
	r.mu.Unlock()
	if cause != nil {
		return image.RemoteError(ctx, what, cause)
	}
	if cause = question(); cause == nil {
		return nil
	}
	if ctx.Err() == nil && leaveAlone(cause) {
		r.mu.Lock()
		r.silent[registry] = cause
		r.mu.Unlock()
	}
	return image.RemoteError(ctx, what, cause)
}

// leaveAlone tells whether an error is one of the registry as a whole.
func leaveAlone(err error) bool {
	var answer *transport.Error
	var network net.Error
	switch {
	case errors.As(err, &answer):
		return answer.StatusCode == http.StatusTooManyRequests || answer.StatusCode == http.StatusServiceUnavailable
	case errors.As(err, &network):
		return true
	}
	return false
}

// missing tells whether a registry has answered, in a registry's own words, that it
// does not have something. A 404 of somebody else, such as a proxy that was set up
// wrongly, is a failure: images are removed for the sake of this answer.
func missing(err error) bool {
	var answer *transport.Error
	if !errors.As(err, &answer) || answer.StatusCode != http.StatusNotFound {
		return false
	}
	return slices.ContainsFunc(answer.Errors, func(d transport.Diagnostic) bool {
		return d.Code == transport.ManifestUnknownErrorCode || d.Code == transport.NameUnknownErrorCode || d.Code == "NOT_FOUND"
	})
}

func repository(registry, path string) (name.Repository, error) {
	return name.NewRepository(registry+"/"+path, name.StrictValidation)
}

// names lists what a registry has.
func (r *registries) names(ctx context.Context, registry string) (list []string, err error) {
	reg, err := name.NewRegistry(registry)
	if err != nil {
		return nil, err
	}
	err = r.ask(ctx, registry, "the catalog of "+registry, func() error {
		list, err = r.puller.Catalog(ctx, reg)
		return err
	})
	var known *image.Error
	if errors.As(err, &known) && !leaveAlone(err) {
		return nil, &image.Error{Kind: image.Unreachable, Reason: known.Reason, Way: "not every registry tells its names, and some only to users that are logged in: write the names out instead of a wildcard", Err: err}
	}
	return list, err
}

// tags lists those of a name; a name that is not there has none.
func (r *registries) tags(ctx context.Context, registry, path string) (list []string, err error) {
	repo, err := repository(registry, path)
	if err != nil {
		return nil, err
	}
	err = r.ask(ctx, registry, "the tags of "+repo.String(), func() error {
		list, err = r.puller.List(ctx, repo)
		return err
	})
	if missing(err) {
		return nil, nil
	}
	return list, err
}

// digest is what a tag stands for; "" if it is not there.
func (r *registries) digest(ctx context.Context, registry, path, tag string) (digest string, err error) {
	repo, err := repository(registry, path)
	if err != nil {
		return "", err
	}
	ref := repo.Tag(tag)
	err = r.ask(ctx, registry, ref.String(), func() error {
		desc, err := r.puller.Head(ctx, ref)
		if err == nil {
			digest = desc.Digest.String()
			return nil
		}
		var answer *transport.Error
		if leaveAlone(err) || errors.As(err, &answer) && !slices.Contains([]int{http.StatusMethodNotAllowed, http.StatusBadRequest, http.StatusNotFound}, answer.StatusCode) {
			return err
		}
		// It knows no HEAD, or does not tell the digest there. Or the tag is gone:
		// only an answer with a body says who it comes from.
		got, err := r.puller.Get(ctx, ref)
		if err == nil {
			digest = got.Digest.String()
		}
		return err
	})
	if missing(err) {
		return "", nil
	}
	return digest, err
}
