package layer

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/pkg/archive"
	"golang.org/x/sys/unix"

	"premix/internal/kit/unmount"
	"premix/internal/testkit/testtree"
)

var when = time.Unix(1_600_000_000, 0)

// The following functions return the entries of archives.

func dir(name string, mode int64) *tar.Header {
	return &tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: mode, ModTime: when}
}

func file(name string) *tar.Header {
	return &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(name)), ModTime: when.Add(time.Second)}
}

func link(name, to string) *tar.Header {
	return &tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: to, Mode: 0o644, ModTime: when.Add(time.Second)}
}

func symlink(name, to string) *tar.Header {
	return &tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to, Mode: 0o777, ModTime: when}
}

func with(h *tar.Header, change func(*tar.Header)) *tar.Header {
	change(h)
	return h
}

// pack returns an archive in which the content of each file is its name.
func pack(t *testing.T, entries ...*tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range entries {
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if h.Size > 0 {
			if _, err := io.WriteString(w, strings.Repeat(h.Name, int(h.Size)/len(h.Name)+1)[:h.Size]); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("owners and devices need root")
	}
}

// sub creates a directory with the mode that a snapshotter uses.
func sub(t *testing.T, parent, name string) string {
	t.Helper()
	d := filepath.Join(parent, name)
	if err := os.Mkdir(d, 0o755); err != nil {
		t.Fatal(err)
	}
	return d
}

// cases are images, each a list of layers. The tests unpack them with containerd in both
// ways.
var cases = map[string][][]*tar.Header{
	"plain": {{
		dir("usr", 0o755), dir("usr/bin", 0o755), file("usr/bin/tool"), symlink("bin", "usr/bin"), file("bin/through-a-link"),
		with(file("usr/bin/sudo"), func(h *tar.Header) { h.Mode = 0o4755 }),
		with(file("usr/bin/write"), func(h *tar.Header) { h.Mode, h.Gid = 0o2755, 5 }),
		with(dir("tmp", 0o1777), func(h *tar.Header) { h.ModTime = when.Add(time.Hour) }), file("tmp/x"),
		with(dir("home", 0o750), func(h *tar.Header) { h.Uid, h.Gid = 1000, 1001 }),
		with(file("home/owned"), func(h *tar.Header) { h.Uid, h.Gid = 70000, 4_000_000_000 }),
		link("usr/bin/again", "usr/bin/tool"), link("usr/bin/absolute", "/usr/bin/tool"), link("usr/bin/link-of-link", "bin"),
		symlink("dangling", "/no/such/thing"),
	}},
	"metadata": {{
		dir("d", 0o755),
		with(file("d/capable"), func(h *tar.Header) {
			h.PAXRecords = map[string]string{xattrPrefix + "security.capability": "\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00", xattrPrefix + "user.note": "a\x01b"}
		}),
		with(dir("d/noted", 0o700), func(h *tar.Header) { h.PAXRecords = map[string]string{xattrPrefix + "user.note": "yes"} }),
		with(file("d/"+strings.Repeat("long/../", 20)+strings.Repeat("n", 200)), func(h *tar.Header) { h.Format = tar.FormatPAX }),
		with(file("d/precise"), func(h *tar.Header) { h.Format, h.ModTime = tar.FormatPAX, time.Unix(1_600_000_000, 123_456_789) }),
		with(file("d/before-1970"), func(h *tar.Header) { h.Format, h.ModTime = tar.FormatPAX, time.Unix(-5, 0) }),
		with(file("d/ünïcode\n name"), func(h *tar.Header) { h.Format = tar.FormatPAX }),
		{Typeflag: tar.TypeChar, Name: "d/null", Mode: 0o666, Devmajor: 1, Devminor: 3, ModTime: when},
		{Typeflag: tar.TypeBlock, Name: "d/disk", Mode: 0o660, Devmajor: 259, Devminor: 70000, ModTime: when, Format: tar.FormatGNU},
		{Typeflag: tar.TypeFifo, Name: "d/fifo", Mode: 0o600, ModTime: when},
		with(file("d/large"), func(h *tar.Header) { h.Size = 3<<20 + 17 }),
	}},
	"replaced within a layer": {{
		dir("a", 0o755), file("a/x"), file("a/x"), dir("a/y", 0o755), file("a/y/z"),
		// containerd gives an entry that replaces a directory the time of the directory.
		with(file("a/y"), func(h *tar.Header) { h.ModTime = when }),
		symlink("a/x", "y"), dir("a/w", 0o700), dir("a/w", 0o755), symlink("l", "a"), dir("l", 0o755), file("l/new"),
	}},
	"names that lead out": {{
		dir("d", 0o755), file("../up"), file("/absolute"), file("d/../../../sideways"), file("./dot"), file("d/./e/../same"),
		symlink("d/out", "../../../../../.."), file("d/out/confined"), symlink("root", "/"), file("root/in-root"),
	}},
	"whiteouts": {
		{dir("d", 0o755), file("d/gone"), file("d/stays"), dir("e", 0o755), file("e/x"), dir("e/sub", 0o755), file("e/sub/y"), dir("o", 0o711), file("o/old"), dir("o/below", 0o755), file("o/below/old"), file("f")},
		{dir("d", 0o755), file("d/.wh.gone"), file(".wh.e"), dir("o", 0o711), file("o/.wh..wh..opq"), file("o/new"), file(".wh.never-there")},
		{dir("e", 0o700), file("e/fresh"), dir("o", 0o711), dir("o/below", 0o755), file("o/below/new"), file("o/.wh.new"), dir("f", 0o755), file("f/now-a-directory")},
	},
	"opaque comes last": {
		{dir("o", 0o711), file("o/old"), file("o/kept")},
		{dir("o", 0o711), file("o/new"), file("o/kept"), file("o/.wh..wh..opq")},
	},
}

// TestLikeContainerd compares the directory of each layer, and the flat root of all layers,
// with the result of containerd.
func TestLikeContainerd(t *testing.T) {
	needRoot(t)
	for name, layers := range cases {
		t.Run(name, func(t *testing.T) {
			top := t.TempDir()
			ours, theirs := sub(t, top, "ours"), sub(t, top, "theirs")
			var parents []string
			for i, entries := range layers {
				data := pack(t, entries...)
				a, b := sub(t, top, fmt.Sprint("ours-", i)), sub(t, top, fmt.Sprint("theirs-", i))
				applyTo(t, a, data, Options{Overlay: true, Parent: ours})
				opts := []archive.ApplyOpt{archive.WithConvertWhiteout(archive.OverlayConvertWhiteout)}
				if len(parents) > 0 {
					opts = append(opts, archive.WithParents(parents))
				}
				if _, err := archive.Apply(t.Context(), b, bytes.NewReader(data), opts...); err != nil {
					t.Fatal(err)
				}
				parents = append([]string{b}, parents...)
				same(t, fmt.Sprintf("layer %d", i), a, b, true)
				applyTo(t, ours, data, Options{})
				if _, err := archive.Apply(t.Context(), theirs, bytes.NewReader(data)); err != nil {
					t.Fatal(err)
				}
				same(t, fmt.Sprintf("root with layer %d", i), ours, theirs, false)
			}
		})
	}
}

func applyTo(t *testing.T, dir string, data []byte, o Options) *Applied {
	t.Helper()
	a, err := Apply(t.Context(), dir, bytes.NewReader(data), o)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// same compares two directories. It ignores times that containerd leaves at the current
// time: the times of the root, of whiteouts, and of directories that changed after their own
// entry, or have none.
func same(t *testing.T, what, a, b string, overlay bool) {
	t.Helper()
	list, err := testtree.Compare(a, b)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range list {
		quoted, rest, _ := strings.Cut(d, ": ")
		path, err := strconv.Unquote(quoted)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(rest, "time is ") && incidental(filepath.Join(b, path), overlay) {
			continue
		}
		t.Errorf("%s: %s", what, d)
	}
}

func incidental(path string, overlay bool) bool {
	var st unix.Stat_t
	if unix.Lstat(path, &st) != nil {
		return false
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return time.Since(time.Unix(st.Mtim.Sec, 0)) < time.Hour
	case unix.S_IFCHR:
		return overlay && st.Rdev == 0
	}
	return false
}

// TestOverlayShowsTheRoot mounts layers as an overlay and compares it with the flat root.
// It also covers layers that containerd unpacks in different ways, or not at all.
func TestOverlayShowsTheRoot(t *testing.T) {
	needRoot(t)
	more := map[string][][]*tar.Header{
		"implied directories": {
			{with(dir("tmp", 0o1777), func(h *tar.Header) { h.PAXRecords = map[string]string{xattrPrefix + "user.note": "x"} }), with(dir("tmp/mine", 0o700), func(h *tar.Header) { h.Uid = 1000 })},
			{file("tmp/a"), file("tmp/mine/b"), file("fresh/c/d")},
		},
		"hard links across layers": {
			{dir("d", 0o750), with(file("d/a"), func(h *tar.Header) { h.Mode, h.Uid = 0o644, 5 }), symlink("d/s", "a")},
			{link("b", "d/a"), with(link("c", "d/s"), func(h *tar.Header) { h.Mode = 0o777 })},
		},
		"an addition beside its whiteout": {
			{dir("d", 0o755), file("d/old"), file("f"), file("g")},
			{file(".wh.d"), dir("d", 0o755), file("d/new"), file("f"), file(".wh.f"), file(".wh.g"), file("g")},
		},
		"a directory beside its later whiteout": {
			{dir("d", 0o755), file("d/old")},
			{dir("d", 0o755), file("d/new"), file(".wh.d")},
		},
		"a device that is a whiteout": {
			{file("f"), file("g")},
			{{Typeflag: tar.TypeChar, Name: "f", Mode: 0o600, ModTime: when}},
		},
	}
	for _, name := range []string{"whiteouts", "opaque comes last"} {
		more[name] = cases[name]
	}
	for name, layers := range more {
		t.Run(name, func(t *testing.T) {
			top := t.TempDir()
			root, merged := sub(t, top, "root"), sub(t, top, "merged")
			var lower []string
			for i, entries := range layers {
				data := pack(t, entries...)
				d := sub(t, top, fmt.Sprint(i))
				applyTo(t, d, data, Options{Overlay: true, Parent: root})
				applyTo(t, root, data, Options{})
				lower = append([]string{d}, lower...)
			}
			if err := unix.Mount("overlay", merged, "overlay", unix.MS_RDONLY, "lowerdir="+strings.Join(lower, ":")); err != nil {
				t.Skipf("no overlay can be mounted here: %v", err)
			}
			defer func() {
				if err := unmount.Dir(merged); err != nil {
					t.Error(err)
				}
			}()
			list, err := testtree.Compare(root, merged)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range list {
				t.Error(d)
			}
		})
	}
}

// TestLeans checks which layers need the layers below them.
func TestLeans(t *testing.T) {
	needRoot(t)
	for name, c := range map[string]struct {
		entries []*tar.Header
		leans   bool
	}{
		"all directories":     {[]*tar.Header{dir("d", 0o755), file("d/x"), link("d/y", "d/x"), file("f")}, false},
		"a directory lacking": {[]*tar.Header{file("d/x")}, true},
		"a link down":         {[]*tar.Header{link("new", "base")}, true},
	} {
		t.Run(name, func(t *testing.T) {
			top := t.TempDir()
			below := sub(t, top, "below")
			applyTo(t, below, pack(t, file("base")), Options{})
			if a := applyTo(t, sub(t, top, "d"), pack(t, c.entries...), Options{Overlay: true, Parent: below}); a.Leans != c.leans {
				t.Errorf("leans %v", a.Leans)
			}
		})
	}
}

// TestTwice checks that unpacking a layer at two times gives equal directories.
func TestTwice(t *testing.T) {
	needRoot(t)
	data := pack(t, file("implied/x"), dir("d", 0o755), file("d/y"), file(".wh.gone"))
	top := t.TempDir()
	a, b := sub(t, top, "a"), sub(t, top, "b")
	applyTo(t, a, data, Options{Overlay: true})
	time.Sleep(5 * time.Millisecond)
	applyTo(t, b, data, Options{Overlay: true})
	list, err := testtree.Compare(a, b)
	if err != nil || len(list) > 0 {
		t.Error(list, err)
	}
}

// TestHostile checks that nothing outside of the directory changes, whether the archive is
// refused or not.
func TestHostile(t *testing.T) {
	needRoot(t)
	for name, c := range map[string]struct {
		entries []*tar.Header
		refused bool
	}{
		"dots":                     {[]*tar.Header{file("../../victim/x"), file("../../../../../../../../../../OUT/x")}, false},
		"absolute":                 {[]*tar.Header{file("OUT/x")}, false},
		"through a symlink":        {[]*tar.Header{symlink("l", "OUT"), file("l/x"), dir("l", 0o755)}, false},
		"through two symlinks":     {[]*tar.Header{symlink("a", "../.."), symlink("b", "a/../victim"), file("b/x"), file("a/victim/x")}, false},
		"write through a symlink":  {[]*tar.Header{symlink("l", "OUT/secret"), file("l")}, false},
		"link to a file outside":   {[]*tar.Header{link("l", "OUT/secret"), file("l")}, true},
		"link by dots":             {[]*tar.Header{link("l", "../victim/secret")}, true},
		"link through a symlink":   {[]*tar.Header{symlink("s", "OUT"), link("l", "s/secret")}, true},
		"mode through a link":      {[]*tar.Header{symlink("s", "OUT/secret"), with(link("l", "s"), func(h *tar.Header) { h.Mode = 0o777 })}, false},
		"whiteout of dots":         {[]*tar.Header{file("d/.wh...")}, true},
		"whiteout of nothing":      {[]*tar.Header{file(".wh.")}, true},
		"whiteout by a symlink":    {[]*tar.Header{symlink("s", "OUT"), file("s/.wh.secret"), file("s/.wh..wh..opq")}, false},
		"a loop of symlinks":       {[]*tar.Header{symlink("a", "b"), symlink("b", "a"), file("a/x")}, true},
		"a file as a directory":    {[]*tar.Header{file("f"), file("f/x")}, true},
		"an owner that is nobody":  {[]*tar.Header{with(file("f"), func(h *tar.Header) { h.Uid, h.Format = 1<<32-1, tar.FormatGNU })}, true},
		"a hard link to directory": {[]*tar.Header{dir("d", 0o755), link("l", "d")}, true},
		"a name too long":          {[]*tar.Header{file(strings.Repeat("n", 300))}, true},
		"an unknown type":          {[]*tar.Header{{Typeflag: 'Z', Name: "z"}}, true},
	} {
		for _, overlay := range []bool{false, true} {
			t.Run(fmt.Sprint(name, " overlay=", overlay), func(t *testing.T) {
				top := t.TempDir()
				victim := sub(t, top, "victim")
				secret := filepath.Join(victim, "secret")
				if err := os.WriteFile(secret, []byte("secret"), 0o600); err != nil {
					t.Fatal(err)
				}
				var entries []*tar.Header
				for _, h := range c.entries {
					h := *h
					h.Name, h.Linkname = strings.ReplaceAll(h.Name, "OUT", victim), strings.ReplaceAll(h.Linkname, "OUT", victim)
					entries = append(entries, &h)
				}
				_, err := Apply(t.Context(), sub(t, top, "root"), bytes.NewReader(pack(t, entries...)), Options{Overlay: overlay})
				var refusal *Error
				if c.refused != errors.As(err, &refusal) || !c.refused && err != nil {
					t.Errorf("refused %v: %v", c.refused, err)
				}
				names, err := os.ReadDir(victim)
				if err != nil || len(names) != 1 {
					t.Errorf("outside: %v, %v", names, err)
				}
				st, err := os.Stat(secret)
				if err != nil || st.Mode() != 0o600 || st.Size() != 6 {
					t.Errorf("outside: %v, %v", st, err)
				}
			})
		}
	}
}

// TestOverlayAttributes checks that an archive cannot set attributes of the overlay mount.
func TestOverlayAttributes(t *testing.T) {
	needRoot(t)
	h := with(dir("d", 0o755), func(h *tar.Header) {
		h.PAXRecords = map[string]string{xattrPrefix + "trusted.overlay.redirect": "/etc", xattrPrefix + "trusted.other": "kept"}
	})
	d := t.TempDir()
	applyTo(t, d, pack(t, h), Options{Overlay: true})
	buf := make([]byte, 256)
	n, err := unix.Listxattr(filepath.Join(d, "d"), buf)
	if err != nil {
		t.Fatal(err)
	}
	names := strings.Split(strings.Trim(string(buf[:n]), "\x00"), "\x00")
	if !slices.Equal(names, []string{"trusted.other"}) {
		t.Errorf("attributes %q", names)
	}
}

func TestLimits(t *testing.T) {
	needRoot(t)
	big := pack(t, with(file("big"), func(h *tar.Header) { h.Size = 1 << 20 }))
	for name, c := range map[string]struct {
		data   []byte
		limits Limits
		over   string
	}{
		"within":            {big, Limits{Bytes: 2 << 20, Entries: 1}, ""},
		"bytes":             {big, Limits{Bytes: 1 << 19}, "bytes"},
		"bytes at the end":  {append(slices.Clone(big), make([]byte, 2<<20)...), Limits{Bytes: 2 << 20}, "bytes"},
		"entries":           {pack(t, file("a"), file("b")), Limits{Entries: 1}, "entries"},
		"a sparse monument": {sparse(1 << 40), Limits{Bytes: 1 << 30}, "bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Apply(t.Context(), t.TempDir(), bytes.NewReader(c.data), Options{Limits: &c.limits})
			var limit *LimitError
			if errors.As(err, &limit) != (c.over != "") || limit != nil && limit.What != c.over {
				t.Errorf("%v, want %q", err, c.over)
			}
		})
	}
}

// sparse returns an archive with an old GNU sparse file of the given size, of which 512
// bytes are data.
func sparse(size int64) []byte {
	h := make([]byte, 512)
	copy(h, "sparse")
	octal := func(at, n int, v int64) { copy(h[at:], fmt.Sprintf("%0*o", n-1, v)) }
	octal(100, 8, 0o644)
	octal(108, 8, 0)
	octal(116, 8, 0)
	octal(124, 12, 512)
	octal(136, 12, when.Unix())
	h[156] = 'S'
	copy(h[257:], "ustar  \x00")
	at := func(off int, v int64) { // numbers too large for octal digits are in base 256
		if v < 1<<33 {
			octal(off, 12, v)
			return
		}
		h[off] = 0x80
		for i := range 8 {
			h[off+11-i] = byte(v >> (8 * i))
		}
	}
	at(386, size-512)
	at(398, 512)
	at(483, size)
	copy(h[148:], "        ")
	sum := 0
	for _, b := range h {
		sum += int(b)
	}
	copy(h[148:], fmt.Sprintf("%06o\x00 ", sum))
	data := bytes.Repeat([]byte("x"), 512)
	return append(append(h, data...), make([]byte, 1024)...)
}

// TestSparse checks that a sparse file is unpacked with its holes.
func TestSparse(t *testing.T) {
	needRoot(t)
	d := t.TempDir()
	applyTo(t, d, sparse(8<<20), Options{})
	content, err := os.ReadFile(filepath.Join(d, "sparse"))
	if err != nil {
		t.Fatal(err)
	}
	if want := append(make([]byte, 8<<20-512), bytes.Repeat([]byte("x"), 512)...); !bytes.Equal(content, want) {
		t.Errorf("%d bytes, other than they should be", len(content))
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(d, "sparse"), &st); err != nil || st.Blocks*512 > 1<<20 {
		t.Errorf("it takes %d bytes: %v", st.Blocks*512, err)
	}
}

func TestTorn(t *testing.T) {
	needRoot(t)
	data := pack(t, file("a"), file("b"))
	for _, n := range []int{100, 512, 1024 + 100} {
		_, err := Apply(t.Context(), t.TempDir(), bytes.NewReader(data[:n]), Options{})
		var refusal *Error
		if !errors.As(err, &refusal) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Apply(ctx, t.TempDir(), bytes.NewReader(data), Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}
