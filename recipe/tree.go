package recipe

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"gopkg.in/yaml.v3"

	"premix/hotstart"
	"premix/store/tree"
)

// treePrefix begins an entry of data that names a tree of the store, not a path:
// tree:NAME[:TAG], with a path inside the tree after a tag or digest if wanted.
const treePrefix = "tree:"

// Trees gives the directory at which a tree is mounted, and sees to it that it
// is. The path must contain the tree's digest: it becomes part of command lines,
// of the plan and of fingerprints. An error with a Hint method has its own way
// out.
type Trees func(ref tree.Ref) (dir string, err error)

// Images describes the image of a reference, and sees to it that its root is
// mounted. An error that is a *hotstart.Unavailable is not the recipe's fault; one
// with a Hint method has its own way out.
type Images func(ref tree.Ref) (*hotstart.Image, error)

// Sources are where a recipe's trees and images come from.
type Sources struct {
	Trees  Trees  // nil: it can name no trees
	Images Images // nil: it can name no image
}

// splitTree takes an entry of data apart that begins with treePrefix.
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

// tree returns the absolute path for an entry of data that names a tree; "" once
// it has reported why there is none.
func (p *parser) tree(n *yaml.Node, s, what string) string {
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

// image reads which image the tool runs in.
func (p *parser) image(n *yaml.Node) {
	// Known even where it cannot be had: what is said of the tool depends on it.
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
		p.Add(n.Line, "take it out, and install the tool", "image: %s: images can't be mounted here", s)
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
