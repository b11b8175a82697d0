package cvmfsrepo

import (
	"bytes"
	"compress/zlib"
	"crypto"
	"crypto/md5"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha1"
	"crypto/sha3"
	"crypto/x509"
	"crypto/x509/pkix"
	"database/sql"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ripemd160" //lint:ignore SA1019 repositories of CVMFS name objects by it
	"golang.org/x/sys/unix"
	_ "modernc.org/sqlite" // the driver "sqlite"
)

// Name is the name of all repositories.
const Name = "fixture.example.org"

// Algorithm is a hash Algorithm, by the number that catalogs have for it.
type Algorithm int

// The algorithms.
const (
	SHA1 Algorithm = iota
	RMD160
	SHAKE128
)

// sum returns the digest of content.
func (a Algorithm) sum(b []byte) []byte {
	switch a {
	case RMD160:
		h := ripemd160.New()
		h.Write(b)
		return h.Sum(nil)
	case SHAKE128:
		return sha3.SumSHAKE128(b, 20)
	}
	s := sha1.Sum(b)
	return s[:]
}

func (a Algorithm) suffix() string { return [...]string{"", "-rmd160", "-shake128"}[a] }

func (a Algorithm) text(digest []byte) string { return hex.EncodeToString(digest) + a.suffix() }

// Node is an entry to be published.
type Node struct {
	Mode    uint32
	UID     uint32
	GID     uint32
	Content []byte
	Chunk   int // bytes of a chunk; 0: none
	Plain   bool
	Target  string
	Rdev    int64
	Group   int64
	Xattrs  map[string]string
	Hidden  bool
	Nested  bool
	Time    time.Time
}

// Tree has the entries of a repository by path; "" is the root.
type Tree map[string]*Node

// Identity has the keys of a repository.
type Identity struct {
	Master *rsa.PrivateKey
	signer *rsa.PrivateKey
	cert   []byte // PEM
	der    []byte
	Public string // a file with the master key
	TTL    int    // of manifests, in seconds
}

var keys = sync.OnceValue(func() [3]*rsa.PrivateKey {
	var k [3]*rsa.PrivateKey
	for i := range k {
		k[i], _ = rsa.GenerateKey(rand.Reader, 2048)
	}
	return k
})

// NewIdentity returns an identity with two of three pairs of keys.
func NewIdentity(t testing.TB, master, signer int) *Identity {
	t.Helper()
	id, err := NewIdentityIn(t.TempDir(), master, signer)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// NewIdentityIn is NewIdentity with a directory for the file with the master key.
func NewIdentityIn(dir string, master, signer int) (*Identity, error) {
	id := &Identity{Master: keys()[master], signer: keys()[signer], TTL: 240}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: Name}, NotAfter: time.Now().Add(time.Hour)}
	var err error
	if id.der, err = x509.CreateCertificate(rand.Reader, template, template, &id.signer.PublicKey, id.signer); err != nil {
		return nil, err
	}
	id.cert = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: id.der})
	der, err := x509.MarshalPKIXPublicKey(&id.Master.PublicKey)
	if err != nil {
		return nil, err
	}
	id.Public = filepath.Join(dir, "fixture.pub")
	return id, os.WriteFile(id.Public, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), 0o644)
}

// Published is a repository as files below a URL.
type Published struct {
	Mu    sync.Mutex
	Files map[string][]byte
	Asked map[string]int // requests
}

func (p *Published) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.Mu.Lock()
	name := strings.TrimPrefix(r.URL.Path, "/cvmfs/"+Name+"/")
	b, ok := p.Files[name]
	p.Asked[name]++
	p.Mu.Unlock()
	if !ok {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Length", fmt.Sprint(len(b)))
	_, _ = w.Write(b)
}

// Serve serves the repository for the length of a test, and returns its URL.
func (p *Published) Serve(t testing.TB) string {
	s := httptest.NewServer(p)
	t.Cleanup(s.Close)
	return s.URL + "/cvmfs/@fqrn@"
}

var packers = sync.Pool{New: func() any { return zlib.NewWriter(nil) }} // each has a megabyte

func packed(b []byte) []byte {
	var z bytes.Buffer
	w := packers.Get().(*zlib.Writer)
	defer packers.Put(w)
	w.Reset(&z)
	_, _ = w.Write(b)
	_ = w.Close()
	return z.Bytes()
}

// put stores an object and returns its hash.
func (p *Published) put(a Algorithm, b []byte, kind string) []byte {
	h := a.sum(b)
	s := hex.EncodeToString(h)
	p.Files["data/"+s[:2]+"/"+s[2:]+a.suffix()+kind] = b
	return h
}

// Object returns the name of the file of an object with a content, by SHA-1.
func Object(content []byte) string {
	s := hex.EncodeToString(SHA1.sum(packed(content)))
	return "data/" + s[:2] + "/" + s[2:]
}

// Publish makes a revision.
func Publish(t testing.TB, tree Tree, a Algorithm, id *Identity, revision int) *Published {
	t.Helper()
	p, err := PublishIn(t.TempDir(), tree, a, id, revision)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// PublishIn is Publish with a directory for temporary files.
func PublishIn(dir string, tree Tree, a Algorithm, id *Identity, revision int) (*Published, error) {
	p := &Published{Files: map[string][]byte{}, Asked: map[string]int{}}
	root, size, err := p.catalog(dir, tree, a, "")
	if err != nil {
		return nil, err
	}
	certificate := p.put(a, packed(id.cert), "X")
	history, err := p.history(dir, a, a.text(root), size, revision)
	if err != nil {
		return nil, err
	}
	p.Files[".cvmfspublished"] = id.Manifest(a, a.text(root), size, a.text(certificate), a.text(history), revision)
	p.Files[".cvmfswhitelist"] = id.Whitelist(a, Name, time.Now().Add(48*time.Hour))
	return p, nil
}

// Lie returns the repository with wrong files, chunks and catalogs.
func (p *Published) Lie() *Published {
	lie := &Published{Files: map[string][]byte{}, Asked: map[string]int{}}
	for name, b := range p.Files {
		if strings.HasPrefix(name, "data/") && !strings.HasSuffix(name, "X") {
			b = packed([]byte("a lie"))
		}
		lie.Files[name] = b
	}
	return lie
}

// Manifest returns a signed manifest.
func (id *Identity) Manifest(a Algorithm, root string, size int, certificate, history string, revision int) []byte {
	empty := md5.Sum(nil)
	text := fmt.Sprintf("C%s\nB%d\nR%x\nD%d\nS%d\nGno\nAno\nN%s\nX%s\nH%s\nT%d\n", root, size, empty, id.TTL, revision, Name, certificate, history, time.Now().Unix())
	hash := a.text(a.sum([]byte(text)))
	sum := sha1.Sum([]byte(hash))
	signature, err := rsa.SignPKCS1v15(nil, id.signer, crypto.SHA1, sum[:])
	if err != nil {
		panic(err)
	}
	return append([]byte(text+"--\n"+hash+"\n"), signature...)
}

// Whitelist returns a signed whitelist.
func (id *Identity) Whitelist(a Algorithm, name string, expires time.Time) []byte {
	var print []string
	for _, b := range sha1.Sum(id.der) {
		print = append(print, fmt.Sprintf("%02X", b))
	}
	const form = "20060102150405"
	text := time.Now().UTC().Format(form) + "\nE" + expires.UTC().Format(form) + "\nN" + name + "\n" + strings.Join(print, ":") + " # the signer\n"
	hash := a.text(a.sum([]byte(text)))
	signature, err := rsa.SignPKCS1v15(nil, id.Master, 0, []byte(hash))
	if err != nil {
		panic(err)
	}
	return append([]byte(text+"--\n"+hash+"\n"), signature...)
}

const schema = `
CREATE TABLE catalog (md5path_1 INTEGER, md5path_2 INTEGER, parent_1 INTEGER, parent_2 INTEGER, hardlinks INTEGER, hash BLOB, size INTEGER,
 mode INTEGER, mtime INTEGER, mtimens INTEGER, flags INTEGER, name TEXT, symlink TEXT, uid INTEGER, gid INTEGER, xattr BLOB, CONSTRAINT pk_catalog PRIMARY KEY (md5path_1, md5path_2));
CREATE INDEX idx_catalog_parent ON catalog (parent_1, parent_2);
CREATE TABLE chunks (md5path_1 INTEGER, md5path_2 INTEGER, offset INTEGER, size INTEGER, hash BLOB, CONSTRAINT pk_chunks PRIMARY KEY (md5path_1, md5path_2, offset, size));
CREATE TABLE nested_catalogs (path TEXT, sha1 TEXT, size INTEGER, CONSTRAINT pk_nested_catalogs PRIMARY KEY (path));
CREATE TABLE bind_mountpoints (path TEXT, sha1 TEXT, size INTEGER, CONSTRAINT pk_bind_mountpoints PRIMARY KEY (path));
CREATE TABLE statistics (counter TEXT, value INTEGER, CONSTRAINT pk_statistics PRIMARY KEY (counter));
CREATE TABLE properties (key TEXT, value TEXT, CONSTRAINT pk_properties PRIMARY KEY (key));
INSERT INTO properties VALUES ('schema', '2.5'), ('schema_revision', '7'), ('revision', '1'), ('last_modified', '1700000000'), ('root_prefix', ''), ('TTL', '240');
`

// halves returns the two numbers of a path.
func halves(p string) (int64, int64) {
	sum := md5.Sum([]byte(p))
	var n [2]uint64
	for i := range 16 {
		n[i/8] |= uint64(sum[i]) << (8 * (i % 8))
	}
	return int64(n[0]), int64(n[1])
}

// catalog publishes the catalog whose root is prefix, and those below it.
func (p *Published) catalog(dir string, tree Tree, a Algorithm, prefix string) (hash []byte, size int, err error) {
	b, err := database(dir, func(exec func(string, ...any)) error { return p.fill(exec, dir, tree, a, prefix) })
	if err != nil {
		return nil, 0, err
	}
	return p.put(a, packed(b), "C"), len(b), nil
}

// database returns the bytes of a database.
func database(dir string, fill func(exec func(query string, args ...any)) error) ([]byte, error) {
	f, err := os.CreateTemp(dir, "database-")
	if err != nil {
		return nil, err
	}
	file := f.Name()
	defer os.Remove(file)
	if err := f.Close(); err != nil {
		return nil, err
	}
	db, err := sql.Open("sqlite", file)
	if err != nil {
		return nil, err
	}
	defer db.Close()
	db.SetMaxOpenConns(1) // the transaction is the connection's
	var failed error
	exec := func(query string, args ...any) {
		if _, err := db.Exec(query, args...); failed == nil {
			failed = err
		}
	}
	if err := errors.Join(fill(exec), failed, db.Close()); err != nil {
		return nil, err
	}
	return os.ReadFile(file)
}

// history publishes the list of named snapshots, which some clients need.
func (p *Published) history(dir string, a Algorithm, root string, size, revision int) ([]byte, error) {
	b, err := database(dir, func(exec func(string, ...any)) error {
		exec("CREATE TABLE properties (key TEXT, value TEXT, CONSTRAINT pk_properties PRIMARY KEY (key))")
		exec("INSERT INTO properties VALUES ('schema', '1.0'), ('schema_revision', '3'), ('fqrn', ?)", Name)
		exec("CREATE TABLE tags (name TEXT, hash TEXT, revision INTEGER, timestamp INTEGER, channel INTEGER, description TEXT, size INTEGER, branch TEXT, CONSTRAINT pk_tags PRIMARY KEY (name))")
		exec("INSERT INTO tags VALUES ('trunk', ?, ?, 1700000000, 0, '', ?, '')", root, revision, size)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return p.put(a, packed(b), "H"), nil
}

// fill writes a catalog.
func (p *Published) fill(exec func(string, ...any), dir string, tree Tree, a Algorithm, prefix string) error {
	exec(schema)
	exec("INSERT OR REPLACE INTO properties VALUES ('root_prefix', ?)", prefix)
	exec("BEGIN")
	paths := make([]string, 0, len(tree))
	for at := range tree {
		paths = append(paths, at)
	}
	slices.Sort(paths)
	owner := func(at string) string { // the catalog in which the entries of a directory are
		for ; at != ""; at = path.Dir(at) {
			if at == "/" || at == "." {
				return ""
			}
			if tree[at].Nested {
				return at
			}
		}
		return ""
	}
	for _, at := range paths {
		n := tree[at]
		parent := path.Dir(at)
		if parent == "/" || parent == "." {
			parent = ""
		}
		inside := at == prefix || at != "" && owner(parent) == prefix
		if !inside {
			continue
		}
		flags := map[uint32]int64{unix.S_IFDIR: 1, unix.S_IFREG: 4, unix.S_IFLNK: 8 | 4}[n.Mode&unix.S_IFMT]
		if flags == 0 {
			flags = 16 | 4
		}
		if n.Nested && at != prefix {
			flags |= 2
			h, size, err := p.catalog(dir, tree, a, at)
			if err != nil {
				return err
			}
			exec("INSERT INTO nested_catalogs VALUES (?, ?, ?)", at, a.text(h), size)
		}
		if at == prefix && at != "" {
			flags |= 32
		}
		if n.Hidden {
			flags |= 1 << 15
		}
		x, y := halves(at)
		px, py := halves(parent)
		if at == "" {
			px, py = 0, 0
		}
		var hash any
		size := int64(len(n.Content))
		if n.Mode&unix.S_IFMT == unix.S_IFREG {
			flags |= int64(a) << 8
			form := packed
			if n.Plain {
				flags |= 1 << 11
				form = func(b []byte) []byte { return b }
			}
			if n.Chunk > 0 {
				flags |= 64
				for off := 0; off < len(n.Content); off += n.Chunk {
					part := n.Content[off:min(off+n.Chunk, len(n.Content))]
					h := p.put(a, form(part), "P")
					exec("INSERT INTO chunks VALUES (?, ?, ?, ?, ?)", x, y, off, len(part), h)
				}
			} else {
				h := p.put(a, form(n.Content), "")
				hash = h
			}
		} else if n.Rdev != 0 {
			size = n.Rdev
		} else if n.Target != "" {
			size = int64(len(n.Target))
		}
		var xattr any
		if len(n.Xattrs) > 0 {
			b := []byte{1, byte(len(n.Xattrs))}
			for _, k := range slices.Sorted(maps.Keys(n.Xattrs)) { // equal trees have equal catalogs
				v := n.Xattrs[k]
				b = append(append(append(b, byte(len(k)), byte(len(v))), k...), v...)
			}
			xattr = b
		}
		name := ""
		if at != "" {
			name = path.Base(at)
		}
		links := int64(1)
		if n.Group != 0 {
			links = n.Group<<32 | 2
		}
		exec("INSERT INTO catalog VALUES (?,?,?,?,?,?,?,?,?,?,?,CAST(? AS TEXT),?,?,?,?)", x, y, px, py, links, hash, size, n.Mode, n.Time.Unix(), n.Time.Nanosecond(), flags, []byte(name), n.Target, n.UID, n.GID, xattr)
	}
	exec("COMMIT")
	return nil
}

// Sample has one of everything, and with large some hundred files more.
func Sample(large bool) Tree {
	when := time.Unix(1700000000, 123456789)
	dir := func(nested bool) *Node { return &Node{Mode: unix.S_IFDIR | 0o755, Time: when, Nested: nested} }
	file := func(s string) *Node { return &Node{Mode: unix.S_IFREG | 0o644, Content: []byte(s), Time: when} }
	chunks := bytes.Repeat([]byte("0123456789abcde\n"), 5000)
	tree := Tree{
		"":                       dir(false),
		"/a file":                file("content\n"),
		"/empty":                 file(""),
		"/link":                  {Mode: unix.S_IFLNK | 0o777, Target: "a file", Time: when},
		"/variable":              {Mode: unix.S_IFLNK | 0o777, Target: "$(PREMIX_TEST_RELEASE:-v1)/x", Time: when},
		"/sub":                   dir(false),
		"/sub/one":               {Mode: unix.S_IFREG | 0o755, Content: []byte("linked"), Group: 7, Time: when},
		"/sub/two":               {Mode: unix.S_IFREG | 0o755, Content: []byte("linked"), Group: 7, Time: when},
		"/sub/plain":             {Mode: unix.S_IFREG | 0o600, Content: []byte("not compressed"), Plain: true, Time: when},
		"/sub/hidden":            {Mode: unix.S_IFREG | 0o644, Content: []byte("hidden"), Hidden: true, Time: when},
		"/sub/.cvmfscatalog":     file(""),
		"/nested":                dir(true),
		"/nested/chunked":        {Mode: unix.S_IFREG | 0o444, Content: chunks, Chunk: 30000, Time: when},
		"/nested/deeper":         dir(true),
		"/nested/deeper/t\xff ü": file("odd name"),
		"/nested/deeper/xattr":   {Mode: unix.S_IFREG | 0o644, Content: []byte("x"), Xattrs: map[string]string{"user.a": "1", "user.long": strings.Repeat("v", 250)}, Time: time.Unix(-5, 7)},
		"/nested/deeper/dir":     {Mode: unix.S_IFDIR | 0o700 | unix.S_ISGID, Time: when},
	}
	if large {
		for i := range 300 {
			tree[fmt.Sprintf("/nested/deeper/dir/%03d", i)] = file(strings.Repeat("n", i))
		}
	}
	return tree
}
