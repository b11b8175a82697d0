package image

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/pkg/archive"
	"github.com/containerd/containerd/v2/pkg/archive/compression"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/sys/unix"

	"premix/internal/kit/unmount"
	"premix/internal/store"
	"premix/internal/testkit/workbench"
)

// realImages returns images that are built from Debian's packages. With those of
// TestRealImages they are ten. Their layers change the layers below in all ways that are
// common in images.
func realImages() map[string][]workbench.Layer {
	base := workbench.Layer{Name: "base", Variant: "minbase"}
	// These packages bring capabilities and setuid bits.
	tools := workbench.Layer{Name: "tools", Packages: "iputils-ping sudo"}
	python := workbench.Layer{Name: "python", Packages: "python3-numpy python3-pip"}
	return map[string][]workbench.Layer{
		"debian": {base},
		"removed": {base, tools,
			{Name: "without-docs", Inside: "rm -rf /usr/share/doc/* /usr/share/man && rm /etc/motd && mkdir /etc/motd"},
			{Name: "opaque", Inside: `rm -rf /usr/share/locale /etc/sudoers.d && mkdir -m 750 /etc/sudoers.d && echo x >/etc/sudoers.d/x
mkdir /usr/share/doc/again /usr/share/man && ln -s ../doc/again /usr/share/man/link`},
		},
		"links": {base, tools,
			{Name: "links", Inside: `ln /bin/cat /opt/cat && ln /opt/cat /usr/local/bin/cat && chmod 4711 /opt/cat && echo x >/opt/x && ln /opt/x /opt/y`},
			{Name: "moved", Inside: `mv /opt/x /opt/z && chown daemon:games /opt/y && chmod g+s,o+t /opt && cp -a /usr/bin/sudo /opt/sudo && mknod /opt/null c 1 3 && mkfifo /opt/fifo && touch -d '1969-12-31 23:59:58.123456789 UTC' /opt/fifo`},
		},
		"python": {base, python},
		"wheels": {base, python,
			{Name: "wheels", Outside: `python3 -m pip -q install --no-compile --target opt/wheels --python-version 3.11 --only-binary :all: pandas pysam`},
			{Name: "compiled", Inside: "python3 -m compileall -q /opt/wheels/pandas && rm -rf /opt/wheels/pandas/tests"}},
		"compilers":     {base, {Name: "gcc", Packages: "gcc libc6-dev"}, {Name: "make", Packages: "make"}},
		"bioinformatic": {base, {Name: "r", Packages: "r-base-core"}, {Name: "aligners", Packages: "samtools bwa minimap2"}, {Name: "star", Packages: "rna-star"}},
	}
}

// TestTenRealImages compares the trees of images with the result of containerd: each layer,
// and the root with the overlay that a container sees.
func TestTenRealImages(t *testing.T) {
	needRoot(t)
	if os.Getenv("PREMIX_SOAK") == "" {
		t.Skip("images are built from Debian's packages with PREMIX_SOAK=1 alone: it takes minutes")
	}
	dir := os.Getenv("PREMIX_TEST_IMAGES") // keeps the images for later runs
	if dir == "" {
		dir = t.TempDir()
	}
	lab, err := workbench.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer lab.Close()
	s, o := newStore(t)
	images := realImages()
	for _, name := range slices.Sorted(func(yield func(string) bool) {
		for name := range images {
			if !yield(name) {
				return
			}
		}
	}) {
		t.Run(name, func(t *testing.T) {
			archives, err := lab.Debian(t.Context(), images[name])
			if err != nil {
				t.Fatal(err)
			}
			sameAsContainerd(t, s, o, name, archives)
		})
	}
	if v, err := s.Verify(t.Context(), store.VerifyOptions{}); err != nil || len(v.Findings) > 0 {
		t.Errorf("%+v, %v", v, err)
	}
}

// TestSameAsContainerd does the same as TestTenRealImages on a machine without network. It
// uses a small image of three layers with all special features of layers.
func TestSameAsContainerd(t *testing.T) {
	needRoot(t)
	s, o := newStore(t)
	var archives []string
	for i, data := range [][]byte{base(t), top(t, "tool"), newArchive(t).
		put('5', "etc/", 0o700, "").put('0', "etc/.wh..wh..opq", 0, "").put('0', "etc/new", 0o640, "new").put('1', "etc/link", 0o640, "etc/new").
		put('5', "opt/", 0o755, "").put('0', "opt/.wh.tool", 0, "").put('6', "opt/fifo", 0o600, "").bytes()} {
		file := filepath.Join(t.TempDir(), fmt.Sprint(i, ".tar"))
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
		archives = append(archives, file)
	}
	sameAsContainerd(t, s, o, "small", archives)
}

// sameAsContainerd adds an image of layers and compares it with the result of containerd.
func sameAsContainerd(t *testing.T, s *store.Store, o Options, name string, archives []string) {
	t.Helper()
	var layers []v1.Layer
	for _, a := range archives {
		l, err := tarball.LayerFromFile(a)
		if err != nil {
			t.Fatal(err)
		}
		layers = append(layers, l)
	}
	added := add(t, s, o, "oci:"+writeLayout(t, imageOf(t, layers...)), "real/"+name+":1")
	dir := t.TempDir()
	var lower []string
	for i, a := range archives {
		upper := filepath.Join(dir, fmt.Sprint(i))
		if err := os.Mkdir(upper, 0o755); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(a)
		if err != nil {
			t.Fatal(err)
		}
		r, err := compression.DecompressStream(f)
		if err != nil {
			t.Fatal(err)
		}
		// The options are the same as those of containerd's differ for an overlay.
		opts := []archive.ApplyOpt{archive.WithConvertWhiteout(archive.OverlayConvertWhiteout)}
		if len(lower) > 0 {
			opts = append(opts, archive.WithParents(lower))
		}
		_, err = archive.Apply(t.Context(), upper, r, opts...)
		r.Close()
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		lower = append([]string{upper}, lower...)
		equalLayers(t, mounted(t, s, added.Record.Layers[i].Tree), upper)
	}
	view := lower[0]
	if len(lower) > 1 {
		view = filepath.Join(dir, "view")
		if err := os.Mkdir(view, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("overlay", view, "overlay", unix.MS_RDONLY, "lowerdir="+strings.Join(lower, ":")); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := unmount.Dir(view); err != nil {
				t.Error(err)
			}
		}()
	}
	root := mounted(t, s, added.Record.Root)
	equal(t, root, view)
	files := 0
	if err := filepath.WalkDir(root, func(string, os.DirEntry, error) error { files++; return nil }); err != nil {
		t.Error(err)
	}
	t.Logf("%s: %d layers, %d entries in the root, equal to containerd's", name, len(archives), files)
}

// equalLayers compares layers in the form of overlayfs. containerd gives whiteouts the
// current time, so they first get the time of the corresponding whiteouts of premix.
func equalLayers(t *testing.T, ours, theirs string) {
	t.Helper()
	err := filepath.WalkDir(theirs, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.Type()&os.ModeCharDevice == 0 {
			return err
		}
		rel, err := filepath.Rel(theirs, path)
		if err != nil {
			return err
		}
		var st, own unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil || st.Rdev != 0 {
			return err
		}
		if unix.Lstat(filepath.Join(ours, rel), &own) != nil {
			return nil // the comparison below reports it
		}
		return unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{own.Atim, own.Mtim}, unix.AT_SYMLINK_NOFOLLOW)
	})
	if err != nil {
		t.Fatal(err)
	}
	equal(t, ours, theirs)
}
