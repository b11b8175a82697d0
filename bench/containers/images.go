package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"premix/internal/testkit/workbench"
)

// lab is the work directory, with the files that this benchmark makes in it.
type lab struct{ *workbench.Lab }

// image is a container image as users usually build it.
type image struct {
	name   string
	layers []workbench.Layer // lowest first
	cases  []workload
}

// workload is a command in a container. It writes some output. The workloads whose names
// end in -work compute for seconds; the others do little more than start a program.
type workload struct {
	name string
	args []string
}

var images = []image{
	{"small", []workbench.Layer{{Name: "busybox", Variant: "extract", Packages: "busybox-static"}},
		[]workload{{"echo", []string{"/bin/busybox", "echo", "hello"}}}},
	{"tools", []workbench.Layer{
		{Name: "base", Variant: "minbase"},
		{Name: "python", Packages: "python3-numpy"},
		{Name: "samtools", Packages: "samtools"},
	}, []workload{
		{"echo", []string{"/bin/echo", "hello"}},
		{"python", []string{"python3", "-c", "import numpy; print(numpy.arange(3))"}},
		{"samtools", []string{"samtools", "--version"}},
	}},
	{"science", []workbench.Layer{
		{Name: "base", Variant: "minbase"},
		{Name: "python", Packages: "python3-numpy"},
		{Name: "gcc", Packages: "gcc libc6-dev"},
		{Name: "r", Packages: "r-base-core"},
		{Name: "aligners", Packages: "samtools bwa"},
		{Name: "star", Packages: "rna-star"},
	}, []workload{
		{"echo", []string{"/bin/echo", "hello"}},
		{"python", []string{"python3", "-c", "import numpy; print(numpy.arange(3))"}},
		{"gcc", []string{"sh", "-c", `cd /tmp && printf '#include <stdio.h>\nint main(void) { puts("hello"); }\n' >a.c && gcc -O2 -o a a.c && ./a`}},
		{"r", []string{"Rscript", "-e", "print(summary(c(1, 2, 3)))"}},
		{"samtools", []string{"samtools", "--version"}},
		{"star", []string{"STAR", "--version"}},
		{"python-work", []string{"python3", "-c", "import numpy; print(numpy.sort(numpy.random.default_rng(1).random(30_000_000))[::10_000_000])"}},
		{"gcc-work", shell(`
			awk 'BEGIN { for (f = 0; f < 2000; f++) printf "int f%d(int *a, int n) { int s = %d; for (int i = 0; i < n; i++) s += a[i] * (s >> %d); return s; }\n", f, f, f % 31 }' >a.c
			gcc -O2 -c a.c
			wc -c a.o`)},
		{"r-work", []string{"Rscript", "-e", "set.seed(1); x <- matrix(rnorm(8e6), ncol = 40); y <- x %*% rnorm(40) + rnorm(nrow(x)); print(summary(lm(y ~ x))$r.squared)"}},
		{"samtools-work", shell(`
			awk 'BEGIN {
				print "@SQ\tSN:1\tLN:100000000"
				srand(1)
				for (i = 0; i < 400000; i++) printf "r%d\t0\t1\t%d\t60\t20M\t*\t0\t0\tACGTACGTACGTACGTACGT\tIIIIIIIIIIIIIIIIIIII\n", i, 1 + int(rand() * 99999900)
			}' | samtools sort -o a.bam -
			samtools index a.bam
			samtools flagstat a.bam`)},
		{"star-work", shell(`
			awk 'BEGIN { srand(1); print ">1"; for (i = 0; i < 60000; i++) { s = ""; for (j = 0; j < 50; j++) s = s substr("ACGT", 1 + int(rand() * 4), 1); print s } }' >a.fa
			STAR --runMode genomeGenerate --genomeDir index --genomeFastaFiles a.fa --genomeSAindexNbases 9
			ls index`)},
	}},
}

// shell returns a command that runs a script in a directory below /tmp.
func shell(script string) []string {
	return []string{"sh", "-ec", "cd /tmp\n" + script}
}

// layout writes the image as an OCI layout, with layers compressed with gzip, and returns
// its directory.
func (l *lab) layout(ctx context.Context, im image) (string, error) {
	return l.Once("layouts/"+im.name, func(path string) error {
		var layers []v1.Layer
		archives, err := l.Debian(ctx, im.layers)
		if err != nil {
			return err
		}
		for _, archive := range archives {
			y, err := tarball.LayerFromFile(archive, tarball.WithMediaType(types.OCILayer))
			if err != nil {
				return err
			}
			layers = append(layers, y)
		}
		return writeLayout(path, layers, nil)
	})
}

// writeLayout writes an image with these layers; about has the annotations of each layer,
// if any.
func writeLayout(path string, layers []v1.Layer, about []map[string]string) error {
	base := mutate.MediaType(mutate.ConfigMediaType(empty.Image, types.OCIConfigJSON), types.OCIManifestSchema1)
	var adds []mutate.Addendum
	for i, y := range layers {
		a := mutate.Addendum{Layer: y, MediaType: types.OCILayer}
		if about != nil {
			a.Annotations = about[i]
		}
		adds = append(adds, a)
	}
	out, err := mutate.Append(base, adds...)
	if err != nil {
		return err
	}
	c, err := out.ConfigFile()
	if err != nil {
		return err
	}
	c = c.DeepCopy()
	c.OS, c.Architecture = "linux", "amd64"
	c.Config.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8"}
	if out, err = mutate.ConfigFile(out, c); err != nil {
		return err
	}
	index, err := layout.Write(path, empty.Index)
	if err != nil {
		return err
	}
	return index.AppendImage(out)
}

// publish puts the image of a layout into the registry as NAME:latest.
func (l *lab) publish(name, dir string) error {
	manifest, err := manifestOf(dir)
	if err != nil {
		return err
	}
	return l.publishAs(name, dir, manifest)
}

// publishAs is publish for a manifest, or an index of manifests, in the layout. All blobs of
// the layout are served as manifests too.
func (l *lab) publishAs(name, dir string, latest v1.Hash) error {
	_, err := l.Once("served/"+name, func(path string) error {
		for _, kind := range []string{"blobs", "manifests"} {
			if err := os.MkdirAll(filepath.Join(path, kind), 0o755); err != nil {
				return err
			}
		}
		blobs, err := filepath.Glob(filepath.Join(dir, "blobs/sha256/*"))
		if err != nil {
			return err
		}
		for _, blob := range blobs {
			for _, kind := range []string{"blobs", "manifests"} {
				if err := os.Link(blob, filepath.Join(path, kind, "sha256:"+filepath.Base(blob))); err != nil {
					return err
				}
			}
		}
		return os.Link(filepath.Join(dir, "blobs/sha256", latest.Hex), filepath.Join(path, "manifests", "latest"))
	})
	return err
}

// manifestOf returns the digest of the one image in a layout.
func manifestOf(dir string) (v1.Hash, error) {
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return v1.Hash{}, err
	}
	m, err := index.IndexManifest()
	if err != nil {
		return v1.Hash{}, err
	}
	if len(m.Manifests) != 1 {
		return v1.Hash{}, fmt.Errorf("%s holds %d images", dir, len(m.Manifests))
	}
	return m.Manifests[0].Digest, nil
}

// configOf reads the configuration of the one image in a layout.
func configOf(dir string) (*v1.ConfigFile, error) {
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return nil, err
	}
	digest, err := manifestOf(dir)
	if err != nil {
		return nil, err
	}
	im, err := index.Image(digest)
	if err != nil {
		return nil, err
	}
	return im.ConfigFile()
}

// estargz converts the image to stargz-snapshotter's format, with the converter of
// bench/store.
func (l *lab) estargz(ctx context.Context, im image) (string, error) {
	return l.Once("layouts/"+im.name+"-estargz", func(path string) error {
		program, err := l.build(ctx, "stargz", "bench/store/stargz")
		if err != nil {
			return err
		}
		var layers []v1.Layer
		var about []map[string]string
		archives, err := l.Debian(ctx, im.layers)
		if err != nil {
			return err
		}
		for _, archive := range archives {
			blob, err := l.Once(strings.TrimSuffix(archive[len(l.Dir)+1:], ".tar")+".estargz", func(blob string) error {
				if err := workbench.Run(nil, workbench.Command(ctx, program, "convert", archive, blob)); err != nil {
					return err
				}
				return os.Rename(blob+".json", strings.TrimSuffix(blob, ".half")+".json")
			})
			if err != nil {
				return err
			}
			content, err := os.ReadFile(blob + ".json")
			if err != nil {
				return err
			}
			var described struct {
				TOC string `json:"toc"`
			}
			if err := json.NewDecoder(bytes.NewReader(content)).Decode(&described); err != nil {
				return err
			}
			// Take the layer as it is: compressing it again would change its digest.
			y, err := tarball.LayerFromFile(blob, tarball.WithMediaType(types.OCILayer))
			if err != nil {
				return err
			}
			layers = append(layers, y)
			about = append(about, map[string]string{"containerd.io/snapshot/stargz/toc.digest": described.TOC})
		}
		return writeLayout(path, layers, about)
	})
}

// converted publishes the image as NAME-KIND, after a command has converted it: it gets a copy of
// the layout and the digest of the manifest as its last arguments.
func (l *lab) converted(ctx context.Context, im image, dir, kind string, command ...string) error {
	manifest, err := manifestOf(dir)
	if err != nil {
		return err
	}
	layout, err := l.Once("layouts/"+im.name+"-"+kind, func(path string) error {
		if err := workbench.Run(nil, workbench.Command(ctx, "cp", "-r", dir, path)); err != nil {
			return err
		}
		return workbench.Run(nil, workbench.Command(ctx, command[0], append(command[1:], path, manifest.String())...))
	})
	if err != nil {
		return err
	}
	made, err := os.ReadFile(filepath.Join(layout, "latest"))
	if err != nil {
		return err
	}
	if manifest, err = v1.NewHash(string(made)); err != nil {
		return err
	}
	return l.publishAs(im.name+"-"+kind, layout, manifest)
}

// build builds a program of another module below bench.
func (l *lab) build(ctx context.Context, name, module string) (string, error) {
	return l.buildWith(ctx, name, module, "CGO_ENABLED=0")
}

// buildWith is build with these variables.
func (l *lab) buildWith(ctx context.Context, name, module string, env ...string) (string, error) {
	return l.Once("peers/"+name, func(path string) error {
		cmd := workbench.Command(ctx, "go", "build", "-trimpath", "-o", path, ".")
		cmd.Dir = module // the Makefile runs this program at the top
		cmd.Env = append(os.Environ(), append(env, "GOFLAGS=-mod=readonly")...)
		return workbench.Run(nil, cmd)
	})
}

// find picks images and workloads by name.
func find(names, cases []string) ([]image, error) {
	var picked []image
	for _, im := range images {
		if !slices.Contains(names, im.name) {
			continue
		}
		im.cases = slices.DeleteFunc(slices.Clone(im.cases), func(c workload) bool { return len(cases) > 0 && !slices.Contains(cases, c.name) })
		picked = append(picked, im)
	}
	if len(picked) != len(names) {
		return nil, fmt.Errorf("not all of the images %v exist", names)
	}
	return picked, nil
}
