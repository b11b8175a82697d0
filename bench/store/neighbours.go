package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sync/errgroup"

	"premix/internal/kit/quantile"
	"premix/internal/testkit/figures"
	"premix/internal/testkit/netrelay"
	"premix/internal/testkit/ports"
	"premix/internal/testkit/workbench"
)

// Sizes of the tree that all nodes start: about the bytes that a start of numpy reads.
const (
	sharedFiles    = 48
	sharedFileSize = 512 << 10
)

// shared returns a tree of random bytes, and the digest that digestMain prints for it.
func (l *lab) shared() (t tree, digest string, err error) {
	t = tree{name: "shared"}
	t.dir, err = l.Once("shared", func(path string) error {
		if err := os.Mkdir(path, 0o755); err != nil {
			return err
		}
		random := rand.NewChaCha8([32]byte{7})
		for i := range sharedFiles {
			content := make([]byte, sharedFileSize)
			random.Read(content)
			if err := os.WriteFile(filepath.Join(path, fmt.Sprintf("file%02d", i)), content, 0o644); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		digest, err = digestOf(t.dir)
	}
	return t, digest, err
}

// neighbours measures nodes that mount one tree and read all of it at the same time. They are
// at the near end of the link, with an empty cache and a home each, and the origin is at the
// far end.
func (b *benchmark) neighbours(ctx context.Context) error {
	m := b.premix()
	if m == nil {
		return errors.New("premix does not take part")
	}
	t, digest, err := b.lab.shared()
	if err != nil {
		return err
	}
	if err := m.prepare(ctx, t, ""); err != nil {
		return err
	}
	l, o, err := b.newLink()
	if err != nil {
		return err
	}
	defer l.Close()
	defer o.Close()
	s := &site{b: b, m: m, tree: t, digest: digest, link: l, origin: o}
	one, err := s.run(ctx, 1, false)
	if err != nil {
		return err
	}
	variants := []string{"neighbours", "apart"}
	got := map[string][]outcome{}
	for range min(b.reps, 3) {
		for _, v := range variants {
			r, err := s.run(ctx, b.nodes, v == "neighbours")
			if err != nil && v == "apart" && ctx.Err() == nil {
				b.lab.Log("%d nodes, apart: not all could read all: %.200s", b.nodes, err)
				continue
			}
			if err != nil {
				return fmt.Errorf("%s: %w", v, err)
			}
			b.lab.Log("%d nodes, %s: %.1f MB in %d requests, %.1f s, %d neighbours left out", b.nodes, v, r.bytes/1e6, r.requests, r.seconds, r.leftOut)
			got[v] = append(got[v], r)
		}
	}
	rows := [][]string{{"", "from the origin", "images", "requests", "all have read all"}}
	median := func(v string, of func(outcome) float64) float64 {
		var list []float64
		for _, r := range got[v] {
			list = append(list, of(r))
		}
		return quantile.Median(list)
	}
	size := func(r outcome) float64 { return r.bytes }
	took := func(r outcome) float64 { return r.seconds }
	requests := func(r outcome) float64 { return float64(r.requests) }
	for _, v := range variants {
		if len(got[v]) == 0 {
			rows = append(rows, []string{v, "-", "-", "-", "reads failed"})
			continue
		}
		name := fmt.Sprintf("neighbours/%d/", b.nodes)
		f := []figures.Figure{
			{Name: name + "bytes/" + v, Value: median(v, size), Unit: "B"},
			{Name: name + "images/" + v, Value: median(v, size) / one.bytes, Unit: "images"},
			{Name: name + "requests/" + v, Value: median(v, requests), Unit: "requests"},
			{Name: name + "time/" + v, Value: median(v, took), Unit: "s"},
		}
		if v == "neighbours" && len(got["apart"]) > 0 {
			f[0].Peer, f[0].Ratio = "apart", figures.Lower(f[0].Value, median("apart", size))
			f[3].Peer, f[3].Ratio = "apart", figures.Lower(f[3].Value, median("apart", took))
		}
		for _, f := range f {
			if err := b.Add(f); err != nil {
				return err
			}
		}
		rows = append(rows, []string{v, fmt.Sprintf("%.1f MB", f[0].Value/1e6), fmt.Sprintf("%.2f", f[1].Value), fmt.Sprintf("%.0f", f[2].Value), figures.Seconds(f[3].Value)})
	}
	b.Table(fmt.Sprintf("%d nodes that read one tree of %.1f MB, with an origin at %s, on %d processors", b.nodes, one.bytes/1e6, b.linkText(), runtime.NumCPU()), rows)
	return nil
}

// premix returns the first contender that is premix, or nil.
func (b *benchmark) premix() *premixMount {
	for _, c := range b.contenders {
		if p, ok := c.(*premixMount); ok {
			return p
		}
	}
	return nil
}

// site is where nodes run.
type site struct {
	b      *benchmark
	m      *premixMount
	tree   tree
	digest string
	link   *netrelay.Link
	origin *workbench.Origin
}

// outcome is the result of one run of all nodes.
type outcome struct {
	bytes    float64 // from the origin, on the link
	requests int64   // to the origin
	seconds  float64
	leftOut  int // neighbours that were left out for a while, of all nodes
}

// run starts n nodes, lets them mount and read the tree, compares every byte, and stops them.
func (s *site) run(ctx context.Context, n int, together bool) (r outcome, err error) {
	scratch, err := s.b.lab.Scratch()
	if err != nil {
		return r, err
	}
	homes := make([]string, n)
	started := make([]bool, n)
	defer func() {
		var all errgroup.Group
		all.SetLimit(8)
		for i, home := range homes {
			if started[i] {
				all.Go(func() error {
					return workbench.Run(s.link.B, s.m.command(context.Background(), home, "node", "stop", "--lazy"))
				})
			}
		}
		err = errors.Join(err, all.Wait(), os.RemoveAll(scratch))
	}()
	token := filepath.Join(scratch, "token")
	if err := os.WriteFile(token, []byte("0123456789abcdef-of-this-site\n"), 0o600); err != nil {
		return r, err
	}
	var free []int
	if err := s.link.B.Do(func() (err error) { free, err = ports.Free(n); return err }); err != nil {
		return r, err
	}
	var list []string
	for _, p := range free {
		list = append(list, fmt.Sprintf("127.0.0.1:%d", p))
	}
	var starting errgroup.Group
	starting.SetLimit(8)
	for i := range homes {
		homes[i] = filepath.Join(scratch, fmt.Sprintf("node%03d", i))
		if err := os.MkdirAll(filepath.Join(homes[i], "mnt"), 0o755); err != nil {
			return r, err
		}
		started[i] = true
		starting.Go(func() error {
			args := []string{"node", "start"}
			if together {
				args = append(args, "--neighbours", strings.Join(list, ","), "--neighbours-listen", list[i], "--neighbours-token-file", token)
			}
			return workbench.Run(s.link.B, s.m.command(ctx, homes[i], args...))
		})
	}
	if err := starting.Wait(); err != nil {
		return r, err
	}
	asked := s.origin.Requests.Load()
	before, _ := s.link.Counters()
	begin := now()
	var all errgroup.Group
	for _, home := range homes {
		all.Go(func() error { return s.read(ctx, home) })
	}
	if err := all.Wait(); err != nil {
		return r, err
	}
	r.seconds = since(begin)
	after, _ := s.link.Counters()
	r.bytes, r.requests = float64(after.Bytes-before.Bytes), s.origin.Requests.Load()-asked
	for _, home := range homes {
		text, err := os.ReadFile(filepath.Join(home, "run", "log"))
		if err != nil {
			return r, err
		}
		r.leftOut += bytes.Count(text, []byte("a neighbour is left out"))
	}
	return r, nil
}

// read mounts the tree by one node, and reads all of it.
func (s *site) read(ctx context.Context, home string) error {
	mnt := filepath.Join(home, "mnt")
	if err := workbench.Run(s.link.B, s.m.command(ctx, home, "mount", "--origin", s.origin.URL+"/premix", "--eager", "bench/"+s.tree.name, mnt)); err != nil {
		return err
	}
	cmd := workbench.Command(ctx, os.Args[0], "digest", mnt)
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := workbench.Run(nil, cmd); err != nil {
		log, _ := os.ReadFile(filepath.Join(home, "run", "log")) // an addition to the error
		return fmt.Errorf("%w\n%s", err, log)
	}
	var got string
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		return err
	}
	if got != s.digest {
		return fmt.Errorf("%s shows other bytes than were published", home)
	}
	return nil
}

// digestMain is `digest DIR`. It prints a digest of the names and contents of all files.
func digestMain(args []string) error {
	if len(args) != 1 {
		return errors.New("usage: digest DIR")
	}
	d, err := digestOf(args[0])
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(d)
}

func digestOf(dir string) (string, error) {
	h := sha256.New()
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		fmt.Fprintf(h, "%q\n", e.Name())
		_, err = io.Copy(h, f)
		return err
	})
	return fmt.Sprintf("%x", h.Sum(nil)), err
}
