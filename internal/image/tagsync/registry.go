package tagsync

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

	"premix/internal/image"
	"premix/internal/kit/login"
)

// registries asks registries during one round. Credentials are read again for each
// round, and each repository is authenticated once.
type registries struct {
	puller *remote.Puller
	now    func() time.Time

	// mu guards the fields below. It is not held during a request to a registry.
	mu     sync.Mutex
	asks   map[string]time.Time // by host: the end of its Retry-After
	silent map[string]error     // by registry: why it is not asked any more in this round
}

// maxPatience limits the delay of a Retry-After.
const maxPatience = 6 * time.Hour

func newRegistries(now func() time.Time, base http.RoundTripper) (*registries, error) {
	r := &registries{now: now, asks: map[string]time.Time{}, silent: map[string]error{}}
	if base == nil {
		base = remote.DefaultTransport
	}
	var err error
	r.puller, err = remote.NewPuller(remote.WithAuthFromKeychain(login.Keychain{}), remote.WithUserAgent("premix"),
		remote.WithTransport(&listening{base, r}),
		// One more try at once, for connections that were just closed; further tries
		// follow the round's own back-off.
		remote.WithRetryBackoff(remote.Backoff{Duration: 200 * time.Millisecond, Factor: 1, Steps: 2}),
		remote.WithRetryStatusCodes(http.StatusBadGateway, http.StatusGatewayTimeout))
	return r, err
}

// listening records the Retry-After of registries.
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

// patience returns the time until which a registry must not be asked; zero if there is
// none.
func (r *registries) patience(registry string) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.asks[registry]
}

// ask calls question, which asks a registry, unless the registry is not to be asked in
// this round. The error names the item that was asked for here, even if the registry
// failed for another one.
func (r *registries) ask(ctx context.Context, about authn.Resource, what string, question func() error) error {
	registry := about.RegistryStr()
	r.mu.Lock()
	cause := r.silent[registry]
	r.mu.Unlock()
	if cause != nil {
		return image.RemoteError(ctx, about, what, cause)
	}
	if cause = question(); cause == nil {
		return nil
	}
	if ctx.Err() == nil && leaveAlone(cause) {
		r.mu.Lock()
		r.silent[registry] = cause
		r.mu.Unlock()
	}
	return image.RemoteError(ctx, about, what, cause)
}

// leaveAlone reports whether an error concerns the registry as a whole.
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

// missing reports whether a registry has answered, with a registry's own error code,
// that it does not have an item. A 404 of another server, such as a misconfigured
// proxy, is a failure: images are removed because of this answer.
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

// names returns the names in a registry.
func (r *registries) names(ctx context.Context, registry string) (list []string, err error) {
	reg, err := name.NewRegistry(registry)
	if err != nil {
		return nil, err
	}
	err = r.ask(ctx, reg, "the catalog of "+registry, func() error {
		list, err = r.puller.Catalog(ctx, reg)
		return err
	})
	var known *image.Error
	if errors.As(err, &known) && !leaveAlone(err) {
		return nil, &image.Error{Kind: image.Unreachable, Reason: known.Reason, HintText: "some registries do not list their names, or only for users that are logged in: write the names instead of a wildcard", Err: err}
	}
	return list, err
}

// tags returns the tags of a name; a missing name has none.
func (r *registries) tags(ctx context.Context, registry, path string) (list []string, err error) {
	repo, err := repository(registry, path)
	if err != nil {
		return nil, err
	}
	err = r.ask(ctx, repo, "the tags of "+repo.String(), func() error {
		list, err = r.puller.List(ctx, repo)
		return err
	})
	if missing(err) {
		return nil, nil
	}
	return list, err
}

// digest returns the digest of a tag, or "" if the tag does not exist.
func (r *registries) digest(ctx context.Context, registry, path, tag string) (digest string, err error) {
	repo, err := repository(registry, path)
	if err != nil {
		return "", err
	}
	ref := repo.Tag(tag)
	err = r.ask(ctx, repo, ref.String(), func() error {
		desc, err := r.puller.Head(ctx, ref)
		if err == nil {
			digest = desc.Digest.String()
			return nil
		}
		var answer *transport.Error
		if leaveAlone(err) || errors.As(err, &answer) && !slices.Contains([]int{http.StatusMethodNotAllowed, http.StatusBadRequest, http.StatusNotFound}, answer.StatusCode) {
			return err
		}
		// The registry does not support HEAD, or does not return the digest with it. Or
		// the tag is gone: only an answer with a body shows whether it comes from a
		// registry.
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
