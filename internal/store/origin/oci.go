package origin

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"premix/internal/kit/login"
	"premix/internal/store/object"
	"premix/internal/store/tree"
)

// Media types and keys of annotations in a registry.
const (
	artifactStore    = "application/vnd.premix.store.v1"
	artifactTag      = "application/vnd.premix.tag.v1"
	artifactTree     = "application/vnd.premix.tree.v1"
	artifactProfiles = "application/vnd.premix.profiles.v1"
	mediaPack        = types.MediaType("application/vnd.premix.pack.v1")
	mediaIndex       = types.MediaType("application/vnd.premix.index.v1")
	mediaFile        = types.MediaType("application/vnd.premix.file.v1+json")
	mediaEmpty       = types.MediaType("application/vnd.oci.empty.v1+json")

	titleKey = "org.opencontainers.image.title"
	refKey   = "premix.ref" // NAME:TAG, for people

	// maxManifest is the size that every registry accepts (OCI distribution
	// specification, "Pushing Manifests").
	maxManifest = 4 << 20
	// relist is the shortest time between two listings of all tags of a repository.
	relist = 30 * time.Second
	// keepPacks is the number of packs kept in memory if a registry ignores ranges.
	keepPacks = 2
)

// OCI is a store in a repository of an OCI registry
// (https://github.com/opencontainers/distribution-spec).
type OCI struct {
	repo name.Repository
	auth authn.Authenticator // nil: from the docker configuration
	web  *web

	// loading is held by one goroutine at a time while it adds or drops sets; mu guards
	// the fields that are read concurrently.
	loading sync.Mutex
	mu      sync.RWMutex
	sets    map[string]*objectSet // by tag in the registry
	listed  time.Time

	whole    sync.Mutex // held while a pack is fetched as a whole
	noRanges bool       // guarded by mu
	packs    []wholePack
}

// objectSet is the index of one manifest.
type objectSet struct {
	manifest string // digest
	index    *packIndex
}

type wholePack struct {
	pack    pack
	content []byte
}

// NewOCI returns the origin of the store in a repository, HOST[:PORT]/PATH.
func NewOCI(repository string, o Options) (*OCI, error) {
	o = o.filled()
	shown := "oci://" + repository
	options := []name.Option{name.StrictValidation}
	if o.PlainHTTP {
		options = append(options, name.Insecure)
	}
	repo, err := name.NewRepository(repository, options...)
	if err != nil {
		return nil, &OpenError{shown, err, "write it as in oci://registry.example.org/lab/store"}
	}
	home := &url.URL{Scheme: repo.Scheme(), Host: repo.RegistryStr()}
	c := &OCI{repo: repo, sets: map[string]*objectSet{}}
	e, err := o.Credentials.find(home)
	if err != nil {
		return nil, err
	}
	switch {
	case e == nil:
	case e.token != "":
		c.auth = &authn.Bearer{Token: e.token}
	default:
		c.auth = &authn.Basic{Username: e.login, Password: e.secret}
	}
	routes, err := newRoutes(home, o, true)
	if err != nil {
		return nil, err
	}
	c.web = &web{name: shown, routes: routes, o: o, slots: make(chan struct{}, o.Connections), prepare: c.login}
	return c, nil
}

func (c *OCI) String() string { return c.web.name }

// authenticator returns the credentials for the registry.
func (c *OCI) authenticator() (authn.Authenticator, error) {
	if c.auth != nil {
		return c.auth, nil
	}
	return login.Keychain{}.Resolve(c.repo)
}

// login authenticates a route's client; it is called once for a route.
func (c *OCI) login(ctx context.Context, r *route) error {
	auth, err := c.authenticator()
	if err != nil {
		return &Error{Origin: c.web.name, Kind: Refused, Err: err}
	}
	ctx, cancel := context.WithTimeout(ctx, c.web.o.Connect+2*c.web.o.Header)
	defer cancel()
	t, err := transport.NewWithContext(ctx, c.repo.Registry, auth, r.client.Transport, []string{c.repo.Scope(transport.PullScope)})
	if err != nil {
		return c.failure("", err)
	}
	r.client.Transport = t
	return nil
}

// failure converts an error of the library.
func (c *OCI) failure(name string, err error) error {
	if _, ok := errors.AsType[*Error](err); ok || err == nil {
		return err
	}
	if errors.Is(err, context.Canceled) {
		return err
	}
	e := &Error{Origin: c.web.name, Name: name, Err: err}
	if t, ok := errors.AsType[*transport.Error](err); ok {
		e.Kind, _ = kindOfStatus(&http.Response{StatusCode: t.StatusCode, Status: http.StatusText(t.StatusCode)}, false)
		if e.Kind == "" {
			e.Kind = Unexpected
		}
		e.Err = fmt.Errorf("%d %s", t.StatusCode, http.StatusText(t.StatusCode)) // the rest may quote URLs with tokens
		return e
	}
	if errors.Is(err, context.DeadlineExceeded) {
		e.Kind = TimedOut
		return e
	}
	if u, ok := errors.AsType[*url.Error](err); ok {
		e.Err = u.Err
	}
	e.Kind = kindOfTransport(err)
	return e
}

func (c *OCI) url(kind, reference string) string {
	return (&url.URL{Scheme: c.repo.Scheme(), Host: c.repo.RegistryStr(), Path: "/v2/" + c.repo.RepositoryStr() + "/" + kind + "/" + reference}).String()
}

// Tags of a repository.
const storeTag = "store"

func refTag(ref tree.Ref) string {
	s := ref.Name + ":" + ref.Tag
	readable := strings.NewReplacer("/", ".", ":", "-").Replace(s)
	return "ref-" + readable[:min(len(readable), 100)] + "-" + object.Sum([]byte(s)).String()[:16]
}

func treeTag(d object.Digest) string     { return "tree-" + d.String() }
func profilesTag(d object.Digest) string { return "profiles-" + d.String() }

// tagOf returns the tag in the registry of the manifest that contains a file.
func tagOf(file string) (string, bool) {
	switch {
	case file == tree.InfoPath:
		return storeTag, true
	case strings.HasPrefix(file, "tags/"):
		rest := strings.TrimPrefix(file, "tags/")
		i := strings.LastIndexByte(rest, '/')
		if i < 0 {
			return "", false
		}
		tag, ok := strings.CutSuffix(rest[i+1:], ".history.jsonl")
		if !ok {
			tag, ok = strings.CutSuffix(rest[i+1:], ".json")
		}
		ref, err := tree.ParseRef(rest[:i] + ":" + tag)
		return refTag(ref), ok && err == nil
	case strings.HasPrefix(file, "profiles/"):
		digest, _, _ := strings.Cut(strings.TrimPrefix(file, "profiles/"), "/")
		d, err := object.ParseDigest(digest)
		return profilesTag(d), err == nil
	}
	return "", false
}

// File implements [Origin]. It fetches the manifest each time.
func (c *OCI) File(ctx context.Context, name string) ([]byte, error) {
	tag, ok := tagOf(name)
	if !ok {
		return nil, &Error{Origin: c.web.name, Name: name, Kind: NotFound}
	}
	m, _, err := c.manifest(ctx, tag, name)
	if err != nil {
		return nil, err
	}
	for _, l := range m.Layers {
		if l.Annotations[titleKey] == name {
			return c.blob(ctx, name, l, MaxFile)
		}
	}
	return nil, &Error{Origin: c.web.name, Name: name, Kind: NotFound}
}

// manifest fetches a manifest by its tag, and returns its digest too.
func (c *OCI) manifest(ctx context.Context, tag, shown string) (*v1.Manifest, string, error) {
	b, err := c.web.get(ctx, request{name: shown, url: c.url("manifests", tag), limit: maxManifest,
		header: http.Header{"Accept": {string(types.OCIManifestSchema1)}, "Cache-Control": {"max-age=0"}}})
	if err != nil {
		return nil, "", err
	}
	var m v1.Manifest
	if err := json.Unmarshal(b, &m); err != nil {
		return nil, "", &Error{Origin: c.web.name, Name: shown, Kind: Corrupt, Err: fmt.Errorf("the manifest of %s: %w", tag, err)}
	}
	sum := sha256.Sum256(b)
	return &m, hex.EncodeToString(sum[:]), nil
}

// blob fetches a whole blob and compares it with its digest.
func (c *OCI) blob(ctx context.Context, shown string, l v1.Descriptor, limit int64) ([]byte, error) {
	if l.Size > limit {
		return nil, &Error{Origin: c.web.name, Name: shown, Kind: TooLarge, Err: fmt.Errorf("%d bytes", l.Size)}
	}
	b, err := c.web.get(ctx, request{name: shown, url: c.url("blobs", l.Digest.String()), limit: l.Size})
	if err != nil {
		return nil, err
	}
	if sum := sha256.Sum256(b); l.Digest.Algorithm != "sha256" || l.Digest.Hex != hex.EncodeToString(sum[:]) {
		return nil, &Error{Origin: c.web.name, Name: shown, Kind: Corrupt, Err: errors.New("the blob does not match its digest")}
	}
	return b, nil
}

// Object implements [Origin].
func (c *OCI) Object(ctx context.Context, d object.Digest) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	for again := false; ; again = true {
		p, at, err := c.locate(ctx, d)
		if err != nil {
			return nil, err
		}
		b, err := c.read(ctx, d, p, at)
		if again || !errors.Is(err, ErrNotFound) {
			return b, err
		}
		// The pack is gone: the indexes are out of date.
		c.mu.Lock()
		clear(c.sets)
		c.listed = time.Time{}
		c.mu.Unlock()
	}
}

// known looks an object up in the loaded indexes.
func (c *OCI) known(d object.Digest) (pack, place, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	for _, s := range c.sets {
		if s.index == nil {
			continue
		}
		if p, at, ok := s.index.find(d); ok {
			return p, at, true
		}
	}
	return pack{}, place{}, false
}

// locate finds an object, and loads indexes until one has it: first the index of the
// tree with this digest, then all others.
func (c *OCI) locate(ctx context.Context, d object.Digest) (pack, place, error) {
	if p, at, ok := c.known(d); ok {
		return p, at, nil
	}
	c.loading.Lock()
	defer c.loading.Unlock()
	if p, at, ok := c.known(d); ok {
		return p, at, nil
	}
	err := c.load(ctx, treeTag(d))
	if err != nil && !errors.Is(err, ErrNotFound) {
		return pack{}, place{}, err
	}
	if errors.Is(err, ErrNotFound) {
		if err := c.loadAll(ctx); err != nil {
			return pack{}, place{}, err
		}
	}
	if p, at, ok := c.known(d); ok {
		return p, at, nil
	}
	return pack{}, place{}, &Error{Origin: c.web.name, Name: d.Path(), Kind: NotFound}
}

// loadAll loads the missing indexes, unless it did so less than relist ago. The caller
// holds loading.
func (c *OCI) loadAll(ctx context.Context) error {
	c.mu.RLock()
	recent := time.Since(c.listed) < relist
	c.mu.RUnlock()
	if recent {
		return nil
	}
	tags, err := c.tags(ctx)
	if err != nil {
		return err
	}
	for _, tag := range tags {
		c.mu.RLock()
		_, have := c.sets[tag]
		c.mu.RUnlock()
		// The index of a tree never changes; an index of profiles may.
		if !strings.HasPrefix(tag, "profiles-") && (have || !strings.HasPrefix(tag, "tree-")) {
			continue
		}
		if err := c.load(ctx, tag); err != nil && !errors.Is(err, ErrNotFound) {
			return err
		}
	}
	c.mu.Lock()
	c.listed = time.Now()
	c.mu.Unlock()
	return nil
}

// tags lists the tags of the repository: none if there is no such repository.
func (c *OCI) tags(ctx context.Context) ([]string, error) {
	var first error
	for _, r := range c.web.inOrder() {
		if err := c.web.prepared(ctx, r); err != nil {
			first = errors.Join(first, err)
			continue
		}
		tags, err := remote.List(c.repo, remote.WithContext(ctx), remote.WithTransport(r.client.Transport))
		if err == nil {
			return tags, nil
		}
		err = c.failure("", err)
		if errors.Is(err, ErrNotFound) {
			return nil, nil
		}
		if first == nil {
			first = err
		}
	}
	return nil, first
}

// load loads the index of one manifest. The caller holds loading.
func (c *OCI) load(ctx context.Context, tag string) error {
	m, digest, err := c.manifest(ctx, tag, tag)
	if err != nil {
		return err
	}
	c.mu.RLock()
	old := c.sets[tag]
	c.mu.RUnlock()
	if old != nil && old.manifest == digest {
		return nil
	}
	s := &objectSet{manifest: digest}
	for _, l := range m.Layers {
		if l.MediaType != mediaIndex {
			continue
		}
		b, err := c.blob(ctx, tag, l, maxIndex)
		if err != nil {
			return err
		}
		if s.index, err = parseIndex(b); err != nil {
			return &Error{Origin: c.web.name, Name: tag, Kind: Corrupt, Err: err}
		}
	}
	c.mu.Lock()
	c.sets[tag] = s
	c.mu.Unlock()
	return nil
}

// read fetches a stored form from its pack.
func (c *OCI) read(ctx context.Context, d object.Digest, p pack, at place) ([]byte, error) {
	c.mu.RLock()
	noRanges := c.noRanges
	c.mu.RUnlock()
	if !noRanges {
		b, err := c.web.get(ctx, request{name: d.Path(), url: c.url("blobs", p.digest()), offset: at.offset, length: at.length})
		if !errors.Is(err, errWhole) {
			return b, err
		}
		c.mu.Lock()
		c.noRanges = true
		c.mu.Unlock()
	}
	// One pack at a time: packs are large, and the next object is probably in the same
	// one.
	c.whole.Lock()
	defer c.whole.Unlock()
	for i, w := range c.packs {
		if w.pack == p {
			c.packs = append(append(c.packs[:i:i], c.packs[i+1:]...), w)
			return w.content[at.offset : at.offset+at.length : at.offset+at.length], nil
		}
	}
	hash := v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(p.sum[:])}
	b, err := c.blob(ctx, d.Path(), v1.Descriptor{Digest: hash, Size: p.size}, maxPack)
	if err != nil {
		return nil, err
	}
	if int64(len(b)) != p.size {
		return nil, &Error{Origin: c.web.name, Name: d.Path(), Kind: Truncated, Err: fmt.Errorf("%d of %d bytes of its pack", len(b), p.size)}
	}
	c.packs = append(c.packs, wholePack{p, b})
	if len(c.packs) > keepPacks {
		c.packs = c.packs[1:]
	}
	return b[at.offset : at.offset+at.length : at.offset+at.length], nil
}
