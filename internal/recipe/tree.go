package recipe

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"gopkg.in/yaml.v3"

	"premix/internal/hotstart"
	"premix/internal/store/tree"
)

// treePrefix begins an entry of data that names a tree of the store, not a path:
// tree:NAME[:TAG]. A path inside the tree may follow a tag or digest.
const treePrefix = "tree:"

// repositoryPrefix begins an entry of data that names a directory of a repository of CVMFS.
const repositoryPrefix = "cvmfs://"

// Trees mounts a tree if needed, and returns its directory. The path must contain the
// tree's digest: it becomes a part of command lines, of the plan and of fingerprints.
// If the error has a Hint method, the problem has that hint.
type Trees func(ref tree.Ref) (dir string, err error)

// Repositories mounts a directory of a repository of CVMFS, which its URL names, in its
// newest revision, and returns the directory, as Trees does for a tree. The path must
// contain a digest of the content, which must not change any more.
type Repositories func(url string) (dir string, err error)

// Images mounts the root of an image if needed, and returns its description. An error
// that is a *hotstart.Unavailable is not a mistake in the recipe. If another error has a
// Hint method, the problem has that hint.
type Images func(ref tree.Ref) (*hotstart.Image, error)

// Sources are the sources of a recipe's trees, repositories and images.
type Sources struct {
	Trees        Trees        // nil: trees can't be used
	Repositories Repositories // nil: repositories can't be used
	Images       Images       // nil: images can't be used
}

// splitTree splits an entry of data with treePrefix into the tree and the path inside.
func splitTree(s string) (ref tree.Ref, inside string, err error) {
	s = strings.TrimPrefix(s, treePrefix)
	if i := strings.IndexAny(s, ":@"); i >= 0 {
		if j := strings.IndexByte(s[i:], '/'); j >= 0 {
			s, inside = s[:i+j], s[i+j+1:]
		}
	}
	if ref, err = tree.ParseRef(s); err != nil {
		return ref, "", err
	}
	if inside != "" && !filepath.IsLocal(inside) {
		return ref, "", fmt.Errorf("the path %q leads out of the tree", inside)
	}
	return ref, inside, nil
}

// tree returns the absolute path for an entry of data that names a tree. If it can't
// be used, tree reports that and returns "".
func (p *parser) tree(n *yaml.Node, s, what string) string {
	if url := strings.TrimPrefix(s, treePrefix); strings.HasPrefix(url, repositoryPrefix) {
		p.Add(n.Line, "write "+url, "%s: a repository of CVMFS is not a tree", what)
		return ""
	}
	ref, inside, err := splitTree(s)
	if err != nil {
		p.Add(n.Line, "write tree:NAME:TAG or tree:NAME:TAG/PATH", "%s: %v", what, err)
		return ""
	}
	if p.from.Trees == nil {
		p.Add(n.Line, "name a directory instead", "%s: %s: trees can't be mounted here", what, s)
		return ""
	}
	dir, err := p.from.Trees(ref)
	if err != nil {
		p.AddError(n.Line, what, err)
		return ""
	}
	path := filepath.Join(dir, inside)
	if _, err := os.Lstat(path); err != nil {
		message, hint := fileTrouble(path, inside, err)
		p.Add(n.Line, hint, "%s: %s in %s: %s", what, inside, ref, message)
		return ""
	}
	return path
}

// repository returns the absolute path for an entry of data that names a directory of a
// repository. If it can't be used, repository reports that and returns "".
func (p *parser) repository(n *yaml.Node, s, what string) string {
	if p.from.Repositories == nil {
		p.Add(n.Line, "name a directory instead", "%s: %s: repositories can't be mounted here", what, s)
		return ""
	}
	dir, err := p.from.Repositories(s)
	if err != nil {
		p.AddError(n.Line, what, err)
		return ""
	}
	return dir
}

// image reads the image in which the tool runs.
func (p *parser) image(n *yaml.Node) {
	// Set it even if the image can't be used: the checks of the tool depend on it.
	p.r.Image = &hotstart.Image{}
	s, ok := p.text(n, "image")
	if !ok || p.frozen(n, s, "image") {
		return
	}
	ref, err := tree.ParseRef(s)
	if err != nil {
		p.Add(n.Line, "image: NAME:TAG, as `premix image ls` shows it", "image: %v", err)
		return
	}
	if p.from.Images == nil {
		p.Add(n.Line, "remove it, and install the tool", "image: %s: images can't be mounted here", s)
		return
	}
	im, err := p.from.Images(ref)
	var unavailable *hotstart.Unavailable
	switch {
	case errors.As(err, &unavailable):
		p.unavailable = unavailable
	case err != nil:
		p.AddError(n.Line, "image", err)
	default:
		im.Ref = s
		p.r.Image = im
	}
}
