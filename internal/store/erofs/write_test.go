package erofs_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"premix/internal/store/erofs"
)

const (
	typeDir  = 0o040000
	typeFile = 0o100000
	typeLink = 0o120000
	typeChar = 0o020000
)

// randomTree returns a tree with nodes of all kinds, and the data of its files.
func randomTree(seed uint64, nodes int) (*erofs.Node, []byte) {
	r := rand.New(rand.NewPCG(seed, 1))
	data := make([]byte, 40*erofs.BlockSize)
	for i := range data {
		data[i] = byte(r.Uint32())
	}
	root := &erofs.Node{Mode: typeDir | 0o755}
	dirs, others := []*erofs.Node{root}, []*erofs.Node{}
	for i := range nodes {
		n := &erofs.Node{Mode: r.Uint32N(0o10000), UID: r.Uint32N(1 << r.Uint32N(32)), Sec: r.Int64() >> r.Uint32N(64), Nsec: r.Uint32N(1e9)}
		if r.IntN(4) == 0 {
			n.Xattrs = map[string][]byte{"user.same": []byte("for all"), "security.own": data[:r.IntN(300)]}
		}
		if r.IntN(50) == 0 {
			n.Xattrs = map[string][]byte{"trusted.large": data[i%9000 : i%9000+r.IntN(9000)]}
		}
		parent := dirs[r.IntN(len(dirs))]
		switch k := r.IntN(20); {
		case k < 2:
			n.Mode |= typeDir
			dirs = append(dirs, n)
		case k < 3 && len(others) > 0:
			n = others[r.IntN(len(others))]
		case k < 5:
			n.Mode |= typeLink
			n.Target = strings.Repeat("t", 1+r.IntN(1<<r.IntN(12)))
		case k < 6:
			n.Mode |= typeChar
			n.Rdev = uint64(r.Uint32())
		case k < 16:
			n.Mode |= typeFile
			n.Inline = data[:r.IntN(erofs.InlineMax(n)+1)>>r.IntN(9)]
			n.Size = int64(len(n.Inline))
		default:
			n.Mode |= typeFile
			off := int64(0)
			for range r.IntN(5) {
				length := 1 + r.Int64N(3)
				n.Extents = append(n.Extents, erofs.Extent{FileOffset: off * erofs.BlockSize, Length: length * erofs.BlockSize, DataOffset: r.Int64N(37) * erofs.BlockSize})
				off += length + r.Int64N(2)*r.Int64N(8)
			}
			n.Size = off*erofs.BlockSize + r.Int64N(9000)
		}
		if n.Mode&0o170000 != typeDir {
			others = append(others, n)
		}
		name := fmt.Sprintf("%x%s", r.Uint32(), strings.Repeat("n", r.IntN(1<<r.IntN(8))))
		parent.Children = append(parent.Children, erofs.Child{Name: name, Node: n})
	}
	return root, data
}

func TestRandomTrees(t *testing.T) {
	for seed := range uint64(40) {
		root, data := randomTree(seed, 1+int(seed*seed))
		_, im := write(t, root, data)
		compare(t, fmt.Sprint("nodes of tree ", seed), nodeFacts(t, root, data), "image", imageFacts(t, im))
	}
}

func TestSameNodesSameBytes(t *testing.T) {
	digest := func(root *erofs.Node, data []byte) string {
		h := sha256.New()
		if _, err := erofs.Write(h, root, int64(len(data))); err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("%x", h.Sum(nil))
	}
	a, data := randomTree(7, 3000)
	b, _ := randomTree(7, 3000)
	var shuffle func(n *erofs.Node)
	shuffle = func(n *erofs.Node) {
		rand.Shuffle(len(n.Children), func(i, j int) { n.Children[i], n.Children[j] = n.Children[j], n.Children[i] })
		for _, c := range n.Children {
			shuffle(c.Node)
		}
	}
	shuffle(b)
	first := digest(a, data)
	if again, other := digest(a, data), digest(b, data); again != first || other != first {
		t.Errorf("three digests: %s, again %s, shuffled %s", first, again, other)
	}
	// The digests of trees depend on these bytes: a change of them changes the format of
	// the store.
	if want := "609278b331ce4193a6964130ebd1fd7cae66681d060861103007fdfd77829afd"; first != want {
		t.Errorf("the image has become another: %s, not %s", first, want)
	}
	// Nodes that were written before in another tree leave no trace.
	wide := &erofs.Node{Mode: typeDir | 0o755}
	for i := range 1000 {
		wide.Children = append(wide.Children, erofs.Child{Name: fmt.Sprint(i), Node: &erofs.Node{Mode: typeLink, Target: strings.Repeat("t", 4090)}})
	}
	digest(wide, nil)
	wide.Children = wide.Children[:3]
	for _, c := range wide.Children {
		c.Node.Target = "t"
	}
	fresh := &erofs.Node{Mode: typeDir | 0o755}
	for _, c := range wide.Children {
		fresh.Children = append(fresh.Children, erofs.Child{Name: c.Name, Node: &erofs.Node{Mode: typeLink, Target: "t"}})
	}
	if digest(wide, nil) != digest(fresh, nil) {
		t.Error("a tree that was larger once is another image")
	}
	restore := erofs.LittleMemory()
	if little := digest(a, data); little != first {
		t.Errorf("with little memory the digest is %s", little)
	}
	restore()
	a.Children[0].Node.Nsec ^= 1
	if digest(a, data) == first {
		t.Error("another nanosecond, the same image")
	}
}

// A Builder refuses entries that are out of order, or that no image can hold, and keeps the
// error.
func TestBuilderRefuses(t *testing.T) {
	dir, file := &erofs.Node{Mode: typeDir}, &erofs.Node{Mode: typeFile}
	for name, add := range map[string]func(*erofs.Builder){
		"names out of order": func(b *erofs.Builder) { b.Add("b", file); b.Add("a", file) },
		"one name twice":     func(b *erofs.Builder) { b.Add("a", file); b.Link("a", typeFile, 1) },
		"a bad name":         func(b *erofs.Builder) { b.Add("a/b", file) },
		"a bad node":         func(b *erofs.Builder) { b.Add("a", &erofs.Node{Mode: typeLink}) },
		"a file with entries": func(b *erofs.Builder) {
			i, _ := b.Add("a", file)
			b.Directory(i, file)
		},
		"an extent behind the data": func(b *erofs.Builder) {
			b.Add("a", &erofs.Node{Mode: typeFile, Size: 4096, Extents: []erofs.Extent{{Length: 4096, DataOffset: 8192}}})
		},
	} {
		scratch := t.TempDir()
		b, err := erofs.NewBuilder(scratch)
		if err != nil {
			t.Fatal(err)
		}
		b.Directory(0, dir)
		add(b)
		var out bytes.Buffer
		if _, err := b.Write(&out, 4096, 4096); !errors.Is(err, erofs.ErrNode) || out.Len() > 0 {
			t.Errorf("%s: %v, %d bytes", name, err, out.Len())
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		if left, _ := os.ReadDir(scratch); len(left) > 0 {
			t.Errorf("%s: %v is left", name, left)
		}
	}
}

// The metadata that a lookup of files needs lies in front of small files.
func TestInlineFilesComeLast(t *testing.T) {
	root, data := randomTree(8, 3000)
	var b bytes.Buffer
	if _, err := erofs.Write(&b, root, int64(len(data))); err != nil {
		t.Fatal(err)
	}
	b.Write(data)
	im := open(t, b.Bytes())
	var others, first int64 // position of the last of the other inodes, and of the first inline file
	inline := map[string]bool{}
	var list func(n *erofs.Node, path string)
	list = func(n *erofs.Node, path string) {
		for _, c := range n.Children {
			inline[path+c.Name] = len(c.Node.Inline) > 0
			list(c.Node, path+c.Name+"/")
		}
	}
	list(root, "")
	err := im.Walk(func(path string, i *erofs.Inode) error {
		switch at := im.Position(i.Ino); {
		case !inline[path]:
			others = max(others, at)
		case first == 0 || at < first:
			first = at
		}
		return nil
	})
	// A few inline files may fill the room that is left between the others.
	if room := int64(32 * erofs.BlockSize); err != nil || first == 0 || others == 0 || first < others-room {
		t.Errorf("%v: inline files begin at %d, others end at %d", err, first, others)
	}
}

func TestWriteRefuses(t *testing.T) {
	const block = erofs.BlockSize
	file := func(size int64, extents ...erofs.Extent) *erofs.Node {
		return &erofs.Node{Mode: typeFile, Size: size, Extents: extents}
	}
	loop := &erofs.Node{Mode: typeDir}
	loop.Children = []erofs.Child{{Name: "again", Node: loop}}
	twice := &erofs.Node{Mode: typeDir}
	deep := &erofs.Node{Mode: typeDir}
	for range erofs.MaxDepth {
		deep = &erofs.Node{Mode: typeDir, Children: []erofs.Child{{Name: "d", Node: deep}}}
	}
	tooDeep := func(err error) bool {
		var n *erofs.NodeError
		return errors.As(err, &n) && strings.HasPrefix(n.Path, "x/d/d/d") && errors.Is(err, erofs.ErrTooBig)
	}
	is := func(want error) func(error) bool {
		return func(err error) bool {
			var n *erofs.NodeError
			return errors.Is(err, want) && errors.As(err, &n) && n.Path == "x"
		}
	}
	bad := is(erofs.ErrNode)
	for name, c := range map[string]struct {
		node *erofs.Node
		want func(error) bool
	}{
		"no type":                 {&erofs.Node{Mode: 0o644}, bad},
		"mode of more bits":       {&erofs.Node{Mode: typeFile | 1<<16}, bad},
		"nanoseconds":             {&erofs.Node{Mode: typeFile, Nsec: 1e9}, bad},
		"no owner":                {&erofs.Node{Mode: typeFile, UID: 1<<32 - 1}, bad},
		"link without target":     {&erofs.Node{Mode: typeLink}, bad},
		"file with target":        {&erofs.Node{Mode: typeFile, Target: "t"}, bad},
		"NUL in the target":       {&erofs.Node{Mode: typeLink, Target: "a\x00b"}, bad},
		"long target":             {&erofs.Node{Mode: typeLink, Target: strings.Repeat("t", 4096)}, is(erofs.ErrTooBig)},
		"device number":           {&erofs.Node{Mode: typeChar, Rdev: 1 << 40}, is(erofs.ErrTooBig)},
		"directory with content":  {&erofs.Node{Mode: typeDir, Size: 4}, bad},
		"file with children":      {&erofs.Node{Mode: typeFile, Children: []erofs.Child{{Name: "c", Node: file(0)}}}, bad},
		"negative size":           {file(-1), bad},
		"largest size":            {file(1<<63 - 1), is(erofs.ErrTooBig)},
		"unaligned file offset":   {file(block, erofs.Extent{FileOffset: 1, Length: 5}), bad},
		"unaligned data offset":   {file(block, erofs.Extent{DataOffset: 1, Length: 5}), bad},
		"unaligned length":        {file(2*block, erofs.Extent{Length: 5}), bad},
		"no length":               {file(block, erofs.Extent{}), bad},
		"behind the data":         {file(block, erofs.Extent{Length: block, DataOffset: 10 * block}), bad},
		"behind the end":          {file(block, erofs.Extent{Length: 2 * block}), bad},
		"all behind the end":      {file(block, erofs.Extent{FileOffset: 2 * block, Length: block}), bad},
		"overlap":                 {file(3*block, erofs.Extent{Length: 2 * block}, erofs.Extent{FileOffset: block, Length: 2 * block}), bad},
		"data that overflows":     {file(block, erofs.Extent{Length: block, DataOffset: 1<<63 - block}), bad},
		"inline of another size":  {&erofs.Node{Mode: typeFile, Size: 2, Inline: []byte("abc")}, bad},
		"inline and extents":      {&erofs.Node{Mode: typeFile, Size: 1, Inline: []byte("a"), Extents: []erofs.Extent{{Length: 1}}}, bad},
		"xattr of no kind":        {&erofs.Node{Mode: typeFile, Xattrs: map[string][]byte{"system.other": nil}}, is(erofs.ErrXattr)},
		"xattr that is a prefix":  {&erofs.Node{Mode: typeFile, Xattrs: map[string][]byte{"user.": nil}}, is(erofs.ErrXattr)},
		"ACL with more":           {&erofs.Node{Mode: typeFile, Xattrs: map[string][]byte{"system.posix_acl_access.x": nil}}, is(erofs.ErrXattr)},
		"large xattr":             {&erofs.Node{Mode: typeFile, Xattrs: map[string][]byte{"user.x": make([]byte, 65536)}}, is(erofs.ErrXattr)},
		"long xattr":              {&erofs.Node{Mode: typeFile, Xattrs: map[string][]byte{"user." + strings.Repeat("x", 256): nil}}, is(erofs.ErrXattr)},
		"empty name":              {&erofs.Node{Mode: typeDir, Children: []erofs.Child{{Name: "", Node: file(0)}}}, bad},
		"dot":                     {&erofs.Node{Mode: typeDir, Children: []erofs.Child{{Name: ".", Node: file(0)}}}, bad},
		"dots":                    {&erofs.Node{Mode: typeDir, Children: []erofs.Child{{Name: "..", Node: file(0)}}}, bad},
		"slash":                   {&erofs.Node{Mode: typeDir, Children: []erofs.Child{{Name: "a/b", Node: file(0)}}}, bad},
		"NUL":                     {&erofs.Node{Mode: typeDir, Children: []erofs.Child{{Name: "a\x00", Node: file(0)}}}, bad},
		"long name":               {&erofs.Node{Mode: typeDir, Children: []erofs.Child{{Name: strings.Repeat("n", 256), Node: file(0)}}}, bad},
		"one name twice":          {&erofs.Node{Mode: typeDir, Children: []erofs.Child{{Name: "a", Node: file(0)}, {Name: "b", Node: file(0)}, {Name: "a", Node: file(0)}}}, bad},
		"no node":                 {&erofs.Node{Mode: typeDir, Children: []erofs.Child{{Name: "a"}}}, bad},
		"directory in itself":     {loop, func(err error) bool { return errors.Is(err, erofs.ErrNode) }},
		"directory in two places": {&erofs.Node{Mode: typeDir, Children: []erofs.Child{{Name: "a", Node: twice}, {Name: "b", Node: twice}}}, func(err error) bool { return errors.Is(err, erofs.ErrNode) }},
		"more than MaxDepth":      {deep, tooDeep},
		"more xattrs than can be": {&erofs.Node{Mode: typeFile, Xattrs: manyXattrs(600)}, is(erofs.ErrXattr)},
	} {
		var out bytes.Buffer
		root := &erofs.Node{Mode: typeDir, Children: []erofs.Child{{Name: "x", Node: c.node}}}
		_, err := erofs.Write(&out, root, 10*block)
		if err == nil || !c.want(err) {
			t.Errorf("%s: %.200v", name, err)
		}
		if out.Len() > 0 {
			t.Errorf("%s: %d bytes were written all the same", name, out.Len())
		}
	}
	for name, root := range map[string]*erofs.Node{"no root": nil, "a file as root": file(0)} {
		if _, err := erofs.Write(&bytes.Buffer{}, root, 0); err == nil {
			t.Error(name)
		}
	}
	if _, err := erofs.Write(&bytes.Buffer{}, &erofs.Node{Mode: typeDir}, 1<<44); !errors.Is(err, erofs.ErrTooBig) {
		t.Errorf("16 TiB: %v", err)
	}
}

func manyXattrs(n int) map[string][]byte {
	all := map[string][]byte{}
	for i := range n {
		all[fmt.Sprint("user.", i)] = make([]byte, 1000)
	}
	return all
}

func TestInlineMax(t *testing.T) {
	for _, x := range []map[string][]byte{
		nil, {"user.a": nil}, {"user.abc": []byte("12345")}, {"user.a": make([]byte, 4000)}, {"user.a": make([]byte, 5000)},
	} {
		n := &erofs.Node{Mode: typeFile, Xattrs: x}
		most := erofs.InlineMax(n)
		n.Inline = bytes.Repeat([]byte{'i'}, most)
		n.Size = int64(most)
		root := &erofs.Node{Mode: typeDir, Children: []erofs.Child{{Name: "n", Node: n}}}
		_, im := write(t, root, nil)
		compare(t, "nodes", nodeFacts(t, root, nil), "image", imageFacts(t, im))
		n.Inline, n.Size = append(n.Inline, 'i'), n.Size+1
		if _, err := erofs.Write(&bytes.Buffer{}, root, 0); !errors.Is(err, erofs.ErrInline) {
			t.Errorf("%d bytes inline of %d at most: %v", len(n.Inline), most, err)
		}
	}
	if most := erofs.InlineMax(&erofs.Node{Mode: typeFile}); most != 4032 {
		t.Errorf("%d bytes can be inline, without xattrs", most)
	}
}

func TestMapSize(t *testing.T) {
	const block, k, m = erofs.BlockSize, 1 << 10, 1 << 20
	e := func(file, length, data int64) erofs.Extent {
		return erofs.Extent{FileOffset: file, Length: length, DataOffset: data}
	}
	for _, c := range []struct {
		size    int64
		extents []erofs.Extent
		want    int64
	}{
		{0, nil, 0},
		{1, nil, 4},
		{1 << 40, nil, 4},
		{1 << 50, nil, 4 * 128}, // a chunk has at most 8 TiB
		{7, []erofs.Extent{e(0, 7, 0)}, 0},
		{m + 1, []erofs.Extent{e(0, m+1, block)}, 0},
		{m, []erofs.Extent{e(0, 512*k, 0), e(512*k, 512*k, 512*k)}, 0},
		{m, []erofs.Extent{e(0, 512*k, 0), e(512*k, 512*k, 513*k*4)}, 4 * 2},
		{m, []erofs.Extent{e(0, 256*k, 0)}, 4 * 4},
		{m + 1, []erofs.Extent{e(512*k, 512*k+1, 0)}, 4 * 3},
		{m, []erofs.Extent{e(block, block, 0)}, 4 * 256},
		{m, []erofs.Extent{e(0, block, 0), e(2*block, m-2*block, 0)}, 4 * 256},
		{5 * m, []erofs.Extent{e(4*m, m, 0)}, 4 * 2},
	} {
		n := &erofs.Node{Mode: typeFile, Size: c.size, Extents: c.extents}
		if got := erofs.MapSize(n); got != c.want {
			t.Errorf("%d bytes in %+v: a map of %d bytes, want %d", c.size, c.extents, got, c.want)
		}
	}
}

// largest records the size of the largest write.
type largest struct{ most, total int }

func (l *largest) Write(p []byte) (int, error) {
	l.most, l.total = max(l.most, len(p)), l.total+len(p)
	return len(p), nil
}

// Metadata is written while it is made, and the inodes of one directory lie close together.
func TestMetadataIsStreamedInOrder(t *testing.T) {
	root := &erofs.Node{Mode: typeDir}
	for d := range 300 {
		dir := &erofs.Node{Mode: typeDir}
		for i := range 200 {
			n := &erofs.Node{Mode: typeFile, Inline: bytes.Repeat([]byte{'x'}, 1+(d*200+i)*131%700)}
			n.Size = int64(len(n.Inline))
			dir.Children = append(dir.Children, erofs.Child{Name: fmt.Sprintf("file%04d", i), Node: n})
		}
		root.Children = append(root.Children, erofs.Child{Name: fmt.Sprintf("dir%04d", d), Node: dir})
	}
	var l largest
	meta, err := erofs.Write(&l, root, 0)
	if err != nil || int64(l.total) != meta {
		t.Fatal(l, meta, err)
	}
	if meta < 16<<20 || l.most > 2<<20 {
		t.Errorf("of %d bytes %d were written at once", meta, l.most)
	}
	_, im := write(t, root, nil)
	for _, c := range root.Children {
		dir, err := im.Lookup(im.Root(), c.Name)
		if err != nil {
			t.Fatal(err)
		}
		low, high := uint64(1<<63), uint64(0)
		if err := im.ReadDir(dir, 0, func(d erofs.Dirent) bool {
			if d.Name[0] != '.' {
				low, high = min(low, d.Nid), max(high, d.Nid)
			}
			return true
		}); err != nil {
			t.Fatal(err)
		}
		// There are 200 inodes with 350 bytes on average, and gaps that were left before.
		if span := (high - low) * 32; span > 200*(64+32+350)+32*erofs.BlockSize {
			t.Errorf("%s: its inodes lie within %d bytes", c.Name, span)
		}
	}
}

var errFull = errors.New("disk full")

type fullDisk struct{ left int }

func (f *fullDisk) Write(p []byte) (int, error) {
	if f.left -= len(p); f.left < 0 {
		return 0, errFull
	}
	return len(p), nil
}

func TestWriteErrors(t *testing.T) {
	root, data := randomTree(3, 20000)
	for _, left := range []int{0, 2 << 20} {
		if _, err := erofs.Write(&fullDisk{left}, root, int64(len(data))); !errors.Is(err, errFull) {
			t.Errorf("with room for %d bytes: %v", left, err)
		}
	}
}
