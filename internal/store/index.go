package store

import (
	"context"
	"errors"
	"runtime"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

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
func (p *publisher) putTree(ctx context.Context, top *entry, l *layout) (d object.Digest, m *tree.Manifest, chunks int, err error) {
	meta := &metaWriter{ctx: ctx, p: p}
	meta.group.SetLimit(2 * runtime.GOMAXPROCS(0))
	size, err := erofs.Write(meta, nodes(top), l.size)
	err = errors.Join(err, meta.close())
	if err != nil {
		var n *erofs.NodeError
		if errors.As(err, &n) {
			return d, nil, 0, &SourceError{Path: n.Path, Reason: n.Err.Error(), HintText: "leave it out of the directory: a tree cannot hold it", Err: err}
		}
		return d, nil, 0, err
	}
	all := append(meta.list(), l.chunks...)
	m = &tree.Manifest{Size: size + l.size, Meta: size, Bytes: l.bytes, Inodes: l.inodes}
	for rest := all; len(rest) > 0; {
		n := pageEnd(rest)
		content, page, err := tree.MarshalPage(rest[:n])
		if err != nil {
			return d, nil, 0, err
		}
		if _, err := p.put(content); err != nil {
			return d, nil, 0, err
		}
		m.Pages, rest = append(m.Pages, page), rest[n:]
	}
	content, err := m.Marshal()
	if err != nil {
		return d, nil, 0, err
	}
	if d, err = p.put(content); err != nil {
		return d, nil, 0, err
	}
	return d, m, len(all), nil
}

// pageEnd returns the number of chunks of the first page.
func pageEnd(chunks []tree.Chunk) int {
	for i, c := range chunks {
		n := i + 1
		if n == tree.PageChunks || n >= pageMin && chance(c.Digest, 1, pageMean, n >= pageMean) {
			return n
		}
	}
	return len(chunks)
}

// nodes links the nodes of entries to a tree.
func nodes(e *entry) *erofs.Node {
	for _, c := range e.below {
		e.node.Children = append(e.node.Children, erofs.Child{Name: c.name, Node: c.node})
		if c.node.Mode&unix.S_IFMT == unix.S_IFDIR {
			nodes(c)
		}
	}
	return e.node
}

// metaWriter cuts metadata into chunks and stores them.
type metaWriter struct {
	ctx    context.Context
	p      *publisher
	buf    []byte
	group  errgroup.Group
	chunks []*tree.Chunk
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
	c := &tree.Chunk{Size: int64(n)}
	m.chunks = append(m.chunks, c)
	m.group.Go(func() (err error) {
		c.Digest, err = m.p.put(content)
		return err
	})
}

func (m *metaWriter) close() error {
	for len(m.buf) > 0 {
		m.cut()
	}
	return m.group.Wait()
}

func (m *metaWriter) list() []tree.Chunk {
	list := make([]tree.Chunk, 0, len(m.chunks))
	for _, c := range m.chunks {
		list = append(list, *c)
	}
	return list
}
