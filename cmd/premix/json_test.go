package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// notJSON lists the commands whose standard output is not a result of premix, with the reason.
var notJSON = map[string]string{
	"blast blastn":       "prints the output of BLAST+",
	"blast blastp":       "prints the output of BLAST+",
	"blast blastx":       "prints the output of BLAST+",
	"blast megablast":    "prints the output of BLAST+",
	"blast deltablast":   "prints the output of BLAST+",
	"blast diamond":      "prints the lines of DIAMOND",
	"blast psiblast":     "prints the output of BLAST+",
	"blast rpsblast":     "prints the output of BLAST+",
	"blast rpstblastn":   "prints the output of BLAST+",
	"blast tblastn":      "prints the output of BLAST+",
	"blast tblastx":      "prints the output of BLAST+",
	"blast cluster node": "serves until it is stopped",
	"blast serve":        "serves until it is stopped",
	"exec":               "prints the output of the command",
	"files mount":        "serves until it is unmounted",
	"node metrics":       "prints the text format of Prometheus",
	"snapshotter":        "serves until it is stopped",
	"store serve":        "serves until it is stopped",
	"task tail":          "prints the output of a task",
	"transfer serve":     "serves until it is stopped",
	"transfer stream":    "is the far end of a copy",
	"watch":              "serves until it is stopped",
}

// jsonElsewhere lists the commands that need other machines or large data, with the test file that
// reads their JSON, or the reason why they print none.
var jsonElsewhere = map[string]string{
	"blast cluster evict": "prints nothing",
	"blast cluster key":   "prints nothing",
	"blast cluster ls":    "blast_cluster_test.go",
	"blast cluster warm":  "blast_cluster_test.go",
	"blast db update":     "testdata/script/blast_db.txtar",
	"demo":                "demo_test.go",
	"files remount":       "prints nothing",
	"files unpack":        "prints nothing",
	"image sync":          "testdata/script/image_sync.txtar",
	"snapshot pull":       "testdata/script/tree.txtar",
	"snapshot push":       "testdata/script/tree.txtar",
	"store import":        "testdata/script/store_import.txtar",
	"store profile":       "testdata/script/mount_profile.txtar",
	"transfer bench":      "testdata/script/transfer.txtar",
	"transfer get":        "transfer_test.go",
	"transfer probe":      "prints only a note of the command that comes next",
	"transfer put":        "transfer_test.go",
	"transfer report":     "testdata/script/transfer.txtar",
	"watch advise":        "watch_advise_test.go",
	"transfer why":        "testdata/script/transfer.txtar",
}

// TestJSON runs the commands with --json. The standard output must consist of JSON values or be
// empty, and the standard error must have errors as JSON. Each command is run here or has a reason
// in a table.
func TestJSON(t *testing.T) {
	dir, ram := t.TempDir(), filepath.Join("/dev/shm", filepath.Base(filepath.Dir(binary))+"-json")
	t.Cleanup(func() { os.RemoveAll(ram) })
	if err := os.Mkdir(filepath.Join(dir, "mnt"), 0o755); err != nil {
		t.Fatal(err)
	}
	var jobs strings.Builder
	for i := range 20 {
		fmt.Fprintf(&jobs, "%d %d 0 %d 1 -1 -1 1 20 -1 1 1 1 1 1 -1 -1 -1\n", i+1, 5*i, 10+i)
	}
	for name, text := range map[string]string{
		"genomes/a.fa":      ">a\nACGTACGT\n",
		"later/a.fa":        ">a\nACGTACGA\n",
		"commands":          "true\nfalse\n",
		"one":               "true\n",
		"jobs.swf":          "; MaxProcs: 4\n" + jobs.String(),
		"cat.yaml":          "name: cat\ncommand: cat ${r1}\ninputs: [r1]\noutputs: {stdout: '${sample}.txt'}\n",
		"s.csv":             "sample,r1\nA,a.in\n",
		"a.in":              "a\n",
		"rules":             "RULE 'old' DELETE WHERE SIZE > 0\n",
		"alerts.yaml":       "receivers:\n  - {name: page, webhook: 'http://127.0.0.1:9/'}\nrules:\n  - {name: silent, series: node.memory_total, absent: 5m}\n",
		"common/etc/passwd": "root:x:0:0::/:/bin/sh\n",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	verbs, done := map[string]bool{}, map[string]bool{}
	commands((&app{}).root(nil), func(name string, _ *cobra.Command) { verbs[name] = true })
	for _, c := range []struct {
		line, needs string
		code        int
	}{
		{"version", "", 0},
		{"doctor", "", 0},
		{"help topics", "", 0},
		{"store init st", "", 0},
		{"store publish --store st ./genomes g:1", "", 0},
		{"store publish --store st ./later g:2", "", 0},
		{"store ls --store st", "", 0},
		{"store key --store st", "", 0},
		{"store diff --store st g:1 g:2", "", 0},
		{"store verify --store st", "", 0},
		{"store push --store st g:1 st2", "", 0},
		{"store pull --store st2 g:1 --origin st", "", 0},
		{"store rm --store st g:2", "", 0},
		{"store gc --store st", "", 0},
		{"store nothing", "", 2},
		{"verify-release mnt", "", 2},
		{"store gc --unknown", "", 2},
		{"mount --store st g:1 mnt", "root /dev/fuse", 0},
		{"node status", "root /dev/fuse", 0},
		{"node restart", "root /dev/fuse", 0},
		{"cache pin g:1", "root /dev/fuse", 0},
		{"cache unpin g:1", "root /dev/fuse", 0},
		{"cache drop g:1", "root /dev/fuse", 0},
		{"umount mnt", "root /dev/fuse", 0},
		{"node stop", "", 0},
		{"node start", "root /dev/fuse", 0},
		{"node stop", "root /dev/fuse", 0},
		{"cache status", "", 0},
		{"cache check", "", 0},
		{"node stop", "", 0},
		{"task run commands --out tasks", "", 1},
		{"task ls tasks", "", 0},
		{"task why tasks 1", "", 0},
		{"task follow tasks", "", 0},
		{"task retry tasks 2", "", 0},
		{"task cancel tasks 2", "", 0},
		{"task submit one --out queue", "", 0},
		{"task prune tasks", "", 0},
		{"run cat.yaml s.csv --out out --start cold", "", 0},
		{"report out", "", 0},
		{"files scan genomes -o files.parquet", "", 0},
		{"files report files.parquet", "", 0},
		{"files du files.parquet", "", 0},
		{"files diff files.parquet files.parquet", "", 0},
		{"files find files.parquet --larger 1B", "", 0},
		{"watch rules check alerts.yaml", "", 0},
		{"files policy rules files.parquet --dry-run", "", 0},
		{"replay jobs.swf", "", 0},
		{"replay generate --like jobs.swf --jobs 10 -o gen.swf", "", 0},
		{"shim bwa --dir shims", "", 0},
		{"slurm-shim --dir slurm", "", 0},
		{"prepare cat.yaml --probe s.csv", "hot", 0},
		{"snapshot ls", "", 0},
		{"snapshot inspect cat", "hot", 0},
		{"snapshot verify cat", "hot", 0},
		{"snapshot rm cat", "hot", 0},
		{"hot --why -- cat a.in", "", 0},
		{"hot warm -- cat a.in", "hot", 3},
		{"hot status", "", 0},
		{"image add ./common plain:1 --store st", "root", 0},
		{"image ls --store st", "", 0},
		{"image rm plain:1 --store st", "root", 0},
		{"blast db add genomes/a.fa --type nucl --name a", "makeblastdb", 0},
		{"blast db ls", "makeblastdb", 0},
		{"blast db verify a", "makeblastdb", 0},
		{"blast db warm a", "makeblastdb", 0},
		{"blast db evict a", "makeblastdb", 0},
		{"blast warm a", "makeblastdb", 0},
		{"blast evict a", "makeblastdb", 0},
		{"blast db rm a", "makeblastdb", 0},
	} {
		words := strings.Fields(c.line)
		for n := min(3, len(words)); n > 0; n-- {
			if name := strings.Join(words[:n], " "); verbs[name] {
				done[name] = true
				break
			}
		}
		if !able(t, c.needs) {
			continue
		}
		args := append([]string{"--json"}, words...)
		cmd := exec.Command(binary, args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "HOME="+dir, "PREMIX_HOME="+filepath.Join(dir, "home"), "PREMIX_BLAST_RAM="+ram)
		var out, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &stderr
		err := cmd.Run()
		if cmd.ProcessState == nil {
			t.Fatal(err)
		}
		if code := cmd.ProcessState.ExitCode(); code != c.code {
			t.Errorf("%s: exit code %d, want %d\n%s", c.line, code, c.code, stderr.String())
		}
		parsesJSON(t, c.line+": standard output", out.Bytes())
		if c.code != 0 {
			text := stderr.Bytes()
			if i := bytes.Index(text, []byte("{\"error\"")); i >= 0 {
				text = text[i:] // skip the notes before it
			} else if len(out.Bytes()) == 0 {
				t.Errorf("%s: exit code %d, and neither an error nor a result as JSON", c.line, c.code)
			}
			parsesJSON(t, c.line+": standard error", text)
		}
	}
	var missing []string
	commands((&app{}).root(nil), func(name string, cmd *cobra.Command) {
		if !cmd.HasSubCommands() && !cmd.Hidden && !done[name] && notJSON[name] == "" && jsonElsewhere[name] == "" {
			missing = append(missing, name)
		}
	})
	for name, file := range jsonElsewhere {
		if strings.HasPrefix(file, "prints ") {
			continue
		}
		verb := name[strings.LastIndex(name, " ")+1:]
		text, err := os.ReadFile(file)
		if err != nil || !regexp.MustCompile(`\b`+verb+`\b`).Match(text) || !bytes.Contains(text, []byte("--json")) {
			t.Errorf("%s does not run premix %s --json: %v", file, name, err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(notJSON)) {
		if done[name] {
			t.Errorf("%s is run here, and has a reason for which it is not", name)
		}
	}
	if len(missing) > 0 {
		t.Errorf("no test parses the JSON of %s", strings.Join(missing, ", "))
	}
}

// parsesJSON checks that text is a sequence of JSON values.
func parsesJSON(t *testing.T, what string, text []byte) {
	t.Helper()
	for d := json.NewDecoder(bytes.NewReader(text)); ; {
		var v any
		if err := d.Decode(&v); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Errorf("%s is not JSON: %v\n%.300s", what, err, text)
			return
		}
	}
}

// able reports whether this machine meets all needs: programs, files, root, and hot starts.
func able(t *testing.T, needs string) bool {
	t.Helper()
	for _, need := range strings.Fields(needs) {
		switch {
		case need == "hot":
			if ok, err := canHot(); err != nil {
				t.Fatal(err)
			} else if !ok {
				return false
			}
		case strings.HasPrefix(need, "/"):
			if _, err := os.Stat(need); err != nil {
				return false
			}
		case lacking(need) != "":
			return false
		}
	}
	return true
}
