package main

import (
	"bytes"
	"context"
	le "encoding/binary"
	"hash/crc32"
	"io"
	"os"

	"github.com/rogpeppe/go-internal/testscript"

	"premix/internal/store"
	"premix/internal/store/erofs"
	"premix/internal/store/object"
	"premix/internal/store/tree"
)

// forge uses the key of the store to tag a tree that premix would never write, as a hostile
// publisher could:
//
//	forge STORE REF NEW replace WORD OTHER   replace bytes in the metadata of REF's tree
//	forge STORE REF NEW loop NAME            let a directory of the root lead to the root
//	forge STORE REF NEW image FILE           use any image
func forge(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 5 {
		ts.Fatalf("usage: forge STORE REF NEW replace|loop|image ...")
	}
	s, err := store.Open(ts.MkAbs(args[0]), store.Options{Home: ts.Getenv("PREMIX_HOME")})
	ts.Check(err)
	image, meta := imageOf(ts, s, args[1])
	switch args[3] {
	case "replace":
		if i := bytes.Index(image[:meta], []byte(args[4])); i < 0 || len(args[4]) != len(args[5]) {
			ts.Fatalf("%q cannot be replaced", args[4])
		} else {
			copy(image[i:], args[5])
		}
	case "loop":
		im, err := erofs.Open(bytes.NewReader(image), int64(len(image)))
		ts.Check(err)
		nid, err := im.Lookup(im.Root(), args[4])
		ts.Check(err)
		list := image[im.Position(im.Root()):meta]
		at := bytes.Index(list, le.LittleEndian.AppendUint64(nil, nid))
		if at < 0 {
			ts.Fatalf("no entry %s", args[4])
		}
		le.LittleEndian.PutUint64(list[at:], im.Root())
	case "image":
		image, err = os.ReadFile(ts.MkAbs(args[4]))
		ts.Check(err)
		meta = int64(len(image)) &^ (erofs.BlockSize - 1)
	}
	if args[3] != "image" {
		block := bytes.Clone(image[:erofs.BlockSize])
		clear(block[1028:1032])
		le.LittleEndian.PutUint32(image[1028:], ^crc32.Checksum(block[1024:], crc32.MakeTable(crc32.Castagnoli)))
	}
	ts.Check(tagImage(s, args[2], image, meta))
}

func imageOf(ts *testscript.TestScript, s *store.Store, name string) ([]byte, int64) {
	ref, err := tree.ParseRef(name)
	ts.Check(err)
	r, err := s.Resolve(ref)
	ts.Check(err)
	t, err := s.Tree(r.Tree)
	ts.Check(err)
	image, err := io.ReadAll(io.NewSectionReader(t, 0, t.Size()))
	ts.Check(err)
	return image, t.Manifest().Meta
}

// tagImage publishes bytes as a tree.
func tagImage(s *store.Store, name string, image []byte, meta int64) error {
	ref, err := tree.ParseRef(name)
	if err != nil {
		return err
	}
	w, err := s.Begin()
	if err != nil {
		return err
	}
	defer w.Close()
	var chunks []tree.Chunk
	for off := 0; off < len(image); off += 1 << 16 {
		p := image[off:min(len(image), off+1<<16)]
		d, _, err := w.Put(p)
		if err != nil {
			return err
		}
		chunks = append(chunks, tree.Chunk{Digest: d, Size: int64(len(p))})
	}
	b, page, err := tree.MarshalPage(chunks)
	if err != nil {
		return err
	}
	m := &tree.Manifest{Size: int64(len(image)), Meta: meta, Inodes: 1, Pages: []tree.Page{page}}
	manifest, err := m.Marshal()
	if err != nil {
		return err
	}
	var d object.Digest
	for _, p := range [][]byte{b, manifest} {
		if d, _, err = w.Put(p); err != nil {
			return err
		}
	}
	key, err := s.Key("")
	if err != nil {
		return err
	}
	_, err = w.Tag(context.Background(), store.TagOptions{Ref: ref, Tree: d, Key: key})
	return err
}
