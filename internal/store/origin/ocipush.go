package origin

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"premix/internal/store/object"
	"premix/internal/store/tree"
)

const (
	// packSize is the size at which a pack ends, in bytes; the last object may exceed
	// it.
	packSize = 32 << 20
	// mostPacks bounds the packs of a manifest, at about 200 bytes each: registries
	// limit the size of a manifest. For larger trees packs grow.
	mostPacks = 8192
	// idlePush is the longest time without progress of an upload, and without an answer
	// of the registry to it.
	idlePush = 2 * time.Minute
)

// File is a mutable file, with its name in the store.
type File struct {
	Name    string
	Content []byte
}

// ObjectSet lists the objects of a tree or of its profiles.
type ObjectSet struct {
	// Objects lists the objects in the order of the packs, each at least once.
	Objects []object.Digest
	// Size bounds the bytes of their contents; 0 if it is unknown.
	Size int64
	// Get returns the verified stored form of an object.
	Get func(context.Context, object.Digest) ([]byte, error)
	// Progress is called with the number of further objects, and of their bytes, that
	// are in the registry. It may be nil.
	Progress func(objects int, bytes int64, reused bool)
}

// PutStore pushes store.json to the repository.
func (c *OCI) PutStore(ctx context.Context, info []byte) error {
	return c.put(ctx, storeTag, artifactStore, nil, []File{{tree.InfoPath, info}}, nil, nil)
}

// PutTag pushes the files of a tag to the repository.
func (c *OCI) PutTag(ctx context.Context, ref tree.Ref, files []File) error {
	return c.put(ctx, refTag(ref), artifactTag, map[string]string{refKey: ref.String()}, files, nil, nil)
}

// PutTree pushes the objects of a tree that the repository lacks.
func (c *OCI) PutTree(ctx context.Context, d object.Digest, s ObjectSet) error {
	return c.putSet(ctx, treeTag(d), artifactTree, nil, s)
}

// PutProfiles pushes the profiles of a tree: their records and their objects.
func (c *OCI) PutProfiles(ctx context.Context, d object.Digest, records []File, s ObjectSet) error {
	return c.putSet(ctx, profilesTag(d), artifactProfiles, records, s)
}

// pusher uploads over the first route that permits it.
func (c *OCI) pusher() (*remote.Pusher, error) {
	auth, err := c.authenticator()
	if err != nil {
		return nil, &Error{Origin: c.web.name, Kind: Refused, Err: err}
	}
	return remote.NewPusher(remote.WithTransport(c.web.inOrder()[0].push), remote.WithAuth(auth), remote.WithUserAgent(c.web.o.UserAgent))
}

func (c *OCI) putSet(ctx context.Context, tag, artifact string, files []File, s ObjectSet) error {
	c.loading.Lock()
	c.mu.Lock()
	c.listed = time.Time{}
	c.mu.Unlock()
	err := c.loadAll(ctx)
	c.loading.Unlock()
	if err != nil {
		return err
	}
	push, err := c.pusher()
	if err != nil {
		return err
	}
	told := s.Progress
	if told == nil {
		told = func(int, int64, bool) {}
	}

	// Objects in packs that still exist are not pushed again.
	var all []located
	var missing []object.Digest
	here := map[pack]bool{}
	seen := map[object.Digest]bool{}
	for _, d := range s.Objects {
		if seen[d] {
			continue
		}
		seen[d] = true
		p, at, ok := c.known(d)
		if ok {
			if _, asked := here[p]; !asked {
				if here[p], err = c.hasPack(ctx, p); err != nil {
					return err
				}
			}
			ok = here[p]
		}
		if !ok {
			missing = append(missing, d)
			continue
		}
		all = append(all, located{d, p, at.offset, at.length})
		told(1, at.length, true)
	}

	limit := max(packSize, s.Size/mostPacks)
	var buf []byte
	var waiting []located // in buf
	flush := func() error {
		if len(waiting) == 0 {
			return nil
		}
		p := pack{sha256.Sum256(buf), int64(len(buf))}
		if err := c.upload(ctx, push, &blob{buf, p.sum, mediaPack}); err != nil {
			return err
		}
		var size int64
		for _, l := range waiting {
			l.pack = p
			all = append(all, l)
			size += l.length
		}
		told(len(waiting), size, false)
		buf, waiting = buf[:0], waiting[:0]
		return nil
	}
	for _, d := range missing {
		stored, err := s.Get(ctx, d)
		if err != nil {
			return err
		}
		waiting = append(waiting, located{digest: d, offset: int64(len(buf)), length: int64(len(stored))})
		if buf = append(buf, stored...); int64(len(buf)) >= limit {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	if err := flush(); err != nil {
		return err
	}
	if err := c.put(ctx, tag, artifact, nil, files, all, push); err != nil {
		return err
	}
	c.loading.Lock()
	defer c.loading.Unlock()
	return c.load(ctx, tag)
}

// hasPack reports whether the registry has a blob. It requests the first byte, which
// needs only the right to pull.
func (c *OCI) hasPack(ctx context.Context, p pack) (bool, error) {
	_, err := c.web.get(ctx, request{name: p.digest(), url: c.url("blobs", p.digest()), length: 1})
	if err == nil || errors.Is(err, errWhole) {
		return true, nil
	}
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	return false, err
}

// put uploads files and an index, and then the manifest that names them.
func (c *OCI) put(ctx context.Context, tag, artifact string, annotations map[string]string, files []File, all []located, push *remote.Pusher) error {
	if push == nil {
		var err error
		if push, err = c.pusher(); err != nil {
			return err
		}
	}
	m := v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1, ArtifactType: artifact, Annotations: annotations, Layers: []v1.Descriptor{}}
	add := func(content []byte, media types.MediaType, title string) (v1.Descriptor, error) {
		b := &blob{content, sha256.Sum256(content), media}
		h, _ := b.Digest() // cannot fail
		d := v1.Descriptor{MediaType: media, Size: int64(len(content)), Digest: h}
		if title != "" {
			d.Annotations = map[string]string{titleKey: title}
		}
		return d, c.upload(ctx, push, b)
	}
	var err error
	if m.Config, err = add([]byte("{}"), mediaEmpty, ""); err != nil {
		return err
	}
	for _, f := range files {
		d, err := add(f.Content, mediaFile, f.Name)
		if err != nil {
			return err
		}
		m.Layers = append(m.Layers, d)
	}
	if len(all) > 0 {
		content := marshalIndex(all)
		d, err := add(content, mediaIndex, "")
		if err != nil {
			return err
		}
		m.Layers = append(m.Layers, d)
		x, err := parseIndex(content)
		if err != nil {
			return err
		}
		for _, p := range x.packs {
			h, _ := (&blob{sum: p.sum}).Digest() // cannot fail
			m.Layers = append(m.Layers, v1.Descriptor{MediaType: mediaPack, Size: p.size, Digest: h})
		}
	}
	raw, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if len(raw) > maxManifest {
		return fmt.Errorf("the manifest of %s has %d bytes, and registries take %d", tag, len(raw), maxManifest)
	}
	reference, err := name.NewTag(c.repo.Name()+":"+tag, c.nameOptions()...)
	if err != nil {
		return fmt.Errorf("the tag %s: %w", tag, err)
	}
	return c.failure(tag, push.Put(ctx, reference, manifest(raw)))
}

func (c *OCI) nameOptions() []name.Option {
	if c.web.o.PlainHTTP {
		return []name.Option{name.Insecure}
	}
	return nil
}

// manifest is an encoded manifest to be pushed.
type manifest []byte

func (m manifest) RawManifest() ([]byte, error)        { return slices.Clone(m), nil }
func (m manifest) MediaType() (types.MediaType, error) { return types.OCIManifestSchema1, nil }

// upload pushes a blob unless the registry has it. It gives up when there is no
// progress.
func (c *OCI) upload(ctx context.Context, push *remote.Pusher, b *blob) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	timer := time.AfterFunc(idlePush, func() { cancel(errStalled) })
	defer timer.Stop()
	err := push.Upload(ctx, c.repo, &watchedBlob{b, func() { timer.Reset(idlePush) }})
	if err != nil && errors.Is(context.Cause(ctx), errStalled) {
		return &Error{Origin: c.web.name, Name: fmt.Sprintf("sha256:%x", b.sum), Kind: Stalled, Err: fmt.Errorf("the registry accepted no data for %s", idlePush)}
	}
	return c.failure("", err)
}

// blob is a v1.Layer of bytes in memory.
type blob struct {
	content []byte
	sum     [sha256.Size]byte
	media   types.MediaType
}

func (b *blob) Digest() (v1.Hash, error) {
	return v1.Hash{Algorithm: "sha256", Hex: fmt.Sprintf("%x", b.sum)}, nil
}
func (b *blob) DiffID() (v1.Hash, error)            { return b.Digest() }
func (b *blob) Size() (int64, error)                { return int64(len(b.content)), nil }
func (b *blob) MediaType() (types.MediaType, error) { return b.media, nil }
func (b *blob) Compressed() (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(b.content)), nil
}
func (b *blob) Uncompressed() (io.ReadCloser, error) { return b.Compressed() }

// watchedBlob calls read whenever it is read from.
type watchedBlob struct {
	*blob
	read func()
}

func (b *watchedBlob) Compressed() (io.ReadCloser, error) {
	return io.NopCloser(&watchedReader{bytes.NewReader(b.content), b.read}), nil
}
func (b *watchedBlob) Uncompressed() (io.ReadCloser, error) { return b.Compressed() }

type watchedReader struct {
	r    io.Reader
	read func()
}

func (w *watchedReader) Read(p []byte) (int, error) {
	w.read()
	return w.r.Read(p)
}
