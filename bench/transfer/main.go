package main

import (
	"cmp"
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

	"premix/internal/kit/quantile"
	"premix/internal/testkit/figures"
	"premix/internal/testkit/netrelay"
	"premix/internal/testkit/workbench"
	"premix/internal/transfer"
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
	"lossy": {Rate: 1e9, Delay: 25 * time.Millisecond, Queue: 25 * time.Millisecond, Loss: 0.001, Seed: 7},
	"trips": {Delay: 500 * time.Millisecond},
}

// plan selects the default measurements of a cell.
type plan struct {
	link, congestion      string
	sizes, trees, timeout string
	parts                 string
}

// brief takes some minutes, fullPlan takes hours. Copies slower than the timeout are
// marked.
var (
	brief = []plan{
		{"lan", "cubic", "5M,100M,1G", "10000x4K", "30s", "grid,get,capture"},
		{"far", "cubic", "5M,100M", "", "15s", "grid,get,probe"},
		{"far", "bbr", "5M,100M", "", "15s", "grid,get"},
		{"lossy", "cubic", "5M,100M", "", "8s", "grid"},
		{"lossy", "bbr", "5M,100M", "", "8s", "grid"},
		{"lan", "bbr", "100M", "", "15s", "grid"},
	}
	fullPlan = []plan{
		{"lan", "cubic", "5M,50M,500M,2.5G", "10000x4K", "300s", "grid,get,capture,probe"},
		{"lan", "bbr", "5M,50M,500M,2.5G", "10000x4K", "300s", "grid,get"},
		{"far", "cubic", "5M,50M,500M,2.5G", "10000x4K", "300s", "grid,get,probe"},
		{"far", "bbr", "5M,50M,500M,2.5G", "10000x4K", "300s", "grid,get"},
		{"lossy", "cubic", "5M,50M,500M,2.5G", "10000x4K", "300s", "grid,get"},
		{"lossy", "bbr", "5M,50M,500M,2.5G", "10000x4K", "300s", "grid,get"},
	}
	trips = []plan{{"trips", "cubic", "4K", "", "60s", "grid,get"}}
)

// shipped lists the protocols that are measured by default.
const shipped = "premix,premix-system,premix-server,scp,scp-legacy,sftp,rsync,rsyncd,tar,curl,curl-h2,aria2,rclone,rclone-http,xrootd,bbcp,hpn-scp,gridftp-ssh,gridftp-ssh-p4,gridftp,gridftp-udt"

type benchmark struct {
	dir, data, premix, ways, protocols string
	reps                               int

	lab     *workbench.Lab
	results *figures.Results
	ctx     context.Context
}

// errBudget reports that the time of -budget is over.
var errBudget = errors.New("the time of -budget is over")

func benchMain() error {
	b := &benchmark{}
	flag.StringVar(&b.dir, "work", "bench-work/transfer", "`directory` for results")
	flag.StringVar(&b.data, "data", "", "`directory` for the copies, best on a tmpfs (default: in the work directory)")
	flag.StringVar(&b.premix, "premix", "bin/premix", "the premix to measure with")
	full := flag.Bool("full", false, "the whole table, which takes hours: 5 MB to 2.5 GB and 10,000 files in every cell, three repetitions")
	budget := flag.Duration("budget", 20*time.Minute, "time limit; measurements that are not reached are named. 0: no limit, as with -full")
	cells := flag.String("links", "", "only these links, as in lan,far; trips counts round trips")
	congestion := flag.String("congestion", "", "only these congestion controls")
	var only plan
	flag.StringVar(&only.sizes, "sizes", "", "sizes of single files, in every cell; none: no files")
	flag.StringVar(&only.trees, "trees", "", "trees, as FILESxSIZE, in every cell; none: no trees")
	flag.StringVar(&only.timeout, "timeout", "", "of one copy, in every cell")
	flag.StringVar(&only.parts, "parts", "", "parts to measure, of grid, get, capture and probe")
	flag.StringVar(&b.ways, "directions", "get", "get, put or both")
	flag.StringVar(&b.protocols, "protocols", shipped, "protocols; those that are not installed are left out")
	flag.IntVar(&b.reps, "reps", 1, "repetitions (default with -full: 3)")
	flag.Parse()
	table := brief
	if *full {
		given := map[string]bool{}
		flag.Visit(func(f *flag.Flag) { given[f.Name] = true })
		table = fullPlan
		if !given["reps"] {
			b.reps = 3
		}
		if !given["budget"] {
			*budget = 0
		}
	}
	var todo []plan
	for _, p := range append(slices.Clone(table), trips...) {
		if !among(*cells, p.link) || !among(*congestion, p.congestion) || *cells == "" && p.link == "trips" {
			continue
		}
		for _, o := range []struct {
			of    *string
			given string
		}{{&p.sizes, only.sizes}, {&p.trees, only.trees}, {&p.timeout, only.timeout}, {&p.parts, only.parts}} {
			if o.given != "" {
				*o.of = strings.TrimPrefix(o.given, "none")
			}
		}
		todo = append(todo, p)
	}
	if len(todo) == 0 {
		return fmt.Errorf("there is no cell of the links %q with the congestion controls %q", *cells, *congestion)
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	if *budget > 0 {
		var done context.CancelFunc
		ctx, done = context.WithTimeoutCause(ctx, *budget, errBudget)
		defer done()
	}
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
	var controls []string
	for _, p := range todo {
		controls = append(controls, p.congestion)
	}
	restore, err := allow(controls)
	if err != nil {
		return err
	}
	defer restore()
	for i, p := range todo {
		err := b.cell(p)
		if context.Cause(ctx) == errBudget {
			var rest []string
			for _, p := range todo[i+1:] {
				rest = append(rest, p.link+"-"+p.congestion)
			}
			fmt.Printf("\n%v: %s-%s was not measured completely, and %s not at all\n", errBudget, p.link, p.congestion, cmp.Or(strings.Join(rest, ", "), "no other cell"))
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s, %s: %w", p.link, p.congestion, err)
		}
	}
	return nil
}

// among reports whether a list in the form of the command line contains a name; an empty
// list contains all names.
func among(list, name string) bool {
	return list == "" || slices.Contains(strings.Split(list, ","), name)
}

// allow makes congestion controls available to other network namespaces. These may only
// use the ones that the first namespace allows to all users.
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
			fmt.Fprintln(os.Stderr, "error: the allowed congestion controls stay changed:", err)
		}
	}, nil
}

// cell is one link with one congestion control.
type cell struct {
	*benchmark
	plan
	name    string
	between *netrelay.Link
	ssh     *workbench.SSH
	dir     string // directory of its data
	results string // directory of results
	file    string // link file
}

func (b *benchmark) cell(p plan) (err error) {
	c := &cell{benchmark: b, plan: p, name: p.link + "-" + p.congestion}
	c.results = filepath.Join(b.lab.Dir, "results", c.name)
	if c.dir, err = os.MkdirTemp(mkdir(b.data), c.name+"-"); err != nil {
		return err
	}
	defer os.RemoveAll(c.dir)
	if err := os.Chmod(c.dir, 0o755); err != nil { // for servers that drop root privileges
		return err
	}
	if c.between, err = netrelay.New(links[p.link]); err != nil {
		return err
	}
	defer c.between.Close()
	for _, h := range []*netrelay.Host{c.between.A, c.between.B} {
		for key, value := range map[string]string{
			"net.ipv4.tcp_congestion_control": p.congestion,
			"net.ipv4.tcp_rmem":               "4096 131072 134217728",
			"net.ipv4.tcp_wmem":               "4096 16384 134217728",
		} {
			if err := h.Sysctl(key, value); err != nil {
				return err
			}
		}
	}
	sshDir := filepath.Join(c.dir, "ssh")
	if err := os.Mkdir(sshDir, 0o755); err != nil { // sshd reads keys as the user who logs in
		return err
	}
	if c.ssh, err = workbench.StartSSH(b.ctx, sshDir, c.between.B); err != nil {
		return err
	}
	defer c.ssh.Stop()
	if err := c.writeLink(); err != nil {
		return err
	}
	for _, part := range []struct {
		name    string
		measure func() error
	}{{"grid", c.grid}, {"get", c.chosen}, {"capture", c.captureCost}, {"probe", c.probe}} {
		if !slices.Contains(strings.Split(c.parts, ","), part.name) {
			continue
		}
		if err := part.measure(); err != nil {
			return err
		}
	}
	return nil
}

func mkdir(dir string) string {
	_ = os.MkdirAll(dir, 0o755) // the next step reports an error
	return dir
}

// entries returns protocols in the form of a link file.
func (c *cell) entries(names []string) (list []string) {
	for _, p := range names {
		switch p {
		case "premix", "premix-server":
			p = fmt.Sprintf("{use: %s, set: {premix_peer: %s}}", p, c.premix)
		case "gridftp-ssh", "gridftp-ssh-p4": // their server refuses to run as root
			p = fmt.Sprintf("{use: %s, set: {account: %s}}", p, workbench.Guest)
		case "premix-system": // with the congestion control of the cell
			p = fmt.Sprintf("{use: premix, name: premix-system, set: {premix_peer: %s, congestion: system}}", c.premix)
		}
		list = append(list, p)
	}
	return list
}

func (c *cell) writeLink() (err error) {
	c.file, err = c.describe(c.name, c.ways, c.sizes, c.trees, c.entries(strings.Split(c.protocols, ",")))
	return err
}

// describe writes a link file.
func (c *cell) describe(name, ways, sizes, trees string, entries []string) (file string, err error) {
	text := fmt.Sprintf("name: %s\nhost: %s\nport: %d\nuser: root\nidentity: %s\nknown_hosts: %s\ndirectory: %s/here\npeer_directory: %s/there\nseed: 1\ntimeout: %s\nquiet: {for: 200ms}\ndirections: [%s]\nprotocols:\n",
		name, c.ssh.Host, c.ssh.Port, c.ssh.Identity, c.ssh.KnownHosts, c.dir, c.dir, c.timeout, ways)
	for _, e := range entries {
		text += "  - " + e + "\n"
	}
	if sizes != "" {
		text += "sizes: [" + sizes + "]\n"
	}
	if trees != "" {
		var list []string
		for _, t := range strings.Split(trees, ",") {
			files, size, ok := strings.Cut(t, "x")
			if !ok {
				return "", fmt.Errorf("%q is not a tree: give FILESxSIZE", t)
			}
			list = append(list, fmt.Sprintf("{files: %s, size: %s}", files, size))
		}
		text += "trees: [" + strings.Join(list, ", ") + "]\n"
	}
	file = filepath.Join(c.dir, name+".yaml")
	return file, os.WriteFile(file, []byte(text), 0o644)
}

// run runs premix on the first host. A status other than 0 is an error unless allowed
// contains it.
func (c *cell) run(allowed []int, args ...string) error {
	cmd := c.ssh.Command(c.ctx, c.premix, args...)
	cmd.Env = append(os.Environ(), "PREMIX_HOME="+filepath.Join(c.dir, "home"))
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) }
	err := c.between.A.Run(cmd)
	var exit *exec.ExitError
	if errors.As(err, &exit) && slices.Contains(allowed, exit.ExitCode()) {
		return nil
	}
	return err
}

// grid measures all protocols with all sizes.
func (c *cell) grid() error {
	c.lab.Log("%s", c.name)
	if err := os.RemoveAll(c.results); err != nil { // of another run, perhaps of another premix
		return err
	}
	// Status 1: copies failed, which is a result.
	if err := c.run([]int{1}, "transfer", "bench", c.file, "--out", c.results, "--repeat", strconv.Itoa(c.reps)); err != nil && context.Cause(c.ctx) != errBudget {
		return err // otherwise show the measurements within the budget
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
				median := quantile.Median(v)
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

// bestOf returns the fastest protocol of a column, with the exception of but.
func bestOf(speeds map[[2]string][]float64, names []string, column, but string) (best float64, name string) {
	for _, n := range names {
		if v := speeds[[2]string{n, column}]; n != but && len(v) > 0 && quantile.Median(v) > best {
			best, name = quantile.Median(v), n
		}
	}
	return best, name
}
