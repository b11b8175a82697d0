package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"premix/internal/kit/quantile"
	"premix/internal/kit/units"
	"premix/internal/testkit/figures"
	"premix/internal/testkit/netrelay"
	"premix/internal/testkit/workbench"
)

func now() time.Time                { return time.Now() }
func since(begin time.Time) float64 { return time.Since(begin).Seconds() }

// variant is a contender with or without a profile.
type variant struct {
	contender
	profiled bool
	warm     bool // everything has been read before
}

func (v variant) label() string {
	switch {
	case v.profiled:
		return v.name() + "+profile"
	case v.warm:
		return v.name() + ", warm"
	}
	return v.name()
}

// variants returns the variants whose starts are measured.
func (b *benchmark) variants() []variant {
	var all []variant
	for _, c := range b.contenders {
		switch c.name() {
		case "overlayfs", "erofs":
			continue // part ops measures their difference from native
		case "native":
			all = append(all, variant{contender: c}, variant{contender: c, warm: true})
		case "pull":
			all = append(all, variant{contender: c})
		default:
			all = append(all, variant{contender: c}, variant{contender: c, profiled: true})
		}
	}
	return all
}

// started has the figures of a start.
type started struct {
	mount, total, bytes, requests []float64
}

// starts measures starts over the link.
func (b *benchmark) starts(ctx context.Context) error {
	t, err := b.lab.root(ctx, 1)
	if err != nil {
		return err
	}
	all := b.variants()
	opened := map[string]int{}
	for _, c := range b.cases {
		path, err := b.lab.touched(ctx, t, c.name)
		if err != nil {
			return err
		}
		list, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		opened[c.name] = len(lines(list))
		for _, v := range all {
			profile := ""
			if v.profiled {
				profile = c.name
			}
			if err := v.prepare(ctx, t, profile); err != nil {
				return fmt.Errorf("%s: %w", v.label(), err)
			}
		}
	}
	l, o, err := b.newLink()
	if err != nil {
		return err
	}
	defer l.Close()
	defer o.Close()
	for _, c := range b.cases {
		got := map[string]*started{}
		for _, v := range all {
			got[v.label()] = &started{}
		}
		for rep := range b.reps {
			for _, v := range all {
				if v.name() == "pull" && rep >= 3 {
					continue
				}
				at := place{tree: t, client: l.B, origin: o.URL}
				if v.profiled {
					at.profile = c.name
				}
				if err := b.start(ctx, v, at, l, o, c.name, got[v.label()]); err != nil {
					return fmt.Errorf("%s: %s: %w", c.name, v.label(), err)
				}
				m := got[v.label()]
				b.lab.Log("start %s: %s, %d: %s", c.name, v.label(), rep+1, figures.Seconds(m.total[len(m.total)-1]))
			}
		}
		if err := b.reportStarts(c.name, opened[c.name], all, got); err != nil {
			return err
		}
	}
	return nil
}

// start measures one start.
func (b *benchmark) start(ctx context.Context, v variant, at place, l *netrelay.Link, o *workbench.Origin, name string, got *started) (err error) {
	if v.warm {
		if _, err := startIn(ctx, nil, at.tree.dir, name); err != nil {
			return err
		}
	} else if err := b.chill(v.contender); err != nil {
		return err
	}
	if at.scratch, err = b.lab.Scratch(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(at.scratch)) }()
	s, err := v.open(ctx, at)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	before, _ := l.Counters()
	asked := o.Requests.Load()
	begin := now()
	dir, err := s.mount(ctx)
	if err != nil {
		return err
	}
	mounted := since(begin)
	if _, err := startIn(ctx, l.B, dir, name); err != nil {
		return err
	}
	got.total = append(got.total, since(begin))
	got.mount = append(got.mount, mounted)
	after, _ := l.Counters()
	got.bytes = append(got.bytes, float64(after.Bytes-before.Bytes))
	got.requests = append(got.requests, float64(o.Requests.Load()-asked))
	return nil
}

func (b *benchmark) reportStarts(name string, opened int, all []variant, got map[string]*started) error {
	const peer = "native"
	rows := [][]string{{"", "mount", "mount and start", "of native", "bytes", "requests"}}
	base := 0.0
	if m := got[peer]; m != nil {
		base = quantile.Median(m.total)
	}
	for _, v := range all {
		m := got[v.label()]
		total := figures.Figure{Name: "start/" + name + "/total/" + v.label(), Value: quantile.Median(m.total), Unit: "s"}
		slower := "-"
		if base > 0 && v.label() != peer {
			total.Peer, total.Ratio = peer, figures.Lower(total.Value, base)
			slower = fmt.Sprintf("%.2f", total.Value/base)
		}
		mount, bytes, requests := quantile.Median(m.mount), quantile.Median(m.bytes), quantile.Median(m.requests)
		if err := errors.Join(b.Add(total),
			b.Add(figures.Figure{Name: "start/" + name + "/mount/" + v.label(), Value: mount, Unit: "s"}),
			b.Add(figures.Figure{Name: "start/" + name + "/bytes/" + v.label(), Value: bytes, Unit: "B"}),
			b.Add(figures.Figure{Name: "start/" + name + "/requests/" + v.label(), Value: requests, Unit: "requests",
				Note: fmt.Sprintf("%d files are opened", opened)})); err != nil {
			return err
		}
		rows = append(rows, []string{v.label(), figures.Seconds(mount), figures.Seconds(total.Value), slower,
			units.Size(int64(bytes)), fmt.Sprintf("%.0f", requests)})
	}
	b.Table(fmt.Sprintf("Start of %s over %s; it opens %d files", name, b.linkText(), opened), rows)
	return nil
}
