package main

import (
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/kit/quantile"
	"premix/internal/testkit/figures"
)

//go:embed peers/walk.c
var walkSource []byte

func main() {
	if err := benchMain(); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// contender is a program that walks through the tree.
type contender struct {
	name string
	args []string
}

func benchMain() error {
	work := flag.String("work", "bench-work/files", "`directory` for the tree, peers and results")
	premix := flag.String("premix", "bin/premix", "the premix to measure")
	count := flag.Int("files", 2_000_000, "files in the tree; 0: none")
	reps := flag.Int("reps", 5, "repetitions")
	rows := flag.Int("rows", 100_000_000, "rows of the scan for measuring rules; 0: none")
	small := flag.Int("small", 5000, "files of 4 KB to write, and pieces to append, natively, through a mount of tiers and through peers; 0: none")
	threads := flag.Int("threads", 2, "threads of the loop")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	dir, err := filepath.Abs(*work)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	results, err := figures.Open(filepath.Join(dir, "results.jsonl"), os.Stdout)
	if err != nil {
		return err
	}
	defer results.Close()
	fmt.Println(figures.Machine(dir))
	if *rows > 0 {
		if err := rules(ctx, results, dir, *premix, *rows, *reps); err != nil {
			return err
		}
	}
	if *small > 0 {
		if err := tierWrites(ctx, results, dir, *premix, *small, *reps); err != nil {
			return err
		}
	}
	if *count == 0 {
		return nil
	}
	tree := filepath.Join(dir, "tree-"+strconv.Itoa(*count))
	if err := grow(ctx, tree, *count); err != nil {
		return err
	}
	list, err := contenders(ctx, dir, tree, *premix, *threads)
	if err != nil {
		return err
	}
	return measure(ctx, results, list, *count, *reps)
}

// grow makes the tree, unless it exists.
func grow(ctx context.Context, tree string, count int) error {
	if _, err := os.Stat(tree); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	tmp := tree + ".tmp"
	if err := os.RemoveAll(tmp); err != nil {
		return err
	}
	fmt.Printf("making %d files, once\n", count)
	r := rand.New(rand.NewPCG(1, 1))
	content := make([]byte, 400)
	for made, n := 0, 0; made < count; n++ {
		dir := filepath.Join(tmp, fmt.Sprintf("run%d/sample%d/step%d", n/400, n/20%20, n%20))
		if err := os.MkdirAll(dir, 0o777); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		many := 1 + r.IntN(10)
		if r.IntN(4) == 0 {
			many = 1 + r.IntN(1000)
		}
		for i := range min(many, count-made) {
			made++
			size := 0
			if r.IntN(2) == 0 {
				size = 1 + r.IntN(len(content))
			}
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("scatter.%04d.of.1000.done", i)), content[:size], 0o666); err != nil {
				return err
			}
		}
	}
	return os.Rename(tmp, tree)
}

// contenders returns the contenders that are installed.
func contenders(ctx context.Context, dir, tree, premix string, threads int) ([]contender, error) {
	loop, source := filepath.Join(dir, "walk"), filepath.Join(dir, "walk.c")
	if err := os.WriteFile(source, walkSource, 0o666); err != nil {
		return nil, err
	}
	if out, err := exec.CommandContext(ctx, "cc", "-O2", "-o", loop, source, "-lpthread").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("cc: %w\n%s", err, out)
	}
	premix, err := filepath.Abs(premix)
	if err != nil {
		return nil, err
	}
	scan, rule := filepath.Join(dir, "scan.parquet"), filepath.Join(dir, "large.sql")
	if err := os.WriteFile(rule, []byte("RULE 'large' DELETE WHERE size > 1000000;\n"), 0o666); err != nil {
		return nil, err
	}
	list := []contender{
		{"loop", []string{loop, strconv.Itoa(threads), tree}},
		{"premix", []string{premix, "files", "scan", tree, "-o", scan}},
		{"premix_find", []string{premix, "files", "find", scan, "--where", "size > 1000000"}},
		{"premix_policy", []string{premix, "files", "policy", rule, scan, "--dry-run"}},
		{"premix_candidates", []string{premix, "files", "policy", rule, scan, "--candidates", scan, "--dry-run"}},
		{"find", []string{"find", tree, "-size", "+1000000c"}},
		{"du", []string{"du", "-s", tree}},
		{"fd", []string{"fdfind", "-u", "--size", "+1G", ".", tree}},
	}
	have := list[:0]
	for _, c := range list {
		if _, err := exec.LookPath(c.args[0]); err != nil {
			fmt.Printf("%s is left out: %v\n", c.name, err)
			continue
		}
		have = append(have, c)
	}
	return have, nil
}

func measure(ctx context.Context, results *figures.Results, list []contender, count, reps int) error {
	wall, cpu := make(map[string][]float64), make(map[string][]float64)
	for rep := range reps + 1 { // the first repetition brings the tree into memory
		for _, c := range list {
			cmd := exec.CommandContext(ctx, c.args[0], c.args[1:]...)
			started := time.Now()
			out, err := cmd.CombinedOutput()
			took := time.Since(started).Seconds()
			if err != nil {
				return fmt.Errorf("%s: %w\n%s", strings.Join(c.args, " "), err, out)
			}
			if rep > 0 {
				wall[c.name] = append(wall[c.name], took)
				cpu[c.name] = append(cpu[c.name], (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds())
			}
		}
	}
	rows := [][]string{{"", "time", "files a second", "CPU time", "against the loop", "against find"}}
	median := func(name string) float64 { return quantile.Median(wall[name]) }
	for _, c := range list {
		f := figures.Figure{Name: fmt.Sprintf("files/%d/%s", count, c.name), Value: median(c.name), Unit: "s"}
		loop, find := figures.Lower(f.Value, median("loop")), 0.0
		if wall["find"] != nil {
			find = figures.Lower(f.Value, median("find"))
		}
		if c.name != "loop" {
			f.Peer, f.Ratio = fmt.Sprintf("files/%d/loop", count), loop
		}
		if err := results.Add(f); err != nil {
			return err
		}
		rows = append(rows, []string{c.name, figures.Seconds(f.Value), fmt.Sprintf("%.0f", float64(count)/f.Value),
			figures.Seconds(quantile.Median(cpu[c.name])), figures.Times(loop), figures.Times(find)})
	}
	results.Table(fmt.Sprintf("%d files, all in the page cache, medians of %d", count, reps), rows)
	return nil
}
