package store

import (
	"container/list"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"sort"
	"sync"

	"premix/internal/store/erofs"
	"premix/internal/store/object"
	"premix/internal/store/tree"
)

// Tree is a tree of a store, open for reading. It is safe for concurrent use.
type Tree struct {
	s       *Store // nil for a tree of an origin
	objects ContentFunc
	digest  object.Digest
	m       *tree.Manifest
	chunks  []tree.Chunk
	offsets []int64 // of the chunks, and the end of the last

	mu     sync.Mutex
	recent *list.List // of *decoded, most recently used first
	byPos  map[int]*list.Element
	bytes  int64
}

type decoded struct {
	index   int
	content []byte
}

// recentBytes bounds the decoded content that a Tree keeps.
const recentBytes = 32 << 20

// ContentFunc returns the verified content of an object of a given size, or of any size if
// size is negative.
type ContentFunc func(d object.Digest, size int64) ([]byte, error)

// Tree opens a tree by its digest. It reads and verifies the manifest and pages. An
// error about these is a [DamageError], or a [UsageError] if there is no such tree.
func (s *Store) Tree(d object.Digest) (*Tree, error) {
	m, err := s.Manifest(d)
	if err != nil {
		return nil, err
	}
	return newTree(s, d, m, s.Content)
}

// FetchTree opens a tree whose objects come from an origin. Only what is read of the tree is
// fetched, and nothing is kept on the disk.
func FetchTree(d object.Digest, objects ContentFunc) (*Tree, error) {
	content, err := objects(d, -1)
	if err != nil {
		return nil, err
	}
	m, err := tree.ParseManifest(content)
	if err != nil {
		return nil, damage("tree "+d.Short(), err)
	}
	return newTree(nil, d, m, objects)
}

func newTree(s *Store, d object.Digest, m *tree.Manifest, objects ContentFunc) (*Tree, error) {
	t := &Tree{s: s, objects: objects, digest: d, m: m, chunks: make([]tree.Chunk, 0, m.Chunks()), recent: list.New(), byPos: map[int]*list.Element{}}
	for i, p := range m.Pages {
		content, err := objects(p.Digest, p.PageSize())
		var chunks []tree.Chunk
		if err == nil {
			chunks, err = tree.ParsePage(p, content)
		}
		if err != nil {
			return nil, t.failed(fmt.Errorf("page %d of %d: %w", i+1, len(m.Pages), err))
		}
		t.chunks = append(t.chunks, chunks...)
	}
	t.offsets = tree.Offsets(0, t.chunks)
	return t, nil
}

// Manifest reads and verifies the manifest of a tree.
func (s *Store) Manifest(d object.Digest) (*tree.Manifest, error) {
	content, err := s.Content(d, -1)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &UsageError{Reason: fmt.Sprintf("the store %s has no tree %s", s.dir, d), HintText: "premix store ls --store " + s.dir + " lists its trees", Err: err}
	}
	if err != nil {
		return nil, damage("tree "+d.Short(), err)
	}
	m, err := tree.ParseManifest(content)
	if err != nil {
		return nil, damage("tree "+d.Short(), err)
	}
	return m, nil
}

func (s *Store) page(p tree.Page) ([]tree.Chunk, error) {
	content, err := s.Content(p.Digest, p.PageSize())
	if err != nil {
		return nil, err
	}
	return tree.ParsePage(p, content)
}

// failed returns the error of reading an object. In a local store the object is damaged; an
// origin may just not answer.
func (t *Tree) failed(err error) error {
	if t.s == nil {
		return fmt.Errorf("tree %s: %w", t.digest.Short(), err)
	}
	return damage("tree "+t.digest.Short(), err)
}

// Digest returns the tree's digest.
func (t *Tree) Digest() object.Digest { return t.digest }

// Manifest returns the tree's manifest, which must not be changed.
func (t *Tree) Manifest() *tree.Manifest { return t.m }

// Chunks returns the tree's chunks, which must not be changed, in order.
func (t *Tree) Chunks() []tree.Chunk { return t.chunks }

// Size returns the length of the image in bytes.
func (t *Tree) Size() int64 { return t.m.Size }

// Objects returns the digests of all objects of the tree, each once: chunks first, then
// pages, and the manifest last. Copying them in this order never leaves a manifest
// whose objects are missing.
func (t *Tree) Objects() iter.Seq[object.Digest] {
	return func(yield func(object.Digest) bool) {
		seen := make(map[object.Digest]bool, len(t.chunks))
		once := func(d object.Digest) bool {
			if seen[d] {
				return true
			}
			seen[d] = true
			return yield(d)
		}
		for _, c := range t.chunks {
			if !c.Hole() && !once(c.Digest) {
				return
			}
		}
		for _, p := range t.m.Pages {
			if !once(p.Digest) {
				return
			}
		}
		once(t.digest)
	}
}

// Image opens the tree's file system.
func (t *Tree) Image() (*erofs.Image, error) { return erofs.Open(t, t.m.Size) }

// Check checks all metadata of the tree's image. The error is an [erofs.CheckError] if
// premix has not written them.
func (t *Tree) Check() error {
	return erofs.NewChecker(t.m.Meta, t.m.Size, nil, nil).All(t)
}

// chunkAt returns the index of the chunk with the image's byte at off.
func (t *Tree) chunkAt(off int64) int {
	return sort.Search(len(t.chunks), func(i int) bool { return t.offsets[i+1] > off })
}

// ReadAt reads verified bytes of the image.
func (t *Tree) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, fmt.Errorf("offset %d", off)
	}
	n := 0
	for n < len(p) && off < t.m.Size {
		i := t.chunkAt(off)
		within := off - t.offsets[i]
		var k int
		if c := t.chunks[i]; c.Hole() {
			k = int(min(int64(len(p)-n), c.Size-within))
			clear(p[n : n+k])
		} else {
			content, err := t.content(i)
			if err != nil {
				return n, err
			}
			k = copy(p[n:], content[within:])
		}
		n, off = n+k, off+int64(k)
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// content returns a chunk's content, perhaps from recent.
func (t *Tree) content(i int) ([]byte, error) {
	t.mu.Lock()
	if e, ok := t.byPos[i]; ok {
		t.recent.MoveToFront(e)
		defer t.mu.Unlock()
		return e.Value.(*decoded).content, nil
	}
	t.mu.Unlock()
	c := t.chunks[i]
	content, err := t.objects(c.Digest, c.Size)
	if err != nil {
		return nil, t.failed(fmt.Errorf("chunk %d, bytes %d to %d of its image: %w", i, t.offsets[i], t.offsets[i+1], err))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.byPos[i]; !ok {
		t.byPos[i] = t.recent.PushFront(&decoded{i, content})
		t.bytes += c.Size
		for t.bytes > recentBytes && t.recent.Len() > 1 {
			old := t.recent.Remove(t.recent.Back()).(*decoded)
			delete(t.byPos, old.index)
			t.bytes -= int64(len(old.content))
		}
	}
	return content, nil
}
