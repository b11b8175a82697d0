package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"premix/internal/workbench"
)

// usualProfile is the profile that a node fetches ahead when nobody names another.
const usualProfile = "start"

// Names of the stores, in what the origin serves. One has never seen a profile.
const (
	plainStore    = "premix"
	profiledStore = "premix-profiled"
)

func (b *benchmark) home() string             { return filepath.Join(b.lab.Dir, "premix-home") }
func (b *benchmark) store(name string) string { return filepath.Join(b.lab.Dir, "served", name) }

// adds adds an image to a store, once.
func (b *benchmark) adds(ctx context.Context, im image, store string) error {
	if _, err := b.lab.Once("served/"+store, func(path string) error {
		return workbench.Run(nil, b.premixCommand(ctx, b.home(), "store", "init", path))
	}); err != nil {
		return err
	}
	dir, err := b.lab.layout(ctx, im)
	if err != nil {
		return err
	}
	_, err = b.lab.Once(store+"-added-"+im.name, func(path string) error {
		if err := workbench.Run(nil, b.premixCommand(ctx, b.home(), "image", "add", "--store", b.store(store), "oci:"+dir, "bench/"+im.name)); err != nil {
			return err
		}
		return os.WriteFile(path, nil, 0o666)
	})
	return err
}

// chains are the references of an image's layers, lowest first.
func (b *benchmark) chains(im image) ([]string, error) {
	config, err := configOf(filepath.Join(b.lab.Dir, "layouts", im.name))
	if err != nil {
		return nil, err
	}
	var refs []string
	chain := ""
	for _, d := range config.RootFS.DiffIDs {
		chain = chainID(chain, d.String())
		refs = append(refs, "chains/"+strings.TrimPrefix(chain, "sha256:")+":latest")
	}
	return refs, nil
}

// recorded is a directory with what a workload reads of each layer: the layers are
// mounted by premix, and an overlay of them is the root of the workload.
func (b *benchmark) recorded(ctx context.Context, im image, w workload) (string, error) {
	refs, err := b.chains(im)
	if err != nil {
		return "", err
	}
	return b.lab.Once("recorded/"+im.name+"-"+w.name, func(path string) (err error) {
		scratch, err := b.lab.Scratch()
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, workbench.UnmountBelow(scratch), os.RemoveAll(scratch)) }()
		home := filepath.Join(scratch, "home")
		defer func() {
			err = errors.Join(err, workbench.Run(nil, b.premixCommand(context.Background(), home, "node", "stop", "--lazy")))
		}()
		var lower []string
		for i, ref := range refs {
			dir := filepath.Join(scratch, fmt.Sprint("layer-", i))
			if err := errors.Join(os.Mkdir(dir, 0o755), os.MkdirAll(path, 0o755)); err != nil {
				return err
			}
			file := filepath.Join(path, fmt.Sprint(i, ".jsonl"))
			if err := workbench.Run(nil, b.premixCommand(ctx, home, "mount", "--origin", b.store(plainStore), "--profile", "none", "--record", file, ref, dir)); err != nil {
				return err
			}
			lower = append([]string{dir}, lower...)
		}
		script := `set -e
lower=$1 scratch=$2
shift 2
mkdir "$scratch/upper" "$scratch/work" "$scratch/root"
mount -t overlay overlay -o "lowerdir=$lower,upperdir=$scratch/upper,workdir=$scratch/work" "$scratch/root"
mkdir -p "$scratch/root/proc" "$scratch/root/dev"
mount -t proc proc "$scratch/root/proc"
mount --rbind /dev "$scratch/root/dev"
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8
exec chroot "$scratch/root" "$@"
`
		args := append([]string{"--mount", "--propagation", "private", "sh", "-c", script, "sh", strings.Join(lower, ":"), scratch}, w.args...)
		if err := workbench.Run(nil, workbench.Command(ctx, "unshare", args...)); err != nil {
			return err
		}
		for i := range refs {
			if err := workbench.Run(nil, b.premixCommand(ctx, home, "umount", filepath.Join(scratch, fmt.Sprint("layer-", i)))); err != nil {
				return err
			}
		}
		return nil
	})
}

// profiled publishes the profiles of a workload as the usual ones.
func (b *benchmark) profiled(ctx context.Context, im image, w workload) error {
	dir, err := b.recorded(ctx, im, w)
	if err != nil {
		return err
	}
	refs, err := b.chains(im)
	if err != nil {
		return err
	}
	for i, ref := range refs {
		if err := workbench.Run(nil, b.premixCommand(ctx, b.home(), "store", "profile", "--store", b.store(profiledStore), "--name", usualProfile, ref, filepath.Join(dir, fmt.Sprint(i, ".jsonl")))); err != nil {
			return err
		}
	}
	return nil
}
