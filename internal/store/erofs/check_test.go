package erofs_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"premix/internal/kit/exit"
	"premix/internal/store/erofs"
)

// metaOf returns the size of the metadata of an image that Write made.
func metaOf(t testing.TB, root *erofs.Node, data []byte) int64 {
	t.Helper()
	meta, err := erofs.Write(io.Discard, root, int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	return meta
}

// reseal writes the right checksum into the superblock.
func reseal(b []byte) {
	block := slices.Clone(b[:erofs.BlockSize])
	clear(block[1028:1032])
	binary.LittleEndian.PutUint32(b[1028:], ^crc32.Checksum(block[1024:], crc32.MakeTable(crc32.Castagnoli)))
}

func checkAll(b []byte, meta int64) error {
	return erofs.NewChecker(meta, int64(len(b)), nil, nil).All(bytes.NewReader(b))
}

// checkedImages returns images that Write made, with the sizes of their metadata.
func checkedImages(t testing.TB) (images [][]byte, metas []int64) {
	add := func(root *erofs.Node, data []byte) {
		images, metas = append(images, bytesOf(t, root, data)), append(metas, metaOf(t, root, data))
	}
	b := sample(t)
	images, metas = append(images, b), append(metas, int64(len(b))-3*erofs.BlockSize)
	for seed := range uint64(12) {
		add(randomTree(seed, 1<<seed))
	}
	large := &erofs.Node{Mode: typeDir | 0o755, Xattrs: manyXattrs(300)}
	file := &erofs.Node{Mode: typeFile, Size: 4 << 20}
	for off := int64(0); off < file.Size; off += 2 * erofs.BlockSize {
		file.Extents = append(file.Extents, erofs.Extent{FileOffset: off, Length: erofs.BlockSize})
	}
	for i := range 4000 {
		// Some names sort before "." and "..".
		large.Children = append(large.Children, erofs.Child{Name: fmt.Sprintf("%c%0*d", "!-az"[i%4], 1+i%90, i), Node: &erofs.Node{Mode: typeFile | 0o644, Xattrs: map[string][]byte{"user.many": []byte("same")}}})
	}
	large.Children = append(large.Children, erofs.Child{Name: "map", Node: file}, erofs.Child{Name: "again", Node: file})
	add(large, make([]byte, erofs.BlockSize))
	add(&erofs.Node{Mode: typeDir}, nil)
	return images, metas
}

func TestCheckAcceptsWrite(t *testing.T) {
	images, metas := checkedImages(t)
	for i, b := range images {
		if err := checkAll(b, metas[i]); err != nil {
			t.Errorf("image %d: %v", i, err)
		}
	}
}

// flakyReader is a reader whose reads fail at times.
type flakyReader struct {
	io.ReaderAt
	r *rand.Rand
}

func (f flakyReader) ReadAt(p []byte, off int64) (int, error) {
	if f.r.IntN(100) == 0 {
		return 0, errBroken
	}
	return f.ReaderAt.ReadAt(p, off)
}

// A sound image passes the Checker in any order of its pieces, with errors of the reader,
// and if one checker continues the work of another.
func TestCheckPieces(t *testing.T) {
	images, metas := checkedImages(t)
	for i, b := range images {
		r := rand.New(rand.NewPCG(uint64(i), 7))
		shown := make([]uint64, erofs.ShownWords(metas[i]))
		c := erofs.NewChecker(metas[i], int64(len(b)), slices.Clone(shown), func(word int, value uint64) error { shown[word] = value; return nil })
		reader := flakyReader{bytes.NewReader(b), r}
		left := r.Perm(int(metas[i] / erofs.BlockSize))
		for again := 0; len(left) > 0; {
			off := int64(left[0]) * erofs.BlockSize
			end := min(off+int64(1+r.IntN(3))*erofs.BlockSize-int64(r.IntN(9)), int64(len(b)))
			switch err := c.Check(reader, b[off:end], off); {
			case errors.Is(err, errBroken):
			case err != nil:
				t.Fatalf("image %d, bytes %d to %d: %v", i, off, end, err)
			default:
				left = left[1:]
			}
			if r.IntN(50) == 0 && again < 3 {
				again++
				c = erofs.NewChecker(metas[i], int64(len(b)), slices.Clone(shown), func(word int, value uint64) error { shown[word] = value; return nil })
			}
		}
		if err := c.All(bytes.NewReader(b)); err != nil {
			t.Errorf("image %d: %v", i, err)
		}
	}
}

// sampleTree returns the image of sample and the positions of its inodes.
func sampleTree(t testing.TB) (b []byte, at map[string]int64) {
	b = sample(t)
	im := open(t, b)
	at = map[string]int64{}
	if err := im.Walk(func(p string, i *erofs.Inode) error { at[p] = im.Position(i.Ino); return nil }); err != nil {
		t.Fatal(err)
	}
	return b, at
}

// The Checker refuses hostile images, whichever block it gets last.
func TestCheckRefuses(t *testing.T) {
	le := binary.LittleEndian
	// entry returns the entry of a name in the root, whose entries are inline.
	entry := func(b []byte, at map[string]int64, name string) []byte {
		for e := at["."] + 64; ; e += 12 {
			start := int64(le.Uint16(b[e+8:]))
			// The root has xattrs, so its entries begin behind them.
			list := at["."] + 64 + 12 + 4*int64(le.Uint16(b[at["."]+2:])-1)
			if e < list {
				e = list - 12
				continue
			}
			if bytes.HasPrefix(b[list+start:], []byte(name)) {
				return b[e : e+12]
			}
			if e > list+12*20 {
				t.Fatalf("no entry %s", name)
			}
		}
	}
	nid := func(at map[string]int64, p string) uint64 { return uint64(at[p] / 32) }
	for name, c := range map[string]struct {
		change func(b []byte, at map[string]int64)
		reason string
	}{
		"compressed feature":   {func(b []byte, _ map[string]int64) { b[1024+80] |= 1 }, "superblock: feature bits"},
		"compressed file":      {func(b []byte, at map[string]int64) { b[at["flat"]] = 1 | 3<<1 }, "format 0x7"},
		"short inode":          {func(b []byte, at map[string]int64) { b[at["flat"]] = 0 }, "format 0x0"},
		"device table":         {func(b []byte, _ map[string]int64) { b[1024+86] = 1 }, "superblock"},
		"directory loop":       {func(b []byte, at map[string]int64) { le.PutUint64(entry(b, at, "sub"), nid(at, ".")) }, "do not form a tree"},
		"directory twice":      {func(b []byte, at map[string]int64) { le.PutUint64(entry(b, at, "sub"), nid(at, "dir")) }, "do not form a tree"},
		"slash":                {func(b []byte, at map[string]int64) { replaceOnce(t, b, "flat", "f/at") }, `"f/at"`},
		"NUL in a name":        {func(b []byte, at map[string]int64) { replaceOnce(t, b, "flat", "fl\x00t") }, `named`},
		"order":                {func(b []byte, at map[string]int64) { replaceOnce(t, b, "flat", "zlat") }, "not in order"},
		"no dot-dot":           {func(b []byte, at map[string]int64) { replaceOnce(t, b, "...dir", "..!dir") }, `entry ".!"`},
		"type":                 {func(b []byte, at map[string]int64) { entry(b, at, "null")[10] = 1 }, "type"},
		"too many names":       {func(b []byte, at map[string]int64) { le.PutUint64(entry(b, at, "flat"), nid(at, "empty")) }, "1 links, but more names"},
		"outside":              {func(b []byte, at map[string]int64) { le.PutUint64(entry(b, at, "flat"), 1<<40) }, "within the metadata"},
		"inside something":     {func(b []byte, at map[string]int64) { le.PutUint64(entry(b, at, "flat"), nid(at, "flat")+1) }, ""},
		"data in the metadata": {func(b []byte, at map[string]int64) { le.PutUint32(b[at["flat"]+16:], 1) }, "not within the data"},
		"data behind the end":  {func(b []byte, at map[string]int64) { le.PutUint32(b[at["flat"]+16:], uint32(len(b)/4096)-2) }, "not within the data"},
		"chunk in metadata":    {func(b []byte, at map[string]int64) { le.PutUint32(b[at["sparse"]+64+4:], 0) }, "not within the data"},
		"large chunks":         {func(b []byte, at map[string]int64) { b[at["sparse"]+16] = 31 }, "block map"},
		"no links":             {func(b []byte, at map[string]int64) { le.PutUint32(b[at["flat"]+44:], 0) }, "no links"},
		"more links":           {func(b []byte, at map[string]int64) { le.PutUint32(b[at["flat"]+44:], 2) }, "2 links, but 1 names"},
		"links of a directory": {func(b []byte, at map[string]int64) { le.PutUint32(b[at["sub"]+44:], 2) }, "2 links, and 1 directories"},
		"same number":          {func(b []byte, at map[string]int64) { copy(b[at["flat"]+20:], b[at["hole"]+20:][:4]) }, "another inode has its number"},
		"overlapping blocks":   {func(b []byte, at map[string]int64) { le.PutUint32(b[at["long"]+16:], le.Uint32(b[at["dir"]+16:])) }, ""},
		"blocks over inodes":   {func(b []byte, at map[string]int64) { le.PutUint32(b[at["dir"]+16:], 0) }, "overlap"},
		"shared xattr":         {func(b []byte, at map[string]int64) { le.PutUint32(b[at["."]+64+12:], 9999) }, ""},
		"xattr prefix":         {func(b []byte, at map[string]int64) { b[1152+1] = 99 }, "without a valid name"},
		"xattr too long":       {func(b []byte, at map[string]int64) { b[at["small"]+64+12+4+2] = 200 }, "longer than its place"},
		"owner":                {func(b []byte, at map[string]int64) { le.PutUint32(b[at["flat"]+24:], 1<<32-1) }, "owner"},
		"time":                 {func(b []byte, at map[string]int64) { le.PutUint32(b[at["flat"]+40:], 1e9) }, "nanoseconds"},
		"target with NUL":      {func(b []byte, at map[string]int64) { b[int64(le.Uint32(b[at["long"]+16:]))*4096+7] = 0 }, "NUL in the target"},
		"inodes":               {func(b []byte, _ map[string]int64) { le.PutUint64(b[1024+16:], 400) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			b, at := sampleTree(t)
			c.change(b, at)
			reseal(b)
			meta := int64(len(b)) - 3*erofs.BlockSize
			err := checkAll(b, meta)
			var bad *erofs.CheckError
			if !errors.As(err, &bad) || !strings.Contains(err.Error(), c.reason) || exit.Of(err) != exit.Trust {
				t.Fatalf("%v (exit %d), want %q", err, exit.Of(err), c.reason)
			}
			// If the image is checked in pieces, at least one piece is refused, or else the
			// totals are wrong.
			for seed := range uint64(20) {
				piece := erofs.NewChecker(meta, int64(len(b)), nil, nil)
				var err error
				for _, n := range rand.New(rand.NewPCG(seed, 3)).Perm(int(meta / erofs.BlockSize)) {
					off := int64(n) * erofs.BlockSize
					err = errors.Join(err, piece.Check(bytes.NewReader(b), b[off:off+erofs.BlockSize], off))
				}
				if err == nil {
					err = piece.All(bytes.NewReader(b))
				}
				if !errors.As(err, &bad) {
					t.Fatalf("in order %d it passes: %v", seed, err)
				}
			}
		})
	}
}

// Linux 6.1 takes bytes behind the last name of a directory for a part of the name.
func TestCheckBehindNames(t *testing.T) {
	images, metas := checkedImages(t)
	le := binary.LittleEndian
	tried := 0
	for i, b := range images {
		for _, at := range inodesOf(t, b) {
			size := int64(le.Uint64(b[at+8:]))
			if mode, layout := le.Uint16(b[at+4:]), b[at]>>1; mode&0o170000 != typeDir || layout != 0 || size%erofs.BlockSize == 0 {
				continue
			}
			tried++
			bad := slices.Clone(b)
			bad[int64(le.Uint32(b[at+16:]))*erofs.BlockSize+size] = 'x'
			if err := checkAll(bad, metas[i]); err == nil || !strings.Contains(err.Error(), "bytes behind the names") {
				t.Errorf("image %d, inode at %d: %v", i, at, err)
			}
		}
	}
	if tried == 0 {
		t.Error("no directory ends in a block of its own")
	}
}

func replaceOnce(t *testing.T, b []byte, old, new string) {
	t.Helper()
	i := bytes.Index(b, []byte(old))
	if i < 0 {
		t.Fatalf("no %q", old)
	}
	copy(b[i:], new)
}

// The Checker refuses images of mkfs.erofs, even sound ones, because premix has not written
// them.
func TestCheckRefusesMkfs(t *testing.T) {
	tool, err := exec.LookPath("mkfs.erofs")
	if err != nil {
		t.Skip("mkfs.erofs is not installed (package erofs-utils)")
	}
	src := t.TempDir()
	if err := os.WriteFile(filepath.Join(src, "file"), bytes.Repeat([]byte("compress"), 1<<14), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, option := range []string{"-zlz4", "-Eforce-inode-compact", "-Eztailpacking"} {
		image := filepath.Join(t.TempDir(), "image")
		if out, err := exec.Command(tool, option, image, src).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		b, err := os.ReadFile(image)
		if err != nil {
			t.Fatal(err)
		}
		for _, meta := range []int64{erofs.BlockSize, int64(len(b))} {
			if err := checkAll(b, meta); !errors.Is(err, erofs.ErrUnsound) {
				t.Errorf("%s, %d bytes of metadata: %v", option, meta, err)
			}
		}
	}
}

func TestCheckSizes(t *testing.T) {
	b := sample(t)
	for _, size := range [][2]int64{{0, 0}, {4095, 8192}, {8192, 4096}, {-4096, 1 << 20}, {1 << 50, 1 << 51}} {
		if err := erofs.NewChecker(size[0], size[1], nil, nil).Check(bytes.NewReader(b), b, 0); !errors.Is(err, erofs.ErrUnsound) {
			t.Errorf("%d of %d bytes: %v", size[0], size[1], err)
		}
	}
}

// mutate changes a few bytes of the metadata, mostly at places with a meaning, and returns
// the offsets of the changes.
func mutate(r *rand.Rand, b []byte, meta int64, inodes []int64) (offsets []int) {
	for range 1 + r.IntN(3) {
		at := inodes[r.IntN(len(inodes))]
		off, n := 0, 1<<r.IntN(4)
		switch r.IntN(8) {
		case 0:
			off = 1024 + r.IntN(128)
		case 1:
			off = r.IntN(int(meta))
		case 2, 3: // the bytes behind an inode
			off = int(at) + 64 + r.IntN(200)
		default:
			off = int(at) + r.IntN(64)
		}
		n = min(n, int(meta)-off)
		if n <= 0 {
			continue
		}
		p := b[off : off+n]
		switch r.IntN(7) {
		case 0:
			p[0] ^= 1 << r.IntN(8)
		case 1:
			p[0] += byte(1 - 2*r.IntN(2))
		case 2:
			p[0] = byte(r.Uint32())
		case 3:
			clear(p)
		case 4:
			for i := range p {
				p[i] = 0xff
			}
		case 5: // copy the same field of another inode
			from := inodes[r.IntN(len(inodes))] + int64(off) - at
			if from >= 0 && from+int64(n) <= meta {
				copy(p, b[from:])
			}
		case 6:
			copy(p, b[r.IntN(int(meta)-n+1):])
		}
		for i := range p {
			offsets = append(offsets, off+i)
		}
	}
	reseal(b)
	for i := 1028; i < 1032; i++ {
		offsets = append(offsets, i)
	}
	return offsets
}

func inodesOf(t testing.TB, b []byte) (list []int64) {
	im := open(t, b)
	if err := im.Walk(func(_ string, i *erofs.Inode) error { list = append(list, im.Position(i.Ino)); return nil }); err != nil {
		t.Fatal(err)
	}
	return list
}

// A mutated image that passes the Checker is readable without an error, and fsck.erofs
// finds no error in it.
func TestCheckMutated(t *testing.T) {
	fsck, _ := exec.LookPath("fsck.erofs")
	images, metas := checkedImages(t)
	images, metas = images[:8], metas[:8]
	const mutants = 8000
	file := filepath.Join(t.TempDir(), "image")
	passed, tried := 0, 0
	var inodes [][]int64
	for _, b := range images {
		inodes = append(inodes, inodesOf(t, b))
	}
	for k := range mutants {
		i := k % len(images)
		r := rand.New(rand.NewPCG(uint64(k), 23))
		b := slices.Clone(images[i])
		mutate(r, b, metas[i], inodes[i])
		if bytes.Equal(b, images[i]) || checkAll(b, metas[i]) != nil {
			continue
		}
		passed++
		if _, err := exercise(b); err != nil {
			t.Errorf("mutant %d: %v", k, err)
		}
		if _, err := meaning(b); err != nil {
			t.Errorf("mutant %d passed: %v", k, err)
		}
		if fsck == "" || passed%20 != 0 {
			continue
		}
		tried++
		if err := os.WriteFile(file, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command(fsck, file).CombinedOutput(); err != nil {
			t.Errorf("mutant %d passed: fsck.erofs: %v\n%s", k, err, out)
		}
	}
	t.Logf("%d of %d mutants passed, fsck.erofs saw %d", passed, mutants, tried)
	if passed < mutants/50 {
		t.Errorf("only %d mutants passed: the test says little", passed)
	}
}

// meaning returns all information of an image, one entry per line.
func meaning(b []byte) (string, error) {
	im, err := erofs.Open(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		return "", err
	}
	var all strings.Builder
	err = im.Walk(func(p string, i *erofs.Inode) error {
		xattrs, err := im.Xattrs(i.Ino)
		if err != nil {
			return err
		}
		detail := ""
		switch i.Mode & 0o170000 {
		case typeFile, typeDir:
		default: // the kernel returns no xattrs for these types (xattr(7))
			maps.DeleteFunc(xattrs, func(name string, _ []byte) bool { return strings.HasPrefix(name, "user.") })
		}
		switch i.Mode & 0o170000 {
		case typeLink:
			if detail, err = im.Readlink(i.Ino); err != nil {
				return err
			}
		case typeFile:
			h := crc32.NewIEEE()
			// A file may be one long hole, so only its start is read.
			if _, err := io.Copy(h, io.NewSectionReader(inodeReader{im, i.Ino}, 0, min(i.Size, 1<<18))); err != nil {
				return err
			}
			detail = fmt.Sprintf("%08x", h.Sum32())
		}
		fmt.Fprintf(&all, "%q %o %d %d %d %d.%d %d %d %x %s\n", p, i.Mode, i.Nlink, i.UID, i.GID, i.Sec, i.Nsec, i.Rdev, i.Size, detail, attributeText(xattrs))
		return nil
	})
	return all.String(), err
}

// attributeText returns a checksum of each xattr, sorted by name.
func attributeText(all map[string][]byte) string {
	var s []string
	for name, value := range all {
		s = append(s, fmt.Sprintf("%s=%08x/%d", name, crc32.ChecksumIEEE(value), len(value)))
	}
	slices.Sort(s)
	return strings.Join(s, " ")
}

// FuzzChecker checks that the Checker does not crash on any bytes, and that package erofs
// can read each image that passes.
func FuzzChecker(f *testing.F) {
	images, metas := checkedImages(f)
	for i, b := range images[:6] {
		f.Add(b, uint32(metas[i]))
	}
	f.Fuzz(func(t *testing.T, b []byte, meta uint32) {
		if len(b) >= erofs.BlockSize {
			reseal(b)
		}
		if checkAll(b, int64(meta)) != nil {
			return
		}
		if _, err := meaning(b); err != nil {
			t.Error(err)
		}
	})
}

func BenchmarkCheckAll(b *testing.B) {
	root := &erofs.Node{Mode: typeDir | 0o755}
	for i := range 1000 {
		dir := &erofs.Node{Mode: typeDir | 0o755}
		for j := range 1000 {
			dir.Children = append(dir.Children, erofs.Child{Name: fmt.Sprintf("some_file_%04d.txt", j), Node: &erofs.Node{Mode: typeFile | 0o644, Size: 64, Inline: bytes.Repeat([]byte{byte(i)}, 64)}})
		}
		root.Children = append(root.Children, erofs.Child{Name: fmt.Sprintf("directory_%04d", i), Node: dir})
	}
	image, meta := bytesOf(b, root, nil), metaOf(b, root, nil)
	b.SetBytes(meta)
	for b.Loop() {
		if err := checkAll(image, meta); err != nil {
			b.Fatal(err)
		}
	}
}
