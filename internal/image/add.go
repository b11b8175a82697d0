package image

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"premix/internal/image/layer"
	"premix/internal/store"
	"premix/internal/store/object"
	"premix/internal/store/tree"
)

// Default limits of an image.
const (
	DefaultBytes   = 256 << 30
	DefaultEntries = 20_000_000
)

// Options configure how an image is added.
type Options struct {
	Key      tree.PrivateKey
	Platform string // as in linux/arm64, for images for several platforms; "" for this machine's
	// Limits of all layers together: bytes of their uncompressed archives, and entries.
	// 0 means the default, a negative number no limit.
	MaxBytes, MaxEntries int64
	Progress             *Progress // may be nil
}

// Progress has the counts of a running add. All fields only grow.
type Progress struct {
	Layers, DoneLayers atomic.Int64
	Fetched            atomic.Int64 // bytes from a registry
}

// Added is the result of adding an image.
type Added struct {
	Ref       tree.Ref
	Record    Record
	Digest    object.Digest // of the record's tree
	Serial    int64
	Unchanged bool // the tag named this image already
	Unpacked  int  // layers that the store lacked
	Written   int64
	Took      time.Duration
}

// adder adds one image.
type adder struct {
	s       *store.Store
	w       *store.Writer
	o       Options
	scratch string
	limits  layer.Limits
	written int64
}

// Add adds the image of a source under ref or, if ref is nil, under its own name. A
// source is
//
//	oci:DIR, oci:DIR:NAME, oci:DIR@DIGEST     an OCI layout
//	docker-archive:FILE[:NAME:TAG]            an archive of docker save
//	docker://NAME, or NAME                    an image in a registry; credentials are those of docker login
//	dir:DIR, or DIR                           a root
//
// Everything is verified by its digests before a tag names it. Layers in the store are
// not unpacked again, nor fetched if they stand alone. If Add is killed, the next gc
// removes its leftovers.
func Add(ctx context.Context, s *store.Store, where string, ref *tree.Ref, o Options) (*Added, error) {
	began := time.Now()
	if o.Progress == nil {
		o.Progress = &Progress{}
	}
	platform, err := parsePlatform(o.Platform)
	if err != nil {
		return nil, err
	}
	src, err := find(ctx, where, platform)
	if err != nil {
		return nil, err
	}
	name, err := reference(ref, src.name)
	if err != nil {
		return nil, err
	}
	w, err := s.Begin()
	if err != nil {
		return nil, err
	}
	defer w.Close()
	a := &adder{s: s, w: w, o: o, limits: layer.Limits{Bytes: limit(o.MaxBytes, DefaultBytes), Entries: limit(o.MaxEntries, DefaultEntries)}}
	if a.scratch, err = w.Scratch(); err != nil {
		return nil, err
	}
	var added *Added
	if src.dir != "" {
		added, err = a.directory(ctx, src.dir, name, platform)
	} else {
		added, err = a.image(ctx, src, name)
	}
	if err != nil {
		return nil, err
	}
	added.Written, added.Took = a.written, time.Since(began)
	return added, nil
}

func limit(n, usual int64) int64 {
	return max(0, cmp.Or(n, usual))
}

// image adds an image with layers.
func (a *adder) image(ctx context.Context, src *source, name tree.Ref) (*Added, error) {
	config, err := parseConfig(src.config)
	if err != nil {
		return nil, err
	}
	if os := config.OS; os != "" && os != "linux" {
		return nil, &Error{Kind: Usage, Reason: fmt.Sprintf("the image is for %s", os), HintText: "premix only supports images for linux"}
	}
	r := &Record{
		Format: RecordFormat, Config: sum(src.config), OS: "linux", Architecture: config.Architecture, Variant: config.Variant,
		Layers: make([]Layer, len(src.layers)),
	}
	if src.manifest != nil {
		r.Manifest = sum(src.manifest)
	}
	var ids []string
	for _, b := range src.layers {
		ids = append(ids, b.diffID)
	}
	chains := ChainIDs(ids)
	for i, b := range src.layers {
		r.Layers[i] = Layer{DiffID: b.diffID, ChainID: chains[i], Digest: b.digest, Size: b.size, MediaType: b.mediaType}
	}
	a.o.Progress.Layers.Store(int64(len(src.layers)))
	unpacked := 0
	same, err := a.same(r)
	if err != nil {
		return nil, err
	}
	if !same {
		if os.Geteuid() != 0 {
			return nil, &Error{Kind: Unavailable, Reason: "only root can unpack the layers of an image, with their owners, devices and capabilities", HintText: "sudo premix image add ..., or add a directory that is unpacked already"}
		}
		if unpacked, err = a.unpack(ctx, src, name, r); err != nil {
			return nil, err
		}
	}
	a.o.Progress.DoneLayers.Store(int64(len(src.layers)))
	added, err := a.finish(ctx, name, r, src)
	if err != nil {
		return nil, err
	}
	added.Unpacked = unpacked
	return added, nil
}

// same completes a record from the record of an equal image in the store, of any name,
// if all its trees exist.
func (a *adder) same(r *Record) (bool, error) {
	list, err := List(a.s)
	if err != nil {
		return false, err
	}
	for _, l := range list {
		if l.Image == nil || l.Image.Config != r.Config || len(l.Image.Layers) != len(r.Layers) {
			continue
		}
		trees := []object.Digest{l.Image.Root}
		for _, y := range l.Image.Layers {
			trees = append(trees, y.Tree)
		}
		whole := true
		for _, d := range trees {
			if whole, err = a.w.Keep(d); err != nil {
				return false, err
			}
			if !whole {
				break
			}
		}
		if whole {
			r.Root = l.Image.Root
			for i, y := range l.Image.Layers {
				r.Layers[i].Tree, r.Layers[i].Alone = y.Tree, y.Alone
			}
			return true, nil
		}
	}
	return false, nil
}

// unpack unpacks the missing layers, and all layers into the root.
func (a *adder) unpack(ctx context.Context, src *source, name tree.Ref, r *Record) (int, error) {
	root := filepath.Join(a.scratch, "root")
	if err := os.Mkdir(root, 0o755); err != nil {
		return 0, err
	}
	unpacked := 0
	for i := range src.layers {
		b := &src.layers[i]
		have, err := a.have(&r.Layers[i])
		if err != nil {
			return 0, err
		}
		if have && r.Layers[i].Alone {
			if err := a.applyTree(ctx, r.Layers[i].Tree, root); err != nil {
				return 0, explain(b.String(), err)
			}
			a.o.Progress.DoneLayers.Add(1)
			continue
		}
		if src.far {
			file := filepath.Join(a.scratch, "layer.tar")
			if err := b.spool(ctx, file, func(n int64) { a.o.Progress.Fetched.Add(n) }); err != nil {
				return 0, explain(b.String(), err)
			}
		}
		flat := false
		if !have {
			if flat, err = a.unpackLayer(ctx, b, &r.Layers[i], root, i == 0); err != nil {
				return 0, explain(b.String(), err)
			}
			unpacked++
		}
		if !flat {
			limits := &a.limits
			if !have {
				limits = nil // they were counted already
			}
			if _, err := apply(ctx, b, root, layer.Options{Limits: limits}); err != nil {
				return 0, explain(b.String(), err)
			}
		} else if len(src.layers) == 1 {
			r.Root = r.Layers[0].Tree
			return unpacked, os.RemoveAll(root)
		}
		a.o.Progress.DoneLayers.Add(1)
	}
	var err error
	if r.Root, err = a.publish(ctx, root, name); err != nil {
		return 0, err
	}
	return unpacked, os.RemoveAll(root)
}

// have looks for a layer's tree in the store.
func (a *adder) have(l *Layer) (bool, error) {
	for _, ref := range []tree.Ref{LayerRef(l.DiffID), ChainRef(l.ChainID)} {
		tag, err := a.s.Resolve(ref)
		var use *store.UsageError
		if errors.As(err, &use) {
			continue
		}
		if err != nil {
			return false, err
		}
		whole, err := a.w.Keep(tag.Tree)
		if err != nil {
			return false, err
		}
		if whole {
			l.Tree, l.Alone = tag.Tree, ref.Name == LayerRef(l.DiffID).Name
			return true, nil
		}
	}
	return false, nil
}

// unpackLayer unpacks a layer into a separate directory and publishes it. The lowest
// layer is unpacked in the root, which is still empty; flat reports whether it can stay
// there.
func (a *adder) unpackLayer(ctx context.Context, b *blob, l *Layer, root string, lowest bool) (flat bool, err error) {
	dir, o := root, layer.Options{Overlay: true, Limits: &a.limits}
	if !lowest {
		dir, o.Parent = filepath.Join(a.scratch, "layer"), root
		if err := os.Mkdir(dir, 0o755); err != nil {
			return false, err
		}
	}
	applied, err := apply(ctx, b, dir, o)
	if err != nil {
		return false, err
	}
	l.Alone = !applied.Leans
	if l.Tree, err = a.publish(ctx, dir, ChainRef(l.ChainID)); err != nil {
		return false, err
	}
	if lowest && applied.Whiteouts == 0 {
		return true, nil
	}
	if err := os.RemoveAll(dir); err != nil || !lowest {
		return false, err
	}
	return false, os.Mkdir(root, 0o755)
}

// apply unpacks a layer and verifies it.
func apply(ctx context.Context, b *blob, dir string, o layer.Options) (*layer.Applied, error) {
	s, err := openStream(b)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	applied, err := layer.Apply(ctx, dir, s, o)
	var bad *layer.Error
	var broken *Error
	switch {
	case errors.As(err, &bad), errors.As(err, &broken):
		// A wrong digest of the layer is the more useful error.
		return nil, cmp.Or(s.verifyRaw(), err)
	case err != nil:
		return nil, err
	}
	return applied, s.verify()
}

func (a *adder) publish(ctx context.Context, dir string, ref tree.Ref) (object.Digest, error) {
	p, err := a.s.Publish(ctx, dir, ref, store.PublishOptions{Key: a.o.Key})
	if err != nil {
		return object.Digest{}, err
	}
	a.written += p.Written
	return p.Tree, nil
}

// directory adds an existing root.
func (a *adder) directory(ctx context.Context, dir string, name tree.Ref, platform v1.Platform) (*Added, error) {
	root, err := a.publish(ctx, dir, name)
	if err != nil {
		return nil, err
	}
	config, err := json.MarshalIndent(&v1.ConfigFile{
		OS: "linux", Architecture: cmp.Or(platform.Architecture, runtime.GOARCH), Variant: platform.Variant,
		Config: v1.Config{Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, Cmd: []string{"/bin/sh"}},
		RootFS: v1.RootFS{Type: "layers"},
	}, "", "  ")
	if err != nil {
		return nil, err
	}
	r := &Record{Format: RecordFormat, Config: sum(config), OS: "linux", Architecture: platform.Architecture, Variant: platform.Variant, Root: root, Layers: []Layer{}}
	return a.finish(ctx, name, r, &source{config: config})
}

// lockName is the lock for completing or removing an image.
const lockName = "images"

// finish writes all tags of an image, the record's last.
func (a *adder) finish(ctx context.Context, name tree.Ref, r *Record, src *source) (*Added, error) {
	unlock, err := a.s.Lock(ctx, lockName)
	if err != nil {
		return nil, err
	}
	defer unlock()
	// An image, and with it some of these tags, may have been removed since.
	var chain []tree.Ref
	for _, l := range r.Layers {
		chain = append(chain, ChainRef(l.ChainID))
		refs := []tree.Ref{ChainRef(l.ChainID)}
		if l.Alone {
			refs = append(refs, LayerRef(l.DiffID))
		}
		for _, ref := range refs {
			if err := a.tag(ctx, ref, l.Tree); err != nil {
				return nil, err
			}
		}
	}
	if err := a.s.Row(ctx, chain); err != nil {
		return nil, err
	}
	if err := a.tag(ctx, name, r.Root); err != nil {
		return nil, err
	}
	dir := filepath.Join(a.scratch, "record")
	if err := writeRecord(dir, r, src); err != nil {
		return nil, err
	}
	p, err := a.s.Publish(ctx, dir, RecordRef(name), store.PublishOptions{Key: a.o.Key})
	if err != nil {
		return nil, err
	}
	return &Added{Ref: name, Record: *r, Digest: p.Tree, Serial: p.Serial, Unchanged: p.Unchanged}, nil
}

func (a *adder) tag(ctx context.Context, ref tree.Ref, d object.Digest) error {
	whole, err := a.w.Keep(d)
	if err != nil {
		return err
	}
	if !whole {
		return &store.DamageError{What: "tree " + d.Short(), Reason: "it was removed while the image was being added", HintText: "add the image again"}
	}
	_, err = a.w.Tag(ctx, store.TagOptions{Ref: ref, Tree: d, Key: a.o.Key})
	return err
}

// writeRecord makes the record's tree, which depends only on the image.
func writeRecord(dir string, r *Record, src *source) error {
	content, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	files := map[string][]byte{recordFile: append(content, '\n'), configFile: src.config}
	if src.manifest != nil {
		files[manifestFile] = src.manifest
	}
	var paths []string
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, content, 0o644); err != nil {
			return err
		}
		if err := os.Chmod(path, 0o644); err != nil { // independent of the umask
			return err
		}
		paths = append(paths, path)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	for _, p := range slices.Concat(paths, []string{dir}) {
		if err := os.Chtimes(p, time.Unix(0, 0), time.Unix(0, 0)); err != nil {
			return err
		}
	}
	return nil
}
