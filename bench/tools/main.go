package main

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/zeebo/blake3"
	"golang.org/x/sys/unix"

	"premix/internal/testkit/figures"
	"premix/internal/testkit/workbench"
)

func main() {
	if err := benchMain(); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func benchMain() error {
	work := flag.String("work", "bench-work/tools", "`directory` for indexes, runs and results")
	premix := flag.String("premix", "bin/premix", "the premix to use")
	only := flag.String("only", "", "measure only tools whose names match this `regexp`")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	if os.Geteuid() != 0 {
		return errors.New("only root may become another user\nhint: run it as root")
	}
	testdata := os.Getenv("PREMIX_TESTDATA")
	if testdata == "" {
		return errors.New("PREMIX_TESTDATA is not set\nhint: docs/install.md says how to get the test data")
	}
	chosen, err := regexp.Compile(*only)
	if err != nil {
		return err
	}
	program, err := filepath.Abs(*premix)
	if err != nil {
		return err
	}
	lab, err := workbench.Open(*work)
	if err != nil {
		return err
	}
	defer lab.Close()
	results, err := figures.Open(filepath.Join(lab.Dir, "results.jsonl"), os.Stdout)
	if err != nil {
		return err
	}
	defer results.Close()
	fmt.Println(figures.Machine(lab.Dir))
	b := &bench{ctx: ctx, lab: lab, premix: program}
	if b.data, err = lab.Once("data", func(path string) error { return b.script(path, makeData, "TESTDATA="+testdata) }); err != nil {
		return err
	}
	rows := [][]string{{"tool", "start", "data", "share", "snapshot", "cold", "hot", "outputs"}}
	counts := map[string]int{}
	for _, t := range tools {
		if !chosen.MatchString(t.name) {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		o, err := b.measure(t)
		if err != nil {
			o.start, o.outputs = "failed", words(err.Error())
		}
		lab.Log("%s: %s %s", t.name, o.start, o.outputs)
		counts[o.start]++
		rows = append(rows, o.row(t.name))
		if err := results.Add(figures.Figure{Name: t.name + "/share", Value: o.share(), Unit: "of the data", Note: strings.TrimSpace(o.start + " " + o.outputs)}); err != nil {
			return err
		}
	}
	results.Table("Programs of Debian, two samples at once, as user 65534", rows)
	fmt.Println(counts)
	return nil
}

// bench is one execution of this program.
type bench struct {
	ctx    context.Context
	lab    *workbench.Lab
	premix string
	data   string
}

// outcome is the result for one tool.
type outcome struct {
	start        string // hot, cold, failed, or missing
	data, loaded int64  // bytes that it loads, in total and until the stop
	memory       int64  // of the snapshot, bytes
	stop         string // where the tool was stopped
	cold, hot    float64
	outputs      string // equal, or the reason
}

func (o outcome) share() float64 {
	if o.data == 0 {
		return 0
	}
	return float64(o.loaded) / float64(o.data)
}

func (o outcome) row(name string) []string {
	megabytes := func(n int64) string {
		if n == 0 {
			return "–"
		}
		return fmt.Sprintf("%d MB", (n+500_000)/1e6)
	}
	share, cold, hot := "–", "–", "–"
	if o.data > 0 && o.start == "hot" {
		share = fmt.Sprintf("%.0f %%", 100*o.share())
	}
	if o.cold > 0 {
		cold = fmt.Sprintf("%.2f s", o.cold)
	}
	if o.hot > 0 {
		hot = fmt.Sprintf("%.2f s", o.hot)
	}
	return []string{name, o.start, megabytes(o.data), share, megabytes(o.memory), cold, hot, o.outputs}
}

// path is the PATH of Debian's programs.
const path = "PATH=/usr/bin:/bin"

// user is the ordinary user that runs the tools.
const user = "65534"

// unprivileged returns a premix command that runs as an ordinary user who cannot gain
// privileges.
func (b *bench) unprivileged(home string, args ...string) *exec.Cmd {
	argv := append([]string{"--reuid", user, "--regid", user, "--clear-groups", "--no-new-privs", "--inh-caps=-all", b.premix}, args...)
	cmd := workbench.Command(b.ctx, "setpriv", argv...)
	cmd.Env = []string{path, "HOME=" + home, "PREMIX_HOME=" + filepath.Join(home, "premix"), "LC_ALL=C.UTF-8"}
	cmd.Dir = home
	return cmd
}

// script makes a new directory and runs a shell script in it.
func (b *bench) script(dir, text string, env ...string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	cmd := workbench.Command(b.ctx, "bash", "-e", "-c", text)
	cmd.Dir = dir
	cmd.Env = append(env, path, "HOME="+dir, "LC_ALL=C.UTF-8")
	for name, file := range map[string]string{"G": "genome.fa", "B": "large.fa", "T": "transcripts.fa", "P": "proteins.fa", "R": "a_1.fq"} {
		cmd.Env = append(cmd.Env, name+"="+filepath.Join(b.data, file))
	}
	cmd.Env = append(cmd.Env, "PYTHON="+pythonScript, "PYJSON="+jsonScript, "RSCRIPT="+rScript, "PERL="+perlScript)
	return workbench.Run(nil, cmd)
}

// measure runs one tool cold and hot, and compares its outputs.
func (b *bench) measure(t tool) (outcome, error) {
	var o outcome
	if _, err := exec.LookPath(t.program); err != nil {
		return outcome{start: "missing", outputs: t.program + " is not installed"}, nil
	}
	sum := blake3.Sum256([]byte(t.index))
	index, err := b.lab.Once("index-"+hex.EncodeToString(sum[:6]), func(path string) error { return b.script(path, t.index) })
	if err != nil {
		return o, err
	}
	home, err := b.lab.Scratch()
	if err != nil {
		return o, err
	}
	defer os.RemoveAll(home)
	if err := os.Chown(home, 65534, 65534); err != nil {
		return o, err
	}
	recipe, sheet := filepath.Join(home, "recipe.yaml"), filepath.Join(home, "sheet.csv")
	if err := errors.Join(os.WriteFile(recipe, []byte(t.recipe(index)), 0o644), os.WriteFile(sheet, []byte(b.sheet(t.sample)), 0o644)); err != nil {
		return o, err
	}
	run := func(start string) (dir, kind string, seconds float64, err error) {
		dir = filepath.Join(home, start)
		if err = workbench.Run(nil, b.unprivileged(home, "run", recipe, sheet, "--quiet", "-j", "2", "--start", start, "--out", dir)); err != nil {
			return
		}
		kind, seconds, err = b.report(home, dir)
		return
	}
	cold, _, seconds, err := run("cold")
	if err != nil {
		return o, err
	}
	o.cold = seconds
	prepare := b.unprivileged(home, "prepare", recipe, "--probe", sheet)
	var decision strings.Builder
	prepare.Stdout = &decision
	if err := workbench.Run(nil, prepare); err != nil {
		return o, err
	}
	hot, kind, seconds, err := run("auto")
	if err != nil {
		return o, err
	}
	var reason string
	if o.start, reason, _ = strings.Cut(kind, " "); o.start == "hot" {
		o.hot = seconds
	}
	if err := b.inspect(home, &o); err != nil {
		return o, err
	}
	if o.start == "hot" {
		if o.data, o.loaded, err = b.loads(t, index, o.stop); err != nil {
			return o, err
		}
	}
	if o.outputs, err = t.compare(cold, hot); err != nil {
		return o, err
	}
	if reason != "" {
		_, why, _ := strings.Cut(decision.String(), "tasks start cold: ")
		o.outputs += ": " + strings.TrimSpace(why)
	}
	return o, nil
}

// recipe returns the recipe of a tool.
func (t tool) recipe(index string) string {
	var r strings.Builder
	fmt.Fprintf(&r, "name: tool\ncommand: %q\ninputs: %s\n", t.command, t.sample.inputs())
	fmt.Fprint(&r, "outputs:\n")
	if !t.silent {
		fmt.Fprint(&r, "  stdout: \"${sample}.stdout\"\n")
	}
	if t.outputs != "" {
		fmt.Fprintf(&r, "  %s\n", t.outputs)
	}
	for i, v := range t.varies {
		if i == 0 {
			fmt.Fprint(&r, "varies:\n")
		}
		fmt.Fprintf(&r, "  - {file: %q", v.file)
		if v.lines != "" {
			fmt.Fprintf(&r, ", lines: '%s'", v.lines)
		}
		fmt.Fprint(&r, "}\n")
	}
	if strings.Contains(t.command, "${index}") {
		return strings.ReplaceAll(r.String(), "${index}", "${data.index}") + "data: {index: " + index + "}\n"
	}
	return r.String()
}

// sheet returns the sample sheet of two samples.
func (b *bench) sheet(k kind) string {
	columns := map[kind]string{
		named:  "sample,r1,r2\na,@/a_1.fq,@/a_2.fq\nb,@/b_1.fq,@/b_2.fq\n",
		single: "sample,r1\na,@/a_1.fq\nb,@/b_1.fq\n", paired: "sample,r1,r2\na,@/a_1.fq,@/a_2.fq\nb,@/b_1.fq,@/b_2.fq\n",
		proteins: "sample,q\na,@/a.faa\nb,@/b.faa\n", queries: "sample,q\na,@/a.fna\nb,@/b.fna\n", reads: "sample,bam\na,@/a.bam\nb,@/b.bam\n",
		table: "sample,t\na,@/a.txt\nb,@/b.txt\n", asJSON: "sample,j\na,@/a.json\nb,@/b.json\n",
	}
	return strings.ReplaceAll(columns[k], "@", b.data)
}

// report returns how the tasks of a run started, with the reason for a cold start, and
// the longest time of a task.
func (b *bench) report(home, dir string) (kind string, seconds float64, err error) {
	cmd := b.unprivileged(home, "report", dir, "--json")
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := workbench.Run(nil, cmd); err != nil {
		return "", 0, err
	}
	var r struct {
		Tasks []struct {
			Start, Reason string
			Seconds       float64
		}
	}
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		return "", 0, err
	}
	for _, t := range r.Tasks {
		seconds = max(seconds, t.Seconds)
		if kind == "" || t.Start == "cold" {
			kind = t.Start
			if t.Start == "cold" {
				kind += " " + t.Reason
			}
		}
	}
	return kind, seconds, nil
}

// inspect reads the properties of the snapshot into o.
func (b *bench) inspect(home string, o *outcome) error {
	files, err := filepath.Glob(filepath.Join(home, "premix/snapshots/*/snapshot.json"))
	if err != nil || len(files) == 0 {
		return err
	}
	text, err := os.ReadFile(files[0])
	if err != nil {
		return err
	}
	var s struct {
		Memory int64
		Stop   string
	}
	err = json.Unmarshal(text, &s)
	o.stop, o.memory = s.Stop, s.Memory
	return err
}

// compare compares the outputs of two runs.
func (t tool) compare(a, b string) (string, error) {
	left, err := t.contents(a)
	if err != nil {
		return "", err
	}
	right, err := t.contents(b)
	if err != nil {
		return "", err
	}
	var differ []string
	for name := range left {
		if right[name] != left[name] {
			differ = append(differ, name)
		}
	}
	for name := range right {
		if _, ok := left[name]; !ok {
			differ = append(differ, name)
		}
	}
	if len(differ) > 0 {
		slices.Sort(differ)
		return "DIFFER: " + strings.Join(differ[:min(3, len(differ))], " "), nil
	}
	return fmt.Sprintf("%d equal", len(left)), nil
}

// contents returns the outputs of a run, without the parts that vary.
func (t tool) contents(dir string) (map[string]string, error) {
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.Name() == ".premix" || d.Name() == "report.html" {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if !d.Type().IsRegular() {
			return nil
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		text := string(b)
		for _, v := range t.varies {
			if ok, _ := filepath.Match(v.to, rel); !ok {
				continue
			}
			if v.lines == "" {
				return nil
			}
			text = regexp.MustCompile("(?m)"+v.lines+".*$").ReplaceAllString(text, "")
		}
		all[rel] = text
		return nil
	})
	return all, err
}

// words returns the end of an error message, without the failed command.
func words(s string) string {
	_, text, _ := strings.Cut(s, "\n")
	if text == "" {
		text = s
	}
	text = strings.Join(strings.Fields(text), " ")
	return text[max(0, len(text)-200):]
}
