package recipe

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"gopkg.in/yaml.v3"

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
		p.add(n.Line, "write tree:NAME:TAG or tree:NAME:TAG/PATH", "%s: %v", what, err)
		return ""
	}
	if p.trees == nil {
		p.add(n.Line, "name a directory instead", "%s: %s: trees can't be mounted here", what, s)
		return ""
	}
	dir, err := p.trees(ref)
	if err != nil {
		hint := ""
		if h, ok := err.(interface{ Hint() string }); ok {
			hint = h.Hint()
		}
		p.add(n.Line, hint, "%s: %v", what, err)
		return ""
	}
	path := filepath.Join(dir, inside)
	if _, err := os.Lstat(path); err != nil {
		message, hint := fileTrouble(path, inside, err)
		p.add(n.Line, hint, "%s: %s in %s: %s", what, inside, ref, message)
		return ""
	}
	return path
}
