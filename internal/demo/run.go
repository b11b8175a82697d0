package demo

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"premix/internal/demo/aligner"
	"premix/internal/kit/exit"
	"premix/internal/kit/htmlpage"
	"premix/internal/kit/quantile"
	"premix/internal/kit/units"
)

// Sizes of the demonstration.
const (
	referenceLength = 400_000_000
	samples         = 12
	reads           = 500
)

// alignerName is the name of the program of package aligner.
const alignerName = "premix-demo"

// Tool is an aligner.
type Tool string

// Aligners.
const (
	BuiltIn  Tool = "built-in"
	Minimap2 Tool = "minimap2"
)

// Options are the options of a demonstration.
type Options struct {
	Out      string
	Tool     Tool
	Messages io.Writer // for progress; nil: none
}

// Row is one run over all samples.
type Row struct {
	Name    string  `json:"run"`
	Hot     int     `json:"hot"`     // tasks that started hot
	Cold    int     `json:"cold"`    // and cold
	Latency float64 `json:"latency"` // median until a task opens its sample, in seconds
	Task    float64 `json:"task"`    // median of a whole task, in seconds
	Tasks   float64 `json:"tasks"`   // sum of all tasks, in seconds
	Whole   float64 `json:"whole"`   // the command, in seconds
	Equal   int     `json:"equal"`   // outputs that are equal to the cold ones
	Page    string  `json:"page"`
	Reason  string  `json:"reason,omitempty"` // for the first cold task of a run that was to be hot
}

// Result is a finished demonstration.
type Result struct {
	Tool    Tool    `json:"tool"`
	Length  int     `json:"reference"`
	Samples int     `json:"samples"`
	Rows    []Row   `json:"runs"`
	Gain    float64 `json:"gain"` // cold time by hot time of all tasks
	Seconds float64 `json:"seconds"`
	Bytes   int64   `json:"bytes"` // that stay on the disk
	Page    string  `json:"page"`
	Dir     string  `json:"dir"`
}

// mark is the file that shows that a directory is a demonstration's, and may be replaced.
const mark = ".premix-demo"

// Run does the demonstration. It returns a result with an error where a run failed or an
// output differs.
func Run(ctx context.Context, o Options) (*Result, error) {
	began := time.Now()
	d := &demonstration{Options: o}
	if err := d.begin(); err != nil {
		return nil, err
	}
	result := &Result{Tool: o.Tool, Length: referenceLength, Samples: samples, Dir: d.Out}
	// Snapshots are made afresh, so that the first hot run shows their cost.
	defer os.RemoveAll(d.home())
	for _, r := range []struct{ name, start string }{{"cold", "cold"}, {"first hot", "auto"}, {"hot", "auto"}} {
		d.say("running 12 samples: %s", r.name)
		row, err := d.run(ctx, r.name, r.start)
		if err != nil {
			return nil, err
		}
		result.Rows = append(result.Rows, *row)
	}
	if hot := result.Rows[len(result.Rows)-1].Tasks; hot > 0 {
		result.Gain = result.Rows[0].Tasks / hot
	}
	result.Seconds = time.Since(began).Seconds()
	if err := os.RemoveAll(d.home()); err != nil {
		return nil, err
	}
	var err error
	if result.Bytes, err = size(d.Out); err != nil {
		return nil, err
	}
	if result.Page, err = d.page(result); err != nil {
		return nil, err
	}
	for _, row := range result.Rows {
		if row.Equal != samples {
			return result, exit.Errorf(exit.Failed, "please report this, with "+d.Out, "%d outputs of the run %q differ from the cold ones", samples-row.Equal, row.Name)
		}
	}
	return result, nil
}

// demonstration is a demonstration that runs.
type demonstration struct {
	Options
	self string // premix
	tool string // path of the aligner
}

func (d *demonstration) say(format string, args ...any) {
	if d.Messages != nil {
		fmt.Fprintf(d.Messages, format+"\n", args...)
	}
}

func (d *demonstration) home() string { return filepath.Join(d.Out, "home") }

// begin makes the directory with the reference, the samples and the recipe.
func (d *demonstration) begin() (err error) {
	if d.self, err = os.Executable(); err != nil {
		return exit.Errorf(exit.Unavailable, "mount /proc: mount -t proc proc /proc", "the program premix is not found: %v", err)
	}
	switch d.Tool {
	case BuiltIn:
		d.tool = filepath.Join(filepath.Dir(d.self), alignerName)
		if _, err := os.Stat(d.tool); err != nil {
			return exit.Errorf(exit.Usage, "install premix-demo beside premix, or give --tool minimap2", "the aligner of the demonstration is missing: %s", d.tool)
		}
	case Minimap2:
		if d.tool, err = exec.LookPath(string(Minimap2)); err != nil {
			return exit.Errorf(exit.Usage, "install it, or leave out --tool", "minimap2 is not on PATH")
		}
	default:
		return exit.Errorf(exit.Usage, "it is built-in or minimap2", "there is no aligner %q", d.Tool)
	}
	if d.Out, err = filepath.Abs(d.Out); err != nil {
		return err
	}
	if entries, err := os.ReadDir(d.Out); err == nil && len(entries) > 0 {
		if _, err := os.Stat(filepath.Join(d.Out, mark)); err != nil {
			return exit.Errorf(exit.Directory, "name a directory that does not exist: --out DIR", "%s has other files", d.Out)
		}
		if err := os.RemoveAll(d.Out); err != nil {
			return exit.Errorf(exit.Directory, "name another directory: --out DIR", "%w", err)
		}
	}
	if err := os.MkdirAll(filepath.Join(d.Out, "ref"), 0o777); err != nil {
		return exit.Errorf(exit.Directory, "name a directory that you may make: --out DIR", "%w", err)
	}
	if err := os.WriteFile(filepath.Join(d.Out, mark), nil, 0o666); err != nil {
		return err
	}
	d.say("making a reference of %d Mb and %d samples", referenceLength/1_000_000, samples)
	r := aligner.NewReference(referenceLength)
	sheet := "sample,reads\n"
	for n := 1; n <= samples; n++ {
		base := fmt.Sprintf("s%d.fq", n)
		if err := d.file(base, func(w io.Writer) error { return r.Sample(w, n, reads) }); err != nil {
			return err
		}
		sheet += fmt.Sprintf("s%d,%s\n", n, base)
	}
	command := d.tool + " ${data.ref}/genome.premix ${reads}"
	if d.Tool == Minimap2 {
		command = "minimap2 -a -t ${threads} ${data.ref}/genome.mmi ${reads}"
		err = d.index(r)
	} else {
		err = d.file("ref/genome.premix", r.Write)
	}
	recipe := "name: demo\ncommand: " + command + "\ndata:    {ref: ./ref}\ninputs:  [reads]\noutputs: {stdout: \"${sample}.sam\"}\nthreads: 1\nmemory:  1G\n"
	if d.Tool == BuiltIn {
		// A Go program would keep a file of the kernel open, which cannot be frozen; and for
		// so short a life its memory need not be collected.
		recipe += "env:     {GODEBUG: containermaxprocs=0, GOMAXPROCS: '1', GOGC: 'off'}\n"
	}
	return errors.Join(err, d.text("samples.csv", sheet), d.text("recipe.yaml", recipe))
}

// index makes the index of minimap2. Its words are sparse, so that this takes seconds.
func (d *demonstration) index(r *aligner.Reference) error {
	if err := d.file("genome.fa", r.WriteFASTA); err != nil {
		return err
	}
	d.say("making the index of minimap2")
	fasta := filepath.Join(d.Out, "genome.fa")
	out, err := exec.Command(d.tool, "-t", "2", "-k", "21", "-w", "50", "-d", filepath.Join(d.Out, "ref/genome.mmi"), fasta).CombinedOutput()
	if err != nil {
		return exit.Errorf(exit.Failed, "see its message; the disk needs 1 GB", "minimap2 could not make its index: %s", lastLine(out))
	}
	return os.Remove(fasta)
}

// lastLine returns the error in the messages of a program, or their last line.
func lastLine(text []byte) string {
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	for _, line := range lines {
		if message, ok := strings.CutPrefix(line, "error: "); ok {
			return message
		}
	}
	return lines[len(lines)-1]
}

// hintOf returns the hint in the messages of premix, or another one.
func hintOf(text []byte, other string) string {
	for line := range strings.Lines(string(text)) {
		if hint, ok := strings.CutPrefix(line, "hint: "); ok {
			return strings.TrimSpace(hint)
		}
	}
	return other
}

func (d *demonstration) file(base string, write func(io.Writer) error) error {
	f, err := os.Create(filepath.Join(d.Out, base))
	if err == nil {
		err = errors.Join(write(f), f.Close())
	}
	if err != nil {
		return exit.Errorf(exit.Directory, "the demonstration needs 600 MB of disk: --out DIR names another place", "%w", err)
	}
	return nil
}

func (d *demonstration) text(base, text string) error {
	return d.file(base, func(w io.Writer) error {
		_, err := io.WriteString(w, text)
		return err
	})
}

// task is the part of a task in the output of premix report that is used here.
type task struct {
	Start   string  `json:"start"`
	Reason  string  `json:"reason"`
	Latency float64 `json:"latency"`
	Seconds float64 `json:"seconds"`
}

// run runs all samples.
func (d *demonstration) run(ctx context.Context, name, start string) (*Row, error) {
	dir := strings.ReplaceAll(name, " ", "-")
	began := time.Now()
	log, err := d.premix(ctx, "run", "recipe.yaml", "samples.csv", "--out", dir, "--start", start, "-j", "1", "--verify", "none")
	whole := time.Since(began).Seconds()
	if err != nil {
		return nil, exit.Errorf(exit.Failed, hintOf(log, "see "+filepath.Join(d.Out, dir)), "the run %q failed: %s", name, lastLine(log))
	}
	text, err := d.premix(ctx, "report", dir, "--json")
	if err != nil {
		return nil, exit.Errorf(exit.Failed, "see "+filepath.Join(d.Out, dir), "the run %q has no report: %s", name, lastLine(text))
	}
	var report struct{ Tasks []task }
	if err := json.Unmarshal(text, &report); err != nil {
		return nil, fmt.Errorf("read the report of the run %q: %w", name, err)
	}
	row := &Row{Name: name, Whole: whole, Page: filepath.Join(dir, "report.html")}
	var latencies, seconds []float64
	for _, t := range report.Tasks {
		latencies, seconds = append(latencies, t.Latency), append(seconds, t.Seconds)
		row.Tasks += t.Seconds
		if t.Start == "hot" {
			row.Hot++
			continue
		}
		if row.Cold++; start != "cold" && row.Reason == "" {
			row.Reason = t.Reason
		}
	}
	slices.Sort(latencies)
	slices.Sort(seconds)
	row.Latency, row.Task = quantile.Sorted(latencies, 0.5), quantile.Sorted(seconds, 0.5)
	for n := 1; n <= samples; n++ {
		base := fmt.Sprintf("s%d.sam", n)
		want, err := os.ReadFile(filepath.Join(d.Out, "cold", base))
		if err != nil {
			return nil, err
		}
		got, err := os.ReadFile(filepath.Join(d.Out, dir, base))
		if err != nil {
			return nil, err
		}
		if len(got) > 0 && bytes.Equal(got, want) {
			row.Equal++
		}
	}
	return row, nil
}

// premix runs a command of premix in the directory, with snapshots of its own. On an error
// it returns the messages.
func (d *demonstration) premix(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, d.self, args...)
	cmd.Dir = d.Out
	cmd.Env = append(os.Environ(), "PREMIX_HOME="+d.home())
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return append(stdout.Bytes(), stderr.Bytes()...), err
	}
	return stdout.Bytes(), nil
}

// size returns the bytes that the files below dir occupy.
func size(dir string) (int64, error) {
	var sum int64
	err := filepath.Walk(dir, func(_ string, info os.FileInfo, err error) error {
		if err == nil && info.Mode().IsRegular() {
			sum += info.Size()
		}
		return err
	})
	return sum, err
}

// Write writes the result for people.
func (r *Result) Write(w io.Writer) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%d samples of %d reads, a reference of %d Mb, the aligner %s, one task at a time\n\n", r.Samples, reads, r.Length/1e6, r.Tool)
	t := tabwriter.NewWriter(&b, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "run\tstarted as\tto its input\teach task\tall tasks\twhole command\tequal to cold")
	for _, row := range r.Rows {
		fmt.Fprintf(t, "%s\t%s\t%.0f ms\t%.2f s\t%.2f s\t%.2f s\t%d of %d\n", row.Name, row.Starts(), row.Latency*1e3, row.Task, row.Tasks, row.Whole, row.Equal, r.Samples)
	}
	t.Flush()
	if r.Rows[len(r.Rows)-1].Hot > 0 {
		fmt.Fprintf(&b, "\nhot tasks take %.1f times less; the first hot run also makes and proves the snapshot\n", r.Gain)
	} else {
		fmt.Fprintln(&b, "\nno task could start hot here; the outputs are the same")
	}
	for _, row := range r.Rows {
		if row.Reason != "" {
			fmt.Fprintf(&b, "%s: %d tasks started cold: %s; see premix doctor\n", row.Name, row.Cold, row.Reason)
		}
	}
	fmt.Fprintf(&b, "%.0f s in all, %s in %s\n\npage: %s\nagain: cd %s && premix run recipe.yaml samples.csv --out again\n", r.Seconds, units.Size(r.Bytes), r.Dir, r.Page, r.Dir)
	_, err := w.Write(b.Bytes())
	return err
}

// Starts returns the kinds of start with their numbers.
func (r Row) Starts() string {
	var list []string
	if r.Hot > 0 {
		list = append(list, fmt.Sprintf("%d hot", r.Hot))
	}
	if r.Cold > 0 {
		list = append(list, fmt.Sprintf("%d cold", r.Cold))
	}
	return strings.Join(list, ", ")
}

//go:embed page.html
var pageHTML string

// pageCSS is the style of the bars, in the colours of all pages.
const pageCSS = `
td.wide { width: 30%; min-width: 8rem; }
.bar { height: 12px; border-radius: 3px; background: var(--cold); min-width: 2px; }
.bar.hot { background: var(--hot); }
a { color: var(--accent); }
@media print { td.wide { min-width: 4rem; } }
`

// page writes the page of the demonstration.
func (d *demonstration) page(r *Result) (string, error) {
	longest := 0.0
	for _, row := range r.Rows {
		longest = max(longest, row.Tasks)
	}
	t, err := htmlpage.New(pageHTML, pageCSS, template.FuncMap{
		"ms":  func(s float64) string { return fmt.Sprintf("%.0f ms", s*1e3) },
		"s":   func(s float64) string { return fmt.Sprintf("%.2f s", s) },
		"mb":  func(n int) int { return n / 1e6 },
		"bar": func(s float64) string { return fmt.Sprintf("%.1f", 100*s/max(longest, 1e-9)) },
	})
	if err != nil {
		return "", err
	}
	path := filepath.Join(d.Out, "demo.html")
	return path, d.file("demo.html", func(w io.Writer) error { return t.Execute(w, r) })
}
