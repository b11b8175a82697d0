package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"

	"premix/internal/figures"
	"premix/internal/netrelay"
	"premix/internal/workbench"
)

// place is where a workload is measured.
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

// measured are the repetitions of a workload with a contender: seconds, bytes and
// requests, by what was measured.
type measured map[string][]float64

// quantities are what is measured, with their units, in the order of the table.
var quantities = []struct{ name, unit, title string }{
	{"pull", "s", "pull"},
	{"first", "s", "pull and first output"},
	{"run", "s", "run, cold"},
	{"warm", "s", "run, warm"},
	{"bytes", "B", "bytes"},
	{"requests", "requests", "requests"},
}

// workload measures a workload with all contenders.
func (b *benchmark) workload(ctx context.Context, p *place, im image, w workload, all []contender) error {
	got := map[string]measured{}
	for _, c := range all {
		got[c.name] = measured{}
	}
	for rep := range b.reps {
		for _, c := range all {
			if c.store == profiledStore {
				if err := b.profiled(ctx, im, w); err != nil {
					return err
				}
			}
			if err := b.once(ctx, p, im, w, c, got[c.name]); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			first := got[c.name]["first"]
			b.lab.Log("%s %s %s: %s, %d: %s", p.network, im.name, w.name, c.name, rep+1, figures.Seconds(first[len(first)-1]))
		}
	}
	return b.report(p, im, w, all, got)
}

// once measures one workload on a node that has nothing.
func (b *benchmark) once(ctx context.Context, p *place, im image, w workload, c contender, got measured) (err error) {
	// What the server has to read is in its page cache, as that of a busy one.
	served := c.store
	if served == "" {
		served = c.image(im)
	}
	if err := workbench.Run(nil, exec.Command("sh", "-c", `find -L "$1" -type f -exec cat {} + >/dev/null`, "sh", filepath.Join(b.lab.Dir, "served", served))); err != nil {
		return err
	}
	n, err := b.newNode(ctx, c, p.client, p.origin)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	bytes, requests := p.bytes(), p.origin.Requests.Load()
	pull, err := n.pull(ctx, im)
	if err != nil {
		return err
	}
	cold, err := n.run(ctx, im, w.args)
	if err != nil {
		return err
	}
	values := map[string]float64{"pull": pull, "first": pull + cold.First, "run": cold.End,
		"bytes": p.bytes() - bytes, "requests": float64(p.origin.Requests.Load() - requests)}
	warm, err := n.run(ctx, im, w.args)
	if err != nil {
		return err
	}
	values["warm"] = warm.End
	for name, v := range values {
		got[name] = append(got[name], v)
	}
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
			f := figures.Figure{Name: fmt.Sprintf("containers/%s/%s/%s/%s/%s", p.network, im.name, w.name, q.name, c.name), Value: figures.Median(got[c.name][q.name]), Unit: q.unit}
			if base := got[peer]; len(base[q.name]) > 0 && c.name != peer {
				f.Peer, f.Ratio = peer, figures.Lower(f.Value, figures.Median(base[q.name]))
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
				row = append(row, figures.Size(f.Value))
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
