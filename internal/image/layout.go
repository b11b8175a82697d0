package image

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// documentMost limits the size of a document in a layout.
const documentMost = 16 << 20

// ociLayout is an OCI image layout in a directory. Its blobs may be symbolic links to
// other files of the layout, as in layouts that are kept in git, and also files that
// contain the target of such a link, as git makes them where it cannot make links.
// Nothing outside of the directory is read.
type ociLayout struct {
	dir  string
	root *os.Root
}

// openLayout opens a layout, and reads its index.
func openLayout(dir string) (*ociLayout, *v1.IndexManifest, error) {
	notLayout := func(err error) (*ociLayout, *v1.IndexManifest, error) {
		return nil, nil, &Error{Kind: Usage, Reason: fmt.Sprintf("%s is not an OCI layout: %v", dir, err), HintText: notLayoutHint(dir), Err: err}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return notLayout(err)
	}
	l := &ociLayout{dir, root}
	content, err := l.document("index.json")
	if err != nil {
		root.Close()
		return notLayout(err)
	}
	index, err := v1.ParseIndexManifest(bytes.NewReader(content))
	if err != nil {
		root.Close()
		return nil, nil, &Error{Kind: Usage, Reason: fmt.Sprintf("%s is not an OCI layout: its index.json: %v", dir, err), HintText: layoutHint, Err: err}
	}
	return l, index, nil
}

// document reads a small file of the layout.
func (l *ociLayout) document(name string) ([]byte, error) {
	f, err := l.root.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, documentMost+1))
	if err == nil && len(content) > documentMost {
		err = fmt.Errorf("%s has more than %d bytes", name, documentMost)
	}
	return content, err
}

// linkMost is the largest length of the target of a link (PATH_MAX).
const linkMost = 4096

// open opens a blob.
func (l *ociLayout) open(d v1.Descriptor) (io.ReadCloser, error) {
	const dir = "blobs/sha256"
	if d.Digest.Algorithm != "sha256" {
		return nil, &Error{Kind: Damaged, Reason: fmt.Sprintf("the digest %s is not a SHA-256", d.Digest), HintText: "build the image again with another tool"}
	}
	f, err := l.openFile(path.Join(dir, d.Digest.Hex))
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err != nil || st.Size() == d.Size || st.Size() > linkMost {
		return f, err
	}
	// The caller compares digests: a file that is followed by mistake is not used.
	target, err := io.ReadAll(f)
	f.Close()
	if err != nil {
		return nil, err
	}
	if to := path.Join(dir, strings.TrimRight(string(target), "\r\n")); len(target) > 0 && !bytes.ContainsRune(target, 0) {
		if f, err := l.openFile(to); err == nil {
			if st, err := f.Stat(); err == nil && st.Size() == d.Size {
				return f, nil
			}
			f.Close()
		}
	}
	return io.NopCloser(bytes.NewReader(target)), nil
}

// openFile opens a regular file of the layout.
func (l *ociLayout) openFile(name string) (*os.File, error) {
	// Without this, a FIFO would block.
	st, err := l.root.Stat(name)
	if err != nil {
		return nil, l.explain(err)
	}
	if !st.Mode().IsRegular() {
		return nil, &Error{Kind: Damaged, Reason: fmt.Sprintf("%s in %s is not a regular file", name, l.dir), HintText: "build or fetch the image again"}
	}
	f, err := l.root.Open(name)
	return f, l.explain(err)
}

// explain converts an error about a file. A link that leads out of the layout is an
// error of os.Root that has no name.
func (l *ociLayout) explain(err error) error {
	if err == nil || errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) {
		return err
	}
	return &Error{Kind: Damaged, Reason: fmt.Sprintf("%s: %v", l.dir, err), HintText: "blobs may be links within the layout, and not to other places: copy the files there, as with cp -rL", Err: err}
}

// blob reads a small blob, and compares it with its digest.
func (l *ociLayout) blob(what string, d v1.Descriptor) ([]byte, error) {
	r, err := l.open(d)
	if err != nil {
		return nil, explain(what+" "+short(d.Digest.String()), err)
	}
	defer r.Close()
	content, err := io.ReadAll(io.LimitReader(r, documentMost))
	if err != nil {
		return nil, explain(what+" "+short(d.Digest.String()), err)
	}
	return content, check("the "+what, content, d.Digest.String())
}

// image returns the source of a manifest in the layout.
func (l *ociLayout) image(d v1.Descriptor) (*source, error) {
	manifest, err := l.blob("manifest", d)
	if err != nil {
		return nil, err
	}
	return fromManifest(manifest, func(c v1.Descriptor) ([]byte, error) { return l.blob("configuration", c) }, l.open)
}
