package lazylayer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

const (
	tries       = 3
	firstPause  = 200 * time.Millisecond
	rangeWithin = time.Minute // of one request
)

// Repository reads parts of blobs of a repository. It logs in with the first request.
type Repository struct {
	repo     name.Repository
	keychain authn.Keychain
	fetched  atomic.Int64

	mu     sync.Mutex
	client *http.Client
}

// NewRepository returns the repository HOST[:PORT]/NAME.
func NewRepository(repository string, k authn.Keychain) (*Repository, error) {
	repo, err := name.NewRepository(repository)
	if err != nil {
		return nil, &Error{Unsuitable, err.Error(), err}
	}
	return &Repository{repo: repo, keychain: k}, nil
}

// Fetched returns the number of bytes received.
func (r *Repository) Fetched() int64 { return r.fetched.Load() }

// Login connects and logs in to the registry, so that the next request need not.
func (r *Repository) Login(ctx context.Context) error {
	_, err := r.login(ctx)
	return err
}

// login returns a client that is authenticated.
func (r *Repository) login(ctx context.Context) (*http.Client, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.client != nil {
		return r.client, nil
	}
	auth, err := authn.Resolve(ctx, r.keychain, r.repo)
	if err != nil {
		return nil, err
	}
	base, end := shared().to(ctx, r.repo.Registry)
	defer end()
	t, err := transport.NewWithContext(ctx, r.repo.Registry, auth, base, []string{r.repo.Scope(transport.PullScope)})
	if err != nil {
		return nil, err
	}
	r.client = &http.Client{Transport: t}
	return r.client, nil
}

// logout forgets a client whose credentials the registry does not accept any more.
func (r *Repository) logout() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.client = nil
}

// manifestTypes are the media types of manifests of one image.
const manifestTypes = "application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json"

// Manifest reads a manifest of at most limit bytes by its digest. It is not verified.
func (r *Repository) Manifest(ctx context.Context, digest string, limit int64) ([]byte, error) {
	client, err := r.login(ctx)
	if err != nil {
		return nil, err
	}
	url := fmt.Sprintf("%s://%s/v2/%s/manifests/%s", r.repo.Scheme(), r.repo.RegistryStr(), r.repo.RepositoryStr(), digest)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", manifestTypes)
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if err := transport.CheckError(resp, http.StatusOK); err != nil {
		return nil, err
	}
	b, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = unsuitable("the manifest %s has more than %d bytes", digest, limit)
	}
	return b, err
}

// Range reads the bytes from, to of a blob of size bytes. They are not verified.
func (r *Repository) Range(ctx context.Context, digest string, size, from, to int64, w io.Writer) error {
	pause := firstPause
	for try := 1; ; try++ {
		n, err := r.rangeOnce(ctx, digest, size, from, to, w)
		from += n // w has these
		if err == nil {
			return nil
		}
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		var known *Error
		if errors.As(err, &known) || try == tries {
			return &Error{kindOf(err), fmt.Sprintf("%s@%.19s, bytes %d to %d: %v", r.repo, digest, from, to, err), err}
		}
		select {
		case <-time.After(pause):
			pause *= 4
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func kindOf(err error) Kind {
	var known *Error
	if errors.As(err, &known) {
		return known.Kind
	}
	return Unreachable
}

// rangeOnce sends one request, and returns the number of bytes that it has written to w.
func (r *Repository) rangeOnce(ctx context.Context, digest string, size, from, to int64, w io.Writer) (int64, error) {
	if from >= to {
		return 0, nil
	}
	ctx, cancel := context.WithTimeout(ctx, rangeWithin)
	defer cancel()
	client, err := r.login(ctx)
	if err != nil {
		return 0, err
	}
	url := fmt.Sprintf("%s://%s/v2/%s/blobs/%s", r.repo.Scheme(), r.repo.RegistryStr(), r.repo.RepositoryStr(), digest)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	req.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", from, to-1))
	req.Header.Set("Accept-Encoding", "identity")
	resp, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	whole := resp.StatusCode == http.StatusOK && from == 0 && to == size
	switch {
	case whole:
	case resp.StatusCode == http.StatusOK:
		return 0, unsuitable("the registry does not return parts of blobs")
	case resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusForbidden:
		r.logout()
		return 0, transport.CheckError(resp, http.StatusPartialContent)
	case resp.StatusCode != http.StatusPartialContent:
		return 0, transport.CheckError(resp, http.StatusPartialContent)
	default:
		if got, ok := rangeStart(resp.Header.Get("Content-Range")); !ok || got != from {
			return 0, wrong("the answer is for other bytes: %q", resp.Header.Get("Content-Range"))
		}
	}
	n, err := io.Copy(w, io.LimitReader(resp.Body, to-from))
	r.fetched.Add(n)
	if err == nil && n < to-from {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// rangeStart returns the first byte of a Content-Range: bytes 0-9/100.
func rangeStart(s string) (int64, bool) {
	s, ok := strings.CutPrefix(s, "bytes ")
	first, _, dash := strings.Cut(s, "-")
	n, err := strconv.ParseInt(first, 10, 64)
	return n, ok && dash && err == nil
}
