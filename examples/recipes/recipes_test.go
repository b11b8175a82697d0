package recipes_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"premix/internal/recipe"
)

// TestMain sets both variables.
var (
	root   string // directory of all files of the tests, which all users may read
	binary string // path of the real premix
)

// samples lists the samples of every sheet. Only the reads of A are compressed.
var samples = []string{"A", "B"}

func TestMain(m *testing.M) {
	os.Exit(withBinary(m))
}

func withBinary(m *testing.M) int {
	code, err := build(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

func build(m *testing.M) (code int, err error) {
	if root, err = os.MkdirTemp("", "premix-recipes-"); err != nil {
		return 0, err
	}
	defer os.RemoveAll(root)
	if root, err = filepath.EvalSymlinks(root); err != nil {
		return 0, err
	}
	if err := os.Chmod(root, 0o755); err != nil {
		return 0, err
	}
	binary = filepath.Join(root, "premix")
	cmd := exec.Command("go", "build", "-o", binary, "./cmd/premix")
	cmd.Dir = "../.."
	if out, err := cmd.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("build premix: %w\n%s", err, out)
	}
	if err := readSources(); err != nil {
		return 0, err
	}
	return m.Run(), nil
}

// readSources reads the source directories of premix. The go command caches the result of a
// test by the files that the test itself has read, and does not know the files that the
// build has read.
func readSources() error {
	cmd := exec.Command("go", "list", "-deps", "-f", "{{with .Module}}{{if .Main}}{{$.Dir}}{{end}}{{end}}", "./cmd/premix")
	cmd.Dir = "../.."
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("go list: %w", err)
	}
	for _, dir := range strings.Fields(string(out)) {
		if _, err := os.ReadDir(dir); err != nil {
			return err
		}
	}
	return nil
}

// shipped is a shipped recipe and the tools that it runs.
type shipped struct {
	name  string
	tools []string
}

var all = []shipped{
	{"bwa-mem", []string{"bwa", "samtools"}},
	{"minimap2", []string{"minimap2"}},
	{"star", []string{"STAR"}},
	{"kallisto", []string{"kallisto"}},
	{"salmon", []string{"salmon"}},
}

func TestEveryShippedRecipeIsTested(t *testing.T) {
	files, err := filepath.Glob("*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range all {
		names = append(names, s.name+".yaml")
	}
	slices.Sort(names)
	if !slices.Equal(files, names) {
		t.Errorf("there are %v, tests are of %v", files, names)
	}
}

func TestEveryStartEqualsCold(t *testing.T) {
	for _, s := range all {
		t.Run(s.name, func(t *testing.T) {
			d, err := ecoli()
			if err != nil {
				t.Fatal(err)
			}
			s.exercise(t, d)
		})
	}
}

func TestEveryStartEqualsColdOnYeast(t *testing.T) {
	if os.Getenv("PREMIX_TESTDATA") == "" {
		t.Skip("PREMIX_TESTDATA is not set: it names a directory with real reads, yeast/ among them")
	}
	for _, s := range all[:3] {
		t.Run(s.name, func(t *testing.T) {
			d, err := yeast()
			if err != nil {
				t.Fatal(err)
			}
			s.exercise(t, d)
		})
	}
}

// exercise runs a recipe in all kinds of start, which share the snapshots.
func (s shipped) exercise(t *testing.T, d *dataset) {
	u := newUser(t)
	r := u.begin(t, d, s)
	for _, kind := range []string{"hot", "auto"} {
		t.Run(kind, func(t *testing.T) { r.equal(t, kind, "hot") })
	}
}

// An ordinary user needs only a writable directory. Recipe, data and reads belong to
// another user, and neither premix's home nor $HOME exists yet.
func TestOrdinaryUser(t *testing.T) {
	d, err := ecoli()
	if err != nil {
		t.Fatal(err)
	}
	u := ordinary(t)
	r := u.begin(t, d, all[0])
	for _, kind := range []string{"hot", "auto"} {
		t.Run(kind, func(t *testing.T) { r.equal(t, kind, "hot") })
	}
}

// runs contains the parameters of a user's runs of one recipe.
type runs struct {
	user   *user
	name   string
	path   string // path of the recipe
	sheet  string
	recipe *recipe.Recipe
}

// begin performs the cold run with which all others are compared.
func (u *user) begin(t *testing.T, d *dataset, s shipped) *runs {
	t.Helper()
	for _, tool := range s.tools {
		if _, err := exec.LookPath(tool); err != nil {
			t.Fatal(missing(tool, err))
		}
	}
	path, sheet, err := d.place(s.name)
	if err != nil {
		t.Fatal(err)
	}
	r := &runs{user: u, name: s.name, path: path, sheet: sheet}
	if r.recipe, err = recipe.Load(path); err != nil {
		t.Fatal(err)
	}
	cold := func(t *testing.T) {
		r.start(t, "cold", "cold")
		r.checkSamplesDiffer(t, "cold")
	}
	if !t.Run("cold", cold) {
		t.Fatal("there is no cold run to compare with")
	}
	return r
}

func (r *runs) out(start string) string { return filepath.Join(r.user.dir, "out-"+start) }

func (r *runs) run(t *testing.T, start string) finished {
	t.Helper()
	return r.user.premix(t, "run", r.path, r.sheet, "--out", r.out(start), "--start", start, "-j", "2")
}

// task contains the fields of a task in the report that the tests use.
type task struct {
	Sample, Start, Reason string
	Exit                  int
}

// start runs the samples and checks everything except the content of the outputs. It
// returns the first task.
func (r *runs) start(t *testing.T, start, want string) task {
	t.Helper()
	if e := r.run(t, start); e.code != 0 {
		log, err := os.ReadFile(filepath.Join(r.out(start), ".premix", "stderr.log"))
		t.Fatalf("%v\nstandard error of the tasks (%v):\n%s", e, err, log)
	}
	r.checkDirectory(t, start)
	if want != "cold" {
		checkPrivate(t, r.user.home())
	}
	e := r.user.premix(t, "report", r.out(start), "--json")
	if e.code != 0 {
		t.Fatalf("report: %v", e)
	}
	var report struct{ Tasks []task }
	if err := json.Unmarshal([]byte(e.stdout), &report); err != nil {
		t.Fatalf("report: %v\n%s", err, e.stdout)
	}
	told := map[string]int{}
	for _, k := range report.Tasks {
		told[k.Sample]++
		if k.Start != want || k.Reason == "" || k.Exit != 0 {
			t.Errorf("sample %s started %s because %q and exited with %d, want a %s start, a reason and 0", k.Sample, k.Start, k.Reason, k.Exit, want)
		}
		if want != "cold" && !strings.Contains(k.Reason, "outputs for the probe were compared with a cold start") {
			t.Errorf("sample %s: the reason %q names no comparison", k.Sample, k.Reason)
		}
	}
	if len(report.Tasks) != len(samples) || len(told) != len(samples) {
		t.Fatalf("the report tells of %v, want one task for each of %v", report.Tasks, samples)
	}
	t.Logf("%s: %s", report.Tasks[0].Start, report.Tasks[0].Reason)
	return report.Tasks[0]
}

// checkDirectory checks that the run directory contains the outputs and the page, and
// nothing else.
func (r *runs) checkDirectory(t *testing.T, start string) {
	t.Helper()
	want := map[string]bool{".premix": true, "report.html": true}
	for _, sample := range samples {
		for _, out := range r.recipe.Outputs(recipe.Sample{Name: sample}) {
			first, _, _ := strings.Cut(out.To, "/")
			want[first] = true
		}
	}
	list, err := os.ReadDir(r.out(start))
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	for _, e := range list {
		got[e.Name()] = true
	}
	if !maps.Equal(got, want) {
		t.Errorf("the run directory holds %v, want %v", slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
	}
	if _, err := os.Lstat(filepath.Join(r.out(start), ".premix", "tasks")); !os.IsNotExist(err) {
		t.Errorf("work directories are left (%v)", err)
	}
}

// checkSamplesDiffer checks that the outputs depend on the reads. If the outputs of A and B
// were equal, a start that confuses them would not be noticed.
func (r *runs) checkSamplesDiffer(t *testing.T, start string) {
	t.Helper()
	outputs := r.recipe.Outputs(recipe.Sample{Name: "A"})
	for i, other := range r.recipe.Outputs(recipe.Sample{Name: "B"}) {
		a, b := largest(t, filepath.Join(r.out(start), outputs[i].To)), largest(t, filepath.Join(r.out(start), other.To))
		if len(a) < 1000 || bytes.Equal(a, b) {
			t.Errorf("output %s: %d bytes for A, and are those for B equal: %v", other.Name, len(a), bytes.Equal(a, b))
		}
	}
}

// largest returns the content of the largest file in a tree.
func largest(t *testing.T, root string) []byte {
	t.Helper()
	var text []byte
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		if len(b) > len(text) {
			text = b
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// equal runs the samples and compares the outputs with the outputs of the cold run.
func (r *runs) equal(t *testing.T, start, want string) task {
	t.Helper()
	first := r.start(t, start, want)
	differences, left, err := compareRuns(r.recipe, r.out("cold"), r.out(start))
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range differences {
		t.Errorf("%s", d)
	}
	for _, l := range left {
		t.Logf("left out: %s", l)
	}
	return first
}
