package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/kit/quantile"
	"premix/internal/kit/units"
	"premix/internal/testkit/figures"
	"premix/internal/testkit/netrelay"
	"premix/internal/testkit/workbench"
)

func main() {
	var err error
	if len(os.Args) == 3 && os.Args[1] == firstArg {
		err = first(os.Stdin, os.Args[2])
	} else {
		err = benchMain()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// contenders in the order in which they take turns. The first is the peer.
var contenders = []string{"full", "cold", "hot", "hot+profile", "hot+profile+all"}

func benchMain() error {
	work := flag.String("work", "bench-work/travel", "`directory` for image, index, snapshot and results")
	premix := flag.String("premix", "bin/premix", "the premix to measure")
	builder := flag.String("image", "examples/recipes/image/build.sh", "script that adds an image of Debian packages to a store")
	reps := flag.Int("reps", 3, "repetitions")
	bases := flag.Int("bases", 170_000_000, "size of the genome")
	rate := flag.Int64("rate", 1000, "rate of the link, `Mbit/s`")
	delay := flag.Duration("delay", 10*time.Millisecond, "delay of the link, one way")
	only := flag.String("contenders", strings.Join(contenders, ","), "what is measured")
	flag.Parse()
	if os.Geteuid() != 0 {
		return errors.New("this benchmark runs containers and makes namespaces: run it as root")
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	lab, err := workbench.Open(*work)
	if err != nil {
		return err
	}
	defer lab.Close()
	b := &benchmark{Lab: lab, bases: *bases}
	for path, file := range map[*string]string{&b.premix: *premix, &b.builder: *builder} {
		if *path, err = filepath.Abs(file); err != nil {
			return err
		}
	}
	if b.self, err = os.Executable(); err != nil {
		return err
	}
	if err := b.prepare(ctx); err != nil {
		return err
	}
	results, err := figures.Open(filepath.Join(lab.Dir, "results.jsonl"), os.Stdout)
	if err != nil {
		return err
	}
	defer results.Close()
	b.link, err = netrelay.New(netrelay.Options{Rate: *rate * 1e6, Delay: *delay, Offload: true})
	if err != nil {
		return err
	}
	defer b.link.Close()
	if b.origin, err = lab.Serve(b.link.A); err != nil {
		return err
	}
	defer b.origin.Close()
	measured := map[string][]run{}
	names := strings.Split(*only, ",")
	for rep := range *reps {
		for _, name := range names {
			if !slices.Contains(contenders, name) {
				return fmt.Errorf("there is no contender %s: they are %s", name, strings.Join(contenders, ", "))
			}
			lab.Log("%s, %d of %d", name, rep+1, *reps)
			r, err := b.measure(ctx, name)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			lab.Log("  first aligned read after %s, %s fetched", figures.Seconds(r.seconds), units.Size(int64(r.fetched)))
			measured[name] = append(measured[name], r)
		}
	}
	return b.tell(results, names, measured)
}

// tell prints the medians and records them as figures.
func (b *benchmark) tell(results *figures.Results, names []string, measured map[string][]run) error {
	median := func(name string, of func(run) float64) float64 {
		var values []float64
		for _, r := range measured[name] {
			values = append(values, of(r))
		}
		return quantile.Median(values)
	}
	seconds, fetched := func(r run) float64 { return r.seconds }, func(r run) float64 { return float64(r.fetched) }
	rows := [][]string{{"", "first aligned read", "against full", "fetched by then", "all of the sample"}}
	for _, name := range names {
		f := figures.Figure{Name: "travel/first/" + name, Value: median(name, seconds), Unit: "s"}
		row := []string{name, figures.Seconds(f.Value), "", units.Size(int64(median(name, fetched))), figures.Seconds(median(name, func(r run) float64 { return r.whole }))}
		if peer := contenders[0]; name != peer && len(measured[peer]) > 0 {
			f.Peer, f.Ratio = peer, figures.Lower(f.Value, median(peer, seconds))
			row[2] = figures.Times(f.Ratio)
		}
		rows = append(rows, row)
		err := errors.Join(results.Add(f),
			results.Add(figures.Figure{Name: "travel/fetched/" + name, Value: median(name, fetched), Unit: "B"}),
			results.Add(figures.Figure{Name: "travel/whole/" + name, Value: median(name, func(r run) float64 { return r.whole }), Unit: "s"}))
		if err != nil {
			return err
		}
	}
	results.Table(fmt.Sprintf("minimap2 in an image, index of %s, on an empty node (%s)", units.Size(int64(b.index)), figures.Machine(b.Dir)), rows)
	return nil
}
