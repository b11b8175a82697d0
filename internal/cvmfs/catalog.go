package cvmfs

import (
	"context"
	"crypto/md5"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	_ "modernc.org/sqlite" // the driver "sqlite"
)

// Flags of an entry of a catalog.
const (
	flagNested   = 2       // a directory whose entries are in another catalog
	flagChunked  = 64      // a file in chunks
	flagExternal = 128     // a file whose content is not in the repository
	flagBind     = 1 << 14 // as flagNested, of another part of the tree
	flagHidden   = 1 << 15 // not shown in its directory
)

// Entry is a file, directory or other inode of a repository.
type Entry struct {
	Path   string // "" for the root, else "/a/b"
	Mode   uint32 // st_mode
	UID    uint32
	GID    uint32
	Size   int64  // of a regular file; of a device st_rdev
	Target string // of a symbolic link, with variables
	Time   time.Time
	Xattrs map[string][]byte
	Links  uint64 // entries of a catalog with equal numbers are hard links; 0: no others
	Nlink  uint32 // number of these entries, or 1

	content  Hash // of a regular file without chunks; zero if it is empty
	plain    bool // not compressed
	chunked  bool
	external bool
	nested   bool
	row      int64 // in its catalog
	catalog  *catalog
}

// IsDir reports whether e is a directory.
func (e *Entry) IsDir() bool { return e.Mode&unix.S_IFMT == unix.S_IFDIR }

// IsRegular reports whether e is a regular file.
func (e *Entry) IsRegular() bool { return e.Mode&unix.S_IFMT == unix.S_IFREG }

// chunk is a part of a file.
type chunk struct {
	off, size int64
	content   Hash
}

// catalog is an open catalog.
type catalog struct {
	file   string // to be removed with it; "" if it is in the cache
	db     *sql.DB
	prefix string // the path of its root
	fields string
}

// catalogSchema are the columns that every catalog has, and further ones.
var (
	needed   = []string{"md5path_1", "md5path_2", "parent_1", "parent_2", "hardlinks", "hash", "size", "mode", "mtime", "flags", "name", "symlink", "uid", "gid"}
	optional = []string{"xattr", "mtimens"}
)

// openCatalog opens a catalog whose hash has been compared.
func openCatalog(ctx context.Context, file, prefix string) (*catalog, error) {
	c, err := newCatalog(ctx, file, "", prefix)
	if err == nil {
		c.file = file
	}
	return c, err
}

// newCatalog opens the catalog in a file of the operating system or, if vfs is not empty,
// of a file system of SQLite.
func newCatalog(ctx context.Context, file, vfs, prefix string) (*catalog, error) {
	u := url.URL{Scheme: "file", Opaque: (&url.URL{Path: file}).EscapedPath(),
		RawQuery: "mode=ro&immutable=1&_pragma=trusted_schema(0)&_pragma=query_only(1)&_pragma=cell_size_check(1)&_pragma=mmap_size(0)"}
	if vfs != "" {
		u.RawQuery += "&_pragma=cache_size(-512)&vfs=" + vfs
	}
	db, err := sql.Open("sqlite", u.String())
	if err != nil {
		return nil, err
	}
	if vfs != "" {
		db.SetMaxOpenConns(4)
		db.SetMaxIdleConns(2)
	}
	c := &catalog{db: db, prefix: prefix}
	if err := c.look(ctx); err != nil {
		db.Close()
		return nil, c.bad("%v", err)
	}
	return c, nil
}

func (c *catalog) bad(format string, args ...any) error {
	where := c.prefix
	if where == "" {
		where = "/"
	}
	return distrust("the repository is damaged, or its publisher uses a later version of CVMFS", "the catalog of %s: %s", where, fmt.Sprintf(format, args...))
}

// look examines the schema. A view could make anything of a query.
func (c *catalog) look(ctx context.Context) error {
	for _, table := range []string{"catalog", "nested_catalogs", "properties"} {
		var kind string
		if err := c.db.QueryRowContext(ctx, "SELECT type FROM sqlite_master WHERE name = ?", table).Scan(&kind); err != nil || kind != "table" {
			return fmt.Errorf("there is no table %s: %v", table, err)
		}
	}
	var schema string
	if err := c.db.QueryRowContext(ctx, "SELECT CAST(value AS TEXT) FROM properties WHERE key = 'schema'").Scan(&schema); err != nil {
		return fmt.Errorf("its schema: %w", err)
	}
	if v, err := strconv.ParseFloat(schema, 64); err != nil || v < 2 || v >= 3 {
		return fmt.Errorf("schema %q, premix reads 2", schema)
	}
	rows, err := c.db.QueryContext(ctx, "SELECT name FROM pragma_table_info('catalog')")
	if err != nil {
		return err
	}
	defer rows.Close()
	var have []string
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return err
		}
		have = append(have, name)
	}
	if err := rows.Err(); err != nil {
		return err
	}
	for _, n := range needed {
		if !slices.Contains(have, n) {
			return fmt.Errorf("there is no column %s", n)
		}
	}
	fields := slices.Clone(needed[4:])
	for _, n := range optional {
		if !slices.Contains(have, n) {
			n = "NULL"
		}
		fields = append(fields, n)
	}
	c.fields = strings.Join(append(fields, "rowid"), ", ")
	return nil
}

func (c *catalog) close() error {
	err := c.db.Close()
	if c.file != "" {
		err = errors.Join(err, os.Remove(c.file))
	}
	return err
}

// key returns the two numbers by which a catalog finds a path.
func key(p string) (int64, int64) {
	sum := md5.Sum([]byte(p))
	return int64(binary.LittleEndian.Uint64(sum[:8])), int64(binary.LittleEndian.Uint64(sum[8:]))
}

// entry returns the entry of a path, nil if there is none.
func (c *catalog) entry(ctx context.Context, p string) (*Entry, error) {
	a, b := key(p)
	rows, err := c.db.QueryContext(ctx, "SELECT md5path_1, md5path_2, "+c.fields+" FROM catalog WHERE md5path_1 = ? AND md5path_2 = ?", a, b)
	if err != nil {
		return nil, c.bad("%v", err)
	}
	list, err := c.scan(rows, func(string) string { return p })
	if err != nil || len(list) == 0 {
		return nil, err
	}
	return list[0], nil
}

// children returns the entries of a directory, sorted by name, without hidden ones.
func (c *catalog) children(ctx context.Context, dir string) ([]*Entry, error) {
	a, b := key(dir)
	rows, err := c.db.QueryContext(ctx, "SELECT md5path_1, md5path_2, "+c.fields+" FROM catalog WHERE parent_1 = ? AND parent_2 = ?", a, b)
	if err != nil {
		return nil, c.bad("%v", err)
	}
	list, err := c.scan(rows, func(name string) string { return dir + "/" + name })
	if err != nil {
		return nil, err
	}
	// The root of the repository is its own parent's child in no catalog, but the root of
	// a nested catalog has a parent.
	list = slices.DeleteFunc(list, func(e *Entry) bool { return e.Path == c.prefix })
	slices.SortFunc(list, func(a, b *Entry) int { return strings.Compare(a.Path, b.Path) })
	for i := 1; i < len(list); i++ {
		if list[i].Path == list[i-1].Path {
			return nil, c.bad("two entries %q", list[i].Path)
		}
	}
	return list, nil
}

// scan reads rows. pathOf returns the path of an entry by its name, which the numbers of
// the row have to confirm.
func (c *catalog) scan(rows *sql.Rows, pathOf func(name string) string) ([]*Entry, error) {
	defer rows.Close()
	var list []*Entry
	for rows.Next() {
		var a, b, links, size, mode, mtime, flags, uid, gid, row int64
		var hash, name, symlink, xattr []byte
		var nsec sql.NullInt64
		var sizeOrNull sql.NullInt64
		if err := rows.Scan(&a, &b, &links, &hash, &sizeOrNull, &mode, &mtime, &flags, &name, &symlink, &uid, &gid, &xattr, &nsec, &row); err != nil {
			return nil, c.bad("%v", err)
		}
		size = sizeOrNull.Int64
		if flags&flagHidden != 0 {
			continue
		}
		e := &Entry{
			Path: pathOf(string(name)), Mode: uint32(mode), UID: uint32(uid), GID: uint32(gid), Size: size, Target: string(symlink), Time: time.Unix(mtime, nsec.Int64),
			plain: flags>>11&7 == 1, chunked: flags&flagChunked != 0, external: flags&flagExternal != 0, nested: flags&flagNested != 0, row: row, catalog: c, Nlink: 1,
		}
		wrong := func(format string, args ...any) error { return c.bad("%q: %s", e.Path, fmt.Sprintf(format, args...)) }
		if x, y := key(e.Path); x != a || y != b {
			return nil, wrong("the name and the path of an entry disagree")
		}
		if n := string(name); e.Path != "" && (n == "" || n == "." || n == ".." || len(n) > 255 || strings.ContainsAny(n, "/\x00")) {
			return nil, wrong("a name that no file can have")
		}
		if nsec.Int64 < 0 || nsec.Int64 >= 1e9 || mode < 0 || mode > 0xffff || uid < 0 || uid >= 1<<32-1 || gid < 0 || gid >= 1<<32-1 || size < 0 {
			return nil, wrong("a value is out of range")
		}
		if links>>32 != 0 {
			e.Links, e.Nlink = uint64(links)>>32, max(1, uint32(links))
		}
		if flags&flagBind != 0 {
			return nil, &Error{Kind: Cannot, Reason: e.Path + " is a bind mount point of another directory of the repository, which is not read here"}
		}
		if comp := flags >> 11 & 7; comp > 1 {
			return nil, &Error{Kind: Cannot, Reason: fmt.Sprintf("%s is compressed by algorithm %d, which is not read here", e.Path, comp)}
		}
		switch e.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			if len(hash) > 0 {
				h, err := hashOf(algorithm(flags>>8&7)+1, hash)
				if err != nil {
					return nil, wrong("%v", err)
				}
				e.content = h
			} else if size > 0 && !e.chunked && !e.external {
				return nil, wrong("a file of %d bytes without a hash", size)
			}
		case unix.S_IFLNK:
			if e.Target == "" || len(e.Target) >= unix.PathMax || strings.IndexByte(e.Target, 0) >= 0 {
				return nil, wrong("a symlink to %q", e.Target)
			}
		case unix.S_IFDIR, unix.S_IFCHR, unix.S_IFBLK, unix.S_IFIFO, unix.S_IFSOCK:
		default:
			return nil, wrong("mode %#o", mode)
		}
		var err error
		if e.Xattrs, err = parseXattrs(xattr); err != nil {
			return nil, wrong("%v", err)
		}
		list = append(list, e)
	}
	if err := rows.Err(); err != nil {
		return nil, c.bad("%v", err)
	}
	return list, nil
}

// parseXattrs parses the xattrs of an entry: a version, a count, and for each the length
// of its name, the length of its value, the name and the value.
func parseXattrs(b []byte) (map[string][]byte, error) {
	if len(b) == 0 {
		return nil, nil
	}
	if len(b) < 2 || b[0] != 1 {
		return nil, fmt.Errorf("xattrs of an unknown version")
	}
	all := map[string][]byte{}
	count := int(b[1])
	b = b[2:]
	for range count {
		if len(b) < 2 || len(b) < 2+int(b[0])+int(b[1]) || b[0] == 0 {
			return nil, fmt.Errorf("truncated xattrs")
		}
		name, value := b[2:2+int(b[0])], b[2+int(b[0]):2+int(b[0])+int(b[1])]
		all[string(name)] = value
		b = b[2+len(name)+len(value):]
	}
	return all, nil
}

// chunks returns the chunks of a file, which cover it.
func (c *catalog) chunks(ctx context.Context, e *Entry) ([]chunk, error) {
	a, b := key(e.Path)
	rows, err := c.db.QueryContext(ctx, "SELECT offset, size, hash FROM chunks WHERE md5path_1 = ? AND md5path_2 = ? ORDER BY offset", a, b)
	if err != nil {
		return nil, c.bad("%v", err)
	}
	defer rows.Close()
	// The algorithm is the entry's; a file in chunks may have no hash of its own.
	var flags int64
	if err := c.db.QueryRowContext(ctx, "SELECT flags FROM catalog WHERE md5path_1 = ? AND md5path_2 = ?", a, b).Scan(&flags); err != nil {
		return nil, c.bad("%v", err)
	}
	var list []chunk
	end := int64(0)
	for rows.Next() {
		var k chunk
		var digest []byte
		if err := rows.Scan(&k.off, &k.size, &digest); err != nil {
			return nil, c.bad("%v", err)
		}
		if k.content, err = hashOf(algorithm(flags>>8&7)+1, digest); err != nil || k.off != end || k.size <= 0 || k.size > e.Size-end {
			return nil, c.bad("%q: a chunk of %d bytes at %d: %v", e.Path, k.size, k.off, err)
		}
		end += k.size
		list = append(list, k)
	}
	if err := rows.Err(); err != nil {
		return nil, c.bad("%v", err)
	}
	if end != e.Size {
		return nil, c.bad("%q: chunks of %d of %d bytes", e.Path, end, e.Size)
	}
	return list, nil
}

// nestedAt returns the hash and the size of the catalog of a directory.
func (c *catalog) nestedAt(ctx context.Context, dir string) (Hash, int64, error) {
	var text string
	var size sql.NullInt64
	if err := c.db.QueryRowContext(ctx, "SELECT sha1, size FROM nested_catalogs WHERE path = ?", dir).Scan(&text, &size); err != nil {
		return Hash{}, 0, c.bad("the catalog of %q: %v", dir, err)
	}
	h, err := parseHash(text)
	if err != nil {
		return h, 0, c.bad("the catalog of %q: %v", dir, err)
	}
	return h, size.Int64, nil
}
