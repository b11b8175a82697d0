package recipes_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"premix/internal/recipe"
	"premix/internal/testkit/netrelay"
)

// delay is the delay of the link between node B and the origin in one direction.
const delay = 10 * time.Millisecond

// TestStarInAnImage runs the shipped recipe of STAR in an image. In contrast to build.sh,
// it makes the root of the image not from packages, but from STAR of this machine and its
// shared libraries.
func TestStarInAnImage(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a tool in an image needs root")
	}
	for _, program := range []string{"STAR", "runc"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Fatal(missing(program, err))
		}
	}
	d, err := ecoli()
	if err != nil {
		t.Fatal(err)
	}
	plain, sheet, err := d.place("star")
	if err != nil {
		t.Fatal(err)
	}
	u := newUser(t)
	store := filepath.Join(u.dir, "store")
	rootDir := filepath.Join(u.dir, "root")
	fillRoot(t, rootDir)
	path := filepath.Join(u.dir, "star.yaml")
	shippedRecipe(t, path)
	r, err := recipe.Load(plain) // for the outputs of the recipe, and the parts that vary
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { u.premix(t, "node", "stop", "--lazy") }) // this also checks for leftovers
	for _, args := range [][]string{
		{"store", "init", store},
		{"image", "add", "--store", store, rootDir, "biodepot/star:2.7"},
		{"store", "publish", "--store", store, filepath.Join(filepath.Dir(plain), "ref"), "refs/small:1"},
	} {
		u.must(t, args...)
	}
	out := func(start string) string { return filepath.Join(u.dir, "out-"+start) }
	for _, start := range []string{"cold", "hot"} {
		t.Run(start, func(t *testing.T) {
			u.must(t, "run", path, sheet, "--origin", store, "--out", out(start), "--start", start, "-j", "2")
			differences, _, err := compareRuns(r, out("cold"), out(start))
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range differences {
				t.Errorf("%s", d)
			}
			for _, sample := range samples {
				if a := largest(t, filepath.Join(out(start), sample)); len(a) < 1000 {
					t.Errorf("sample %s: %d bytes", sample, len(a))
				}
			}
		})
	}
	t.Run("travel", func(t *testing.T) { u.travel(t, path, sheet, store, out) })
}

// travel pushes the snapshot and runs a sample on a node that has no data. The node has its
// own mount and network namespaces, in which premix's home is an empty directory at the
// same path, and the store is far away.
func (u *user) travel(t *testing.T, path, sheet, store string, out func(string) string) {
	u.must(t, "snapshot", "push", "star", "snaps/star:1", "--to", store)
	u.must(t, "node", "stop", "--lazy")
	link, err := netrelay.New(netrelay.Options{Rate: 1e9, Delay: delay, Offload: true})
	if err != nil {
		t.Fatal(err)
	}
	defer link.Close()
	origin := u.serve(t, link, store)
	// The sheet of node B has one sample, which is one task.
	text, err := os.ReadFile(sheet)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfterN(string(text), "\n", 3)
	one := filepath.Join(u.dir, "one.csv")
	if err := os.WriteFile(one, []byte(lines[0]+lines[1]), 0o644); err != nil {
		t.Fatal(err)
	}
	script := `set -e
mkdir -p "$1/home-b"; mount --bind "$1/home-b" "$PREMIX_HOME"
trap '"$0" node stop --lazy' EXIT
"$0" snapshot pull snaps/star:1 --origin "$2"
"$0" run "$3" "$4" --origin "$2" --out "$1/out-b"
"$0" node status --json >"$1/status.json"
"$0" report "$1/out-b" --json >"$1/report.json"
# A snapshot from another kernel: refused, and the run goes on cold.
sed -i 's/"kernel": "/"kernel": "9./' "$PREMIX_HOME"/snapshots/*/snapshot.json
"$0" run "$3" "$4" --origin "$2" --out "$1/out-refused"
"$0" report "$1/out-refused" --json >"$1/refused.json"
`
	ctx, cancel := context.WithTimeout(context.Background(), runLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "unshare", "--mount", "sh", "-c", script, binary, u.dir, origin, path, one)
	cmd.Dir, cmd.Env = u.dir, u.environment()
	var stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stderr, &stderr
	if err := link.B.Run(cmd); err != nil {
		t.Fatalf("node B: %v\n%s", err, stderr.String())
	}
	if !regexp.MustCompile(`is no longer valid.*: the kernel is .* instead of 9\.`).MatchString(stderr.String()) {
		t.Errorf("why the snapshot is not used was not told:\n%s", stderr.String())
	}
	u.startedAs(t, "report.json", "hot")
	u.startedAs(t, "refused.json", "cold")
	// Compare the outputs with the outputs of the same sample on A.
	for _, b := range []string{"b", "refused"} {
		sample := samples[0]
		for _, name := range []string{"Aligned.out.bam", "SJ.out.tab", "ReadsPerGene.out.tab"} {
			want, err := os.ReadFile(filepath.Join(out("cold"), sample, name))
			if err != nil {
				t.Fatal(err)
			}
			if got, err := os.ReadFile(filepath.Join(out(b), sample, name)); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s of out-%s is not what A had cold (%v)", name, b, err)
			}
		}
	}
	var status struct {
		Mounts []struct {
			Ref            string
			Fetched, Total int64
		}
	}
	u.readJSON(t, "status.json", &status)
	var fetched, total int64
	for _, m := range status.Mounts {
		t.Logf("%s: %d of %d bytes", m.Ref, m.Fetched, m.Total)
		fetched, total = fetched+m.Fetched, total+m.Total
	}
	if len(status.Mounts) < 4 || fetched <= 0 || fetched >= total {
		t.Errorf("after the first sample %d of %d bytes of %d trees had been fetched", fetched, total, len(status.Mounts))
	}
}

// serve serves a store on one end of a link and returns its address.
func (u *user) serve(t *testing.T, link *netrelay.Link, store string) string {
	t.Helper()
	address := link.A.Addr.String() + ":8400"
	cmd := exec.Command(binary, "store", "serve", "--store", store, "--listen", address, "--open")
	cmd.Dir, cmd.Env = u.dir, u.environment()
	cmd.Stdout, cmd.Stderr = io.Discard, os.Stderr
	if err := link.A.Start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cmd.Process.Kill(); err == nil {
			_ = cmd.Wait() // the error is always that it was killed
		}
	})
	client := http.Client{Transport: &http.Transport{DialContext: link.B.Dial, DisableKeepAlives: true}}
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		resp, err := client.Get("http://" + address + "/store.json")
		if err == nil {
			resp.Body.Close()
			return "http://" + address
		}
		if time.Now().After(deadline) {
			t.Fatalf("the store is not served: %v", err)
		}
	}
}

// must runs premix, which has to succeed, and leaves its node running.
func (u *user) must(t *testing.T, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), runLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Dir, cmd.Env = u.dir, u.environment()
	if text, err := cmd.CombinedOutput(); err != nil {
		log, _ := filepath.Glob(filepath.Join(u.dir, "out-*", ".premix", "stderr.log"))
		t.Fatalf("premix %s: %v\n%s(standard error of tasks: %q)", strings.Join(args, " "), err, text, log)
	}
}

func (u *user) readJSON(t *testing.T, name string, into any) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(u.dir, name))
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		t.Fatalf("%s: %v\n%s", name, err, text)
	}
}

// startedAs checks the kind of start of the only task in a report.
func (u *user) startedAs(t *testing.T, name, want string) {
	t.Helper()
	var report struct{ Tasks []task }
	u.readJSON(t, name, &report)
	if len(report.Tasks) != 1 || report.Tasks[0].Start != want {
		t.Errorf("%s: tasks %+v, want one %s start", name, report.Tasks, want)
	}
}

// shippedRecipe writes the recipe with the image, and replaces its data by the published
// tree.
func shippedRecipe(t *testing.T, path string) {
	t.Helper()
	text, err := os.ReadFile("image/star.yaml")
	if err != nil {
		t.Fatal(err)
	}
	changed := bytes.Replace(text, []byte("ref: ./ref"), []byte(`ref: "tree:refs/small:1"`), 1)
	if bytes.Equal(changed, text) {
		t.Fatal("image/star.yaml does not name ./ref")
	}
	if err := os.WriteFile(path, changed, 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestImageRecipeIsTheShippedOne checks that examples/recipes/star.yaml and
// examples/recipes/image/star.yaml differ only in the image.
func TestImageRecipeIsTheShippedOne(t *testing.T) {
	lines := func(file string) []string {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var list []string
		for line := range strings.Lines(string(text)) {
			if !strings.HasPrefix(line, "#") && !strings.HasPrefix(line, "image:") {
				list = append(list, line)
			}
		}
		return list
	}
	if a, b := strings.Join(lines("star.yaml"), ""), strings.Join(lines("image/star.yaml"), ""); a != b {
		t.Errorf("star.yaml is\n%s\nand image/star.yaml\n%s", a, b)
	}
}

// fillRoot copies STAR, which may be a script that chooses a program, a shell, and their
// shared libraries.
func fillRoot(t *testing.T, dir string) {
	t.Helper()
	files := map[string]bool{}
	link := regexp.MustCompile(`/[^ \n]+`)
	add := func(file string) {
		files[file] = true
		out, err := exec.Command("ldd", file).Output()
		if err != nil {
			return // a script
		}
		for _, lib := range link.FindAllString(string(out), -1) {
			files[lib] = true
		}
	}
	star, err := exec.LookPath("STAR")
	if err != nil {
		t.Fatal(err)
	}
	add(star)
	if text, err := os.ReadFile(star); err == nil && bytes.HasPrefix(text, []byte("#!")) {
		more, err := filepath.Glob("/usr/lib/rna-star/bin/*")
		if err != nil {
			t.Fatal(err)
		}
		for _, program := range append(more, "/bin/bash", "/bin/grep", "/usr/bin/basename") {
			if _, err := os.Stat(program); err == nil {
				add(program)
			}
		}
	}
	for file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		to := filepath.Join(dir, file)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, text, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, sub := range []string{"tmp", "etc"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
}
