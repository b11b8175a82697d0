package store

import (
	"cmp"
	"fmt"
	"slices"
	"sort"

	"golang.org/x/sys/unix"

	"premix/internal/store/erofs"
	"premix/internal/store/object"
	"premix/internal/store/tree"
)

// files maps an image to files: pieces in the order of the image.
type files []filePiece

// filePiece is the location of a piece of a file.
type filePiece struct {
	at, end int64 // in the image
	inode   uint64
	off     int64 // of at, in the file
}

// files returns the locations of contents, behind the metadata, of those files of a
// tree whose inodes were touched: other files were not read. (Files with the same
// content share one location, so their data does not show which of them was read.)
func (t *Tree) files(touched func(off int64) bool) (files, error) {
	im, err := t.Image()
	if err != nil {
		return nil, err
	}
	var list files
	seen := map[uint64]bool{} // inodes with several names
	err = im.Walk(func(_ string, i *erofs.Inode) error {
		if i.Mode&unix.S_IFMT != unix.S_IFREG || i.Size == 0 || seen[i.Ino] || !touched(im.Position(i.Ino)) {
			return nil
		}
		if i.Nlink > 1 {
			seen[i.Ino] = true
		}
		for off := int64(0); off < i.Size; {
			at, n, hole, err := im.Map(i.Ino, off)
			if err != nil {
				return err
			}
			if n == 0 {
				return fmt.Errorf("inode %d ends at %d", i.Ino, off)
			}
			if !hole && at >= t.m.Meta {
				list = append(list, filePiece{at, at + n, i.Ino, off})
			}
			off += n
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(list, func(a, b filePiece) int { return cmp.Compare(a.at, b.at) })
	return list, nil
}

// stretch is a part of an image: bytes from from to to.
type stretch struct{ from, to int64 }

// blocks returns the blocks of the image that contain leaves of a recorded part. Leaves
// count from the beginning of the chunk, which need not be a block boundary; at each
// end of the chunk the whole block counts.
func (t *Tree) blocks(p tree.Part) []stretch {
	var list []stretch
	start, end := t.offsets[p.Chunk], t.offsets[p.Chunk+1]
	for _, r := range p.Slice(end - start) {
		from, to := start+int64(r.From)*object.LeafSize, min(start+int64(r.To)*object.LeafSize, end)
		if from > start {
			from = (from + erofs.BlockSize - 1) &^ (erofs.BlockSize - 1)
		}
		if to < end {
			to &^= erofs.BlockSize - 1
		}
		if from < to {
			list = append(list, stretch{from, to})
		}
	}
	return list
}

// among returns a function that reports whether a byte of the image lies in recorded
// parts.
func (t *Tree) among(parts []tree.Part) func(off int64) bool {
	all := map[int][]stretch{}
	for _, p := range parts {
		all[p.Chunk] = t.blocks(p)
	}
	return func(off int64) bool {
		return slices.ContainsFunc(all[t.chunkAt(off)], func(s stretch) bool { return s.from <= off && off < s.to })
	}
}

// spans collects the spans of a bundle.
type spans struct {
	order []uint64 // inodes, by first touch
	runs  map[uint64][]object.Run
}

// add records that the bytes of the image from from to to were touched; those before
// meta are metadata. Whole blocks are recorded, since the kernel reads blocks.
func (s *spans) add(f files, meta, from, to int64) {
	if from < meta {
		s.note(0, from, min(to, meta))
		from = meta
	}
	i := sort.Search(len(f), func(i int) bool { return f[i].end > from })
	for ; from < to && i < len(f) && f[i].at < to; i++ {
		p := f[i]
		if at := max(from, p.at); at < min(to, p.end) {
			s.note(p.inode, at-p.at+p.off, min(to, p.end)-p.at+p.off)
			from = p.end
		}
	}
}

func (s *spans) note(inode uint64, from, to int64) {
	if s.runs == nil {
		s.runs = map[uint64][]object.Run{}
	}
	if s.runs[inode] == nil {
		s.order = append(s.order, inode)
	}
	s.runs[inode] = append(s.runs[inode], object.Run{From: int(from / erofs.BlockSize), To: int((to + erofs.BlockSize - 1) / erofs.BlockSize)})
}

func (s *spans) list() []tree.Span {
	var list []tree.Span
	for _, inode := range s.order {
		list = append(list, tree.Span{Inode: inode, Runs: tree.JoinRuns(s.runs[inode], 0)})
	}
	return list
}
