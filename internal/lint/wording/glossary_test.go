package wording

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// usual lists the files and directories in which a word of the last column of the glossary
// has its usual meaning in the field. A new use of a word elsewhere fails the test; a new
// use in one of these places does not.
var usual = map[string][]string{
	// Programs of ssh, slurmctld and HTTP.
	"agent": {"internal/transfer/peer", "internal/watch/collect", "internal/store/origin", "internal/store/server"},
	// Parts of OCI images.
	"artifact": {"docs/origins.md", "internal/store/origin"},
	"blob":     {"bench/containers", "bench/store", "CHANGELOG.md", "internal/image/source.go", "internal/image/layout.go", "internal/image/unpack.go", "internal/image/lazylayer", "internal/image/snapshotter/registry.go", "internal/store/origin", "internal/testkit/cvmfsrepo", "internal/testkit/workbench"},
	// Connections to a peer or to a batch system.
	"attempt": {"internal/engine/pilot/reach.go", "internal/transfer/stream", "docs/transfer.md"},
	// Images of CRIU.
	"checkpoint": {"bench/hotstart"},
	// Words of Nextflow and Snakemake.
	"executor": {"CHANGELOG.md", "bench/tasks", "dist", "docs", "examples"},
	"workflow": {"CHANGELOG.md", "SECURITY.md", "bench/tasks", "cmd/premix", "docs", "examples", "internal/engine/shim", "internal/hotstart/calls", "internal/replay/trace"},
	// Extents of files.
	"extent": {"docs/cache.md", "internal/engine/queue/see.go", "internal/engine/queue/recipe.go", "internal/hotstart", "internal/store/cache", "internal/store/erofs", "internal/store/publish.go"},
	// Of Slurm and Kubernetes, of the traces of a replay, of the users of the BLAST service.
	"job": {
		"CHANGELOG.md", "dist", "examples", "bench/blast", "bench/replay", "bench/tasks",
		"docs/cli", "docs/how-to/compare-schedulers.md", "docs/overview.md", "docs/tutorials/cluster.md",
		"docs/batch-systems.md", "docs/blast-service.md", "docs/blast.md", "docs/exit-codes.md", "docs/figures.md", "docs/hot.md", "docs/kubernetes.md", "docs/python.md", "docs/recipe.md", "docs/replay.md", "docs/run.md", "docs/slurm-shim.md", "docs/slurm.md", "docs/watch.md",
		"cmd/premix/blast_serve.go", "cmd/premix/engine.go", "cmd/premix/replay.go", "cmd/premix/replay_generate.go", "cmd/premix/run.go", "cmd/premix/slurm_shim.go", "cmd/premix/task_run.go", "cmd/premix/task_submit.go", "cmd/premix/task_why.go", "cmd/premix/task_work.go",
		"internal/blast", "internal/engine", "internal/hotstart/calls", "internal/kit/owner", "internal/record", "internal/replay", "internal/testkit/fakebatch", "internal/testkit/kubeapi", "internal/testkit/shortdir", "internal/testkit/slurmtest", "internal/watch/collect", "internal/watch/web/job.go", "bench/watch",
	},
	// Starts by Slurm.
	"launch": {"docs/slurm.md", "internal/engine/slurm"},
	// Directories of objects, and the fragments that one task of a search reads.
	"shard": {"internal/store", "cmd/premix/blast_shard.go"},
	// Files before they are renamed.
	"stage": {"CHANGELOG.md", "docs/transfer.md", "internal/image/bundle", "internal/kit/beneath", "internal/transfer"},
}

// foreign matches links to other pages, and the name of the flag --jobs, which other
// programs have too.
var foreign = regexp.MustCompile(`\(?https?://[^ )]*\)?|--jobs\b|\bjobs=|` + "`jobs`")

// TestGlossary reads the table of words in docs/design.md. It checks that no identifier,
// comment, message or document contains a word of the last column, except where usual
// permits it.
func TestGlossary(t *testing.T) {
	root := os.DirFS("../../..")
	words := forbidden(t, root)
	hits := map[string][]string{}
	see := func(file, text string) {
		text = foreign.ReplaceAllString(text, "")
		for word, pattern := range words {
			if pattern.MatchString(text) {
				hits[word] = append(hits[word], file+": "+strings.TrimSpace(text))
			}
		}
	}
	err := fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			if base := path.Base(name); d.IsDir() && base != "." && (base[0] == '.' || base == "testdata" || base == "bin" || base == "bench-work") {
				return fs.SkipDir
			}
			return err
		}
		goFile := path.Ext(name) == ".go" && !strings.HasSuffix(name, "_test.go")
		if !goFile && (path.Ext(name) != ".md" || name == "docs/design.md") {
			return nil
		}
		text, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		all := lines(name, string(text))
		if goFile {
			comments, messages, err := read(name, text)
			if err != nil {
				return err
			}
			ids, err := identifiers(name, text)
			if err != nil {
				return err
			}
			all = slices.Concat(comments, messages, ids)
		}
		for _, l := range all {
			see(l.file, l.text)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for word := range words {
		used := map[string]bool{}
		for _, hit := range hits[word] {
			i := slices.IndexFunc(usual[word], func(place string) bool {
				file, _, _ := strings.Cut(hit, ":")
				return file == place || strings.HasPrefix(file, place+"/")
			})
			if i < 0 {
				t.Errorf("%q has another word in the table of docs/design.md: %s", word, hit)
			} else {
				used[usual[word][i]] = true
			}
		}
		for _, place := range usual[word] {
			if !used[place] {
				t.Errorf("%s does not have the word %q: remove it from the list", place, word)
			}
		}
	}
	for word := range usual {
		if words[word] == nil {
			t.Errorf("%q is not in the table of docs/design.md: remove it from the list", word)
		}
	}
}

// forbidden returns the words of the last column, each with its pattern.
func forbidden(t *testing.T, root fs.FS) map[string]*regexp.Regexp {
	t.Helper()
	text, err := fs.ReadFile(root, "docs/design.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, ok := strings.Cut(string(text), "| word | means | not |")
	if !ok {
		t.Fatal("docs/design.md has no table of words")
	}
	table, _, _ = strings.Cut(table, "\n\n")
	words := map[string]*regexp.Regexp{}
	for l := range strings.Lines(table) {
		cells := strings.Split(strings.TrimSpace(l), "|")
		if len(cells) != 5 || strings.HasPrefix(cells[1], " ---") {
			continue
		}
		for word := range strings.SplitSeq(cells[3], ",") {
			if word = strings.TrimSpace(word); word != "" {
				words[word] = regexp.MustCompile(`(?i)\b` + word + `s?\b`)
			}
		}
	}
	if len(words) < 10 {
		t.Fatalf("the table of words has only %d in its last column", len(words))
	}
	return words
}

// hump matches the place in an identifier at which a new word begins.
var hump = regexp.MustCompile(`([a-z0-9])([A-Z])`)

// identifiers returns the names that a Go file declares, with spaces between their words.
func identifiers(name string, text []byte) (all []line, err error) {
	f, err := parser.ParseFile(token.NewFileSet(), name, text, 0)
	if err != nil {
		return nil, err
	}
	add := func(ids ...*ast.Ident) {
		for _, id := range ids {
			all = append(all, line{name, hump.ReplaceAllString(id.Name, "$1 $2")})
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			add(n.Name)
		case *ast.TypeSpec:
			add(n.Name)
		case *ast.ValueSpec:
			add(n.Names...)
		case *ast.Field:
			add(n.Names...)
		case *ast.AssignStmt:
			for _, left := range n.Lhs {
				if id, ok := left.(*ast.Ident); ok && n.Tok == token.DEFINE {
					add(id)
				}
			}
		}
		return true
	})
	return all, nil
}

// TestIdentifiers parses a declaration of each kind.
func TestIdentifiers(t *testing.T) {
	ids, err := identifiers("x.go", []byte("package x\n\ntype myJob struct{ jobID int }\n\nvar oneJob = 1\n\nfunc doJob(job int) { last := job; _ = last }\n"))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, id := range ids {
		got = append(got, id.text)
	}
	if want := []string{"my Job", "job ID", "one Job", "do Job", "job", "last"}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}
