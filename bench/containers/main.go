package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/testkit/figures"
	"premix/internal/testkit/netrelay"
	"premix/internal/testkit/workbench"
)

func main() {
	if err := benchMain(); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

type options struct {
	work, premix, containerd              string
	networks, images, workloads, contends string
	nydus                                 string
	traces                                string
	reps                                  int
	rate                                  int64
	delay                                 time.Duration
}

func benchMain() error {
	var o options
	cache, err := os.UserCacheDir()
	if err != nil {
		return err
	}
	flag.StringVar(&o.work, "work", "bench-work/containers", "`directory` for images, peers and results")
	flag.StringVar(&o.premix, "premix", "bin/premix", "the premix to measure")
	flag.StringVar(&o.containerd, "containerd", filepath.Join(cache, "premix/containerd/2.4.2"), "`directory` of containerd, ctr and its shim; scripts/setup.sh containerd builds them")
	flag.StringVar(&o.nydus, "nydus", filepath.Join(cache, "premix/nydus/bin"), "`directory` of nydusd and nydus-image; scripts/setup.sh nydus builds them")
	flag.StringVar(&o.networks, "networks", "loopback,link", "networks; empty: prepare only")
	flag.StringVar(&o.images, "images", "small,science", "images")
	flag.StringVar(&o.workloads, "workloads", "", "only these workloads; empty: all")
	flag.StringVar(&o.contends, "contenders", "", "only these; empty: full,stargz,nydus,soci,soci-parallel,premix,premix+profile,premix-registry")
	flag.StringVar(&o.traces, "traces", "", "`directory` for the requests of each measurement; empty: none")
	flag.IntVar(&o.reps, "reps", 3, "repetitions")
	flag.Int64Var(&o.rate, "rate", 1000, "rate of the link, `Mbit/s`")
	flag.DurationVar(&o.delay, "delay", 10*time.Millisecond, "delay of the link, one way")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	return o.run(ctx)
}

func comma(r rune) bool { return r == ',' }

// benchmark is the state that the parts share.
type benchmark struct {
	*figures.Results
	lab                *lab
	premix, containerd string
	nydus              string // directory of its programs
	traces             string
	outputs            map[string]string // digests of the outputs, by image and workload
	reps               int
	rate               int64 // bit/s
	delay              time.Duration
}

func (o *options) run(ctx context.Context) error {
	if os.Geteuid() != 0 {
		return errors.New("this benchmark runs containers and makes network namespaces: run it as root")
	}
	picked, err := find(strings.FieldsFunc(o.images, comma), strings.FieldsFunc(o.workloads, comma))
	if err != nil {
		return err
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
	b := &benchmark{Results: r, lab: l, traces: o.traces, reps: o.reps, rate: o.rate * 1e6, delay: o.delay}
	if b.premix, err = absolute(o.premix); err != nil {
		return err
	}
	if b.containerd, err = filepath.Abs(o.containerd); err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(b.containerd, "containerd-shim-runc-v2")); err != nil {
		return fmt.Errorf("containerd is missing (scripts/setup.sh containerd builds it): %w", err)
	}
	if b.nydus, err = filepath.Abs(o.nydus); err != nil {
		return err
	}
	all := b.contenders()
	if names := strings.FieldsFunc(o.contends, comma); len(names) > 0 {
		all = slices.DeleteFunc(all, func(c contender) bool { return !slices.Contains(names, c.name) })
		if len(all) != len(names) {
			return fmt.Errorf("not all of the contenders %v exist", names)
		}
	}
	if err := b.prepare(ctx, picked, all); err != nil {
		return err
	}
	for _, network := range strings.FieldsFunc(o.networks, comma) {
		if err := b.network(ctx, network, picked, all); err != nil {
			return fmt.Errorf("%s: %w", network, err)
		}
	}
	return nil
}

func absolute(program string) (string, error) {
	path, err := exec.LookPath(program)
	if err != nil {
		return "", err
	}
	return filepath.Abs(path)
}

// prepare makes the images, in the forms that the contenders need, and records profiles.
func (b *benchmark) prepare(ctx context.Context, picked []image, all []contender) error {
	needs := func(name string) bool {
		return slices.ContainsFunc(all, func(c contender) bool { return c.name == name })
	}
	if err := b.makes(ctx, emptyStore); err != nil {
		return err
	}
	if _, err := b.lab.build(ctx, "peers", "bench/containers/peers"); err != nil {
		return err
	}
	if needs("soci") || needs("soci-parallel") {
		if _, err := b.lab.buildWith(ctx, "soci", "bench/containers/soci", "CGO_ENABLED=1"); err != nil {
			return fmt.Errorf("soci-snapshotter needs a C compiler and zlib: %w", err)
		}
	}
	if needs("nydus") {
		for _, program := range []string{filepath.Join(b.nydus, "nydusd"), filepath.Join(b.nydus, "nydus-image")} {
			if _, err := os.Stat(program); err != nil {
				return fmt.Errorf("a program of nydus is missing (scripts/setup.sh nydus builds it, and -contenders leaves nydus out): %w", err)
			}
		}
		if _, err := b.lab.build(ctx, "nydus", "bench/containers/nydus"); err != nil {
			return err
		}
	}
	for _, im := range picked {
		dir, err := b.lab.layout(ctx, im)
		if err != nil {
			return err
		}
		if err := b.lab.publish(im.name, dir); err != nil {
			return err
		}
		if needs("stargz") {
			converted, err := b.lab.estargz(ctx, im)
			if err != nil {
				return err
			}
			if err := b.lab.publish(im.name+"-estargz", converted); err != nil {
				return err
			}
		}
		if needs("soci") {
			if err := b.lab.converted(ctx, im, dir, "soci", b.lab.soci(), "convert"); err != nil {
				return err
			}
		}
		if needs("nydus") {
			if err := b.lab.converted(ctx, im, dir, "nydus", b.lab.nydus(), "convert", filepath.Join(b.nydus, "nydus-image")); err != nil {
				return err
			}
		}
		if !needs("premix") && !needs("premix+profile") {
			continue
		}
		for _, store := range []string{plainStore, profiledStore} {
			if err := b.adds(ctx, im, store); err != nil {
				return err
			}
		}
		for _, w := range im.cases {
			if _, err := b.recorded(ctx, im, w); err != nil {
				return fmt.Errorf("record %s: %w", w.name, err)
			}
		}
	}
	return nil
}

// network measures everything over one network.
func (b *benchmark) network(ctx context.Context, name string, picked []image, all []contender) error {
	var l *netrelay.Link
	var server, client *netrelay.Host
	switch name {
	case "loopback":
	case "link":
		var err error
		if l, err = netrelay.New(netrelay.Options{Rate: b.rate, Delay: b.delay, Offload: true}); err != nil {
			return err
		}
		defer l.Close()
		server, client = l.A, l.B
	default:
		return errors.New("there is no such network: loopback, link")
	}
	o, err := b.lab.Serve(server)
	if err != nil {
		return err
	}
	defer o.Close()
	for _, im := range picked {
		if err := b.measure(ctx, &place{name, l, client, o}, im, all); err != nil {
			return fmt.Errorf("%s: %w", im.name, err)
		}
	}
	return nil
}

// chainID returns the chain ID of a layer on top of the chain below.
func chainID(below, diffID string) string {
	if below == "" {
		return diffID
	}
	sum := sha256.Sum256([]byte(below + " " + diffID))
	return "sha256:" + hex.EncodeToString(sum[:])
}
