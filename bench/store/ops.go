package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"premix/internal/kit/quantile"
	"premix/internal/kit/units"
	"premix/internal/testkit/figures"
	"premix/internal/testkit/netrelay"
	"premix/internal/testkit/workbench"
)

// Counts for random operations, and for operations on a part of the files.
const (
	warmRounds = 6
	warmRandom = 200000
	coldRandom = 2000
	linkRandom = 300
	linkFiles  = 2000
)

// local reports whether a contender reads from this machine's disk: for it, cold means an
// empty page cache.
func local(c contender) bool {
	return slices.Contains([]string{"native", "overlayfs", "erofs"}, c.name())
}

// chill makes everything cold for a contender. A contender that fetches has a new mount
// and a new cache in every repetition; for it, chill brings the served files into the
// page cache, so that the disk of the origin does not count.
func (b *benchmark) chill(c contender) error {
	if local(c) {
		return workbench.DropCaches()
	}
	served := filepath.Join(b.lab.Dir, "served", strings.TrimSuffix(strings.TrimSuffix(c.name(), "-fuse"), "-other"))
	return workbench.Run(nil, exec.Command("sh", "-c", `find -L "$1" -type f -exec cat {} + >/dev/null`, "sh", served))
}

// with opens a contender, mounts the tree and unmounts it when f has returned.
func (b *benchmark) with(ctx context.Context, c contender, p place, f func(dir string) error) (err error) {
	if p.scratch, err = b.lab.Scratch(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(p.scratch)) }()
	s, err := c.open(ctx, p)
	if err != nil {
		return fmt.Errorf("%s: %w", c.name(), err)
	}
	defer func() { err = errors.Join(err, s.close()) }()
	dir, err := s.mount(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", c.name(), err)
	}
	return f(dir)
}

// probed does an operation in a separate process, in one directory after the other, and
// returns a rate for each. If there are several rounds, the first only warms the caches,
// and the median of the others counts. Directories and the list of files are absolute
// paths.
func probed(ctx context.Context, h *netrelay.Host, op operation, t tree, dirs []string, rounds, count, files int) ([]float64, error) {
	args := []string{"probe", "-op", op.name, "-n", strconv.Itoa(rounds), "-paths", t.paths,
		"-count", strconv.Itoa(count), "-files", strconv.Itoa(files)}
	cmd := workbench.Command(ctx, os.Args[0], append(args, dirs...)...)
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := workbench.Run(h, cmd); err != nil {
		return nil, err
	}
	var rates [][]float64
	if err := json.Unmarshal(out.Bytes(), &rates); err != nil || len(rates) != len(dirs) {
		return nil, fmt.Errorf("probe printed %q: %w", out.String(), err)
	}
	var medians []float64
	for _, of := range rates {
		if len(of) > 1 {
			of = of[1:]
		}
		medians = append(medians, quantile.Median(of))
	}
	return medians, nil
}

// probedOnce returns the rate of an operation that is done once in a directory.
func probedOnce(ctx context.Context, h *netrelay.Host, op operation, t tree, dir string, count, files int) (float64, error) {
	rates, err := probed(ctx, h, op, t, []string{dir}, 1, count, files)
	if err != nil {
		return 0, err
	}
	return rates[0], nil
}

// mounting returns the contenders that show a tree without unpacking it first, and
// native.
func (b *benchmark) mounting() []contender {
	return slices.DeleteFunc(slices.Clone(b.contenders), func(c contender) bool { return c.name() == "pull" })
}

// rates are the measured rates: by operation, then by contender.
type rates map[string]map[string][]float64

func (r rates) add(op, contender string, rate float64) {
	if r[op] == nil {
		r[op] = map[string][]float64{}
	}
	r[op][contender] = append(r[op][contender], rate)
}

// report writes the figures of operations, and prints a table with their ratios
// to native.
func (b *benchmark) report(prefix, title, peer string, got rates, names []string) error {
	rows := [][]string{append([]string{""}, names...)}
	for _, op := range operations {
		if got[op.name] == nil {
			continue
		}
		base := 0.0
		if values := got[op.name][peer]; len(values) > 0 {
			base = quantile.Median(values)
		}
		row := []string{op.name}
		for _, name := range names {
			values := got[op.name][name]
			if len(values) == 0 {
				row = append(row, "-")
				continue
			}
			f := figures.Figure{Name: prefix + "/" + op.name + "/" + name, Value: quantile.Median(values), Unit: op.unit}
			text := fmt.Sprintf("%.3g/s", f.Value)
			if op.unit == "B/s" {
				text = units.Size(int64(f.Value)) + "/s"
			}
			if name != peer && base > 0 {
				f.Peer, f.Ratio = peer, figures.Higher(f.Value, base)
				text += fmt.Sprintf(" (%.2f)", f.Ratio)
			}
			if err := b.Add(f); err != nil {
				return err
			}
			row = append(row, text)
		}
		rows = append(rows, row)
	}
	b.Table(title, rows)
	return nil
}

func namesOf(all []contender) []string {
	var names []string
	for _, c := range all {
		names = append(names, c.name())
	}
	return names
}

// prepared makes the tree of files, and prepares all contenders that mount it.
func (b *benchmark) prepared(ctx context.Context, all []contender) (tree, error) {
	t, err := b.lab.files()
	if err != nil {
		return t, err
	}
	for _, c := range all {
		if err := c.prepare(ctx, t, ""); err != nil {
			return t, fmt.Errorf("%s: %w", c.name(), err)
		}
	}
	return t, nil
}

// cold measures first reads with the origin on loopback.
func (b *benchmark) cold(ctx context.Context) error {
	all := b.mounting()
	t, err := b.prepared(ctx, all)
	if err != nil {
		return err
	}
	o, err := b.lab.Serve(nil)
	if err != nil {
		return err
	}
	defer o.Close()
	got := rates{}
	for rep := range min(b.reps, 3) {
		for _, op := range b.operations {
			for _, c := range all {
				if err := b.chill(c); err != nil {
					return err
				}
				if err := b.with(ctx, c, place{tree: t, origin: o.URL}, func(dir string) error {
					rate, err := probedOnce(ctx, nil, op, t, dir, coldRandom, smallFiles)
					b.lab.Log("cold %s: %s, %d: %.4g", op.name, c.name(), rep+1, rate)
					got.add(op.name, c.name(), rate)
					return err
				}); err != nil {
					return fmt.Errorf("%s: %s: %w", op.name, c.name(), err)
				}
			}
		}
	}
	return b.report("cold", "Cold: nothing cached, origin on loopback (ratio to native from disk)", "native", got, namesOf(all))
}

// warm measures second reads, with all contenders mounted at the same time.
func (b *benchmark) warm(ctx context.Context) error {
	all := b.mounting()
	t, err := b.prepared(ctx, all)
	if err != nil {
		return err
	}
	o, err := b.lab.Serve(nil)
	if err != nil {
		return err
	}
	defer o.Close()
	got := rates{}
	if err := b.together(ctx, all, place{tree: t, origin: o.URL}, nil, func(dirs []string) error {
		for rep := range b.reps {
			for _, op := range b.operations {
				rates, err := probed(ctx, nil, op, t, dirs, warmRounds, warmRandom, smallFiles)
				if err != nil {
					return fmt.Errorf("%s: %w", op.name, err)
				}
				for i, c := range all {
					b.lab.Log("warm %s: %s, %d: %.4g", op.name, c.name(), rep+1, rates[i])
					got.add(op.name, c.name(), rates[i])
				}
			}
		}
		return nil
	}); err != nil {
		return err
	}
	return b.report("warm", "Warm (ratio to native)", "native", got, namesOf(all))
}

// together mounts the tree with all of the contenders, and unmounts it when f has
// returned.
func (b *benchmark) together(ctx context.Context, all []contender, p place, dirs []string, f func(dirs []string) error) error {
	if len(dirs) == len(all) {
		return f(dirs)
	}
	return b.with(ctx, all[len(dirs)], p, func(dir string) error {
		return b.together(ctx, all, p, append(dirs, dir), f)
	})
}

// newLink makes the network of the parts that need one, with the origin at its far end.
func (b *benchmark) newLink() (*netrelay.Link, *workbench.Origin, error) {
	l, err := netrelay.New(netrelay.Options{Rate: b.rate, Delay: b.delay, Offload: true})
	if err != nil {
		return nil, nil, err
	}
	if b.window > 0 {
		for _, h := range []*netrelay.Host{l.A, l.B} {
			n := strconv.Itoa(b.window)
			if err := workbench.Run(h, exec.Command("sh", "-c", `ip route change $(ip route show | head -n 1) initcwnd "$1" initrwnd "$1"`, "sh", n)); err != nil {
				l.Close()
				return nil, nil, err
			}
		}
	}
	o, err := b.lab.Serve(l.A)
	if err != nil {
		l.Close()
		return nil, nil, err
	}
	return l, o, nil
}

func (b *benchmark) linkText() string {
	text := fmt.Sprintf("%d Mbit/s and %v round trip", b.rate/1e6, 2*b.delay)
	if b.window > 0 {
		text += fmt.Sprintf(", connections beginning with %d packets", b.window)
	}
	return text
}

// link measures cold reads over the link, against a download of the same bytes.
func (b *benchmark) link(ctx context.Context) error {
	all := slices.DeleteFunc(b.mounting(), local)
	t, err := b.prepared(ctx, all)
	if err != nil {
		return err
	}
	if _, err := b.lab.Once("served/plain", func(path string) error {
		if err := os.Mkdir(path, 0o755); err != nil {
			return err
		}
		return os.Symlink(filepath.Join(t.dir, bigFile), filepath.Join(path, bigFile))
	}); err != nil {
		return err
	}
	l, o, err := b.newLink()
	if err != nil {
		return err
	}
	defer l.Close()
	defer o.Close()
	at := place{tree: t, origin: o.URL, client: l.B}
	const plain = "download"
	got := rates{}
	var requests [][]string
	for rep := range min(b.reps, 3) {
		rate, err := b.downloaded(ctx, l.B, o.URL+"/plain/"+bigFile)
		if err != nil {
			return err
		}
		b.lab.Log("%s: %s/s", plain, units.Size(int64(rate)))
		got.add("sequential", plain, rate)
		for _, op := range b.operations {
			if !slices.Contains([]string{"read-small", "sequential", "random-4k"}, op.name) {
				continue
			}
			for _, c := range all {
				if err := b.chill(c); err != nil {
					return err
				}
				before, _ := l.Counters()
				asked := o.Requests.Load()
				if err := b.with(ctx, c, at, func(dir string) error {
					rate, err := probedOnce(ctx, l.B, op, t, dir, linkRandom, linkFiles)
					got.add(op.name, c.name(), rate)
					b.lab.Log("link %s: %s, %d: %.4g", op.name, c.name(), rep+1, rate)
					return err
				}); err != nil {
					return fmt.Errorf("%s: %s: %w", op.name, c.name(), err)
				}
				after, _ := l.Counters()
				if rep == 0 {
					wire, n := float64(after.Bytes-before.Bytes), float64(o.Requests.Load()-asked)
					name := "link/" + op.name + "/" + c.name()
					if err := errors.Join(b.Add(figures.Figure{Name: name + "/bytes", Value: wire, Unit: "B"}),
						b.Add(figures.Figure{Name: name + "/requests", Value: n, Unit: "requests"})); err != nil {
						return err
					}
					requests = append(requests, []string{op.name, c.name(), units.Size(int64(wire)), fmt.Sprint(n)})
				}
			}
		}
	}
	title := "Cold over " + b.linkText()
	if err := b.report("link", title+" (sequential: ratio to a plain download)", plain, got, append([]string{plain}, namesOf(all)...)); err != nil {
		return err
	}
	b.Table(title+": cost", append([][]string{{"", "", "bytes", "requests"}}, requests...))
	return nil
}

// downloaded returns the rate of a plain download to a file.
func (b *benchmark) downloaded(ctx context.Context, h *netrelay.Host, url string) (float64, error) {
	if err := workbench.Run(nil, exec.Command("sh", "-c", `cat "$1" >/dev/null`, "sh", filepath.Join(b.lab.Dir, "served/plain", bigFile))); err != nil {
		return 0, err
	}
	dir, err := b.lab.Scratch()
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	begin := now()
	if err := workbench.Run(h, workbench.Command(ctx, os.Args[0], "pull", url, filepath.Join(dir, "got"))); err != nil {
		return 0, err
	}
	return bigSize / since(begin), nil
}
