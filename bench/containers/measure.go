package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"

	"premix/internal/kit/quantile"
	"premix/internal/kit/units"
	"premix/internal/testkit/figures"
	"premix/internal/testkit/netrelay"
	"premix/internal/testkit/workbench"
)

// place is the place where a workload is measured.
type place struct {
	network string
	link    *netrelay.Link // nil: loopback
	client  *netrelay.Host
	origin  *workbench.Origin
}

func (p *place) bytes() float64 {
	if p.link == nil {
		return 0
	}
	down, _ := p.link.Counters()
	return float64(down.Bytes)
}

// measured are the figures of the repetitions of a workload with a contender: seconds,
// bytes and requests, by the name of the quantity.
type measured map[string][]float64

// quantities are the measured quantities with their units, in the order of the table.
var quantities = []struct{ name, unit, title string }{
	{"pull", "s", "pull"},
	{"first", "s", "pull and first output"},
	{"run", "s", "run, cold"},
	{"warm", "s", "run, warm"},
	{"bytes", "B", "bytes"},
	{"requests", "requests", "requests"},
}

// measure measures the workloads of an image with all contenders.
func (b *benchmark) measure(ctx context.Context, p *place, im image, all []contender) error {
	got := map[string]map[string]measured{} // by workload and contender
	for _, w := range im.cases {
		got[w.name] = map[string]measured{}
		for _, c := range all {
			got[w.name][c.name] = measured{}
		}
	}
	for rep := range b.reps {
		if err := b.repetition(ctx, p, im, all, rep, got); err != nil {
			return err
		}
	}
	for _, w := range im.cases {
		if err := b.report(p, im, w, all, got[w.name]); err != nil {
			return err
		}
	}
	return nil
}

// repetition measures each workload once with each contender.
func (b *benchmark) repetition(ctx context.Context, p *place, im image, all []contender, rep int, got map[string]map[string]measured) (err error) {
	kept := map[string]*holding{} // by contender
	defer func() {
		for _, h := range kept {
			err = errors.Join(err, h.node.close())
		}
	}()
	for _, w := range im.cases {
		for _, c := range all {
			if c.store == profiledStore {
				if err := b.profiled(ctx, im, w); err != nil {
					return err
				}
			}
			if err := b.once(ctx, p, im, w, c, got[w.name][c.name], kept); err != nil {
				return fmt.Errorf("%s, %s: %w", w.name, c.name, err)
			}
			first := got[w.name][c.name]["first"]
			b.lab.Log("%s %s %s: %s, %d: %s", p.network, im.name, w.name, c.name, rep+1, figures.Seconds(first[len(first)-1]))
		}
	}
	return nil
}

// holding is a node that has an image, with the cost of getting it there.
type holding struct {
	node            *node
	pull            float64
	bytes, requests float64
}

// hold starts a node and pulls the image.
func (b *benchmark) hold(ctx context.Context, p *place, im image, c contender) (*holding, error) {
	// Bring the served files into the server's page cache, where a busy server has them.
	served := c.store
	if c.whole {
		served = c.image(im)
	}
	if err := workbench.Run(nil, exec.Command("sh", "-c", `find -L "$1" -type f -exec cat {} + >/dev/null`, "sh", filepath.Join(b.lab.Dir, "served", served))); err != nil {
		return nil, err
	}
	n, err := b.newNode(ctx, c, p.client, p.origin)
	if err != nil {
		return nil, err
	}
	h := &holding{node: n}
	bytes, requests := p.bytes(), p.origin.Requests.Load()
	if h.pull, err = n.pull(ctx, im); err != nil {
		return nil, errors.Join(err, n.close())
	}
	h.bytes, h.requests = p.bytes()-bytes, float64(p.origin.Requests.Load()-requests)
	return h, nil
}

// once measures one workload on an empty node. With a contender that fetches the whole
// image before the start, one node serves all workloads of a repetition: kept holds it,
// and its daemons are restarted before each workload.
func (b *benchmark) once(ctx context.Context, p *place, im image, w workload, c contender, got measured, kept map[string]*holding) (err error) {
	t := b.traced(p, im, w, c)
	defer func() { err = errors.Join(err, t.close()) }()
	h := kept[c.name]
	if h != nil {
		if err := h.node.restart(ctx); err != nil {
			return err
		}
	} else {
		if h, err = b.hold(ctx, p, im, c); err != nil {
			return err
		}
		if c.whole {
			kept[c.name] = h
		} else {
			defer func() { err = errors.Join(err, h.node.close()) }()
		}
	}
	t.mark("pulled")
	bytes, requests := p.bytes(), p.origin.Requests.Load()
	cold, err := h.node.run(ctx, im, w.args)
	if err != nil {
		return err
	}
	t.mark("ran")
	if err := b.same(im, w, c, cold.Output); err != nil {
		return err
	}
	values := map[string]float64{"pull": h.pull, "first": h.pull + cold.First, "run": cold.End,
		"bytes": h.bytes + p.bytes() - bytes, "requests": h.requests + float64(p.origin.Requests.Load()-requests)}
	warm, err := h.node.run(ctx, im, w.args)
	if err != nil {
		return err
	}
	values["warm"] = warm.End
	for name, v := range values {
		got[name] = append(got[name], v)
	}
	return nil
}

// same compares the digest of the words of a workload's output with the one of the first contender.
func (b *benchmark) same(im image, w workload, c contender, output string) error {
	if b.outputs == nil {
		b.outputs = map[string]string{}
	}
	key := im.name + " " + w.name
	if first, ok := b.outputs[key]; ok && first != output {
		return fmt.Errorf("the output with %s differs: its digest is %.12s, and was %.12s", c.name, output, first)
	}
	b.outputs[key] = output
	return nil
}

// report writes the figures of a workload, and prints a table.
func (b *benchmark) report(p *place, im image, w workload, all []contender, got map[string]measured) error {
	const peer = "full"
	header := []string{""}
	for _, q := range quantities {
		header = append(header, q.title)
	}
	rows := [][]string{append(header, "first output, of full", "run, of full")}
	for _, c := range all {
		row := []string{c.name}
		ratios := map[string]string{}
		for _, q := range quantities {
			f := figures.Figure{Name: fmt.Sprintf("containers/%s/%s/%s/%s/%s", p.network, im.name, w.name, q.name, c.name), Value: quantile.Median(got[c.name][q.name]), Unit: q.unit}
			if base := got[peer]; len(base[q.name]) > 0 && c.name != peer {
				f.Peer, f.Ratio = peer, figures.Lower(f.Value, quantile.Median(base[q.name]))
				ratios[q.name] = fmt.Sprintf("%.1fx sooner", f.Ratio)
				if q.name == "run" && f.Ratio > 0 {
					ratios[q.name] = fmt.Sprintf("%.2f", 1/f.Ratio)
				}
			}
			if q.name == "bytes" && p.link == nil {
				row = append(row, "-")
				continue
			}
			if err := b.Add(f); err != nil {
				return err
			}
			switch q.unit {
			case "s":
				row = append(row, figures.Seconds(f.Value))
			case "B":
				row = append(row, units.Size(int64(f.Value)))
			default:
				row = append(row, fmt.Sprintf("%.0f", f.Value))
			}
		}
		rows = append(rows, append(row, ratios["first"], ratios["run"]))
	}
	text := "loopback"
	if p.link != nil {
		text = fmt.Sprintf("%d Mbit/s and %v round trip", b.rate/1e6, 2*b.delay)
	}
	b.Table(fmt.Sprintf("%s: %s, over %s", im.name, w.name, text), rows)
	return nil
}
