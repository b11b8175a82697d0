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
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/hotstart"
	"premix/internal/kit/lock"
	"premix/internal/testkit/figures"
)

func main() {
	// The starters execute this program again for their supervisors.
	if len(os.Args) > 1 && os.Args[1] == hotstart.SupervisorArg {
		os.Exit(hotstart.SupervisorMain())
	}
	if err := benchMain(); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

type options struct {
	work, tools, references, parts, sizes, rates, premix string

	reps   int
	counts readCounts
}

func benchMain() error {
	var o options
	flag.StringVar(&o.work, "work", "bench-work", "`directory` for data, snapshots and results")
	flag.StringVar(&o.tools, "tools", strings.Join(toolOrder, ","), "tools to measure; empty: none")
	flag.StringVar(&o.references, "references", "yeast,large", "references for the tools")
	flag.StringVar(&o.sizes, "synth", "256,1024,3072,8192", "sizes of the synthetic process, `MiB`; empty: none")
	flag.StringVar(&o.parts, "parts", "start,peers,memory,rate,storage,auto", "parts to measure; empty: prepare the data only")
	flag.StringVar(&o.rates, "storage", "30,110,500", "speeds of storage, `MB/s`; 0: unchanged")
	flag.StringVar(&o.premix, "premix", "bin/premix", "the premix that makes runs")
	flag.IntVar(&o.reps, "reps", 5, "repetitions; at most 3 of long measurements")
	flag.IntVar(&o.counts.start, "start-reads", 2000, "records of the sample that shows the start")
	flag.IntVar(&o.counts.short, "short-reads", 20000, "records of the shorter of the samples that show the mapping rate")
	flag.IntVar(&o.counts.long, "long-reads", 100000, "records of the longer one")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	return o.run(ctx)
}

func (o *options) run(ctx context.Context) error {
	selected, err := pick(o.parts)
	if err != nil {
		return err
	}
	if os.Geteuid() != 0 && slices.ContainsFunc(selected, func(p part) bool { return p.name == "storage" }) {
		return errors.New("the part storage throttles storage: run it as root, or leave it out with -parts")
	}
	rates, err := numbers(o.rates)
	if err != nil {
		return err
	}
	for i := range rates {
		rates[i] *= 1e6
	}
	premix, err := filepath.Abs(o.premix)
	if err != nil {
		return err
	}
	work, err := filepath.Abs(o.work)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(work, 0o755); err != nil {
		return err
	}
	if work, err = filepath.EvalSymlinks(work); err != nil {
		return err
	}
	held, err := os.OpenFile(filepath.Join(work, "lock"), os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return err
	}
	defer held.Close()
	if err := lock.Try(held, lock.Exclusive); err != nil {
		return fmt.Errorf("another benchmark works in %s: %w", work, err)
	}
	for _, name := range []string{"store", "scratch", "tasks"} { // of an earlier run
		if err := os.RemoveAll(filepath.Join(work, name)); err != nil {
			return err
		}
	}
	begin := time.Now()
	log := func(format string, args ...any) {
		fmt.Fprintf(os.Stderr, "%6.1f s  %s\n", time.Since(begin).Seconds(), fmt.Sprintf(format, args...))
	}
	cases, err := o.cases(work, log)
	if err != nil {
		return err
	}
	r, err := figures.Open(filepath.Join(work, "results.jsonl"), os.Stdout)
	if err != nil {
		return err
	}
	defer r.Close()
	fmt.Fprintln(r.Human, figures.Machine(work))
	b := &benchmark{Results: r, lab: &lab{dir: work, log: log}, reps: o.reps, rates: rates, premix: premix}
	for _, p := range selected {
		log("measuring: %s", p.name)
		if err := p.run(b, ctx, cases); err != nil {
			return err
		}
	}
	return nil
}

// cases prepares the data of all selected cases.
func (o *options) cases(work string, log func(string, ...any)) ([]*benchCase, error) {
	testdata := os.Getenv("PREMIX_TESTDATA")
	if testdata == "" {
		log("PREMIX_TESTDATA is not set: references and reads are generated")
	}
	m := &caseMaker{data: &data{dir: filepath.Join(work, "data"), testdata: testdata, log: log}, counts: o.counts}
	if err := os.MkdirAll(m.dir, 0o755); err != nil {
		return nil, err
	}
	var cases []*benchCase
	wished := strings.Split(o.references, ",")
	for _, ref := range m.references() {
		if !slices.Contains(wished, ref.name) || o.tools == "" {
			continue
		}
		fasta, err := ref.fasta()
		if err != nil {
			return nil, err
		}
		for _, tool := range strings.Split(o.tools, ",") {
			make, ok := m.tools()[tool]
			if !ok {
				return nil, fmt.Errorf("there is no tool %q; there are %s", tool, strings.Join(toolOrder, ", "))
			}
			c, err := make(ref, fasta)
			if err != nil {
				return nil, err
			}
			cases = append(cases, c)
		}
	}
	sizes, err := numbers(o.sizes)
	if err != nil {
		return nil, err
	}
	for _, n := range sizes {
		c, err := m.synthetic(int(n))
		if err != nil {
			return nil, err
		}
		cases = append(cases, c)
	}
	return cases, nil
}

func pick(names string) ([]part, error) {
	var selected []part
	for _, name := range strings.FieldsFunc(names, func(r rune) bool { return r == ',' }) {
		i := slices.IndexFunc(parts, func(p part) bool { return p.name == name })
		if i < 0 {
			return nil, fmt.Errorf("there is no part %q", name)
		}
		selected = append(selected, parts[i])
	}
	return selected, nil
}

func numbers(list string) ([]int64, error) {
	var all []int64
	for _, s := range strings.FieldsFunc(list, func(r rune) bool { return r == ',' }) {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			return nil, err
		}
		all = append(all, n)
	}
	return all, nil
}
