package stream

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"sync"

	"golang.org/x/sync/errgroup"

	"premix/internal/store"
	"premix/internal/store/object"
)

// index finds chunks in other paths at the receiver.
type index struct {
	stores []*store.Store

	mu     sync.Mutex
	files  []string
	places map[object.Digest]spot
}

type spot struct {
	file   uint32
	offset int64
}

// newIndex reads all files in the given files and directories. Stores are queried later.
func newIndex(ctx context.Context, paths []string) (*index, error) {
	x := &index{places: map[object.Digest]spot{}}
	work, ctx := errgroup.WithContext(ctx)
	work.SetLimit(runtime.GOMAXPROCS(0))
	for _, p := range paths {
		if s, err := store.Open(p, store.Options{}); err == nil {
			x.stores = append(x.stores, s)
			continue
		}
		err := filepath.WalkDir(p, func(p string, d fs.DirEntry, err error) error {
			if err != nil {
				return &TargetError{"what is had can't be read: " + err.Error()}
			}
			if d.Type().IsRegular() {
				work.Go(func() error { return x.add(ctx, p) })
			}
			return context.Cause(ctx)
		})
		if err != nil {
			return nil, err
		}
	}
	return x, work.Wait()
}

// add adds the chunks of a file. It ignores a file that can't be read, or that changes.
func (x *index) add(ctx context.Context, p string) error {
	f, err := os.Open(p)
	if err != nil {
		return nil
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || info.Size() == 0 {
		return nil
	}
	x.mu.Lock()
	n := uint32(len(x.files))
	x.files = append(x.files, p)
	x.mu.Unlock()
	note := func(data []byte, at int64) {
		d := object.Sum(data)
		x.mu.Lock()
		defer x.mu.Unlock()
		x.places[d] = spot{n, at}
	}
	if info.Size() < store.LargeMin {
		data := make([]byte, info.Size())
		if _, err := f.ReadAt(data, 0); err == nil {
			note(data, 0)
		}
		return nil
	}
	_ = cutFile(ctx, f, info.Size(), func(at, _ int64, data []byte) error {
		if data != nil {
			note(data, at)
		}
		return nil
	})
	return context.Cause(ctx)
}

// find reads a chunk into buf, which has the chunk's size.
func (x *index) find(d object.Digest, buf []byte) bool {
	x.mu.Lock()
	at, ok := x.places[d]
	var file string
	if ok {
		file = x.files[at.file]
	}
	x.mu.Unlock()
	if ok {
		if f, err := os.Open(file); err == nil {
			_, err = f.ReadAt(buf, at.offset)
			f.Close()
			if err == nil && object.Sum(buf) == d {
				return true
			}
		}
	}
	for _, s := range x.stores {
		if content, err := s.Content(d, int64(len(buf))); err == nil {
			copy(buf, content)
			return true
		}
	}
	return false
}
