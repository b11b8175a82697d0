package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/kit/quantile"
	"premix/internal/kit/units"
	"premix/internal/testkit/figures"
	"premix/internal/testkit/workbench"
)

func main() {
	if err := benchMain(); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

type bench struct {
	dir, premix, parts string
	letters            int64
	clusterLetters     int64
	queries, singles   int
	users, reps        int

	divideQueries, divideDatabases string // lists of numbers
	results                        *figures.Results

	texts       []string // the 1,000 queries
	small, many string   // files
	local       string   // alias of the volumes on disk
	volumes     []string // files on disk
	ram         string   // directory of the database in memory
	bytes       int64
	rows        [][]string
}

func benchMain() (err error) {
	b := &bench{rows: [][]string{{"", "premix", "peer", "times better"}}}
	clean := false
	flag.StringVar(&b.dir, "work", "bench-work/blast", "`directory` for the database and results")
	flag.StringVar(&b.premix, "premix", "bin/premix", "the premix to measure")
	flag.StringVar(&b.parts, "parts", "warm,cold,pss,service,cluster,divide", "what to measure")
	flag.Int64Var(&b.letters, "letters", 2_100_000_000, "letters of the database, four per byte")
	flag.Int64Var(&b.clusterLetters, "cluster-letters", 800_000_000, "letters of the cluster's database")
	flag.StringVar(&b.divideQueries, "divide-queries", "1200,4650,18600", "numbers of queries that are divided; the last one is 9.3 MB")
	flag.StringVar(&b.divideDatabases, "divide-databases", "4,1", "divisors of -cluster-letters for the databases of these")
	flag.IntVar(&b.queries, "queries", 1000, "queries of many")
	flag.IntVar(&b.singles, "singles", 30, "number of these that are searched for by one blastn each")
	flag.IntVar(&b.users, "users", 100, "connections to the service")
	flag.IntVar(&b.reps, "reps", 3, "repetitions, in turns")
	flag.BoolVar(&clean, "clean", false, "remove the database at the end")
	flag.Parse()
	for _, path := range []*string{&b.dir, &b.premix} {
		if *path, err = filepath.Abs(*path); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(b.dir, 0o755); err != nil {
		return err
	}
	if b.results, err = figures.Open(filepath.Join(b.dir, "results.jsonl"), os.Stdout); err != nil {
		return err
	}
	defer b.results.Close()
	fmt.Println(figures.Machine(b.dir))
	defer func() {
		if b.ram != "" {
			err = errors.Join(err, b.run("blast", "evict", "bench"))
		}
		if clean {
			err = errors.Join(err, os.RemoveAll(filepath.Join(b.dir, "home")))
		}
	}()
	from, err := genomes()
	if err != nil {
		return err
	}
	if err := b.ask(from); err != nil {
		return err
	}
	if b.parts != "cluster" && b.parts != "divide" {
		if err := b.prepare(from); err != nil {
			return err
		}
	}
	for _, part := range []struct {
		name string
		run  func() error
	}{{"warm", b.warm}, {"cold", b.cold}, {"pss", b.pss}, {"service", b.service}, {"cluster", func() error { return b.cluster(from) }}, {"divide", func() error { return b.divide(from) }}} {
		if !strings.Contains(","+b.parts+",", ","+part.name+",") {
			continue
		}
		if err := part.run(); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	if b.bytes == 0 {
		return nil
	}
	b.results.Table(fmt.Sprintf("A database of %s, blastn with 2 threads", units.Size(int64(b.bytes))), b.rows)
	return nil
}

func (b *bench) command(args ...string) *exec.Cmd {
	cmd := exec.Command(b.premix, args...)
	cmd.Env = append(os.Environ(), "PREMIX_HOME="+filepath.Join(b.dir, "home"), "PREMIX_STORE=")
	cmd.Stderr = os.Stderr
	return cmd
}

func (b *bench) run(args ...string) error {
	if err := b.command(args...).Run(); err != nil {
		return fmt.Errorf("premix %s: %w", strings.Join(args, " "), err)
	}
	return nil
}

// ask makes the queries.
func (b *bench) ask(from *origins) error {
	b.texts = from.queries(b.queries, 500)
	b.small, b.many = filepath.Join(b.dir, "small.fa"), filepath.Join(b.dir, "many.fa")
	return errors.Join(os.WriteFile(b.small, []byte(from.queries(1, 4000)[0]), 0o644), os.WriteFile(b.many, []byte(strings.Join(b.texts, "")), 0o644))
}

// prepare makes the database unless it exists, and warms it.
func (b *bench) prepare(from *origins) error {
	fmt.Printf("database: %d Mb, %s\n", b.letters/1e6, from.from)
	stamp := filepath.Join(b.dir, "home", "made")
	made := fmt.Sprintf("%d letters, %s\n", b.letters, from.from)
	if was, err := os.ReadFile(stamp); err != nil || string(was) != made {
		if err := os.RemoveAll(filepath.Join(b.dir, "home")); err != nil {
			return err
		}
		path := filepath.Join(b.dir, "all.fa")
		defer os.Remove(path)
		if err := from.write(path, b.letters); err != nil {
			return err
		}
		if err := b.run("blast", "db", "add", path, "--name", "bench", "--type", "nucl", "--fragments", "2"); err != nil {
			return err
		}
		if err := os.WriteFile(stamp, []byte(made), 0o644); err != nil {
			return err
		}
	}
	if err := b.run("blast", "warm", "bench"); err != nil {
		return err
	}
	out, err := b.command("blast", "db", "ls", "--json").Output()
	if err != nil {
		return err
	}
	var list []struct {
		Dir   string `json:"ram_dir"`
		Bytes int64  `json:"bytes"`
	}
	if err := json.Unmarshal(out, &list); err != nil {
		return err
	}
	if len(list) != 1 || list[0].Dir == "" {
		return errors.New("the database is not in memory")
	}
	b.ram = list[0].Dir
	return b.alias()
}

// alias writes an alias file for the volumes on disk, for BLAST+ without premix.
func (b *bench) alias() error {
	data := filepath.Join(b.dir, "home", "blast", "bench", "data")
	files, err := filepath.Glob(filepath.Join(data, "*"))
	if err != nil {
		return err
	}
	text := "TITLE bench\nDBLIST"
	for _, path := range files {
		st, err := os.Stat(path)
		if err != nil {
			return err
		}
		b.bytes += st.Size()
		b.volumes = append(b.volumes, path)
		if v, ok := strings.CutSuffix(path, ".nin"); ok {
			text += ` "` + v + `"`
		}
	}
	b.local = filepath.Join(b.dir, "home", "local")
	return os.WriteFile(b.local+".nal", []byte(text+"\n"), 0o644)
}

// timed runs a command and returns its duration and its output.
func timed(cmd *exec.Cmd) (time.Duration, []byte, error) {
	var out bytes.Buffer
	cmd.Stdout = &out
	began := time.Now()
	err := cmd.Run()
	return time.Since(began), out.Bytes(), err
}

func (b *bench) resident(query string) *exec.Cmd {
	return b.command("blast", "blastn", "-db", "bench", "-query", query, "-outfmt", "6")
}

func (b *bench) blastn(query string) *exec.Cmd {
	cmd := exec.Command("blastn", "-db", b.local, "-query", query, "-outfmt", "6", "-num_threads", "2")
	cmd.Stderr = os.Stderr
	return cmd
}

// compare measures a query resident and by blastn. It calls ready before each run of
// blastn.
func (b *bench) compare(query string, reps int, ready func() error) (premix, peer float64, err error) {
	var ours, theirs []float64
	for range reps {
		if err := ready(); err != nil {
			return 0, 0, err
		}
		p, want, err := timed(b.blastn(query))
		if err != nil {
			return 0, 0, err
		}
		o, got, err := timed(b.resident(query))
		if err != nil {
			return 0, 0, err
		}
		if !bytes.Equal(got, want) || len(want) == 0 {
			return 0, 0, fmt.Errorf("premix printed %d bytes, BLAST+ %d, and they are not equal", len(got), len(want))
		}
		ours, theirs = append(ours, o.Seconds()), append(theirs, p.Seconds())
	}
	return quantile.Median(ours), quantile.Median(theirs), nil
}

func (b *bench) add(name, title string, premix float64, peer string, other float64) error {
	ratio := figures.Lower(premix, other)
	b.rows = append(b.rows, []string{title, fmt.Sprintf("%.3f s", premix), fmt.Sprintf("%.3f s", other), fmt.Sprintf("%.2f", ratio)})
	return b.results.Add(figures.Figure{Name: "blast/" + name, Value: premix, Unit: "s", Peer: peer, Ratio: ratio})
}

// warm compares with a blastn that finds its database in page cache.
func (b *bench) warm() error {
	for _, c := range []struct{ name, title, query string }{
		{"small/resident-warm", "4 kB, beside warm page cache", b.small},
		{fmt.Sprintf("%d/resident-warm", b.queries), fmt.Sprintf("%d queries, beside warm page cache", b.queries), b.many},
	} {
		if _, _, err := timed(b.blastn(c.query)); err != nil { // reads it all
			return err
		}
		premix, peer, err := b.compare(c.query, max(b.reps, 5), func() error { return nil })
		if err != nil {
			return err
		}
		if err := b.add(c.name, c.title, premix, "blastn -num_threads 2, warm page cache", peer); err != nil {
			return err
		}
	}
	return nil
}

// empty drops the volumes on disk from the page cache.
func (b *bench) empty() error {
	unix.Sync()
	for _, path := range b.volumes {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		err = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	return nil
}

// cold compares with a blastn that has to read its database from storage.
func (b *bench) cold() error {
	for _, rate := range []int64{0, 110, 30} {
		from, name := "local disk", "local"
		undo := func() error { return nil }
		reps := b.reps
		if rate > 0 {
			if os.Geteuid() != 0 {
				fmt.Println("cold storage at 110 and 30 MB/s is left out: it needs root")
				return nil
			}
			var err error
			if undo, err = workbench.Throttle(b.dir, rate*1_000_000); err != nil {
				return err
			}
			from, name = fmt.Sprintf("storage at %d MB/s", rate), fmt.Sprintf("%dMBs", rate)
			reps = min(reps, 2)
		}
		premix, peer, err := b.compare(b.small, reps, b.empty)
		if err := errors.Join(err, undo()); err != nil {
			return err
		}
		if err := b.add("small/resident-cold-"+name, "4 kB, beside cold "+from, premix, "blastn -num_threads 2, cold, from "+from, peer); err != nil {
			return err
		}
	}
	return nil
}

// pss measures the memory that two simultaneous searches use for the database.
func (b *bench) pss() error {
	var searches []*exec.Cmd
	for range 2 {
		cmd := b.resident(b.many)
		if err := cmd.Start(); err != nil {
			return err
		}
		searches = append(searches, cmd)
	}
	finished := make(chan error, 1)
	go func() {
		var err error
		for _, cmd := range searches {
			err = errors.Join(err, cmd.Wait())
		}
		finished <- err
	}()
	var most int64
	seen := 0
	for {
		select {
		case err := <-finished:
			if err != nil {
				return err
			}
			if seen < 2 {
				return errors.New("the two searches were not seen at the same time")
			}
			ratio := float64(most) / float64(b.bytes)
			b.rows = append(b.rows, []string{"memory of the database, two searches at a time", units.Size(int64(most)), units.Size(int64(b.bytes)) + " (one copy)", fmt.Sprintf("%.2f of it", ratio)})
			return b.results.Add(figures.Figure{Name: "blast/pss/two-searches", Value: float64(most), Unit: "B", Peer: "one copy", Ratio: figures.Lower(float64(most), float64(b.bytes))})
		case <-time.After(10 * time.Millisecond):
		}
		sum, processes, err := mapped(b.ram)
		if err != nil {
			return err
		}
		if processes >= seen && sum > 0 {
			seen, most = processes, max(most, sum)
		}
	}
}

// mapped returns the proportional set size of all mappings of files below a directory,
// and the number of processes that have mappings of them.
func mapped(dir string) (sum int64, processes int, err error) {
	list, err := filepath.Glob("/proc/[0-9]*/smaps")
	if err != nil {
		return 0, 0, err
	}
	for _, path := range list {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended, or belongs to another user
		}
		inside, found := false, false
		for line := range strings.Lines(string(text)) {
			fields := strings.Fields(line)
			switch {
			case len(fields) >= 5 && strings.Contains(fields[0], "-"):
				inside = len(fields) > 5 && strings.HasPrefix(fields[5], dir+"/")
			case inside && fields[0] == "Pss:":
				n, err := strconv.ParseInt(fields[1], 10, 64)
				if err != nil {
					return 0, 0, fmt.Errorf("%s: %w", path, err)
				}
				sum += n << 10
				found = true
			}
		}
		if found {
			processes++
		}
	}
	return sum, processes, nil
}
