package cvmfs

import (
	"context"
	"fmt"
)

// Pin names the content of a directory as it is in one revision: by the catalog that
// describes the directory, whose hash covers all names, attributes, hashes of contents and
// catalogs below it. A later revision in which nothing of this catalog, or below it, has
// changed has the same Pin. Who gives a Pin vouches for it, as for the digest of a tree.
type Pin struct {
	Catalog  string `json:"catalog"`          // hash
	Size     int64  `json:"size,omitempty"`   // of the catalog, uncompressed; 0: unknown
	Prefix   string `json:"prefix,omitempty"` // path of the catalog's root
	Revision uint64 `json:"revision"`         // in which it was found
}

// Pin returns the Pin of the directory that is shown.
func (l *Live) Pin() (*Pin, error) {
	shown := l.now.Load()
	name, size, ok := l.numbers.at(shown.inner)
	if !ok {
		return nil, fmt.Errorf("catalog %d has no number", shown.inner)
	}
	return &Pin{Catalog: name.hash.String(), Size: size, Prefix: name.prefix, Revision: shown.manifest.Revision}, nil
}

// showPin shows the content of the Pin.
func (l *Live) showPin(ctx context.Context) error {
	p := l.o.Pin
	h, err := parseHash(p.Catalog)
	if err != nil || p.Size < 0 || !isAbove(p.Prefix, l.o.Path) {
		return &Error{Kind: Usage, Reason: fmt.Sprintf("%q at %q does not describe %s: %v", p.Catalog, p.Prefix, l.o.Path, err)}
	}
	// Its attributes are valid for as long as the longest TTL.
	return l.showFrom(ctx, Manifest{Name: l.r.name, Revision: p.Revision, TTL: longestTTL}, h, p.Size, p.Prefix)
}

// isAbove reports whether a directory is a path, or lies above it.
func isAbove(dir, path string) bool {
	return dir == "" || path == dir || len(path) > len(dir) && path[:len(dir)+1] == dir+"/"
}
