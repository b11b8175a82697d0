package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"

	"premix/internal/testkit/workbench"
)

// tree is a directory that contenders show.
type tree struct {
	name string
	dir  string
	// paths lists its regular files, relative, one a line, in directory order.
	paths string
}

// Sizes of the tree of files.
const (
	smallFiles   = 20000
	perDirectory = 100
	bigSize      = 1 << 30
	bigFile      = "big"
)

// files makes the tree for the measurement of single operations: 20,000 small files of
// text, half of them below 4 KiB, and a large incompressible file, so that all
// contenders transfer the same number of bytes.
func (l *lab) files() (tree, error) {
	return l.tree("files", func(dir string) error {
		random := rand.New(rand.NewPCG(1, 1))
		words := vocabulary(random)
		var text bytes.Buffer
		for i := range smallFiles {
			sub := filepath.Join(dir, "small", fmt.Sprintf("%03d", i/perDirectory))
			if i%perDirectory == 0 {
				if err := os.MkdirAll(sub, 0o755); err != nil {
					return err
				}
			}
			// 256 B to 64 KiB, each power of two as often as the others.
			size := int(256 * float64(uint(1)<<random.IntN(8)) * (1 + random.Float64()))
			text.Reset()
			for text.Len() < size {
				text.WriteString(words[random.IntN(len(words))])
			}
			if err := os.WriteFile(filepath.Join(sub, fmt.Sprintf("file-%05d.txt", i)), text.Bytes()[:size], 0o644); err != nil {
				return err
			}
		}
		f, err := os.Create(filepath.Join(dir, bigFile))
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.CopyN(f, rand.NewChaCha8([32]byte{1}), bigSize)
		return err
	})
}

// vocabulary returns some thousand words, each followed by a space.
func vocabulary(random *rand.Rand) []string {
	words := make([]string, 4096)
	for i := range words {
		w := make([]byte, 2+random.IntN(9))
		for j := range w {
			w[j] = 'a' + byte(random.IntN(26))
		}
		words[i] = string(w) + " "
	}
	return words
}

// packages are the packages of the roots in addition to a minimal Debian.
const packages = "python3-numpy,samtools,r-base-core"

// root makes a Debian root file system. Three versions follow each other, like the
// versions of an image: the second adds packages, the third has updates.
func (l *lab) root(ctx context.Context, version int) (tree, error) {
	const release = "bookworm"
	return l.tree(fmt.Sprintf("root-v%d", version), func(dir string) error {
		mirrors, err := workbench.DebianMirrors(ctx, release)
		if err != nil {
			return err
		}
		stable := "deb " + mirrors[release] + " " + release + " main"
		if version == 1 {
			return workbench.Run(nil, workbench.Command(ctx, "mmdebstrap", "--variant=minbase", "--include="+packages,
				"--aptopt=APT::Install-Recommends false", "--customize-hook=rm -rf $1/var/lib/apt/lists/* $1/var/cache/apt/*.bin",
				release, dir, stable))
		}
		before, err := l.root(ctx, version-1)
		if err != nil {
			return err
		}
		if err := workbench.Run(nil, workbench.Command(ctx, "cp", "-a", before.dir, dir)); err != nil {
			return err
		}
		sources, what := stable+"\n", "apt-get install -y --no-install-recommends bwa minimap2 python3-pandas"
		if version == 3 {
			for _, suite := range []string{release + "-security", release + "-updates"} {
				if uri := mirrors[suite]; uri != "" {
					sources += "deb " + uri + " " + suite + " main\n"
				}
			}
			what = "apt-get dist-upgrade -y"
		}
		if err := os.WriteFile(filepath.Join(dir, "etc/apt/sources.list"), []byte(sources), 0o644); err != nil {
			return err
		}
		script := `set -e
mount -t proc proc "$1/proc"
mount --rbind /dev "$1/dev"
for f in resolv.conf hosts; do touch "$1/etc/$f"; mount --bind "/etc/$f" "$1/etc/$f"; done
chroot "$1" sh -c 'apt-get update && DEBIAN_FRONTEND=noninteractive '"$2"' && apt-get clean'
rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/*.bin
`
		return workbench.Run(nil, workbench.Command(ctx, "unshare", "--mount", "sh", "-c", script, "sh", dir, what))
	})
}

// tree makes a tree once, and the list of its files.
func (l *lab) tree(name string, make func(dir string) error) (tree, error) {
	t := tree{name: name}
	var err error
	if t.dir, err = l.Once("trees/"+name, make); err != nil {
		return t, err
	}
	t.paths, err = l.Once("trees/"+name+".paths", func(path string) error {
		f, err := os.Create(path)
		if err != nil {
			return err
		}
		defer f.Close()
		w := bufio.NewWriter(f)
		err = filepath.WalkDir(t.dir, func(path string, e fs.DirEntry, err error) error {
			if err == nil && e.Type().IsRegular() {
				_, err = fmt.Fprintln(w, strings.TrimPrefix(path, t.dir+"/"))
			}
			return err
		})
		if err != nil {
			return err
		}
		return w.Flush()
	})
	return t, err
}

// tar makes a tar archive of the tree, from which contenders that take layers start.
func (l *lab) tar(ctx context.Context, t tree) (string, error) {
	return l.Once("trees/"+t.name+".tar", func(path string) error {
		return workbench.Run(nil, workbench.Command(ctx, "tar", "--sort=name", "--numeric-owner", "--xattrs", "-C", t.dir, "-cf", path, "."))
	})
}
