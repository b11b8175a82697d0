package workbench

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

const release = "bookworm"

// Layer describes how to make a layer of an image on top of others.
type Layer struct {
	Name     string
	Variant  string // of mmdebstrap, for the lowest layer
	Packages string // packages to install
	Outside  string // a shell script that runs in the root directory of the image
	Inside   string // a shell script that runs last, with the image as its root (chroot)
}

// Debian makes an image's layers as OCI archives, lowest first, of the Debian release for
// which this machine's apt has mirrors. Images with the same first layers share them.
func (l *Lab) Debian(ctx context.Context, layers []Layer) (archives []string, err error) {
	for n := range layers {
		dir, err := l.upper(ctx, layers[:n+1])
		if err != nil {
			return nil, err
		}
		archive, err := l.Once(dir[len(l.Dir)+1:]+".tar", func(path string) error {
			f, err := os.Create(path)
			if err != nil {
				return err
			}
			return errors.Join(writeLayer(f, dir), f.Close())
		})
		if err != nil {
			return nil, err
		}
		archives = append(archives, archive)
	}
	return archives, nil
}

// upper returns the upper directory of overlayfs for the last layer: its differences from
// the layers below.
func (l *Lab) upper(ctx context.Context, layers []Layer) (string, error) {
	s, below := layers[len(layers)-1], layers[:len(layers)-1]
	text, err := json.Marshal(layers)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	return l.Once(fmt.Sprintf("layers/%s-%x", s.Name, sum[:6]), func(dir string) error {
		mirrors, err := DebianMirrors(ctx, release)
		if err != nil {
			return err
		}
		stable := "deb " + mirrors[release] + " " + release + " main"
		if len(below) == 0 {
			args := []string{"--variant=" + s.Variant, "--aptopt=APT::Install-Recommends false",
				"--customize-hook=rm -rf $1/var/lib/apt/lists/* $1/var/cache/apt/*.bin"}
			if s.Packages != "" {
				args = append(args, "--include="+strings.ReplaceAll(s.Packages, " ", ","))
			}
			return Run(nil, Command(ctx, "mmdebstrap", append(args, release, dir, stable)...))
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		var lower []string
		for n := len(below); n > 0; n-- {
			dir, err := l.upper(ctx, below[:n])
			if err != nil {
				return err
			}
			lower = append(lower, dir)
		}
		scratch, err := l.Scratch()
		if err != nil {
			return err
		}
		defer os.RemoveAll(scratch)
		// All mounts are in the script's namespace and end with it, so mounts below
		// /run do not become a part of the layer.
		script := `set -e
lower=$1 upper=$2 scratch=$3 packages=$4 sources=$5 outside=$6 inside=$7
mkdir "$scratch/work" "$scratch/root"
mount -t overlay overlay -o "lowerdir=$lower,upperdir=$upper,workdir=$scratch/work" "$scratch/root"
cd "$scratch/root"
mount -t proc proc proc
mount --rbind /dev dev
mount -t tmpfs tmpfs tmp
mount -t tmpfs tmpfs var/lib/apt/lists
mount -t tmpfs tmpfs var/cache/apt
mkdir -p var/lib/apt/lists/partial var/cache/apt/archives/partial
for f in resolv.conf hosts; do cat "/etc/$f" >"$scratch/$f"; [ -e "etc/$f" ] || : >"etc/$f"; mount --bind "$scratch/$f" "etc/$f"; done
if [ -n "$packages" ]; then
	echo "$sources" >etc/apt/sources.list
	DEBIAN_FRONTEND=noninteractive chroot . sh -c "apt-get -q update && apt-get -q install -y --no-install-recommends $packages"
fi
[ -z "$outside" ] || sh -ec "$outside"
[ -z "$inside" ] || chroot . sh -ec "$inside"
rm -f var/log/apt/* var/log/dpkg.log var/log/alternatives.log
`
		return Run(nil, Command(ctx, "unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh",
			strings.Join(lower, ":"), dir, scratch, s.Packages, stable, s.Outside, s.Inside))
	})
}

// writeLayer writes an upper directory of overlayfs as the archive of a layer
// (https://github.com/opencontainers/image-spec/blob/main/layer.md).
func writeLayer(w io.Writer, dir string) error {
	t := tar.NewWriter(w)
	first := map[uint64]string{} // first names of files with hard links, by inode
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		name := strings.TrimPrefix(path, dir+"/")
		info, err := e.Info()
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return &fs.PathError{Op: "lstat", Path: path, Err: err}
		}
		if info.Mode()&fs.ModeSocket != 0 {
			return nil
		}
		if info.Mode()&fs.ModeCharDevice != 0 && st.Rdev == 0 {
			return t.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: filepath.Join(filepath.Dir(name), ".wh."+filepath.Base(name)), ModTime: info.ModTime()})
		}
		target := ""
		if info.Mode()&fs.ModeSymlink != 0 {
			if target, err = os.Readlink(path); err != nil {
				return err
			}
		}
		h, err := tar.FileInfoHeader(info, target)
		if err != nil {
			return err
		}
		h.Name, h.Format, h.Uname, h.Gname = name, tar.FormatPAX, "", ""
		h.AccessTime, h.ChangeTime = h.ModTime, h.ModTime
		opaque, err := attributes(path, h)
		if err != nil {
			return err
		}
		if info.IsDir() {
			h.Name += "/"
		} else if st.Nlink > 1 && info.Mode().IsRegular() {
			if other, ok := first[st.Ino]; ok {
				h.Typeflag, h.Linkname, h.Size, h.PAXRecords = tar.TypeLink, other, 0, nil
			} else {
				first[st.Ino] = name
			}
		}
		if err := t.WriteHeader(h); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if opaque {
			return t.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name + "/.wh..wh..opq", ModTime: info.ModTime()})
		}
		if h.Typeflag != tar.TypeReg {
			return nil
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.Copy(t, f)
		return err
	})
	return errors.Join(err, t.Close())
}

// attributes adds extended attributes, except those of overlayfs, to a header. It reports
// whether a directory is opaque: it hides the directory in the layers below.
func attributes(path string, h *tar.Header) (opaque bool, err error) {
	list := make([]byte, 64<<10)
	n, err := unix.Llistxattr(path, list)
	if err != nil {
		return false, &fs.PathError{Op: "listxattr", Path: path, Err: err}
	}
	for _, name := range strings.Split(strings.TrimSuffix(string(list[:n]), "\x00"), "\x00") {
		if name == "" {
			continue
		}
		value := make([]byte, 64<<10)
		m, err := unix.Lgetxattr(path, name, value)
		if err != nil {
			return false, &fs.PathError{Op: "getxattr", Path: path, Err: err}
		}
		if strings.HasPrefix(name, "trusted.overlay.") {
			opaque = opaque || name == "trusted.overlay.opaque" && string(value[:m]) == "y"
			continue
		}
		if h.PAXRecords == nil {
			h.PAXRecords = map[string]string{}
		}
		h.PAXRecords["SCHILY.xattr."+name] = string(value[:m])
	}
	return opaque, nil
}
