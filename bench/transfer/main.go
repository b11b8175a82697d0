package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/figures"
	"premix/internal/netrelay"
	"premix/internal/workbench"
	"premix/transfer"
)

func main() {
	if err := benchMain(); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// links are the kinds of link, by name.
var links = map[string]netrelay.Options{
	"lan":   {Rate: 1e9, Delay: 150 * time.Microsecond, Queue: 25 * time.Millisecond, Offload: true},
	"far":   {Rate: 1e9, Delay: 25 * time.Millisecond, Queue: 25 * time.Millisecond, Offload: true},
	"trips": {Delay: 500 * time.Millisecond},
	"lossy": {Rate: 1e9, Delay: 25 * time.Millisecond, Queue: 25 * time.Millisecond, Loss: 0.001, Seed: 7},
}

// shipped is what is measured unless told otherwise.
const shipped = "premix,premix-system,scp,scp-legacy,sftp,rsync,rsyncd,tar,curl,curl-h2,aria2,rclone,rclone-http,xrootd,bbcp,hpn-scp,gridftp-ssh,gridftp-ssh-p4,gridftp,gridftp-udt"

type benchmark struct {
	dir, data, premix, cells, congestion, sizes, trees, ways, protocols, timeout, parts string
	reps                                                                                int

	lab     *workbench.Lab
	results *figures.Results
	ctx     context.Context
}

func benchMain() error {
	b := &benchmark{}
	flag.StringVar(&b.dir, "work", "bench-work/transfer", "`directory` for results")
	flag.StringVar(&b.data, "data", "", "`directory` for what is copied, best on a tmpfs (default: in the work directory)")
	flag.StringVar(&b.premix, "premix", "bin/premix", "the premix to measure with")
	flag.StringVar(&b.cells, "links", "lan,far,lossy", "which links")
	full := flag.Bool("full", false, "the whole table, which takes hours: both congestion controls, 5 MB to 2.5 GB, 10,000 files, three repetitions")
	flag.StringVar(&b.congestion, "congestion", "cubic", "which congestion controls")
	flag.StringVar(&b.sizes, "sizes", "100M", "sizes of single files")
	flag.StringVar(&b.trees, "trees", "1000x4K", "trees, as FILESxSIZE")
	flag.StringVar(&b.ways, "directions", "get", "get, put or both")
	flag.StringVar(&b.protocols, "protocols", shipped, "which protocols; those that are not installed are left out")
	flag.StringVar(&b.timeout, "timeout", "10s", "of one copy")
	flag.StringVar(&b.parts, "parts", "grid,get,capture", "what to measure")
	flag.IntVar(&b.reps, "reps", 1, "repetitions")
	flag.Parse()
	if *full {
		given := map[string]bool{}
		flag.Visit(func(f *flag.Flag) { given[f.Name] = true })
		for name, value := range map[string]string{"congestion": "cubic,bbr", "sizes": "5M,50M,500M,2.5G", "trees": "10000x4K", "timeout": "300s", "reps": "3"} {
			if given[name] {
				continue
			}
			if err := flag.Set(name, value); err != nil {
				return err
			}
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	b.ctx = ctx
	var err error
	if b.lab, err = workbench.Open(b.dir); err != nil {
		return err
	}
	defer b.lab.Close()
	if b.premix, err = filepath.Abs(b.premix); err != nil {
		return err
	}
	if b.data == "" {
		b.data = filepath.Join(b.lab.Dir, "data")
	}
	if b.results, err = figures.Open(filepath.Join(b.lab.Dir, "results.jsonl"), os.Stdout); err != nil {
		return err
	}
	defer b.results.Close()
	fmt.Println(figures.Machine(b.lab.Dir))
	restore, err := allow(strings.Split(b.congestion, ","))
	if err != nil {
		return err
	}
	defer restore()
	for _, name := range strings.Split(b.cells, ",") {
		o, ok := links[name]
		if !ok {
			return fmt.Errorf("there is no link %q", name)
		}
		for _, cc := range strings.Split(b.congestion, ",") {
			if err := b.cell(name, cc, o); err != nil {
				return fmt.Errorf("%s, %s: %w", name, cc, err)
			}
		}
	}
	return nil
}

// allow makes congestion controls available to other network namespaces, which may
// only use those that the first one lets everybody use.
func allow(names []string) (restore func(), err error) {
	const file = "/proc/sys/net/ipv4/tcp_allowed_congestion_control"
	before, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	all := strings.Fields(string(before))
	for _, n := range names {
		if !slices.Contains(all, n) {
			all = append(all, n)
		}
	}
	if err := os.WriteFile(file, []byte(strings.Join(all, " ")), 0o644); err != nil {
		return nil, fmt.Errorf("allow the congestion controls %s: %w", strings.Join(names, ", "), err)
	}
	return func() {
		if err := os.WriteFile(file, before, 0o644); err != nil {
			fmt.Fprintln(os.Stderr, "error: congestion controls that are allowed stay changed:", err)
		}
	}, nil
}

// cell is one link with one congestion control.
type cell struct {
	*benchmark
	name    string
	link    *netrelay.Link
	ssh     *workbench.SSH
	dir     string // of its data
	results string // directory of results
	file    string // link file
}

func (b *benchmark) cell(name, cc string, o netrelay.Options) (err error) {
	c := &cell{benchmark: b, name: name + "-" + cc}
	c.results = filepath.Join(b.lab.Dir, "results", c.name)
	if c.dir, err = os.MkdirTemp(mkdir(b.data), c.name+"-"); err != nil {
		return err
	}
	defer os.RemoveAll(c.dir)
	if err := os.Chmod(c.dir, 0o755); err != nil { // servers give up root
		return err
	}
	if c.link, err = netrelay.New(o); err != nil {
		return err
	}
	defer c.link.Close()
	for _, h := range []*netrelay.Host{c.link.A, c.link.B} {
		for key, value := range map[string]string{
			"net.ipv4.tcp_congestion_control": cc,
			"net.ipv4.tcp_rmem":               "4096 131072 134217728",
			"net.ipv4.tcp_wmem":               "4096 16384 134217728",
		} {
			if err := h.Sysctl(key, value); err != nil {
				return err
			}
		}
	}
	sshDir := filepath.Join(c.dir, "ssh")
	if err := os.Mkdir(sshDir, 0o700); err != nil {
		return err
	}
	if c.ssh, err = workbench.StartSSH(b.ctx, sshDir, c.link.B); err != nil {
		return err
	}
	defer c.ssh.Stop()
	if err := c.writeLink(); err != nil {
		return err
	}
	if strings.Contains(b.parts, "grid") {
		if err := c.grid(); err != nil {
			return err
		}
	}
	if strings.Contains(b.parts, "get") {
		if err := c.chosen(); err != nil {
			return err
		}
	}
	if strings.Contains(b.parts, "capture") {
		return c.captureCost()
	}
	return nil
}

func mkdir(dir string) string {
	_ = os.MkdirAll(dir, 0o755) // what follows tells
	return dir
}

func (c *cell) writeLink() error {
	var protocols []string
	for _, p := range strings.Split(c.protocols, ",") {
		switch p {
		case "premix":
			p = fmt.Sprintf("{use: premix, set: {premix_peer: %s}}", c.premix)
		case "premix-system": // with the congestion control of the cell
			p = fmt.Sprintf("{use: premix, name: premix-system, set: {premix_peer: %s, congestion: system}}", c.premix)
		}
		protocols = append(protocols, p)
	}
	var trees []string
	for _, t := range strings.Split(c.trees, ",") {
		if files, size, ok := strings.Cut(t, "x"); ok {
			trees = append(trees, fmt.Sprintf("{files: %s, size: %s}", files, size))
		}
	}
	text := fmt.Sprintf("name: %s\nhost: %s\nport: %d\nuser: root\nidentity: %s\nknown_hosts: %s\ndirectory: %s/here\npeer_directory: %s/there\nseed: 1\ntimeout: %s\nquiet: {for: 200ms}\ndirections: [%s]\nprotocols: [%s]\n",
		c.name, c.ssh.Host, c.ssh.Port, c.ssh.Identity, c.ssh.KnownHosts, c.dir, c.dir, c.timeout, c.ways, strings.Join(protocols, ", "))
	if c.sizes != "" {
		text += "sizes: [" + c.sizes + "]\n"
	}
	if len(trees) > 0 {
		text += "trees: [" + strings.Join(trees, ", ") + "]\n"
	}
	c.file = filepath.Join(c.dir, "link.yaml")
	return os.WriteFile(c.file, []byte(text), 0o644)
}

// run runs premix on the first host. A status other than 0 is an error where it is
// not among allowed.
func (c *cell) run(allowed []int, args ...string) error {
	cmd := c.ssh.Command(c.ctx, c.premix, args...)
	cmd.Env = append(os.Environ(), "PREMIX_HOME="+filepath.Join(c.dir, "home"))
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) }
	err := c.link.A.Run(cmd)
	var exit *exec.ExitError
	if errors.As(err, &exit) && slices.Contains(allowed, exit.ExitCode()) {
		return nil
	}
	return err
}

// grid measures all protocols with all sizes.
func (c *cell) grid() error {
	c.lab.Log("%s", c.name)
	// Status 1: copies failed, which is a result.
	if err := c.run([]int{1}, "transfer", "bench", c.file, "--out", c.results, "--repeat", strconv.Itoa(c.reps)); err != nil {
		return err
	}
	copies, err := transfer.Read(c.results)
	if err != nil {
		return err
	}
	var columns, names []string
	speeds := map[[2]string][]float64{}
	failures := map[[2]string]string{}
	for _, x := range copies {
		column := string(x.Direction) + " " + x.Data()
		if !slices.Contains(columns, column) {
			columns = append(columns, column)
		}
		if !slices.Contains(names, x.Protocol) {
			names = append(names, x.Protocol)
		}
		k := [2]string{x.Protocol, column}
		if x.OK {
			speeds[k] = append(speeds[k], x.Speed)
		} else {
			failures[k] = x.Cause
		}
	}
	slices.Sort(columns)
	slices.Sort(names)
	rows := [][]string{append([]string{"Mbit/s"}, columns...)}
	for _, n := range names {
		row := []string{n}
		for _, column := range columns {
			k := [2]string{n, column}
			text := failures[k]
			if v := speeds[k]; len(v) > 0 {
				median := figures.Median(v)
				text = fmt.Sprintf("%.4g", median*8/1e6)
				best, of := bestOf(speeds, names, column, n)
				if err := c.benchmark.results.Add(figures.Figure{Name: c.name + "/" + column + "/" + n, Value: median, Unit: "B/s", Peer: of, Ratio: figures.Higher(median, best)}); err != nil {
					return err
				}
			}
			row = append(row, text)
		}
		rows = append(rows, row)
	}
	c.benchmark.results.Table(c.name+": medians of "+strconv.Itoa(c.reps), rows)
	return nil
}

// bestOf is the fastest protocol of a column other than one.
func bestOf(speeds map[[2]string][]float64, names []string, column, but string) (best float64, name string) {
	for _, n := range names {
		if v := speeds[[2]string{n, column}]; n != but && len(v) > 0 && figures.Median(v) > best {
			best, name = figures.Median(v), n
		}
	}
	return best, name
}
