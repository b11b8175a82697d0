package lazylayer

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sort"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/google/go-containerregistry/pkg/authn"

	"premix/internal/store/cache"
	"premix/internal/store/erofs"
	"premix/internal/store/object"
)

// Description describes a layer with an index.
type Description struct {
	Repository string `json:"repository"` // HOST[:PORT]/NAME
	Digest     string `json:"digest"`     // of the blob
	Size       int64  `json:"size"`       // of the blob
	TOC        string `json:"toc"`        // digest of the TOC of eStargz
}

// ID identifies the content of a layer, whatever repository it comes from. It stands for
// a tree's digest.
func (d *Description) ID() object.Digest {
	return object.Sum(fmt.Appendf(nil, "premix lazy layer 1\n%s\n%d\n%s\n", d.Digest, d.Size, d.TOC))
}

// stretch is a part of a regular file.
type stretch struct {
	off, size int64 // in the file
	piece     int   // -1: the content of the index itself
	at        int64 // in the piece, uncompressed
}

// piece is a part of the blob.
type piece interface {
	blob() (from, to int64)
	size() int64 // unpacked
	// unpack writes the verified content.
	unpack(packed []byte, w io.Writer) error
}

// opened is a layer whose index was read.
type opened struct {
	b      *builder
	pieces []piece
	inline []byte // content of the index
	ahead  int64  // pieces up to this offset in the blob are fetched at once
}

// Options configure a Layer.
type Options struct {
	Description
	Objects  *cache.Objects
	Keychain authn.Keychain
	// Log is called with failed fetches and reads. It may be nil.
	Log func(error)
}

// Layer is a layer as an image for package lazyfs.
type Layer struct {
	o      Options
	repo   *Repository
	meta   []byte
	size   int64
	files  []*dataFile
	pieces []piece
	inline []byte
	getter *cache.Getter
	ctx    context.Context
	end    context.CancelFunc
	work   sync.WaitGroup
	lacked atomic.Int64 // pieces for which a reader has waited

	mu   sync.Mutex
	last error
}

// fetchesAtOnce limits the requests of one layer.
const fetchesAtOnce = 6

// Open reads the index of a layer, from the cache if it is there.
func Open(ctx context.Context, o Options) (_ *Layer, err error) {
	l := &Layer{o: o}
	if l.repo, err = NewRepository(o.Repository, o.Keychain); err != nil {
		return nil, err
	}
	l.ctx, l.end = context.WithCancel(context.Background())
	l.getter = o.Objects.Getter(l.ctx)
	defer func() {
		if err != nil {
			err = errors.Join(err, l.Close())
		}
	}()
	op, err := l.index(ctx)
	if err != nil {
		return nil, err
	}
	root, err := op.b.tree()
	if err != nil {
		return nil, err
	}
	var meta bytes.Buffer
	if _, err := erofs.Write(&meta, root, op.b.placed); err != nil {
		return nil, unsuitable("its tree cannot be shown: %v", err)
	}
	l.meta, l.size = meta.Bytes(), int64(meta.Len())+op.b.placed
	if err := erofs.NewChecker(int64(len(l.meta)), l.size, nil, nil).All(bytes.NewReader(l.meta)); err != nil {
		return nil, unsuitable("its tree cannot be shown: %v", err)
	}
	l.files, l.pieces, l.inline = op.b.files, op.pieces, op.inline
	l.prefetch(op.ahead)
	return l, nil
}

// index returns the index of the layer.
func (l *Layer) index(ctx context.Context) (*opened, error) {
	w := cache.Wanted{Name: l.name("toc"), Fetch: func(ctx context.Context, d *cache.Draft) (int64, error) {
		content, err := fetchTOC(ctx, l.repo, &l.o.Description)
		if err != nil {
			return 0, err
		}
		_, err = d.File.Write(content)
		return int64(len(content)), err
	}}
	for again := false; ; again = true {
		x, err := l.getter.Get(ctx, w)
		if err != nil {
			return nil, err
		}
		content := make([]byte, x.Size())
		_, err = x.ReadAt(content, 0)
		x.Close()
		var damaged *cache.WrongError
		if errors.As(err, &damaged) && !again {
			continue
		}
		if err != nil && err != io.EOF {
			return nil, err
		}
		return openTOC(content, &l.o.Description)
	}
}

// name returns the name of an object in the cache.
func (l *Layer) name(part string) string {
	return l.o.ID().String() + "." + part
}

// Size returns the size of the image in bytes.
func (l *Layer) Size() int64 { return l.size }

// ReadAt implements lazyfs.Image.
func (l *Layer) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	if off < 0 || off >= l.size {
		return 0, io.EOF
	}
	n := int(min(int64(len(p)), l.size-off))
	if err := l.read(ctx, p[:n], off); err != nil {
		clear(p[:n])
		if !errors.Is(err, context.Canceled) {
			l.failed(err)
		}
		return 0, err
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (l *Layer) read(ctx context.Context, p []byte, off int64) error {
	clear(p)
	if meta := int64(len(l.meta)); off < meta {
		n := copy(p, l.meta[off:])
		p, off = p[n:], 0
		if len(p) == 0 {
			return nil
		}
	} else {
		off -= meta
	}
	end := off + int64(len(p))
	first := sort.Search(len(l.files), func(i int) bool { return l.files[i].off+l.files[i].size > off })
	for _, f := range l.files[first:] {
		if f.off >= end {
			break
		}
		from, to := max(off, f.off)-f.off, min(end, f.off+f.size)-f.off
		if err := l.readFile(ctx, f, p[f.off+from-off:f.off+to-off], from); err != nil {
			return err
		}
	}
	return nil
}

// readFile reads all of p from a file.
func (l *Layer) readFile(ctx context.Context, f *dataFile, p []byte, off int64) error {
	i, found := slices.BinarySearchFunc(f.stretches, off, func(e stretch, off int64) int { return cmp.Compare(e.off, off) })
	if !found {
		i--
	}
	// Fetch all pieces of this read at the same time.
	for k := max(i, 0); k < len(f.stretches) && f.stretches[k].off < off+int64(len(p)); k++ {
		if e := f.stretches[k]; e.piece >= 0 && !l.o.Objects.Has(l.name(fmt.Sprint(e.piece))) {
			l.lacked.Add(1)
			l.getter.Ahead(l.wanted(e.piece), fetchesAtOnce)
		}
	}
	last := -1
	for len(p) > 0 {
		if i < 0 || i >= len(f.stretches) {
			return fmt.Errorf("a file of the layer has no content at %d", off)
		}
		e := f.stretches[i]
		within := off - e.off
		q := p[:min(int64(len(p)), e.size-within)]
		if e.piece < 0 {
			copy(q, l.inline[e.at+within:])
		} else if err := l.readPiece(ctx, e.piece, q, e.at+within); err != nil {
			return err
		}
		p, off, last = p[len(q):], off+int64(len(q)), e.piece
		i++
	}
	// A reader that goes on in the file finds the next piece.
	if i < len(f.stretches) && f.stretches[i].piece > last && last >= 0 {
		l.getter.Ahead(l.wanted(f.stretches[i].piece), fetchesAtOnce)
	} else if next := last + 1; last >= 0 && next < len(l.pieces) && f.stretches[len(f.stretches)-1].piece >= next {
		l.getter.Ahead(l.wanted(next), fetchesAtOnce)
	}
	return nil
}

func (l *Layer) wanted(i int) cache.Wanted {
	p := l.pieces[i]
	return cache.Wanted{Name: l.name(fmt.Sprint(i)), Size: p.size(), Fetch: func(ctx context.Context, d *cache.Draft) (int64, error) {
		from, to := p.blob()
		packed := bytes.NewBuffer(make([]byte, 0, to-from))
		if err := l.repo.Range(ctx, l.o.Digest, l.o.Size, from, to, packed); err != nil {
			return 0, err
		}
		return p.size(), p.unpack(packed.Bytes(), d.File)
	}}
}

// readPiece reads all of p from a piece. A piece that is damaged in the cache is fetched
// again, once.
func (l *Layer) readPiece(ctx context.Context, i int, p []byte, off int64) error {
	w := l.wanted(i)
	for again := false; ; again = true {
		x, err := l.getter.Get(ctx, w)
		if err != nil {
			return err
		}
		n, err := x.ReadAt(p, off)
		x.Close()
		var damaged *cache.WrongError
		switch {
		case errors.As(err, &damaged) && !again:
			l.failed(err)
			continue
		case n == len(p) && (err == nil || err == io.EOF):
			return nil
		case err == nil || err == io.EOF:
			return wrong("a piece in the cache is too short")
		}
		return err
	}
}

// prefetch fetches the pieces up to an offset of the blob, which the builder of the image
// has put first, in the background.
func (l *Layer) prefetch(end int64) {
	next := make(chan int)
	for range fetchesAtOnce {
		l.work.Go(func() {
			for i := range next {
				x, err := l.getter.Get(l.ctx, l.wanted(i))
				if err != nil {
					if l.ctx.Err() == nil {
						l.failed(err)
					}
					continue
				}
				x.Close()
			}
		})
	}
	l.work.Go(func() {
		defer close(next)
		for i, p := range l.pieces {
			if from, _ := p.blob(); from >= end {
				return
			}
			select {
			case next <- i:
			case <-l.ctx.Done():
				return
			}
		}
	})
}

func (l *Layer) failed(err error) {
	l.mu.Lock()
	again := l.last != nil && l.last.Error() == err.Error()
	l.last = err
	l.mu.Unlock()
	if l.o.Log != nil && !again {
		l.o.Log(err)
	}
}

// LastError returns the error of the last failed fetch, or nil.
func (l *Layer) LastError() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}

// Fetched returns the number of bytes received from the registry.
func (l *Layer) Fetched() int64 { return l.repo.Fetched() }

// Lacked returns the number of pieces for which a reader has waited.
func (l *Layer) Lacked() int64 { return l.lacked.Load() }

// Present returns the size of the content in the cache.
func (l *Layer) Present() int64 {
	n := int64(len(l.meta))
	for i, p := range l.pieces {
		if l.o.Objects.Has(l.name(fmt.Sprint(i))) {
			n += p.size()
		}
	}
	return n
}

// Close ends all fetches. Nothing may be read any more.
func (l *Layer) Close() error {
	l.end()
	l.work.Wait()
	l.getter.Wait()
	return nil
}

// Parse decodes a description, and checks it.
func Parse(text []byte) (*Description, error) {
	var d Description
	if err := json.Unmarshal(text, &d); err != nil {
		return nil, err
	}
	return &d, d.Check()
}

// Check returns an error if a description is not complete.
func (d *Description) Check() error {
	if d.Repository == "" || !isDigest(d.Digest) || d.Size <= 0 || !isDigest(d.TOC) {
		return unsuitable("the description of a layer is not complete")
	}
	return nil
}

func isDigest(s string) bool {
	text, ok := strings.CutPrefix(s, "sha256:")
	_, err := object.ParseDigest(text)
	return ok && err == nil
}
