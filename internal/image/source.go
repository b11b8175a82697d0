package image

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"premix/internal/kit/login"
	"premix/internal/store/tree"
)

// source is an image to be added, in any of its forms.
type source struct {
	dir      string // an existing root; the other fields are then not set
	name     string // its own name, "" if it has none
	config   []byte
	manifest []byte // nil if there is none
	layers   []blob // lowest first
	far      bool   // layers must be fetched once, and not read twice
}

// blob is a layer of a source.
type blob struct {
	diffID    string
	digest    string // of the bytes that open returns, "" if only the diff id is known
	size      int64  // of these bytes, 0 if it is unknown
	mediaType string
	open      func() (io.ReadCloser, error)
}

func (b *blob) String() string { return "layer " + short(b.diffID) }

// short returns the beginning of a digest, for messages.
func short(digest string) string {
	return fmt.Sprintf("%.19s", digest)
}

// find finds a source. It reads only manifest and configuration.
func find(ctx context.Context, where string, platform v1.Platform) (*source, error) {
	scheme, rest, _ := strings.Cut(where, ":")
	switch {
	case scheme == "oci" && !strings.HasPrefix(rest, "//"):
		return findLayout(rest, platform)
	case scheme == "docker-archive":
		return findArchive(rest)
	case scheme == "docker" && strings.HasPrefix(rest, "//"):
		return findRemote(ctx, rest[2:], platform)
	case scheme == "dir":
		return findDir(rest)
	}
	st, err := os.Stat(where)
	switch {
	case err == nil && st.IsDir():
		if _, err := os.Stat(filepath.Join(where, "oci-layout")); err == nil {
			return nil, &Error{Kind: Usage, Reason: where + " is an OCI layout, not a root", HintText: "oci:" + where + " adds the image in it, dir:" + where + " the directory as it is"}
		}
		return findDir(where)
	case err == nil:
		return nil, &Error{Kind: Usage, Reason: where + " is a file", HintText: "docker-archive:" + where + " adds an archive of docker save"}
	case strings.HasPrefix(where, "/") || strings.HasPrefix(where, "."):
		return nil, &Error{Kind: Usage, Reason: err.Error(), HintText: sourceHint, Err: err}
	}
	return findRemote(ctx, where, platform)
}

const sourceHint = "a source is oci:DIR, docker-archive:FILE, docker://REGISTRY/NAME:TAG, or a directory"

const saveHint = "docker save -o FILE NAME:TAG writes one; a compressed one is to be decompressed first"

// dirHint returns the hint for adding a directory.
func dirHint(dir string) string {
	if _, err := os.Stat(filepath.Join(dir, "oci-layout")); err == nil {
		return "it is an OCI layout: oci:" + dir + " adds the image in it"
	}
	return "dir:" + dir + " adds the directory as it is"
}

func findDir(dir string) (*source, error) {
	st, err := os.Stat(dir)
	if err == nil && !st.IsDir() {
		err = fmt.Errorf("%s is not a directory", dir)
	}
	if err != nil {
		return nil, &Error{Kind: Usage, Reason: err.Error(), HintText: sourceHint, Err: err}
	}
	return &source{dir: dir}, nil
}

// findLayout finds an image in DIR, DIR:NAME or DIR@DIGEST.
func findLayout(where string, platform v1.Platform) (*source, error) {
	dir, pick := where, ""
	if _, err := os.Stat(dir); err != nil {
		if i := strings.LastIndexByte(where, '@'); i > 0 {
			dir, pick = where[:i], where[i+1:]
		} else {
			dir, pick = splitName(where)
		}
	}
	l, index, err := openLayout(dir)
	if err != nil {
		return nil, err
	}
	desc, err := choose(l, index, platform, pick)
	if err != nil {
		return nil, err
	}
	s, err := l.image(*desc)
	if err != nil {
		return nil, err
	}
	s.name = refName(desc)
	return s, nil
}

// splitName splits PATH or PATH:NAME. Both may contain slashes and colons, so the path
// is the part that exists.
func splitName(where string) (path, name string) {
	for i := range len(where) {
		if where[i] != ':' {
			continue
		}
		if _, err := os.Stat(where[:i]); err == nil {
			if _, err := os.Stat(where); err == nil {
				break
			}
			return where[:i], where[i+1:]
		}
	}
	return where, ""
}

const layoutHint = "skopeo copy docker://NAME:TAG oci:DIR writes one"

// notLayoutHint returns the hint for a path that is not a layout.
func notLayoutHint(path string) string {
	switch st, err := os.Stat(path); {
	case err != nil:
		return sourceHint
	case st.IsDir():
		return dirHint(path)
	}
	return "docker-archive:" + path + " adds an archive of docker save"
}

// Annotations with the name of an image in a layout.
const (
	refAnnotation        = "org.opencontainers.image.ref.name"
	containerdAnnotation = "io.containerd.image.name"
)

func refName(d *v1.Descriptor) string {
	for _, n := range []string{d.Annotations[containerdAnnotation], d.Annotations[refAnnotation]} {
		if strings.Contains(n, ":") { // others contain the tag only
			return familiar(n)
		}
	}
	return ""
}

// familiar returns a reference without the parts that are optional for Docker's own
// registry.
func familiar(ref string) string {
	for _, p := range []string{"index.docker.io/", "docker.io/", "library/"} {
		ref = strings.TrimPrefix(ref, p)
	}
	return ref
}

// choose returns the one image of an index, and of indexes within it, that matches.
func choose(l *ociLayout, m *v1.IndexManifest, platform v1.Platform, pick string) (*v1.Descriptor, error) {
	var fits, all []v1.Descriptor
	for _, d := range m.Manifests {
		if d.Annotations["vnd.docker.reference.type"] == "attestation-manifest" {
			continue
		}
		if pick != "" && d.Digest.String() != pick && d.Annotations[refAnnotation] != pick && d.Annotations[containerdAnnotation] != pick {
			continue
		}
		all = append(all, d)
		if d.MediaType.IsIndex() || d.Platform == nil || d.Platform.Satisfies(platform) {
			fits = append(fits, d)
		}
	}
	var has []string
	for _, d := range all {
		if d.Platform != nil {
			has = append(has, d.Platform.String())
		} else {
			has = append(has, d.Digest.String())
		}
	}
	switch {
	case len(all) == 0 && pick == "":
		return nil, &Error{Kind: Usage, Reason: "there is no image in the layout", HintText: layoutHint}
	case len(all) == 0:
		return nil, &Error{Kind: Usage, Reason: fmt.Sprintf("there is no image %s in the layout", pick), HintText: "index.json of the layout lists them"}
	case len(fits) == 0:
		return nil, &Error{Kind: Usage, Reason: fmt.Sprintf("there is no image for %s", platform), HintText: "name one with --platform: " + strings.Join(has, ", ")}
	case len(fits) > 1:
		var names []string
		for _, d := range fits {
			names = append(names, cmpOr(d.Annotations[refAnnotation], d.Digest.String()))
		}
		return nil, &Error{Kind: Usage, Reason: "there are several images: " + strings.Join(names, ", "), HintText: "name one: oci:DIR:NAME or oci:DIR@DIGEST"}
	}
	d := fits[0]
	if d.MediaType.IsIndex() {
		content, err := l.blob("index", d)
		if err != nil {
			return nil, err
		}
		sub, err := v1.ParseIndexManifest(bytes.NewReader(content))
		if err != nil {
			return nil, &Error{Kind: Damaged, Reason: "an index in the layout is not valid in OCI: " + err.Error(), HintText: "build or fetch the image again", Err: err}
		}
		inner, err := choose(l, sub, platform, "")
		if err == nil && inner.Annotations[refAnnotation] == "" {
			inner.Annotations = d.Annotations
		}
		return inner, err
	}
	return &d, nil
}

func cmpOr(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// fromImage returns the source of an image with a manifest of a known digest.
func fromImage(im v1.Image, digest v1.Hash) (*source, error) {
	manifest, err := im.RawManifest()
	if err != nil {
		return nil, explain("manifest "+short(digest.String()), err)
	}
	if err := check("the manifest", manifest, digest.String()); err != nil {
		return nil, err
	}
	config := func(d v1.Descriptor) ([]byte, error) {
		content, err := im.RawConfigFile()
		if err != nil {
			return nil, explain("configuration "+short(d.Digest.String()), err)
		}
		return content, check("the configuration", content, d.Digest.String())
	}
	return fromManifest(manifest, config, func(d v1.Descriptor) (io.ReadCloser, error) {
		l, err := im.LayerByDigest(d.Digest)
		if err != nil {
			return nil, err
		}
		return l.Compressed()
	})
}

// fromManifest returns the source of an image with a verified manifest. config returns
// the verified configuration, open opens a layer.
func fromManifest(manifest []byte, config func(v1.Descriptor) ([]byte, error), open func(v1.Descriptor) (io.ReadCloser, error)) (*source, error) {
	s := &source{manifest: manifest}
	m, err := v1.ParseManifest(bytes.NewReader(manifest))
	if err != nil {
		return nil, &Error{Kind: Damaged, Reason: "the manifest is not valid in OCI: " + err.Error(), HintText: "build or fetch the image again", Err: err}
	}
	if s.config, err = config(m.Config); err != nil {
		return nil, err
	}
	ids, err := diffIDs(s.config, len(m.Layers))
	if err != nil {
		return nil, err
	}
	for i, d := range m.Layers {
		s.layers = append(s.layers, blob{diffID: ids[i], digest: d.Digest.String(), size: d.Size, mediaType: string(d.MediaType),
			open: func() (io.ReadCloser, error) { return open(d) }})
	}
	return s, nil
}

// diffIDs returns the n diff ids in a configuration.
func diffIDs(config []byte, n int) ([]string, error) {
	c, err := parseConfig(config)
	if err != nil {
		return nil, err
	}
	if len(c.RootFS.DiffIDs) != n {
		return nil, &Error{Kind: Damaged, Reason: fmt.Sprintf("the image has %d layers, and its configuration lists %d", n, len(c.RootFS.DiffIDs)), HintText: "build or fetch the image again"}
	}
	var ids []string
	for _, h := range c.RootFS.DiffIDs {
		if raw, err := hex.DecodeString(h.Hex); h.Algorithm != "sha256" || err != nil || len(raw) != sha256.Size {
			return nil, &Error{Kind: Damaged, Reason: fmt.Sprintf("the diff id %s is not a SHA-256", h), HintText: "build the image again with another tool"}
		}
		ids = append(ids, h.String())
	}
	return ids, nil
}

// check compares content with a digest.
func check(what string, content []byte, digest string) error {
	if got := sum(content); got != digest {
		return wrongDigest(what, digest, got)
	}
	return nil
}

func sum(content []byte) string {
	s := sha256.Sum256(content)
	return "sha256:" + hex.EncodeToString(s[:])
}

func wrongDigest(what, want, got string) error {
	return &Error{Kind: Damaged, Reason: fmt.Sprintf("%s does not match its digest: it has %s instead of %s", what, got, want), HintText: "nothing was added; build or fetch the image again"}
}

// findArchive finds the image in FILE or FILE:NAME of docker save.
func findArchive(where string) (*source, error) {
	file, pick := splitName(where)
	st, err := os.Stat(file)
	switch {
	case err != nil:
		return nil, &Error{Kind: Usage, Reason: err.Error(), HintText: sourceHint, Err: err}
	case st.IsDir():
		return nil, &Error{Kind: Usage, Reason: file + " is a directory", HintText: dirHint(file)}
	case !st.Mode().IsRegular(): // other files could be read only once
		return nil, &Error{Kind: Usage, Reason: file + " is not a regular file", HintText: saveHint}
	case st.Size() == 0:
		return nil, &Error{Kind: Usage, Reason: file + " is empty", HintText: saveHint}
	}
	opener := func() (io.ReadCloser, error) { return os.Open(file) }
	list, err := tarball.LoadManifest(opener)
	if err == nil && len(list) == 0 {
		err = errors.New("its manifest lists no image")
	}
	if err != nil {
		return nil, &Error{Kind: Usage, Reason: fmt.Sprintf("%s is not an archive of docker save: %v", file, err), HintText: saveHint, Err: err}
	}
	var tags []string
	for _, d := range list {
		tags = append(tags, d.RepoTags...)
	}
	var tag *name.Tag
	switch {
	case pick != "":
		t, err := name.NewTag(pick)
		if err != nil {
			return nil, &Error{Kind: Usage, Reason: err.Error(), HintText: "docker-archive:FILE:NAME:TAG", Err: err}
		}
		tag = &t
		if !slices.ContainsFunc(tags, func(s string) bool {
			has, err := name.NewTag(s)
			return err == nil && has.Name() == t.Name()
		}) {
			return nil, &Error{Kind: Usage, Reason: fmt.Sprintf("there is no image %s in %s", pick, file), HintText: "there are: " + cmpOr(strings.Join(tags, ", "), "none with a name; docker-archive:"+file+" adds one")}
		}
	case len(list) > 1:
		return nil, &Error{Kind: Usage, Reason: fmt.Sprintf("there are several images in %s: %s", file, strings.Join(tags, ", ")), HintText: "name one: docker-archive:" + file + ":NAME:TAG"}
	}
	im, err := tarball.Image(opener, tag)
	if err != nil {
		return nil, &Error{Kind: Damaged, Reason: fmt.Sprintf("%s: %v", file, err), HintText: "docker save it again", Err: err}
	}
	s := &source{}
	if s.config, err = im.RawConfigFile(); err != nil {
		return nil, explain("the image's configuration", err)
	}
	layers, err := im.Layers()
	if err != nil {
		return nil, explain("the image's layers", err)
	}
	ids, err := diffIDs(s.config, len(layers))
	if err != nil {
		return nil, err
	}
	for i, l := range layers {
		s.layers = append(s.layers, blob{diffID: ids[i], open: l.Uncompressed})
	}
	if pick != "" {
		s.name = familiar(pick)
	} else if len(tags) == 1 {
		s.name = familiar(tags[0])
	}
	return s, nil
}

// findRemote finds an image in a registry.
func findRemote(ctx context.Context, where string, platform v1.Platform) (*source, error) {
	ref, err := name.ParseReference(where)
	if err != nil {
		return nil, &Error{Kind: Usage, Reason: err.Error(), HintText: sourceHint, Err: err}
	}
	desc, err := remote.Get(ref, remote.WithContext(ctx), remote.WithAuthFromKeychain(login.Keychain{}), remote.WithPlatform(platform), remote.WithUserAgent("premix"))
	if err != nil {
		err = RemoteError(ctx, ref.Context(), ref.String(), err)
		var known *Error
		if errors.As(err, &known) && known.Kind == Unreachable && !strings.Contains(where, ":") {
			known.HintText += "; a source in a directory is written with ./ or dir:"
		}
		return nil, err
	}
	im, err := desc.Image()
	if err != nil {
		return nil, RemoteError(ctx, ref.Context(), ref.String(), err)
	}
	digest, err := im.Digest()
	if err != nil {
		return nil, RemoteError(ctx, ref.Context(), ref.String(), err)
	}
	s, err := fromImage(im, digest)
	if err != nil {
		var known *Error
		if errors.As(err, &known) {
			return nil, err
		}
		return nil, RemoteError(ctx, ref.Context(), ref.String(), err)
	}
	s.far = true
	for i := range s.layers {
		open := s.layers[i].open
		s.layers[i].open = func() (io.ReadCloser, error) {
			r, err := open()
			if err != nil {
				return nil, RemoteError(ctx, ref.Context(), ref.String(), err)
			}
			return r, nil
		}
	}
	if tag, ok := ref.(name.Tag); ok {
		s.name = ownName(tag)
	}
	return s, nil
}

// ownName returns the name of an image of a registry. A name of a store cannot have the
// colon before a port.
func ownName(tag name.Tag) string {
	registry := tag.RegistryStr()
	host, found := strings.CutPrefix(tag.Name(), registry)
	if !found {
		return familiar(tag.Name())
	}
	return familiar(strings.ReplaceAll(registry, ":", "_") + host)
}

// RemoteError converts an error of a request to a registry, about a repository or a
// registry.
func RemoteError(ctx context.Context, about authn.Resource, what string, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	e := &Error{Kind: Unreachable, Reason: fmt.Sprintf("%s: %v", what, err), Err: err,
		HintText: "check that the registry can be reached"}
	var file *login.Error
	var answer *transport.Error
	if errors.As(err, &file) {
		e.Kind, e.HintText = Usage, file.Hint()
	} else if errors.As(err, &answer) {
		switch {
		case answer.StatusCode == 401 || answer.StatusCode == 403:
			e.refused(about, what)
		case answer.StatusCode == 429:
			e.HintText = "the registry limits requests: log in, or wait"
		case answer.StatusCode == 404:
			e.Kind, e.HintText = Usage, "the registry does not have it: check name and tag"
		}
	}
	return e
}

// refused describes the answer of a registry that refuses the credentials, or asks for
// some. It does not keep the library's error, in whose text a registry may have repeated
// the secret.
func (e *Error) refused(about authn.Resource, what string) {
	host := about.RegistryStr()
	found, err := login.Keychain{}.Find(about)
	if err != nil {
		return // the library would have failed with this error
	}
	if found == nil {
		e.Reason = fmt.Sprintf("%s: the registry %s refuses access without credentials: %v", what, host, e.Err)
		e.HintText = "log in as for docker or podman: docker login " + host + "; credentials are looked for in " + strings.Join(login.Files(), ", ")
		return
	}
	e.Reason = found.Redact(fmt.Sprintf("%s: the registry %s refuses %s: %v", what, host, found, e.Err))
	e.Err = nil
	e.HintText = "log in again with docker login " + host + ", or correct " + found.Place + "; also check the name of the image"
}

// parsePlatform parses OS/ARCHITECTURE[/VARIANT]; "" means this machine's.
func parsePlatform(s string) (v1.Platform, error) {
	if s == "" {
		return v1.Platform{OS: "linux", Architecture: runtime.GOARCH}, nil
	}
	parts := strings.Split(s, "/")
	if len(parts) < 2 || len(parts) > 3 || slices.Contains(parts, "") {
		return v1.Platform{}, &Error{Kind: Usage, Reason: fmt.Sprintf("%q is not a platform", s), HintText: "write it as in linux/amd64 or linux/arm64/v8"}
	}
	p := v1.Platform{OS: parts[0], Architecture: parts[1]}
	if len(parts) == 3 {
		p.Variant = parts[2]
	}
	return p, nil
}

// reference returns the name of an image: the given one, or its own.
func reference(given *tree.Ref, own string) (tree.Ref, error) {
	if given == nil {
		if own == "" {
			return tree.Ref{}, &Error{Kind: Usage, Reason: "the image has no name of its own", HintText: "give it a name: premix image add SOURCE NAME:TAG"}
		}
		ref, err := tree.ParseRef(own)
		if err != nil {
			return ref, &Error{Kind: Usage, Reason: fmt.Sprintf("the image's own name is not valid here: %v", err), HintText: "give it a name: premix image add SOURCE NAME:TAG", Err: err}
		}
		given = &ref
	}
	if given.Tag == "" {
		return tree.Ref{}, &Error{Kind: Usage, Reason: given.String() + " names a digest", HintText: "name a tag: " + given.Name + ":" + tree.DefaultTag}
	}
	for _, p := range []string{imagesPrefix, layersPrefix, chainsPrefix} {
		if strings.HasPrefix(given.Name, p) {
			return tree.Ref{}, &Error{Kind: Usage, Reason: fmt.Sprintf("an image cannot be named %s", given), HintText: "names with " + p + " are reserved for parts of images: choose another one"}
		}
	}
	return *given, nil
}
