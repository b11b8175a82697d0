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

	"premix/internal/testkit/figures"
	"premix/internal/testkit/workbench"
)

func main() {
	err := func() error {
		// This program executes itself for tasks that need a separate process: on a host,
		// or in a mount namespace.
		if len(os.Args) > 1 {
			if verb, ok := verbs[os.Args[1]]; ok {
				return verb(os.Args[2:])
			}
		}
		return benchMain()
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// verbs are the commands with which this program executes itself.
var verbs = map[string]func(args []string) error{"probe": probeMain, "start": startMain, "pull": pullMain, "opens": opensMain, "names": namesMain, "walk": walkMain, "digest": digestMain}

// part measures some of the figures.
type part struct {
	name string
	run  func(*benchmark, context.Context) error
}

var parts = []part{
	{"warm", (*benchmark).warm},
	{"cold", (*benchmark).cold},
	{"link", (*benchmark).link},
	{"start", (*benchmark).starts},
	{"size", (*benchmark).sizes},
	{"names", (*benchmark).names},
	{"cvmfs", (*benchmark).cvmfs},
	{"neighbours", (*benchmark).neighbours},
}

type options struct {
	work, premix, other, nydus, parts, contenders string

	operations, starts string // selected operations and starts

	reps   int
	nodes  int
	rate   int64
	delay  time.Duration
	window int
}

func benchMain() error {
	var o options
	all := func(n int, name func(i int) string) string {
		var names []string
		for i := range n {
			names = append(names, name(i))
		}
		return strings.Join(names, ",")
	}
	flag.StringVar(&o.work, "work", "bench-work/store", "`directory` for data, peers and results")
	flag.StringVar(&o.premix, "premix", "bin/premix", "the premix to measure")
	flag.StringVar(&o.other, "other", "", "another premix, measured beside it as premix-other, from the same store; empty: none")
	flag.StringVar(&o.nydus, "nydus", "", "`directory` of nydusd and nydus-image, such as ~/.cache/premix/nydus/bin, where scripts/setup.sh nydus builds them; empty: those on PATH, if any")
	flag.StringVar(&o.parts, "parts", all(len(parts), func(i int) string { return parts[i].name }), "what to measure; empty: only prepare")
	flag.StringVar(&o.contenders, "contenders", "", "only these; empty: all that are available")
	flag.StringVar(&o.operations, "operations", all(len(operations), func(i int) string { return operations[i].name }), "operations of warm, cold and link")
	flag.StringVar(&o.starts, "starts", all(len(startCases), func(i int) string { return startCases[i].name }), "starts to measure")
	flag.IntVar(&o.reps, "reps", 5, "repetitions; at most 3 of long measurements")
	flag.IntVar(&o.nodes, "nodes", 40, "nodes of the part neighbours: each takes 100 MB of memory and 30 MB of the disk")
	flag.Int64Var(&o.rate, "rate", 1000, "rate of the link, `Mbit/s`")
	flag.DurationVar(&o.delay, "delay", 10*time.Millisecond, "delay of the link, one way")
	flag.IntVar(&o.window, "initcwnd", 0, "`packets` that a new connection over the link may begin with, at both ends, for all contenders: an operator sets it (ip-route(8)); 0: the kernel's default, 10")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	return o.run(ctx)
}

func (o *options) run(ctx context.Context) error {
	if os.Geteuid() != 0 {
		return errors.New("this benchmark mounts file systems, makes network namespaces and empties the page cache: run it as root")
	}
	var selected []part
	for _, name := range strings.FieldsFunc(o.parts, comma) {
		i := slices.IndexFunc(parts, func(p part) bool { return p.name == name })
		if i < 0 {
			return fmt.Errorf("there is no part %q", name)
		}
		selected = append(selected, parts[i])
	}
	var picked []operation
	for _, name := range strings.FieldsFunc(o.operations, comma) {
		i := slices.IndexFunc(operations, func(op operation) bool { return op.name == name })
		if i < 0 {
			return fmt.Errorf("there is no operation %q", name)
		}
		picked = append(picked, operations[i])
	}
	var cases []startCase
	for _, name := range strings.FieldsFunc(o.starts, comma) {
		i := slices.IndexFunc(startCases, func(c startCase) bool { return c.name == name })
		if i < 0 {
			return fmt.Errorf("there is no start %q", name)
		}
		cases = append(cases, startCases[i])
	}
	shared, err := workbench.Open(o.work)
	if err != nil {
		return err
	}
	defer shared.Close()
	l := &lab{shared}
	r, err := figures.Open(filepath.Join(l.Dir, "results.jsonl"), os.Stdout)
	if err != nil {
		return err
	}
	defer r.Close()
	fmt.Fprintln(r.Human, figures.Machine(l.Dir))
	b := &benchmark{Results: r, lab: l, operations: picked, cases: cases, reps: o.reps, nodes: o.nodes, rate: o.rate * 1e6, delay: o.delay, window: o.window}
	if b.contenders, err = l.contenders(ctx, o); err != nil {
		return err
	}
	for _, p := range selected {
		l.Log("measuring: %s", p.name)
		if err := p.run(b, ctx); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	return nil
}

func comma(r rune) bool { return r == ',' }

// benchmark is the state that the parts share.
type benchmark struct {
	*figures.Results
	lab        *lab
	contenders []contender
	operations []operation
	cases      []startCase
	reps       int
	nodes      int
	rate       int64 // bit/s
	delay      time.Duration
	window     int // initial congestion window, in packets; 0: the kernel's default
}
