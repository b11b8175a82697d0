package store

import (
	"context"
	"errors"
	"runtime"

	"golang.org/x/sync/errgroup"

	"premix/internal/store/erofs"
	"premix/internal/store/object"
	"premix/internal/store/tree"
)

// The digest of a chunk decides whether a page ends behind it, so that inserted or
// removed chunks do not change all later pages.
const (
	pageMin  = 1024
	pageMean = 2048
)

// putTree stores the metadata, the pages and the manifest of a tree.
func (p *publisher) putTree(ctx context.Context, l *layout) (d object.Digest, m *tree.Manifest, chunks int, err error) {
	list, err := newChunkList(p.scratch())
	if err != nil {
		return d, nil, 0, err
	}
	defer list.Close()
	meta := &metaWriter{ctx: ctx, p: p, list: list}
	meta.group.SetLimit(2 * runtime.GOMAXPROCS(0))
	size, err := l.nodes.Write(meta, l.small.size, l.large.size)
	err = errors.Join(err, meta.close())
	if err != nil {
		var n *erofs.NodeError
		if errors.As(err, &n) {
			return d, nil, 0, &SourceError{Path: n.Path, Reason: n.Err.Error(), HintText: "leave it out of the directory: a tree cannot hold it", Err: err}
		}
		return d, nil, 0, err
	}
	m = &tree.Manifest{Size: size + l.small.size + l.large.size, Meta: size, Bytes: l.bytes, Inodes: l.inodes}
	page := make([]tree.Chunk, 0, tree.PageChunks)
	flush := func() error {
		content, located, err := tree.MarshalPage(page)
		if err != nil {
			return err
		}
		m.Pages, page = append(m.Pages, located), page[:0]
		_, err = p.put(content)
		return err
	}
	for _, part := range []*chunkList{list, l.small, l.large} {
		chunks += part.count
		err := part.each(func(c tree.Chunk) error {
			if page = append(page, c); !pageEnds(c, len(page)) {
				return nil
			}
			return flush()
		})
		if err != nil {
			return d, nil, 0, err
		}
	}
	if len(page) > 0 {
		if err := flush(); err != nil {
			return d, nil, 0, err
		}
	}
	content, err := m.Marshal()
	if err != nil {
		return d, nil, 0, err
	}
	if d, err = p.put(content); err != nil {
		return d, nil, 0, err
	}
	return d, m, chunks, nil
}

// pageEnds reports whether a page ends behind its n-th chunk c.
func pageEnds(c tree.Chunk, n int) bool {
	return n == tree.PageChunks || n >= pageMin && chance(c.Digest, 1, pageMean, n >= pageMean)
}

// metaWriter cuts metadata into chunks and stores them.
type metaWriter struct {
	ctx   context.Context
	p     *publisher
	buf   []byte
	group errgroup.Group
	list  *chunkList
}

func (m *metaWriter) Write(b []byte) (int, error) {
	if err := context.Cause(m.ctx); err != nil {
		return 0, err
	}
	m.buf = append(m.buf, b...)
	for len(m.buf) >= metaMax {
		m.cut()
	}
	return len(b), nil
}

func (m *metaWriter) cut() {
	n := metaChunker.Cut(m.buf)
	content := append([]byte(nil), m.buf[:n]...)
	m.buf = append(m.buf[:0], m.buf[n:]...)
	done := m.list.reserve(int64(n))
	m.group.Go(func() error {
		d, err := m.p.put(content)
		if err != nil {
			return err
		}
		return done(d)
	})
}

func (m *metaWriter) close() error {
	for len(m.buf) > 0 {
		m.cut()
	}
	return m.group.Wait()
}
