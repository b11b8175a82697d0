package erofs_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"

	"premix/internal/store/erofs"
)

// bytesOf returns an image in memory.
func bytesOf(t testing.TB, root *erofs.Node, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	if _, err := erofs.Write(&b, root, int64(len(data))); err != nil {
		t.Fatal(err)
	}
	b.Write(data)
	return b.Bytes()
}

func open(t testing.TB, b []byte) *erofs.Image {
	t.Helper()
	im, err := erofs.Open(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	return im
}

// sample returns a small image with every kind of entry.
func sample(t testing.TB) []byte {
	t.Helper()
	const block = erofs.BlockSize
	data := bytes.Repeat([]byte("data"), 3*block/4)
	small := &erofs.Node{Mode: typeFile | 0o644, Size: 5, Inline: []byte("small"), Xattrs: map[string][]byte{"user.a": []byte("b"), "user.same": []byte("same")}}
	dir := &erofs.Node{Mode: typeDir | 0o755}
	for i := range 300 {
		dir.Children = append(dir.Children, erofs.Child{Name: fmt.Sprintf("entry of a directory %03d", i), Node: small})
	}
	root := &erofs.Node{Mode: typeDir | 0o755, Xattrs: map[string][]byte{"user.same": []byte("same")}, Children: []erofs.Child{
		{Name: "dir", Node: dir},
		{Name: "small", Node: small},
		{Name: "sub", Node: &erofs.Node{Mode: typeDir, Children: []erofs.Child{{Name: "deeper", Node: &erofs.Node{Mode: typeDir}}}}},
		{Name: "link", Node: &erofs.Node{Mode: typeLink | 0o777, Target: "dir/small", Xattrs: map[string][]byte{"user.same": []byte("same")}}},
		{Name: "long", Node: &erofs.Node{Mode: typeLink | 0o777, Target: strings.Repeat("t", 4095)}},
		{Name: "null", Node: &erofs.Node{Mode: typeChar | 0o666, Rdev: 0x103}},
		{Name: "flat", Node: &erofs.Node{Mode: typeFile, Size: 2*block + 1, Extents: []erofs.Extent{{Length: 2*block + 1}}}},
		{Name: "sparse", Node: &erofs.Node{Mode: typeFile, Size: 40*block + 1, Extents: []erofs.Extent{{FileOffset: 4 * block, Length: block, DataOffset: block}, {FileOffset: 8 * block, Length: block, DataOffset: 2 * block}}}},
		{Name: "hole", Node: &erofs.Node{Mode: typeFile, Size: 1 << 50}},
		{Name: "empty", Node: &erofs.Node{Mode: typeFile}},
	}}
	return bytesOf(t, root, data)
}

// unseal removes the checksum from an image, so that changes of the first block are not
// refused because of it.
func unseal(b []byte) []byte {
	b = slices.Clone(b)
	b[1024+8] &^= 1
	return b
}

// exercise performs all operations on an image, as far as the image is sound. It returns an
// error if an operation fails in a way that no image may cause, and the number of inodes
// that it saw.
func exercise(b []byte) (seen int, err error) {
	ours := func(what string, e error) {
		for _, known := range []error{nil, io.EOF, erofs.ErrCorrupt, erofs.ErrUnsupported, erofs.ErrNotExist, erofs.ErrNoXattr} {
			if errors.Is(e, known) || e == nil {
				return
			}
		}
		err = fmt.Errorf("%s: %w", what, e)
	}
	im, e := erofs.Open(bytes.NewReader(b), int64(len(b)))
	ours("Open", e)
	if e != nil {
		return 0, err
	}
	buf := make([]byte, 3*erofs.BlockSize)
	look := func(p string, i *erofs.Inode) error {
		if seen++; seen > 2000 {
			return fs.SkipAll
		}
		_, e := im.Xattrs(i.Ino)
		ours("Xattrs", e)
		_, e = im.XattrNames(i.Ino)
		ours("XattrNames", e)
		_, e = im.Xattr(i.Ino, "user.same")
		ours("Xattr", e)
		switch i.Mode & 0o170000 {
		case typeFile:
			for _, off := range []int64{0, i.Size/2 - 1, i.Size - 1, i.Size, 1<<63 - 1} {
				if off < 0 {
					continue
				}
				n, e := im.ReadAt(i.Ino, buf, off)
				ours("ReadAt", e)
				if int64(n) > max(0, i.Size-off) || e == nil && n < len(buf) {
					err = fmt.Errorf("read %d of %d bytes at %d: %v", n, i.Size, off, e)
				}
				at, length, hole, e := im.Map(i.Ino, off)
				ours("Map", e)
				if e == nil && !hole && (at < 0 || length < 0 || at+length > int64(len(b))) {
					err = fmt.Errorf("Map leads to %d, %d bytes of an image of %d", at, length, len(b))
				}
				_, e = im.NextData(i.Ino, off)
				ours("NextData", e)
				_, e = im.NextHole(i.Ino, off)
				ours("NextHole", e)
			}
		case typeLink:
			_, e := im.Readlink(i.Ino)
			ours("Readlink", e)
		case typeDir:
			for _, name := range []string{"small", ".", "zzz", "entry of a directory 150"} {
				_, e := im.Lookup(i.Ino, name)
				ours("Lookup", e)
			}
			for _, cookie := range []uint64{1, 13, 4095, 4096, 1 << 40, 1<<64 - 1} {
				ours("ReadDir", im.ReadDir(i.Ino, cookie, func(erofs.Dirent) bool { return true }))
			}
		}
		return nil
	}
	ours("Walk", im.Walk(look))
	// The reader must also survive inodes to which the tree does not lead.
	for nid := uint64(0); nid < uint64(len(b))/32+2; nid += 7 {
		if i, e := im.Inode(nid); e == nil {
			look("", i)
		} else {
			ours("Inode", e)
		}
	}
	for _, nid := range []uint64{1 << 58, 1 << 59, 1 << 63, 1<<64 - 1} {
		if _, e := im.Inode(nid); !errors.Is(e, erofs.ErrCorrupt) {
			err = fmt.Errorf("inode %d: %v", nid, e)
		}
	}
	return seen, err
}

func FuzzImage(f *testing.F) {
	b := sample(f)
	f.Add(b)
	f.Add(unseal(b))
	small := unseal(bytesOf(f, &erofs.Node{Mode: typeDir | 0o755}, nil))
	f.Add(small)
	f.Add(small[:2000])
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 1<<20 {
			return
		}
		if _, err := exercise(b); err != nil {
			t.Error(err)
		}
	})
}

// The test changes images without a fuzzer, at places where a change matters. The values
// are at the limits of ranges.
func TestHostileImages(t *testing.T) {
	original := unseal(sample(t))
	if seen, err := exercise(original); err != nil || seen < 300 {
		t.Fatalf("%d inodes of the sound image, %v", seen, err)
	}
	r := rand.New(rand.NewPCG(1, 2))
	values := []uint64{0, 1, 0xf, 0x7f, 0xff, 0xfff, 0x1000, 0x7fff, 0xffff, 0x7fffffff, 0xffffffff, 1<<63 - 1, 1<<64 - 1, 1<<63 - 4096}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	const rounds = 1000
	for round := range rounds {
		b := slices.Clone(original)
		// The changes are in the metadata, and not in the blocks of zeros and data.
		for range 1 + r.IntN(4) {
			at := 1024 + r.IntN(len(b)-3*erofs.BlockSize-1024-8)
			if r.IntN(3) == 0 {
				at = 1024 + r.IntN(2048)
			}
			switch v := values[r.IntN(len(values))]; r.IntN(5) {
			case 0:
				b[at] ^= 1 << r.IntN(8)
			case 1:
				binary.LittleEndian.PutUint16(b[at&^1:], uint16(v))
			case 2:
				binary.LittleEndian.PutUint32(b[at&^3:], uint32(v))
			case 3:
				binary.LittleEndian.PutUint64(b[at&^7:], v)
			default:
				from := 1024 + r.IntN(len(b)-1024-64)&^31
				copy(b[at&^31:], b[from:from+32+r.IntN(32)])
			}
		}
		if r.IntN(10) == 0 {
			b = b[:r.IntN(len(b))]
		}
		if _, err := exercise(b); err != nil {
			t.Errorf("round %d: %v", round, err)
		}
	}
	runtime.ReadMemStats(&after)
	if each := (after.TotalAlloc - before.TotalAlloc) / rounds; each > 8<<20 {
		t.Errorf("%d bytes were allocated for an image of %d", each, len(original))
	}
}

// The constants are the offsets of fields in an inode, in bytes from its start.
const (
	fieldFormat = 0
	fieldXattrs = 2
	fieldMode   = 4
	fieldSize   = 8
	fieldData   = 16
	fieldNsec   = 40
	fieldBehind = 64
)

func TestDamage(t *testing.T) {
	original := unseal(sample(t))
	im := open(t, original)
	base := int(binary.LittleEndian.Uint32(original[1024+40:])) * erofs.BlockSize
	nid := func(p string) uint64 {
		id := im.Root()
		for _, name := range strings.Split(p, "/") {
			if name == "." {
				continue
			}
			var err error
			if id, err = im.Lookup(id, name); err != nil {
				t.Fatal(err)
			}
		}
		return id
	}
	at := func(b []byte, p string, field int) []byte { return b[base+int(nid(p))*32+field:] }
	le := binary.LittleEndian
	walk := func(im *erofs.Image) error { return im.Walk(func(string, *erofs.Inode) error { return nil }) }
	readAll := func(p string) func(*erofs.Image) error {
		return func(im *erofs.Image) error {
			_, err := im.ReadAt(nid(p), make([]byte, 1<<20), 0)
			return err
		}
	}
	// The entries of the root are inline; "dir" is the third of them.
	entry := func(b []byte, n int) []byte { return at(b, ".", fieldBehind+12+4+12*n) }
	for name, c := range map[string]struct {
		change func(b []byte)
		do     func(im *erofs.Image) error
		want   error
	}{
		"sound":                   {func([]byte) {}, walk, nil},
		"directory in itself":     {func(b []byte) { le.PutUint64(entry(b, 2), im.Root()) }, walk, erofs.ErrCorrupt},
		"directory twice":         {func(b []byte) { le.PutUint64(entry(b, 2), nid("sub")) }, walk, erofs.ErrCorrupt},
		"entry behind the image":  {func(b []byte) { le.PutUint64(entry(b, 2), 1<<40) }, walk, erofs.ErrCorrupt},
		"entry of another type":   {func(b []byte) { entry(b, 2)[10] = 1 }, walk, erofs.ErrCorrupt},
		"names in the entries":    {func(b []byte) { le.PutUint16(entry(b, 0)[8:], 12) }, walk, erofs.ErrCorrupt},
		"names behind the block":  {func(b []byte) { le.PutUint16(entry(b, 0)[8:], 4092) }, walk, erofs.ErrCorrupt},
		"names that go back":      {func(b []byte) { le.PutUint16(entry(b, 3)[8:], le.Uint16(entry(b, 1)[8:])) }, walk, erofs.ErrCorrupt},
		"a slash in a name":       {func(b []byte) { b[bytes.Index(b, []byte("dirempty"))] = '/' }, walk, erofs.ErrCorrupt},
		"a NUL in a name":         {func(b []byte) { b[bytes.Index(b, []byte("dirempty"))] = 0 }, walk, erofs.ErrCorrupt},
		"directory without size":  {func(b []byte) { le.PutUint64(at(b, "sub", fieldSize), 5) }, walk, erofs.ErrCorrupt},
		"huge directory":          {func(b []byte) { le.PutUint64(at(b, "dir", fieldSize), 1<<62) }, walk, erofs.ErrCorrupt},
		"negative size":           {func(b []byte) { le.PutUint64(at(b, "flat", fieldSize), 1<<63) }, walk, erofs.ErrCorrupt},
		"file behind the image":   {func(b []byte) { le.PutUint32(at(b, "flat", fieldData), 1<<31) }, readAll("flat"), erofs.ErrCorrupt},
		"file across the end":     {func(b []byte) { le.PutUint64(at(b, "flat", fieldSize), 1<<20) }, readAll("flat"), erofs.ErrCorrupt},
		"inline across blocks":    {func(b []byte) { le.PutUint64(at(b, "small", fieldSize), 4096) }, walk, erofs.ErrCorrupt},
		"map behind the image":    {func(b []byte) { le.PutUint64(at(b, "sparse", fieldSize), 1<<62) }, walk, erofs.ErrCorrupt},
		"map to behind the image": {func(b []byte) { le.PutUint32(at(b, "sparse", fieldBehind), 1<<30) }, readAll("sparse"), erofs.ErrCorrupt},
		"map of another format":   {func(b []byte) { le.PutUint16(at(b, "sparse", fieldData), 0x40) }, readAll("sparse"), erofs.ErrUnsupported},
		"directory with a map":    {func(b []byte) { at(b, "sub", fieldFormat)[0] = 1 | 4<<1 }, walk, erofs.ErrUnsupported},
		"compressed file":         {func(b []byte) { at(b, "flat", fieldFormat)[0] = 1 | 3<<1 }, walk, erofs.ErrUnsupported},
		"unknown format":          {func(b []byte) { at(b, "flat", fieldFormat)[1] = 1 }, walk, erofs.ErrUnsupported},
		"no type":                 {func(b []byte) { at(b, "flat", fieldMode)[1] = 0 }, walk, erofs.ErrCorrupt},
		"nanoseconds":             {func(b []byte) { le.PutUint32(at(b, "flat", fieldNsec), 1e9) }, walk, erofs.ErrCorrupt},
		"long target":             {func(b []byte) { le.PutUint64(at(b, "long", fieldSize), 4096) }, walk, erofs.ErrCorrupt},
		"no target":               {func(b []byte) { le.PutUint64(at(b, "link", fieldSize), 0) }, walk, erofs.ErrCorrupt},
		"NUL in a target":         {func(b []byte) { b[bytes.Index(b, []byte("dir/small"))+3] = 0 }, func(im *erofs.Image) error { _, err := im.Readlink(nid("link")); return err }, erofs.ErrCorrupt},
		"more xattrs than place":  {func(b []byte) { at(b, "small", fieldBehind)[4] = 255 }, func(im *erofs.Image) error { _, err := im.Xattrs(nid("small")); return err }, erofs.ErrCorrupt},
		"shared xattr behind all": {func(b []byte) { le.PutUint32(at(b, "small", fieldBehind+12), 1<<31) }, func(im *erofs.Image) error { _, err := im.Xattrs(nid("small")); return err }, erofs.ErrCorrupt},
		"xattr longer than place": {func(b []byte) { le.PutUint16(at(b, "small", fieldBehind+12+4+2), 60000) }, func(im *erofs.Image) error { _, err := im.Xattrs(nid("small")); return err }, erofs.ErrCorrupt},
		"xattrs behind the image": {func(b []byte) { le.PutUint16(at(b, "hole", fieldXattrs), 0xffff) }, walk, erofs.ErrCorrupt},
	} {
		b := slices.Clone(original)
		c.change(b)
		im, err := erofs.Open(bytes.NewReader(b), int64(len(b)))
		if err == nil {
			err = c.do(im)
		}
		if !errors.Is(err, c.want) || c.want == nil && err != nil {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	original := sample(t)
	for name, c := range map[string]struct {
		change func(b []byte) []byte
		want   error
	}{
		"nothing":        {func([]byte) []byte { return nil }, erofs.ErrCorrupt},
		"another magic":  {func(b []byte) []byte { b[1024]++; return b }, erofs.ErrCorrupt},
		"a changed bit":  {func(b []byte) []byte { b[2000] ^= 4; return b }, erofs.ErrCorrupt},
		"a short image":  {func(b []byte) []byte { return b[:len(b)-erofs.BlockSize] }, erofs.ErrCorrupt},
		"other blocks":   {func(b []byte) []byte { b[1024+12] = 9; return b }, erofs.ErrUnsupported},
		"new features":   {func(b []byte) []byte { b[1024+80] |= 8; return b }, erofs.ErrUnsupported},
		"large dirs":     {func(b []byte) []byte { b[1024+90] = 1; return b }, erofs.ErrUnsupported},
		"root elsewhere": {func(b []byte) []byte { b = unseal(b); b[1024+14]++; return b }, nil},
	} {
		b := c.change(slices.Clone(original))
		if _, err := erofs.Open(bytes.NewReader(b), int64(len(b))); err == nil || c.want != nil && !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// If directories share one long list of entries, a walk could take time quadratic in the
// size of the image.
func TestOverlappingDirectories(t *testing.T) {
	root := &erofs.Node{Mode: typeDir}
	for i := range 2000 {
		root.Children = append(root.Children, erofs.Child{Name: fmt.Sprintf("%0100d", i), Node: &erofs.Node{Mode: typeDir}})
	}
	b := unseal(bytesOf(t, root, nil))
	im := open(t, b)
	list, err := im.Inode(im.Root())
	if err != nil {
		t.Fatal(err)
	}
	le := binary.LittleEndian
	base := int(le.Uint32(b[1024+40:])) * erofs.BlockSize
	top := b[base+int(im.Root())*32:]
	full := list.Size &^ (erofs.BlockSize - 1)
	if err := im.ReadDir(im.Root(), 0, func(d erofs.Dirent) bool {
		if d.Name[0] != '.' {
			i := b[base+int(d.Nid)*32:]
			i[fieldFormat] = 1 // no inline bytes
			le.PutUint64(i[fieldSize:], uint64(full))
			copy(i[fieldData:fieldData+4], top[fieldData:])
		}
		return true
	}); err != nil {
		t.Fatal(err)
	}
	visits := 0
	err = open(t, b).Walk(func(string, *erofs.Inode) error { visits++; return nil })
	if !errors.Is(err, erofs.ErrCorrupt) || visits > 5000 {
		t.Errorf("%d visits: %v", visits, err)
	}
}

// brokenReader is a reader that fails from the nth read on.
type brokenReader struct {
	io.ReaderAt
	n int
}

var errBroken = errors.New("the network is gone")

func (r *brokenReader) ReadAt(p []byte, off int64) (int, error) {
	if r.n--; r.n < 0 {
		return 0, errBroken
	}
	return r.ReaderAt.ReadAt(p, off)
}

// An error of the underlying reader is never reported as a damaged image or as the end of a
// file.
func TestErrorsBelow(t *testing.T) {
	b := sample(t)
	ops := func(im *erofs.Image) error {
		return im.Walk(func(_ string, i *erofs.Inode) error {
			if _, err := im.Xattrs(i.Ino); err != nil {
				return err
			}
			switch i.Mode & 0o170000 {
			case typeFile:
				if _, err := im.NextData(i.Ino, 0); err != nil && err != io.EOF {
					return err
				}
				if _, err := im.ReadAt(i.Ino, make([]byte, 100), 0); err != nil && err != io.EOF {
					return err
				}
			case typeLink:
				_, err := im.Readlink(i.Ino)
				return err
			}
			return nil
		})
	}
	good := open(t, b)
	for n := 0; ; n += 1 + n/20 {
		r := &brokenReader{bytes.NewReader(b), n}
		err := ops(good.With(r))
		if err == nil && r.n >= 0 {
			if n < 300 {
				t.Errorf("done after %d reads", n)
			}
			break
		}
		if !errors.Is(err, errBroken) || errors.Is(err, erofs.ErrCorrupt) {
			t.Fatalf("read %d fails: %v", n, err)
		}
	}
	if _, err := erofs.Open(&brokenReader{bytes.NewReader(b), 0}, int64(len(b))); !errors.Is(err, errBroken) {
		t.Error(err)
	}
	// A file that has become shorter is neither damage nor an end.
	if err := ops(good.With(bytes.NewReader(b[:5000]))); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Error(err)
	}
}

func TestReadDirGoesOn(t *testing.T) {
	im := open(t, sample(t))
	dir, err := im.Lookup(im.Root(), "dir")
	if err != nil {
		t.Fatal(err)
	}
	var all, pieces []erofs.Dirent
	if err := im.ReadDir(dir, 0, func(d erofs.Dirent) bool { all = append(all, d); return true }); err != nil {
		t.Fatal(err)
	}
	for step := range 5 {
		pieces = nil
		cookie := uint64(0)
		for n := -1; n != len(pieces); {
			n = len(pieces)
			if err := im.ReadDir(dir, cookie, func(d erofs.Dirent) bool {
				pieces, cookie = append(pieces, d), d.Next
				return len(pieces)%(step+1) != 0
			}); err != nil {
				t.Fatal(err)
			}
		}
		if !slices.Equal(all, pieces) || len(all) != 302 {
			t.Errorf("in steps of %d: %d entries of %d", step+1, len(pieces), len(all))
		}
	}
}

func TestOtherKinds(t *testing.T) {
	im := open(t, sample(t))
	file, err := im.Lookup(im.Root(), "small")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := im.Lookup(file, "x"); !errors.Is(err, erofs.ErrNotDir) {
		t.Error(err)
	}
	if err := im.ReadDir(file, 0, nil); !errors.Is(err, erofs.ErrNotDir) {
		t.Error(err)
	}
	if _, err := im.Readlink(file); !errors.Is(err, erofs.ErrNotLink) {
		t.Error(err)
	}
	if _, err := im.ReadAt(im.Root(), nil, 0); !errors.Is(err, erofs.ErrNotFile) {
		t.Error(err)
	}
	if _, _, _, err := im.Map(im.Root(), 0); !errors.Is(err, erofs.ErrNotFile) {
		t.Error(err)
	}
	if _, err := im.Xattr(file, "user.other"); !errors.Is(err, erofs.ErrNoXattr) {
		t.Error(err)
	}
	if _, _, _, err := im.Map(file, -1); err == nil {
		t.Error("a negative offset")
	}
}

func TestWalkSkips(t *testing.T) {
	im := open(t, sample(t))
	stop := errors.New("stop")
	for skip, want := range map[error][]string{
		fs.SkipDir: {".", "dir", "empty", "flat", "hole", "link", "long", "null", "small", "sparse", "sub", "sub/deeper"},
		fs.SkipAll: {".", "dir"},
		stop:       {".", "dir"},
	} {
		var got []string
		err := im.Walk(func(p string, i *erofs.Inode) error {
			got = append(got, p)
			if p == "dir" {
				return skip
			}
			return nil
		})
		if !slices.Equal(got, want) || (err != nil) != (skip == stop) {
			t.Errorf("%v: %q, %v", skip, got, err)
		}
	}
}
