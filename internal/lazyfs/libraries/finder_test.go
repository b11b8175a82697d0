package libraries_test

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/lazyfs/libraries"
	"premix/internal/store/erofs"
)

// memory is an image in memory that records which parts are read.
type memory struct {
	b  []byte
	at map[string]int64 // offsets of the files

	mu    sync.Mutex
	asked [][2]int64
	read  int64 // total bytes
}

func (m *memory) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	m.mu.Lock()
	m.read += int64(len(p))
	m.mu.Unlock()
	return bytes.NewReader(m.b).ReadAt(p, off)
}

func (m *memory) Ask(from, to int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asked = append(m.asked, [2]int64{from, to})
}

func (m *memory) Size() int64 { return int64(len(m.b)) }

// names returns the files whose beginning was read.
func (m *memory) names() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var names []string
	for name, at := range m.at {
		if slices.ContainsFunc(m.asked, func(a [2]int64) bool { return a[0] == at }) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// newImage makes an image of regular files and of symbolic links, which have the form "->
// TARGET".
func newImage(t testing.TB, files map[string][]byte) *memory {
	t.Helper()
	root := &erofs.Node{Mode: unix.S_IFDIR | 0o755}
	dirs := map[string]*erofs.Node{".": root}
	var dir func(path string) *erofs.Node
	dir = func(path string) *erofs.Node {
		if dirs[path] == nil {
			n := &erofs.Node{Mode: unix.S_IFDIR | 0o755}
			dirs[path] = n
			up := dir(filepath.Dir(path))
			up.Children = append(up.Children, erofs.Child{Name: filepath.Base(path), Node: n})
		}
		return dirs[path]
	}
	var data []byte
	places := map[string]int64{}
	for name, content := range files {
		n := &erofs.Node{Mode: unix.S_IFREG | 0o755, Size: int64(len(content))}
		if target, ok := strings.CutPrefix(string(content), "-> "); ok {
			n = &erofs.Node{Mode: unix.S_IFLNK | 0o777, Target: target}
		} else {
			places[name] = int64(len(data))
			n.Extents = []erofs.Extent{{Length: n.Size, DataOffset: int64(len(data))}}
			data = append(data, content...)
			data = append(data, make([]byte, -len(data)&(erofs.BlockSize-1))...)
		}
		up := dir(filepath.Dir(name))
		up.Children = append(up.Children, erofs.Child{Name: filepath.Base(name), Node: n})
	}
	var image bytes.Buffer
	meta, err := erofs.Write(&image, root, int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	image.Write(data)
	m := &memory{b: image.Bytes(), at: map[string]int64{}}
	for name, at := range places {
		m.at[name] = meta + at
	}
	return m
}

// expect waits until exactly the given files have been read.
func expect(t *testing.T, m *memory, want ...string) {
	t.Helper()
	slices.Sort(want)
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(5 * time.Millisecond) {
		got := m.names()
		if slices.Equal(got, want) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("asked for %v, not for %v", got, want)
		}
	}
}

// head returns the first page of a file, which a program that opens the file reads first,
// and its offset.
func (m *memory) head(name string) ([]byte, int64) { return m.b[m.at[name]:][:4096], m.at[name] }

// object returns an ELF file of the form that a linker writes: one segment, with the
// dynamic section at its end.
func object(needed ...string) []byte { return objectIn("", needed...) }

func objectIn(runpath string, needed ...string) []byte {
	const base = 0x400000
	names := []byte{0}
	str := func(s string) uint64 {
		at := len(names)
		names = append(append(names, s...), 0)
		return uint64(at)
	}
	var dyn []elf.Dyn64
	for _, n := range needed {
		dyn = append(dyn, elf.Dyn64{Tag: int64(elf.DT_NEEDED), Val: str(n)})
	}
	if runpath != "" {
		dyn = append(dyn, elf.Dyn64{Tag: int64(elf.DT_RUNPATH), Val: str(runpath)})
	}
	const strings = 4096
	dyn = append(dyn, elf.Dyn64{Tag: int64(elf.DT_STRTAB), Val: base + strings}, elf.Dyn64{Tag: int64(elf.DT_STRSZ), Val: uint64(len(names))}, elf.Dyn64{})
	dynamic := uint64(strings+len(names)+8191) &^ 4095
	size := dynamic + uint64(binary.Size(dyn))
	h := elf.Header64{Type: uint16(elf.ET_DYN), Machine: uint16(elf.EM_X86_64), Phoff: 64, Phentsize: 56, Phnum: 2}
	copy(h.Ident[:], elf.ELFMAG)
	h.Ident[elf.EI_CLASS], h.Ident[elf.EI_DATA] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB)
	b := make([]byte, size)
	put := func(at int, v any) {
		if _, err := binary.Encode(b[at:], binary.LittleEndian, v); err != nil {
			panic(err)
		}
	}
	put(0, h)
	put(64, []elf.Prog64{
		{Type: uint32(elf.PT_LOAD), Vaddr: base, Filesz: size, Memsz: size},
		{Type: uint32(elf.PT_DYNAMIC), Off: dynamic, Vaddr: base + dynamic, Filesz: uint64(binary.Size(dyn))},
	})
	copy(b[strings:], names)
	put(int(dynamic), dyn)
	return b
}

func TestLibrariesAreFollowed(t *testing.T) {
	long := append(object("libdeep.so"), make([]byte, 6<<20)...)
	m := newImage(t, map[string][]byte{
		"usr/bin/tool":                           object("liba.so.1", "libmissing.so", "/opt/own/libown.so", "liblong.so", "libloop.so"),
		"lib":                                    []byte("-> usr/lib"),
		"usr/lib/x86_64-linux-gnu/liba.so.1":     []byte("-> liba.so.1.2.3"),
		"usr/lib/x86_64-linux-gnu/liba.so.1.2.3": objectIn("$ORIGIN/x:/opt/run", "libb.so", "librun.so"),
		"usr/lib/libb.so":                        object("liba.so.1", "libc.so"),
		"usr/lib64/libc.so":                      object(),
		"opt/own/libown.so":                      []byte("-> ../../opt/./real.so"),
		"opt/real.so":                            object(),
		"opt/run/librun.so":                      object(),
		"usr/lib/librun.so":                      object("libother.so"),
		"usr/lib/x86_64-linux-gnu/liblong.so":    long,
		"usr/lib/x86_64-linux-gnu/libdeep.so":    object("liblong.so"),
		"usr/lib/x86_64-linux-gnu/libother.so":   object("libdeep.so"),
		"usr/lib/x86_64-linux-gnu/libloop.so":    []byte("-> libloop2.so"),
		"usr/lib/x86_64-linux-gnu/libloop2.so":   []byte("-> libloop.so"),
		"usr/bin/text":                           []byte(strings.Repeat("#!/bin/sh\n", 1000)),
	})
	f := libraries.New(t.Context(), m, nil)
	b, at := m.head("usr/bin/text")
	f.Read(b, at)
	b, at = m.head("usr/bin/tool")
	f.Read(b[100:], at+100) // this read is not of its head
	f.Read(b[:63], at)
	if got := m.names(); len(got) != 0 {
		t.Errorf("asked for %v", got)
	}
	for range 3 {
		f.Read(b, at)
	}
	expect(t, m, "usr/lib/x86_64-linux-gnu/liba.so.1.2.3", "usr/lib/libb.so", "usr/lib64/libc.so", "opt/real.so", "opt/run/librun.so",
		"usr/lib/x86_64-linux-gnu/liblong.so", "usr/lib/x86_64-linux-gnu/libdeep.so")
	m.mu.Lock()
	defer m.mu.Unlock()
	var tail bool
	for _, a := range m.asked {
		begin := m.at["usr/lib/x86_64-linux-gnu/liblong.so"]
		if a[0] < begin || a[0] >= begin+int64(len(long)) {
			continue
		}
		tail = tail || a[1] == begin+int64(len(long))
		if a[1]-a[0] > 1<<20 {
			t.Errorf("%d bytes of a long library are asked for", a[1]-a[0])
		}
	}
	if !tail {
		t.Error("the end of a long library was not asked for")
	}
	if len(m.asked) != 8 {
		t.Errorf("asked %d times for 7 libraries, one of which is long", len(m.asked))
	}
}

// The libraries of a program may be in other layers, and may need further libraries there.
func TestLibrariesOfOtherLayers(t *testing.T) {
	lower := newImage(t, map[string][]byte{"usr/lib/libc.so": object(), "usr/lib/libm.so": object("libc.so"), "lib64/ld.so": object(), "usr/lib/libx.so": object()})
	upper := newImage(t, map[string][]byte{"usr/bin/tool": object("libm.so", "/lib64/ld.so", "liba.so", "libnone.so"), "usr/lib/liba.so": object("libc.so")})
	other := libraries.New(t.Context(), lower, nil)
	f := libraries.New(t.Context(), upper, other.Find)
	b, at := upper.head("usr/bin/tool")
	f.Read(b, at)
	expect(t, upper, "usr/lib/liba.so")
	expect(t, lower, "lib64/ld.so", "usr/lib/libc.so", "usr/lib/libm.so")
}

// For a program of this machine, the finder reads the same libraries that debug/elf of the
// standard library finds.
func TestProgramsOfThisMachine(t *testing.T) {
	files, want := map[string][]byte{}, []string{}
	program := ""
	for _, path := range []string{"/usr/bin/curl", "/usr/bin/git", "/usr/bin/bash", "/bin/bash", "/bin/ls"} {
		b, err := os.ReadFile(path)
		if err == nil && len(b) > 4096 && bytes.HasPrefix(b, []byte(elf.ELFMAG)) {
			program, files["program"] = path, b
			break
		}
	}
	if program == "" {
		t.Skip("no program that is linked dynamically is known here")
	}
	var walk func(path string)
	walk = func(path string) {
		f, err := elf.Open(path)
		if err != nil {
			t.Skipf("%s: %v", path, err)
		}
		defer f.Close()
		names, err := f.ImportedLibraries()
		if err != nil {
			t.Skipf("%s: %v", path, err)
		}
		for _, name := range names {
			for _, dir := range libraries.Dirs {
				b, err := os.ReadFile(filepath.Join("/", dir, name))
				if err != nil {
					continue
				}
				if to := "usr/lib/" + name; files[to] == nil {
					files[to] = b
					want = append(want, to)
					walk(filepath.Join("/", dir, name))
				}
				break
			}
		}
	}
	walk(program)
	if len(want) == 0 {
		t.Skipf("%s needs nothing that is found", program)
	}
	files["usr/lib/libc++.so.1"] = object() // no file needs it
	m := newImage(t, files)
	f := libraries.New(t.Context(), m, nil)
	b, at := m.head("program")
	f.Read(b, at)
	expect(t, m, want...)
	t.Logf("%s: %d libraries, %d bytes read", program, len(want), m.read)
}

// A tree may come from an untrusted source, so damaged and hostile ELF files must do no
// harm.
func TestHostileFiles(t *testing.T) {
	good := object("libwanted.so")
	change := func(do func(b []byte)) []byte {
		b := bytes.Clone(good)
		do(b)
		return b
	}
	le := binary.LittleEndian
	// The offsets: the header has 64 bytes, and the program headers follow with 56 bytes
	// each.
	cases := map[string][]byte{
		"cut off":                  good[:4200],
		"no program headers":       change(func(b []byte) { le.PutUint16(b[56:], 0) }),
		"too many program headers": change(func(b []byte) { le.PutUint16(b[56:], 0xffff) }),
		"their size":               change(func(b []byte) { le.PutUint16(b[54:], 1) }),
		"their place":              change(func(b []byte) { le.PutUint64(b[32:], 1<<63) }),
		"a long dynamic section":   change(func(b []byte) { le.PutUint64(b[64+56+32:], 1<<62) }),
		"where it is not":          change(func(b []byte) { le.PutUint64(b[64+56+8:], 1<<62) }),
		"names nowhere":            change(func(b []byte) { le.PutUint64(b[64+16:], 1<<40) }),
		"a segment beyond all":     change(func(b []byte) { le.PutUint64(b[64+8:], 1<<63) }),
		"names without an end":     change(func(b []byte) { copy(b[4097:8192], bytes.Repeat([]byte{'x'}, 4095)) }),
		"32 bits":                  change(func(b []byte) { b[elf.EI_CLASS] = byte(elf.ELFCLASS32) }),
		"big-endian":               change(func(b []byte) { b[elf.EI_DATA] = byte(elf.ELFDATA2MSB) }),
		"only a head":              append([]byte(nil), good[:64]...),
	}
	var many []string
	for n := range 5000 {
		many = append(many, fmt.Sprintf("../../lib%d.so", n))
	}
	cases["thousands of names"] = object(many...)
	files := map[string][]byte{"usr/lib/libwanted.so": object()}
	for name, b := range cases {
		files["bin/"+name] = append(b, make([]byte, max(0, 4096-len(b)))...)
	}
	files["bin/good"] = good
	m := newImage(t, files)
	f := libraries.New(t.Context(), m, nil)
	for name := range cases {
		b, at := m.head("bin/" + name)
		f.Read(b, at)
	}
	// The finder handles reads in order, so the good file is read after the others.
	b, at := m.head("bin/good")
	f.Read(b, at)
	expect(t, m, "usr/lib/libwanted.so")
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.asked) != 1 {
		t.Errorf("asked %d times", len(m.asked))
	}
	if m.read > 4<<20 {
		t.Errorf("%d bytes were read for it", m.read)
	}
}

func TestFinderEnds(t *testing.T) {
	m := newImage(t, map[string][]byte{"bin/tool": object("liba.so"), "usr/lib/liba.so": object()})
	ctx, cancel := context.WithCancel(t.Context())
	f := libraries.New(ctx, m, nil)
	cancel()
	b, at := m.head("bin/tool")
	f.Read(b, at)
	if got := m.names(); len(got) != 0 {
		t.Errorf("asked for %v behind its end", got)
	}
}
