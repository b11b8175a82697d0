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
	"strings"
	"time"

	"premix/internal/kit/quantile"
	"premix/internal/testkit/figures"
)

// commands are commands in the form that pipelines use. $R is the directory of indexes.
var commands = []struct{ name, line string }{
	{"bwa", `bwa mem -R '@RG\tID:sample1\tSM:sample1' -o out $R/genome.fa s_1.fq s_2.fq`},
	{"minimap2", `minimap2 -t 1 -ax sr -o out $R/genome.mmi s_1.fq s_2.fq`},
	{"bowtie2", `bowtie2 -x $R/bowtie2 -1 s_1.fq -2 s_2.fq -S out`},
	{"hisat2", `hisat2 -x $R/hisat2 -1 s_1.fq -2 s_2.fq -S out`},
	{"hisat2, gzip", `hisat2 -x $R/hisat2 -1 s_1.fq.gz -2 s_2.fq.gz | grep -v '^@PG' >out`}, // which has a process id
	{"kallisto", `kallisto quant --plaintext -i $R/kallisto.idx -o dir s_1.fq s_2.fq; mv dir/abundance.tsv out`},
	{"salmon", `salmon quant --noEffectiveLengthCorrection -i $R/salmon -l IU -p 1 -1 s_1.fq -2 s_2.fq -o dir; mv dir/quant.sf out`},
	{"kraken2", `kraken2 --db $R/kraken2 --paired --output out s_1.fq s_2.fq`},
	{"kraken2, gzip", `kraken2 --db $R/kraken2 --gzip-compressed --paired --output out s_1.fq.gz s_2.fq.gz`},
	{"diamond", `diamond blastx --threads 1 -d $R/diamond -q s_1.fq -f 6 -o out`},
}

func main() {
	if err := benchMain(); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

type benchmark struct {
	work, premix, links string
	reps                int
	storage             int64 // speed of storage for pipelines, bytes per second; 0: unchanged
	results             *figures.Results
}

func benchMain() error {
	var b benchmark
	var genome, only string
	flag.StringVar(&b.work, "work", "bench-work/dropin", "`directory` for indexes, samples and results")
	flag.StringVar(&b.premix, "premix", "bin/premix", "the premix to measure")
	flag.StringVar(&genome, "genome", "", "FASTA `file` of the genome (default: the yeast genome in PREMIX_TESTDATA)")
	flag.StringVar(&only, "only", "", "names of tools or pipelines, with commas")
	flag.IntVar(&b.reps, "reps", 0, "repetitions, plainly and with links in turns; 0: 7 of commands, 1 of pipelines")
	samples := flag.Int("pipelines", 0, "measure whole pipelines of so many samples, in the place of single commands")
	storage := flag.Int64("storage", 0, "speed of storage for pipelines, `MB/s`, with an empty page cache at the beginning; 0: unchanged")
	flag.Parse()
	b.storage = *storage * 1e6
	if b.reps == 0 {
		b.reps = 7
		if *samples > 0 {
			b.reps = 1
		}
	}
	if genome == "" && *samples == 0 {
		data := os.Getenv("PREMIX_TESTDATA")
		if data == "" {
			return fmt.Errorf("PREMIX_TESTDATA is not set, and -genome names no file")
		}
		genome = filepath.Join(data, "yeast/genome.R64.fa.gz")
	}
	for _, p := range []*string{&b.work, &b.premix, &genome} {
		var err error
		if *p, err = filepath.Abs(*p); err != nil {
			return err
		}
	}
	var err error
	if *samples > 0 {
		err = b.makeLinks()
	} else {
		err = b.prepare(genome)
	}
	if err != nil {
		return err
	}
	if b.results, err = figures.Open(filepath.Join(b.work, "results.jsonl"), os.Stdout); err != nil {
		return err
	}
	defer b.results.Close()
	if *samples > 0 {
		return b.runPipelines(*samples, only)
	}
	rows := [][]string{{"command", "plain", "link", "times", "started", "equal"}}
	row, err := b.measure("passing on", "bwa index 2>/dev/null; true", true)
	if err != nil {
		return err
	}
	rows = append(rows, row)
	for _, c := range commands {
		program, _, _ := strings.Cut(c.line, " ")
		if _, err := exec.LookPath(program); err != nil || only != "" && !strings.Contains(","+only+",", ","+program+",") {
			continue
		}
		row, err := b.measure(c.name, c.line, false)
		if err != nil {
			return err
		}
		rows = append(rows, row)
	}
	b.results.Table(fmt.Sprintf("Commands with premix's links before PATH, median of %d runs", b.reps), rows)
	return nil
}

// prepare makes the indexes, the sample and the links.
func (b *benchmark) prepare(genome string) error {
	if _, err := os.Stat(filepath.Join(b.work, "ready")); err != nil {
		if err := os.MkdirAll(b.work, 0o777); err != nil {
			return err
		}
		script := `examples/drop-in/prepare.sh "$0" "$1" >"$1/prepare.log" 2>&1 && wgsim -S 7 -N 2000 -1 100 -2 100 "$1/ref/genome.fa" "$1/s_1.fq" "$1/s_2.fq" >>"$1/prepare.log" 2>&1 && gzip -kf "$1/s_1.fq" "$1/s_2.fq" && touch "$1/ready"`
		if out, err := exec.Command("sh", "-c", script, genome, b.work).CombinedOutput(); err != nil {
			return fmt.Errorf("make the indexes: %w (%s and %s)", err, out, filepath.Join(b.work, "prepare.log"))
		}
	}
	return b.makeLinks()
}

// makeLinks makes the links, and forgets all calls.
func (b *benchmark) makeLinks() error {
	if err := errors.Join(os.MkdirAll(b.work, 0o777), os.RemoveAll(filepath.Join(b.work, "home"))); err != nil {
		return err
	}
	cmd := exec.Command(b.premix, "shim", "--all", "--dir", filepath.Join(b.work, "links"))
	cmd.Env, cmd.Stderr = b.env(""), os.Stderr
	out, err := cmd.Output()
	b.links = strings.TrimSpace(string(out))
	return err
}

func (b *benchmark) env(links string) []string {
	env := append(os.Environ(), "PREMIX_HOME="+filepath.Join(b.work, "home"), "R="+filepath.Join(b.work, "ref"))
	if links != "" {
		env = append(env, "PATH="+links+":"+os.Getenv("PATH"))
	}
	return env
}

// run runs a command, with the links or without, and returns its time and its output.
func (b *benchmark) run(line, links string) (time.Duration, []byte, error) {
	for _, name := range []string{"out", "dir"} {
		if err := os.RemoveAll(filepath.Join(b.work, name)); err != nil {
			return 0, nil, err
		}
	}
	log, err := os.Create(filepath.Join(b.work, "stderr"))
	if err != nil {
		return 0, nil, err
	}
	defer log.Close()
	cmd := exec.Command("sh", "-c", line)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = b.work, b.env(links), log, log
	started := time.Now()
	if err := cmd.Run(); err != nil {
		return 0, nil, fmt.Errorf("%s: %w (see %s)", line, err, log.Name())
	}
	took := time.Since(started)
	out, err := os.ReadFile(filepath.Join(b.work, "out"))
	if os.IsNotExist(err) {
		err = nil // the command only prints, and has no output file
	}
	return took, out, err
}

// settle runs a command through its link until it starts hot, or is known to start cold.
func (b *benchmark) settle(line string) error {
	for range 4 {
		if _, _, err := b.run(line, b.links); err != nil {
			return err
		}
		// The background process of the call holds this lock, and ends within minutes.
		lock := filepath.Join(b.work, "home/calls/preparing")
		if out, err := exec.Command("sh", "-c", `sleep 0.2; test ! -e "$0" || flock -w 600 "$0" true`, lock).CombinedOutput(); err != nil {
			return fmt.Errorf("wait for a snapshot: %w: %s", err, out)
		}
	}
	return nil
}

// measure measures a command in turns.
func (b *benchmark) measure(name, line string, unfit bool) ([]string, error) {
	if !unfit {
		if err := b.settle(line); err != nil {
			return nil, err
		}
	}
	var plain, link []float64
	equal := true
	for range b.reps {
		a, want, err := b.run(line, "")
		if err != nil {
			return nil, err
		}
		t, got, err := b.run(line, b.links)
		if err != nil {
			return nil, err
		}
		plain, link = append(plain, a.Seconds()), append(link, t.Seconds())
		equal = equal && bytes.Equal(want, got)
	}
	start, err := b.lastStart()
	if err != nil {
		return nil, err
	}
	p, l := quantile.Median(plain), quantile.Median(link)
	f := figures.Figure{Name: "dropin/" + strings.NewReplacer(", ", "-", " ", "-").Replace(name), Value: l, Unit: "s", Peer: "plain", Ratio: figures.Lower(l, p), Note: start}
	if !equal {
		f.Note += "; the outputs differ"
	}
	return []string{name, figures.Seconds(p), figures.Seconds(l), figures.Times(f.Ratio), start, fmt.Sprint(equal)}, b.results.Add(f)
}

// lastStart returns how the last command started.
func (b *benchmark) lastStart() (string, error) {
	text, err := os.ReadFile(filepath.Join(b.work, "home/calls/starts.jsonl"))
	if err != nil {
		return "", err
	}
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	var s struct{ Start, Why string }
	if err := json.Unmarshal(lines[len(lines)-1], &s); err != nil {
		return "", err
	}
	if s.Why != "" {
		return s.Start + ": " + s.Why, nil
	}
	return s.Start, nil
}
