package cvmfs

import (
	"context"
	"crypto/rsa"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/kit/lock"
)

// Limits of documents and catalogs, in bytes.
const (
	documentMost = 1 << 20
	catalogMost  = 16 << 30
)

// Options configure a Repository.
type Options struct {
	Name    string     // "data.galaxyproject.org"
	Servers []string   // URLs, with @fqrn@ and @org@ for parts of the name
	Proxies [][]string // as ParseProxies returns them
	Keys    []string   // files and directories of master keys
	GeoAPI  bool       // order the servers by distance
	// Seen is a directory in which the newest revision that was seen is kept.
	Seen          string
	AllowRollback bool      // accept an older revision
	Temp          string    // a directory for open catalogs
	Now           time.Time // zero: the present
}

// Repository is one revision of a repository.
type Repository struct {
	name     string
	f        *fetcher
	temp     string
	ordered  bool // the servers are in order
	manifest *Manifest

	// The signed documents of the revision.
	published, whitelist, certificate []byte

	mu       sync.Mutex
	catalogs map[Hash]*catalog
}

var nameForm = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9]([a-z0-9._-]*[a-z0-9])?$`) })

// ParseURL takes cvmfs://NAME/PATH apart. The path is "" or begins with a slash.
func ParseURL(s string) (name, dir string, err error) {
	rest, found := strings.CutPrefix(s, "cvmfs://")
	name, dir, _ = strings.Cut(rest, "/")
	if !found || !nameForm().MatchString(name) || !strings.Contains(name, ".") {
		return "", "", &Error{Kind: Usage, Reason: fmt.Sprintf("%q is not the URL of a repository", s), HintText: "write it as in cvmfs://data.galaxyproject.org/byhand"}
	}
	if dir = path.Clean("/" + dir); dir == "/" {
		dir = ""
	}
	return name, dir, nil
}

// Open verifies the newest revision of a repository.
func Open(ctx context.Context, o Options) (*Repository, error) {
	r, keys, err := prepare(o)
	if err != nil {
		return nil, err
	}
	if err := r.newest(ctx, o, keys); err != nil {
		return nil, err
	}
	return r, nil
}

// prepare returns a repository without a revision, and the master keys.
func prepare(o Options) (*Repository, []*rsa.PublicKey, error) {
	keys, err := readKeys(o.Keys)
	if err != nil {
		return nil, nil, err
	}
	org, _, _ := strings.Cut(o.Name, ".")
	fill := strings.NewReplacer("@fqrn@", o.Name, "@org@", org)
	var servers []string
	for _, s := range o.Servers {
		servers = append(servers, fill.Replace(s))
	}
	if len(servers) == 0 {
		return nil, nil, &Error{Kind: Usage, Reason: "there is no server of " + o.Name, HintText: "give --server URL, or a configuration with CVMFS_SERVER_URL (--config DIR)"}
	}
	if len(o.Proxies) == 0 {
		o.Proxies = [][]string{{"DIRECT"}}
	}
	f, err := newFetcher(servers, o.Proxies)
	if err != nil {
		return nil, nil, err
	}
	return &Repository{name: o.Name, f: f, temp: o.Temp, catalogs: map[Hash]*catalog{}}, keys, nil
}

// newest verifies the newest revision of the servers, and makes it the repository's.
func (r *Repository) newest(ctx context.Context, o Options, keys []*rsa.PublicKey) error {
	if o.GeoAPI && !r.ordered && len(o.Servers) > 1 {
		// Without an answer, the order is the given one until the next time.
		r.ordered = r.f.order(ctx) == nil
	}
	var w *whitelist
	var err error
	if r.whitelist, err = r.f.small(ctx, ".cvmfswhitelist", documentMost, func(b []byte) (err error) {
		w, err = parseWhitelist(b, o.Name, keys, o.now())
		return err
	}); err != nil {
		return err
	}
	if r.published, err = r.f.small(ctx, ".cvmfspublished", documentMost, func(b []byte) error { return r.verify(ctx, b, w) }); err != nil {
		return err
	}
	return r.checkSeen(ctx, o)
}

func (o *Options) now() time.Time {
	if o.Now.IsZero() {
		return time.Now()
	}
	return o.Now
}

// verify verifies a manifest, and makes it the repository's.
func (r *Repository) verify(ctx context.Context, b []byte, w *whitelist) error {
	l, m, err := r.read(b)
	if err != nil {
		return err
	}
	fd, err := unix.MemfdCreate("certificate", unix.MFD_CLOEXEC)
	if err != nil {
		return &localError{os.NewSyscallError("memfd_create", err)}
	}
	file := os.NewFile(uintptr(fd), "certificate in memory")
	defer file.Close()
	n, err := r.f.object(ctx, m.certificate, "X", false, documentMost, file, 0)
	if err != nil {
		return err
	}
	certificate := make([]byte, n)
	if _, err := file.ReadAt(certificate, 0); err != nil {
		return &localError{err}
	}
	if err := checkManifest(l, w, certificate, r.name); err != nil {
		return err
	}
	r.manifest, r.certificate = m, certificate
	return nil
}

// read parses a manifest whose signature is not verified yet.
func (r *Repository) read(b []byte) (*letter, *Manifest, error) {
	const hint = "check that the server is the repository's"
	l, err := openLetter(b)
	if err != nil {
		return nil, nil, distrust(hint, "the manifest of %s: %v", r.name, err)
	}
	m, err := parseManifest(l)
	if err != nil {
		return nil, nil, distrust(hint, "the manifest of %s: %v", r.name, err)
	}
	if m.Name != r.name {
		return nil, nil, distrust(hint, "the manifest is of another repository: %q instead of %s", m.Name, r.name)
	}
	return l, m, nil
}

// checkSeen compares the revision with the newest that was seen, and keeps it.
func (r *Repository) checkSeen(ctx context.Context, o Options) error {
	if o.Seen == "" {
		return nil
	}
	if err := os.MkdirAll(o.Seen, 0o700); err != nil {
		return &Error{Kind: Usage, Reason: err.Error(), Err: err}
	}
	f, err := os.OpenFile(filepath.Join(o.Seen, r.name), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return &Error{Kind: Usage, Reason: err.Error(), Err: err}
	}
	defer f.Close()
	if err := lock.Await(ctx, f, lock.Exclusive); err != nil {
		return err
	}
	var revision uint64
	var root string
	switch _, err := fmt.Fscanf(f, "%d %s\n", &revision, &root); {
	case err != nil:
		if st, statErr := f.Stat(); statErr != nil || st.Size() > 0 {
			return &Error{Kind: Usage, Reason: fmt.Sprintf("%s cannot be read: %v", f.Name(), err), HintText: "remove it, if it is damaged"}
		}
	case revision > r.manifest.Revision, revision == r.manifest.Revision && root != r.manifest.Root.String():
		if !o.AllowRollback {
			return distrust("to accept it once, give --allow-rollback to premix mount or premix store import", "the servers of %s show revision %d, and revision %d was seen before", r.name, r.manifest.Revision, revision)
		}
	}
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err = f.WriteAt(fmt.Appendf(nil, "%d %s\n", r.manifest.Revision, r.manifest.Root), 0)
	return err
}

// Manifest returns the description of the revision.
func (r *Repository) Manifest() Manifest { return *r.manifest }

// Close closes and removes open catalogs.
func (r *Repository) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.f.close()
	var errs []error
	for _, c := range r.catalogs {
		errs = append(errs, c.close())
	}
	r.catalogs = nil
	return errors.Join(errs...)
}

// catalog returns the catalog with this hash, whose root has this path.
func (r *Repository) catalog(ctx context.Context, h Hash, size int64, prefix string) (*catalog, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.catalogs[h]; c != nil && c.prefix == prefix {
		return c, nil
	}
	file, err := os.CreateTemp(r.temp, "catalog-")
	if err != nil {
		return nil, err
	}
	defer file.Close()
	most := int64(catalogMost)
	if size > 0 {
		most = min(size, most)
	}
	if _, err := r.f.object(ctx, h, "C", false, most, file, 0); err != nil {
		return nil, errors.Join(err, os.Remove(file.Name()))
	}
	c, err := openCatalog(ctx, file.Name(), prefix)
	if err != nil {
		return nil, errors.Join(err, os.Remove(file.Name()))
	}
	r.catalogs[h] = c
	return c, nil
}

// root returns the root directory.
func (r *Repository) root(ctx context.Context) (*Entry, error) {
	c, err := r.catalog(ctx, r.manifest.Root, r.manifest.RootSize, "")
	if err != nil {
		return nil, err
	}
	e, err := c.entry(ctx, "")
	if err == nil && (e == nil || !e.IsDir()) {
		err = c.bad("there is no root")
	}
	return e, err
}

// inner returns the directory as its own catalog describes it.
func (r *Repository) inner(ctx context.Context, e *Entry) (*Entry, error) {
	if !e.nested || !e.IsDir() {
		return e, nil
	}
	h, size, err := e.catalog.nestedAt(ctx, e.Path)
	if err != nil {
		return nil, err
	}
	c, err := r.catalog(ctx, h, size, e.Path)
	if err != nil {
		return nil, err
	}
	in, err := c.entry(ctx, e.Path)
	if err == nil && (in == nil || !in.IsDir()) {
		err = c.bad("there is no root")
	}
	return in, err
}

// Lookup returns the entry of a path: "" or "/a/b". Symbolic links are not followed.
func (r *Repository) Lookup(ctx context.Context, p string) (*Entry, error) {
	e, err := r.root(ctx)
	if err != nil || p == "" {
		return e, err
	}
	at := ""
	for part := range strings.SplitSeq(p[1:], "/") {
		at += "/" + part
		if !e.IsDir() {
			return nil, r.missing(p)
		}
		if e, err = e.catalog.entry(ctx, at); err != nil {
			return nil, err
		}
		if e == nil {
			return nil, r.missing(p)
		}
		if e, err = r.inner(ctx, e); err != nil {
			return nil, err
		}
	}
	return e, nil
}

func (r *Repository) missing(p string) error { return missingIn(*r.manifest, p) }

func missingIn(m Manifest, p string) error {
	return &Error{Kind: Missing, Reason: fmt.Sprintf("%s has no %s in revision %d", m.Name, p, m.Revision), Err: fs.ErrNotExist}
}

// List returns the entries of a directory, sorted by name.
func (r *Repository) List(ctx context.Context, e *Entry) ([]*Entry, error) {
	list, err := e.catalog.children(ctx, e.Path)
	for i := 0; err == nil && i < len(list); i++ {
		list[i], err = r.inner(ctx, list[i])
	}
	return list, err
}

// Content writes the content of a regular file into a new or empty file.
func (r *Repository) Content(ctx context.Context, e *Entry, file *os.File) error {
	if !e.IsRegular() {
		return fmt.Errorf("%s is not a regular file", e.Path)
	}
	if e.external {
		return &Error{Kind: Cannot, Reason: e.Path + " is an external file, whose content is not in the repository"}
	}
	parts, kind := []chunk{{0, e.Size, e.content}}, ""
	if e.chunked {
		var err error
		if parts, err = e.catalog.chunks(ctx, e); err != nil {
			return err
		}
		kind = "P"
	} else if e.content.IsZero() {
		return nil // scan has checked that it is empty
	}
	for _, p := range parts {
		n, err := r.f.object(ctx, p.content, kind, e.plain, p.size, file, p.off)
		if err != nil {
			return fmt.Errorf("%s: %w", e.Path, err)
		}
		if n != p.size {
			return e.catalog.bad("%q: object %s has %d bytes instead of %d", e.Path, p.content, n, p.size)
		}
	}
	return nil
}

// Expand replaces the variables $(NAME) and $(NAME:-DEFAULT) in the target of a symbolic
// link.
func Expand(target string, lookup func(string) (string, bool)) string {
	var b strings.Builder
	for {
		before, rest, found := strings.Cut(target, "$(")
		b.WriteString(before)
		inner, after, closed := strings.Cut(rest, ")")
		switch {
		case !found:
			return b.String()
		case !closed:
			b.WriteString("$(")
			target = rest
			continue
		}
		name, other, _ := strings.Cut(inner, ":-")
		if value, ok := lookup(name); ok {
			b.WriteString(value)
		} else {
			b.WriteString(other)
		}
		target = after
	}
}
