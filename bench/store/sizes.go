package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"premix/internal/kit/units"
	"premix/internal/testkit/figures"
	"premix/internal/testkit/workbench"
)

// sizes measures the space that three successive versions of one image occupy.
func (b *benchmark) sizes(ctx context.Context) error {
	var versions []tree
	for v := 1; v <= 3; v++ {
		t, err := b.lab.root(ctx, v)
		if err != nil {
			return err
		}
		versions = append(versions, t)
	}
	rows := [][]string{{"", "version 1", "with 2", "with 3", "third alone adds", "of tar.gz"}}
	gzip := 0.0
	for _, k := range b.keepers() {
		var after []float64
		for _, t := range versions {
			b.lab.Log("size: %s, %s", k.name, t.name)
			n, err := k.add(ctx, t)
			if err != nil {
				return fmt.Errorf("%s: %w", k.name, err)
			}
			after = append(after, float64(n))
		}
		last := after[len(after)-1]
		if gzip == 0 {
			gzip = last
		}
		row := []string{k.name}
		for i, n := range after {
			f := figures.Figure{Name: fmt.Sprintf("size/%d/%s", i+1, k.name), Value: n, Unit: "B"}
			if i == len(after)-1 && n != gzip {
				f.Peer, f.Ratio = "tar.gz", figures.Lower(n, gzip)
			}
			if err := b.Add(f); err != nil {
				return err
			}
			row = append(row, units.Size(int64(n)))
		}
		rows = append(rows, append(row, units.Size(int64(last-after[len(after)-2])), fmt.Sprintf("%.2f", last/gzip)))
	}
	b.Table("Bytes kept for successive versions of one image", rows)
	return nil
}

// keeper keeps images; add adds one and returns the bytes of all of them.
type keeper struct {
	name string
	add  func(ctx context.Context, t tree) (int64, error)
}

func (b *benchmark) keepers() []keeper {
	l := b.lab
	var sum int64
	layers := &pull{lab: l}
	all := []keeper{{"tar.gz", func(ctx context.Context, t tree) (int64, error) {
		if err := layers.prepare(ctx, t, ""); err != nil {
			return 0, err
		}
		info, err := os.Stat(filepath.Join(l.Dir, "served/pull", t.name+".tar.gz"))
		if err != nil {
			return 0, err
		}
		sum += info.Size()
		return sum, nil
	}}}
	for _, c := range b.contenders {
		switch c := c.(type) {
		case *stargz:
			all = append(all, c.keeper())
		case *nydus:
			all = append(all, c.keeper("nydus", false), c.keeper("nydus, chunk dictionary", true))
		case *premixMount:
			if c.label == "premix" {
				all = append(all, c.keeper())
			}
		}
	}
	return all
}

func (s *stargz) keeper() keeper {
	var sum int64
	return keeper{"stargz", func(ctx context.Context, t tree) (int64, error) {
		if err := s.prepare(ctx, t, ""); err != nil {
			return 0, err
		}
		info, err := os.Stat(filepath.Join(s.lab.Dir, "served/stargz", s.image(t, ""), "layer"))
		if err != nil {
			return 0, err
		}
		sum += info.Size()
		return sum, nil
	}}
}

// keeper keeps images of nydus in a separate directory. With a dictionary each image is
// made with the previous image as its dictionary.
func (n *nydus) keeper(name string, dictionary bool) keeper {
	own := *n
	own.lab = &lab{&workbench.Lab{Dir: filepath.Join(n.lab.Dir, "sizes", name), Log: n.lab.Log}}
	before := ""
	return keeper{name, func(ctx context.Context, t tree) (int64, error) {
		path, err := own.lab.Once("served/nydus/"+t.name, func(path string) error { return own.create(ctx, t, path, nil, before) })
		if err != nil {
			return 0, err
		}
		if dictionary {
			before = path
		}
		return workbench.Usage(filepath.Join(own.lab.Dir, "served"))
	}}
}

// keeper publishes images of premix to a separate store.
func (m *premixMount) keeper() keeper {
	own := *m
	own.lab = &lab{&workbench.Lab{Dir: filepath.Join(m.lab.Dir, "sizes/premix"), Log: m.lab.Log}}
	return keeper{"premix", func(ctx context.Context, t tree) (int64, error) {
		if err := own.prepare(ctx, t, ""); err != nil {
			return 0, err
		}
		return workbench.Usage(own.store())
	}}
}
