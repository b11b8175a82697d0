package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"premix/internal/testkit/workbench"
)

// usualProfile is the profile that a node fetches ahead by default.
const usualProfile = "start"

// Names of the stores that the origin serves. plainStore never gets a profile, and emptyStore
// never an image.
const (
	plainStore    = "premix"
	emptyStore    = "premix-empty"
	profiledStore = "premix-profiled"
)

func (b *benchmark) home() string             { return filepath.Join(b.lab.Dir, "premix-home") }
func (b *benchmark) store(name string) string { return filepath.Join(b.lab.Dir, "served", name) }

// adds adds an image to a store, unless it has been added before.
func (b *benchmark) adds(ctx context.Context, im image, store string) error {
	if err := b.makes(ctx, store); err != nil {
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

// makes makes a store, once.
func (b *benchmark) makes(ctx context.Context, store string) error {
	_, err := b.lab.Once("served/"+store, func(path string) error {
		return workbench.Run(nil, b.premixCommand(ctx, b.home(), "store", "init", path))
	})
	return err
}

// chains returns the references of an image's layers, lowest first.
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

// recorded runs a workload in a container under containerd, and returns a directory with
// the profile of each layer.
func (b *benchmark) recorded(ctx context.Context, im image, w workload) (string, error) {
	return b.lab.Once("recorded/"+im.name+"-"+w.name, func(path string) error {
		if err := os.Mkdir(path, 0o755); err != nil {
			return err
		}
		o, err := b.lab.Serve(nil)
		if err != nil {
			return err
		}
		defer o.Close()
		n, err := b.newNode(ctx, b.premixContender("recording", plainStore, "--record", path), nil, o)
		if err != nil {
			return err
		}
		if _, err = n.pull(ctx, im); err == nil {
			_, err = n.run(ctx, im, w.args)
		}
		return errors.Join(err, n.close())
	})
}

// profiled publishes the profiles of a workload under the usual name.
func (b *benchmark) profiled(ctx context.Context, im image, w workload) error {
	dir, err := b.recorded(ctx, im, w)
	if err != nil {
		return err
	}
	refs, err := b.chains(im)
	if err != nil {
		return err
	}
	for _, ref := range refs {
		file := filepath.Join(dir, strings.TrimSuffix(strings.TrimPrefix(ref, "chains/"), ":latest")+".jsonl")
		if err := workbench.Run(nil, b.premixCommand(ctx, b.home(), "store", "profile", "--store", b.store(profiledStore), "--name", usualProfile, ref, file)); err != nil {
			return err
		}
	}
	return nil
}
