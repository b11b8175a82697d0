package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"premix/internal/kit/quantile"
	"premix/internal/testkit/figures"
	"premix/internal/testkit/workbench"
)

// nameDirs and namesEach give the tree of the part names a million names.
const (
	nameDirs  = 1000
	namesEach = 999
)

// millionNames makes a tree of empty files.
func (l *lab) millionNames() (tree, error) {
	return l.tree("names", func(dir string) error {
		for i := range nameDirs {
			sub := filepath.Join(dir, fmt.Sprintf("%03d", i))
			if err := os.MkdirAll(sub, 0o755); err != nil {
				return err
			}
			for k := range namesEach {
				if err := os.WriteFile(filepath.Join(sub, fmt.Sprintf("sample-%03d-%03d.txt", i, k)), nil, 0o644); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// names measures mounts of the tree of names, and walks through all of it: then the kernel,
// and what checks metadata before the kernel, has read all metadata.
func (b *benchmark) names(ctx context.Context) error {
	t, err := b.lab.millionNames()
	if err != nil {
		return err
	}
	var all []contender
	for _, c := range b.contenders {
		switch c.name() {
		case "erofs", "premix", "premix-other":
			if err := c.prepare(ctx, t, ""); err != nil {
				return fmt.Errorf("%s: %w", c.name(), err)
			}
			all = append(all, c)
		}
	}
	o, err := b.lab.Serve(nil)
	if err != nil {
		return err
	}
	defer o.Close()
	mounts, walks := map[string][]float64{}, map[string][]float64{}
	for rep := range min(b.reps, 3) {
		for _, c := range all {
			if err := b.chill(c); err != nil {
				return err
			}
			scratch, err := b.lab.Scratch()
			if err != nil {
				return err
			}
			mount, walk, err := namesOnce(ctx, c, place{tree: t, origin: o.URL, scratch: scratch})
			if err = errors.Join(err, os.RemoveAll(scratch)); err != nil {
				return fmt.Errorf("%s: %w", c.name(), err)
			}
			mounts[c.name()], walks[c.name()] = append(mounts[c.name()], mount), append(walks[c.name()], walk)
			b.lab.Log("names: %s, %d: mount %s, walk %s", c.name(), rep+1, figures.Seconds(mount), figures.Seconds(walk))
		}
	}
	rows := [][]string{{"", "mount", "mount and walk"}}
	for _, c := range all {
		mount, walk := quantile.Median(mounts[c.name()]), quantile.Median(walks[c.name()])
		both := figures.Figure{Name: "names/walk/" + c.name(), Value: mount + walk, Unit: "s"}
		if base := mounts["erofs"]; base != nil && c.name() != "erofs" {
			both.Peer, both.Ratio = "erofs", figures.Lower(both.Value, quantile.Median(base)+quantile.Median(walks["erofs"]))
		}
		if err := errors.Join(b.Add(figures.Figure{Name: "names/mount/" + c.name(), Value: mount, Unit: "s"}), b.Add(both)); err != nil {
			return err
		}
		rows = append(rows, []string{c.name(), figures.Seconds(mount), figures.Seconds(both.Value)})
	}
	b.Table(fmt.Sprintf("%d names, mounted for the first time, and all of them listed with their attributes", nameDirs*(namesEach+1)), rows)
	return nil
}

// namesOnce returns the times of a mount and of a walk.
func namesOnce(ctx context.Context, c contender, at place) (mount, walk float64, err error) {
	s, err := c.open(ctx, at)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	begin := now()
	dir, err := s.mount(ctx)
	if err != nil {
		return 0, 0, err
	}
	mount = since(begin)
	begin = now()
	err = workbench.Run(nil, workbench.Command(ctx, os.Args[0], "walk", dir))
	return mount, since(begin), err
}

// walkMain is `walk DIR`. It reads the attributes of all names in DIR, and prints their number.
func walkMain(args []string) error {
	count := 0
	err := filepath.WalkDir(args[0], func(_ string, e fs.DirEntry, err error) error {
		if err == nil {
			_, err = e.Info()
		}
		count++
		return err
	})
	return errors.Join(err, json.NewEncoder(os.Stdout).Encode(count))
}
