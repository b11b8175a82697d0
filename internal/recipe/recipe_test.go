package recipe

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"gopkg.in/yaml.v3"

	"premix/internal/hotstart"
	"premix/internal/store/tree"
)

var update = flag.Bool("update", false, "write what is printed into the golden files")

// golden compares got with the file, in which DIR is replaced by dir.
func golden(t *testing.T, file, got, dir string) {
	t.Helper()
	abs, err := filepath.Abs(dir)
	if err != nil {
		t.Fatal(err)
	}
	got = strings.ReplaceAll(got, abs, "DIR") + "\n"
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("got:\n%s\nwant (%s):\n%s", got, file, want)
	}
}

func glob(t *testing.T, pattern string) []string {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("no files for %s (%v)", pattern, err)
	}
	return files
}

func load(t *testing.T, file string) *Recipe {
	t.Helper()
	r, err := Load(file)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return r
}

func TestBadRecipes(t *testing.T) {
	for _, file := range glob(t, "testdata/bad/*.yaml") {
		t.Run(filepath.Base(file), func(t *testing.T) {
			r, err := Load(file)
			var problems Problems
			if r != nil || !errors.As(err, &problems) {
				t.Fatalf("got %v, %v; want Problems", r, err)
			}
			if !slices.IsSortedFunc(problems, func(a, b Problem) int { return a.Line - b.Line }) {
				t.Error("not sorted by line")
			}
			golden(t, strings.TrimSuffix(file, ".yaml")+".txt", err.Error(), "testdata/bad")
		})
	}
}

func TestMissingRecipe(t *testing.T) {
	_, err := Load("testdata/good/shrt.yaml")
	var problems Problems
	if !errors.As(err, &problems) || problems[0].Hint != "did you mean testdata/good/short.yaml?" {
		t.Errorf("got %v", err)
	}
}

func TestSchema(t *testing.T) {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(Schema()))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("urn:premix:recipe:1", doc); err != nil {
		t.Fatal(err)
	}
	sch, err := c.Compile("urn:premix:recipe:1")
	if err != nil {
		t.Fatal(err)
	}
	var known []string
	for k := range doc.(map[string]any)["properties"].(map[string]any) {
		known = append(known, k)
	}
	slices.Sort(known)
	parsed := slices.Clone(keys)
	slices.Sort(parsed)
	if !slices.Equal(known, parsed) {
		t.Errorf("schema has the keys %v, the parser %v", known, parsed)
	}
	validate := func(t *testing.T, file string) error {
		t.Helper()
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var v any
		if err := yaml.Unmarshal(text, &v); err != nil {
			return err
		}
		return sch.Validate(v)
	}
	for _, file := range append(glob(t, "testdata/good/*.yaml"), glob(t, "../../examples/recipes/*.yaml")...) {
		if err := validate(t, file); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
	for _, file := range glob(t, "testdata/bad/*.yaml") {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		first, _, _ := strings.Cut(string(text), "\n")
		err = validate(t, file)
		switch {
		case first == "# schema: fails" && err == nil:
			t.Errorf("%s passes the schema", file)
		case first == "# schema: passes" && err != nil:
			t.Errorf("%s: %v", file, err)
		case !strings.HasPrefix(first, "# schema: "):
			t.Errorf("%s does not say whether it passes the schema", file)
		}
	}
}

// TestSchemaForms checks that the parser and the schema accept the same values.
func TestSchemaForms(t *testing.T) {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(Schema()))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("s", doc); err != nil {
		t.Fatal(err)
	}
	sch, err := c.Compile("s")
	if err != nil {
		t.Fatal(err)
	}
	const base = "name: tool\ncommand: tool ${r1}\ninputs: [r1]\noutputs: {stdout: \"${sample}.x\"}\n"
	for _, tt := range []struct {
		line string
		ok   bool
	}{
		{"threads: 1", true}, {"threads: 0", false}, {"threads: two", false}, {"threads: 1.5", false},
		{"memory: 1G", true}, {"memory: 1.5g", true}, {"memory: 4GiB", true}, {"memory: 4 M", true},
		{"memory: 4", false}, {"memory: 4GB", true}, {"memory: 4 gb", true}, {"memory: 4X", false}, {"memory: G", false}, {"memory: -1G", false},
		{"timeout: 2h", true}, {"timeout: 1d", true}, {"timeout: 1d12h30m", true}, {"timeout: 1.5h", true},
		{"timeout: 2", false}, {"timeout: 2x", false}, {"timeout: -2h", false}, {"timeout: \"\"", false},
		{"retries: 0", true}, {"retries: -1", false},
		{"ready: open", true}, {"ready: read", true}, {"ready: {line: x}", true},
		{"ready: line", false}, {"ready: {}", false}, {"ready: [open]", false}, {"ready: Open", false},
		{"pipe: cat", true}, {"pipe: ' '", false}, {"pipe: [cat]", false},
		{"env: {A: 1}", true}, {"env: {A: x, _b: true}", true}, {"env: {a-b: x}", false}, {"env: [A]", false},
		{"varies: [{file: stdout}]", true}, {"varies: [{file: x, lines: y}]", true},
		{"varies: [{lines: y}]", false}, {"varies: {file: x}", false},
		{"unknown: 1", false},
	} {
		text := base + tt.line + "\n"
		_, perr := parse("r.yaml", "/r.yaml", []byte(text), Sources{})
		var v any
		if err := yaml.Unmarshal([]byte(text), &v); err != nil {
			t.Fatal(err)
		}
		serr := sch.Validate(v)
		if (perr == nil) != tt.ok || (serr == nil) != tt.ok {
			t.Errorf("%s: want ok %v; parser: %v; schema: %v", tt.line, tt.ok, perr, serr)
		}
	}
}

// TestShipped parses the recipes that ship with premix; their data belongs to the user.
func TestShipped(t *testing.T) {
	for _, file := range glob(t, "../../examples/recipes/*.yaml") {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		if err := os.Mkdir(filepath.Join(dir, "ref"), 0o755); err != nil {
			t.Fatal(err)
		}
		own := filepath.Join(dir, filepath.Base(file))
		if err := os.WriteFile(own, text, 0o644); err != nil {
			t.Fatal(err)
		}
		r := load(t, own)
		if want := strings.TrimSuffix(filepath.Base(file), ".yaml"); r.Name != want {
			t.Errorf("%s has the name %s", file, r.Name)
		}
		if r.Threads != 1 {
			t.Errorf("%s takes %d threads", file, r.Threads)
		}
		for _, w := range r.Spec(0, 0).Argv {
			if strings.Contains(w, "${") {
				t.Errorf("%s: %s is not expanded", file, w)
			}
		}
	}
}

func TestSpec(t *testing.T) {
	t.Setenv("PATH", "/bin")
	t.Setenv("HOME", "/home/u")
	t.Setenv("USER", "u")
	dir, err := filepath.Abs("testdata/good")
	if err != nil {
		t.Fatal(err)
	}
	r := load(t, "testdata/good/whole.yaml")
	spec := r.Spec(0, 0)
	ref := dir + "/ref"
	for _, tt := range []struct {
		what      string
		got, want any
	}{
		{"argv", spec.Argv, []string{"tool", "a b", "c" + ref, "$HOME", "$x", "2/1610612736", "--out=dir", "in.fq.gz", "fastq", "bam.bam"}},
		{"env", spec.Env, []string{"A=1", "B=" + ref + "/x", "C=true", "HOME=/home/u", "LANG=C.UTF-8", "PATH=/bin", "TMPDIR=.", "USER=u"}},
		{"inputs", spec.Inputs, []string{"in.fq.gz", "fastq/S1_R2.fastq"}},
		{"dirs", spec.Dirs, []string{"dir", "fastq"}},
		{"data", spec.Data, []string{ref}},
		{"stream", spec.Stream, true},
		{"ready", spec.Ready.Kind, hotstart.ReadyLine},
		{"line", spec.Ready.Line.String(), "^ready$"},
		{"varies", spec.Varies[0].File, "dir/log"},
		{"threads", r.Spec(8, 1<<20).Argv[5], "8/1048576"},
		{"timeout", r.Timeout, 36 * time.Hour},
		{"trust", spec.Trust, true},
		{"verify", r.Verify, hotstart.Share(0.125)},
		{"retries", r.Retries, 2},
		{"memory", r.Memory, int64(3 << 29)},
		{"probe", r.Files(r.Probe), map[string]string{"in.fq.gz": dir + "/c_1.fq.gz", "fastq/S1_R2.fastq": dir + "/a_2.fq"}},
		{"outputs", r.Outputs(Sample{Name: "S"}), []Output{
			{"bai", false, "bam.bam.bai", "S.bam.bai"},
			{"bam", false, "bam.bam", "S.bam"},
			{"dir", true, "dir", "d/S"},
			{"own", false, "own/S/y.txt", "own/S/y.txt"},
			{"stdout", false, PipeStdoutName, "x/S.tsv"},
		}},
		{"pipe", r.PipeCommand(Sample{Name: "S"}, 0, 0), `tee own/S/y.txt | sort -S 1610612736 "$1" ${x} bam.bam`},
		{"pipe dirs", r.PipeDirs(Sample{Name: "S"}), []string{"own", "own/S"}},
	} {
		if !reflect.DeepEqual(tt.got, tt.want) {
			t.Errorf("%s: got %v, want %v", tt.what, tt.got, tt.want)
		}
	}
	short := load(t, "testdata/good/short.yaml")
	if out := short.Outputs(Sample{Name: "S"}); out[0].From != hotstart.StdoutName {
		t.Errorf("without a pipe stdout is %s", out[0].From)
	}
}

func TestDigest(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "ref"), 0o755); err != nil {
		t.Fatal(err)
	}
	const base = "name: a\ncommand: tool ${data.ref} ${r1}\ndata: {ref: ref}\ninputs: [r1]\noutputs: {stdout: \"${sample}.x\"}\npipe: cat\n"
	digest := func(text string) string {
		file := filepath.Join(dir, "r.yaml")
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return load(t, file).Spec(0, 0).Recipe
	}
	want := digest(base)
	for _, tt := range []struct {
		from, to string
		same     bool
	}{
		{"", "", true},
		{"pipe: cat\n", "pipe: cat ${sample}\n", true},
		{"pipe: cat\n", "pipe: cat\nmemory: 1G\n", true},
		{"pipe: cat\n", "pipe: cat\ntimeout: 1h\nretries: 1\n", true},
		{"pipe: cat\n", "pipe: cat\nthreads: 4\n", true},
		{"name: a", "name: b", true},
		{"tool ${", "tool -x ${", false},
		{"pipe: cat\n", "pipe: cat\nenv: {A: b}\n", false},
		{"pipe: cat\n", "pipe: cat\nready: read\n", false},
		{"pipe: cat\n", "pipe: cat\nvaries: [{file: stdout}]\n", false},
		{"inputs: [r1]", "inputs: {r1: {file: r1.fq}}", false},
	} {
		got := digest(strings.Replace(base, tt.from, tt.to, 1))
		if (got == want) != tt.same {
			t.Errorf("%q to %q: same digest %v, want %v", tt.from, tt.to, got == want, tt.same)
		}
	}
}

func TestPipeQuoting(t *testing.T) {
	r := &Recipe{Data: map[string]string{"ref": "/a b/c's $x"}, Pipe: `cat ${data.ref} "${data.ref}" '${data.ref}' \'${data.ref}`}
	want := `cat '/a b/c'\''s $x' "/a b/c's \$x" '/a b/c'\''s $x' \''/a b/c'\''s $x'`
	if got := r.PipeCommand(Sample{Name: "S"}, 1, 0); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestTrees(t *testing.T) {
	mounted := t.TempDir()
	if err := os.MkdirAll(filepath.Join(mounted, "ecoli"), 0o755); err != nil {
		t.Fatal(err)
	}
	digest := strings.Repeat("0f", 32)
	text := func(data string) []byte {
		return []byte("name: x\ncommand: cat ${data.ref} ${in}\ndata: {ref: '" + data + "'}\ninputs: [in]\noutputs: {stdout: '${sample}.txt'}\n")
	}
	for data, want := range map[string]struct{ ref, path string }{
		"tree:refs":                               {"refs:latest", ""},
		"tree:refs/bacteria:2026":                 {"refs/bacteria:2026", ""},
		"tree:refs/bacteria:2026/ecoli":           {"refs/bacteria:2026", "ecoli"},
		"tree:refs/bacteria@" + digest:            {"refs/bacteria@" + digest, ""},
		"tree:refs/bacteria@" + digest + "/ecoli": {"refs/bacteria@" + digest, "ecoli"},
	} {
		var asked string
		r, err := parse("r.yaml", "/r.yaml", text(data), Sources{Trees: func(ref tree.Ref) (string, error) {
			asked = ref.String()
			return mounted, nil
		}})
		if err != nil {
			t.Errorf("%s: %v", data, err)
			continue
		}
		if asked != want.ref || r.Data["ref"] != filepath.Join(mounted, want.path) {
			t.Errorf("%s: asked for %s, data %s", data, asked, r.Data["ref"])
		}
	}
	for data, want := range map[string]string{
		"tree:Refs":               "r.yaml:3: data.ref: reference \"Refs\": ",
		"tree:":                   "r.yaml:3: data.ref: reference \"\": ",
		"tree:refs:1/../../etc":   "leads out of the tree",
		"tree:refs:1/ecolo":       "there is no such file\n  hint: did you mean ecoli?",
		"tree:refs:1//etc/passwd": "leads out of the tree",
		"tree:refs:missing":       "no such tag\n  hint: try another",
	} {
		_, err := parse("r.yaml", "/r.yaml", text(data), Sources{Trees: func(ref tree.Ref) (string, error) {
			if ref.Tag == "missing" {
				return "", hinted{}
			}
			return mounted, nil
		}})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", data, err, want)
		}
	}
	if _, err := parse("r.yaml", "/r.yaml", text("tree:refs:1"), Sources{}); err == nil {
		t.Error("a tree was taken where none can be mounted")
	}

	asked := ""
	from := Sources{Repositories: func(url string) (string, error) {
		asked = url
		if strings.HasSuffix(url, "missing") {
			return "", hinted{}
		}
		return mounted, nil
	}}
	url := "cvmfs://data.example.org/byhand"
	if r, err := parse("r.yaml", "/r.yaml", text(url), from); err != nil || asked != url || r.Data["ref"] != mounted {
		t.Errorf("%s: asked for %s, data %v, %v", url, asked, r.Data, err)
	}
	for data, want := range map[string]string{
		"cvmfs://data.example.org/missing": "r.yaml:3: data.ref: no such tag\n  hint: try another",
		"tree:" + url:                      "r.yaml:3: data.ref: a repository of CVMFS is not a tree\n  hint: write " + url,
	} {
		if _, err := parse("r.yaml", "/r.yaml", text(data), from); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", data, err, want)
		}
	}
	if _, err := parse("r.yaml", "/r.yaml", text(url), Sources{}); err == nil {
		t.Error("a repository was taken where none can be mounted")
	}
}

func TestImage(t *testing.T) {
	im := &hotstart.Image{Digest: "d1"}
	im.Env = []string{"PATH=/opt:/bin", "HOME=/root", "LANG=de_DE"}
	images := func(ref tree.Ref) (*hotstart.Image, error) {
		switch ref.Tag {
		case "missing":
			return nil, hinted{}
		case "refused":
			return nil, &hotstart.Unavailable{Kind: hotstart.Cold, Reason: "not here"}
		}
		return im, nil
	}
	text := func(image, command string) []byte {
		return []byte("name: tool\nimage: " + image + "\ncommand: " + command + " ${r1}\ninputs: [r1]\noutputs: {stdout: \"${sample}.x\"}\nenv: {HOME: /h}\n")
	}
	r, err := parse("r.yaml", "/r.yaml", text("tools/star:2.7", "STAR /etc/passwd"), Sources{Images: images})
	if err != nil {
		t.Fatal(err)
	}
	spec := r.Spec(0, 0)
	if spec.Image == nil || spec.Image.Ref != "tools/star:2.7" || spec.Image.Digest != "d1" {
		t.Errorf("image %+v", spec.Image)
	}
	if want := []string{"HOME=/h", "LANG=de_DE", "PATH=/opt:/bin", "TMPDIR=."}; !slices.Equal(spec.Env, want) {
		t.Errorf("environment %q, want %q", spec.Env, want)
	}
	for _, c := range []struct{ image, command, want string }{
		{"Tools:1", "tool", "r.yaml:2: image: reference"},
		{"tools:missing", "tool", "no such tag\n  hint: try another"},
		{"'${r1}'", "tool", "r.yaml:2: image can't contain placeholders"},
		{"tools:1", "./tool", "r.yaml:3: the tool ./tool would lie beside the recipe"},
	} {
		if _, err := parse("r.yaml", "/r.yaml", text(c.image, c.command), Sources{Images: images}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s, %s: %v, want %q", c.image, c.command, err, c.want)
		}
	}
	var unavailable *hotstart.Unavailable
	if _, err := parse("r.yaml", "/r.yaml", text("tools:refused", "tool"), Sources{Images: images}); !errors.As(err, &unavailable) {
		t.Errorf("an image that cannot be used here: %v", err)
	}
	if _, err := parse("r.yaml", "/r.yaml", text("tools:1", "tool"), Sources{}); err == nil {
		t.Error("an image was taken where none can be mounted")
	}
}

type hinted struct{}

func (hinted) Error() string { return "no such tag" }
func (hinted) Hint() string  { return "try another" }
