package arrows

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "premix"

// room is one line of the table.
type room struct {
	imports []string // rooms that it may import
	modules []string // modules other than the standard library that it may import
}

// The layers, from the command line down. Tests of a room are held to the same
// rooms, and may use testModules besides.
var rooms = map[string]room{
	"watch": {},
	"watch/series": {
		imports: []string{"internal/beneath", "watch", "record", "internal/parquetparts"},
		modules: []string{"github.com/klauspost/compress", "github.com/parquet-go/parquet-go", "golang.org/x/sys"},
	},
	"watch/explain": {
		imports: []string{"watch", "watch/series"},
	},
	"watch/serve": {
		imports: []string{"internal/access", "watch", "watch/series", "watch/explain", "hotstart", "internal/bounded", "node", "record", "replay/results", "transfer", "transfer/report"},
		modules: []string{"github.com/klauspost/compress", "github.com/prometheus/client_golang", "google.golang.org/protobuf"},
	},
	"watch/collect": {
		imports: []string{"internal/beneath", "internal/problem", "watch", "engine", "engine/queue", "engine/slurm", "engine/spawn", "lazyfs", "node", "record", "internal/owner"},
		modules: []string{"golang.org/x/sys", "gopkg.in/yaml.v3"},
	},
	"files": {
		imports: []string{"internal/beneath", "internal/parquetparts", "internal/owner"},
		modules: []string{"github.com/parquet-go/parquet-go", "golang.org/x/sys"},
	},
	"files/page": {
		imports: []string{"files"},
	},
	"files/pack": {
		imports: []string{"internal/beneath", "node", "store", "store/tree", "internal/owner"},
		modules: []string{"github.com/zeebo/blake3", "golang.org/x/sys"},
	},
	"files/content": {
		modules: []string{"github.com/zeebo/blake3", "golang.org/x/sys"},
	},
	"files/policy": {
		imports: []string{"internal/beneath", "internal/owner", "internal/problem", "files", "files/content"},
		modules: []string{"golang.org/x/sys", "golang.org/x/time", "gopkg.in/yaml.v3"},
	},
	"files/tiers": {
		imports: []string{"internal/beneath", "internal/problem", "files/content"},
		modules: []string{"github.com/hanwen/go-fuse", "github.com/zeebo/blake3", "golang.org/x/sys", "gopkg.in/yaml.v3"},
	},
	"cmd/premix": {
		imports: []string{"internal/outputs", "internal/access", "internal/bounded", "internal/problem", "internal/beneath", "files/tiers", "watch", "watch/collect", "watch/series", "watch/serve", "files", "files/pack", "files/page", "files/policy", "blast/database", "blast/fasta", "blast/search", "blast/service", "engine", "engine/kubernetes", "engine/local", "engine/pack", "engine/queue", "engine/shim", "engine/slurm", "engine/spawn", "recipe", "hotstart", "hotstart/around", "hotstart/calls", "hotstart/dropin", "record", "report", "replay/generate", "replay/machine", "replay/pack", "replay/policy", "replay/results", "replay/simulate", "replay/trace", "image", "image/bundle", "image/snapshotter", "image/watch", "store", "store/mirror", "store/serve", "store/trust", "store/origin", "store/tree", "store/object", "node", "lazyfs", "transfer", "transfer/link", "transfer/peer", "transfer/capture", "transfer/testbed", "transfer/report", "transfer/choose", "transfer/stream", "internal/netrelay", "internal/owner"},
		modules: []string{"github.com/spf13/cobra", "github.com/spf13/pflag", "golang.org/x/term", "golang.org/x/sys"},
	},
	"bench/hotstart": {
		imports: []string{"recipe", "hotstart", "internal/figures", "internal/workbench"},
		modules: []string{"golang.org/x/sys"},
	},
	"bench/tools": {
		imports: []string{"internal/figures", "internal/workbench"},
		modules: []string{"golang.org/x/sys", "github.com/zeebo/blake3"},
	},
	"bench/dropin": {
		imports: []string{"internal/figures"},
	},
	"bench/containers": {
		imports: []string{"internal/figures", "internal/netrelay", "internal/workbench"},
		modules: []string{"github.com/google/go-containerregistry", "golang.org/x/sys"},
	},
	"bench/files": {
		imports: []string{"files", "internal/figures"},
		modules: []string{"github.com/parquet-go/parquet-go", "golang.org/x/sys"},
	},
	"bench/watch": {
		imports: []string{"watch", "watch/collect", "watch/series", "internal/figures"},
		modules: []string{"golang.org/x/sys"},
	},
	"bench/blast": {
		imports: []string{"internal/figures", "internal/workbench"},
		modules: []string{"golang.org/x/sys"},
	},
	"bench/tasks": {
		imports: []string{"internal/figures", "internal/kubebox", "internal/slurmbox"},
		modules: []string{"golang.org/x/sys", "k8s.io/api", "k8s.io/apimachinery"},
	},
	"bench/replay": {
		imports: []string{"internal/figures"},
	},
	"bench/store": {
		imports: []string{"internal/figures", "internal/netrelay", "internal/workbench"},
		modules: []string{"golang.org/x/sys"},
	},
	"bench/transfer": {
		imports: []string{"transfer", "internal/figures", "internal/netrelay", "internal/workbench"},
		modules: []string{"golang.org/x/sys"},
	},
	"bench/travel": {
		imports: []string{"internal/figures", "internal/netrelay", "internal/workbench"},
		modules: []string{"golang.org/x/sys"},
	},
	"examples": {},
	"recipes": {
		imports: []string{"recipe", "hotstart", "internal/netrelay"},
	},
	"image": {
		imports: []string{"image/layer", "store", "store/erofs", "store/tree", "store/object"},
		modules: []string{"github.com/google/go-containerregistry", "github.com/klauspost/compress", "golang.org/x/sys"},
	},
	"image/bundle": {
		imports: []string{"internal/owner", "image"},
		modules: []string{"github.com/google/go-containerregistry", "github.com/moby/profiles", "github.com/opencontainers/runtime-spec", "golang.org/x/sys", "golang.org/x/term"},
	},
	"image/watch": {
		imports: []string{"internal/beneath", "internal/problem", "image", "store", "store/tree", "store/object", "internal/owner"},
		modules: []string{"github.com/google/go-containerregistry", "gopkg.in/yaml.v3"},
	},
	"image/snapshotter": {
		imports: []string{"internal/beneath", "internal/access", "image", "internal/bounded", "node", "lazyfs", "store/tree", "store/object", "internal/owner"},
		modules: []string{"github.com/containerd/containerd", "github.com/containerd/continuity", "github.com/containerd/errdefs", "google.golang.org/grpc", "golang.org/x/sys", "golang.org/x/sync"},
	},
	"image/layer": {
		modules: []string{"golang.org/x/sys"},
	},
	"store": {
		imports: []string{"internal/beneath", "store/chunker", "store/erofs", "store/tree", "store/object", "internal/owner"},
		modules: []string{"github.com/klauspost/compress", "golang.org/x/sys", "golang.org/x/sync"},
	},
	"store/mirror": {
		imports: []string{"store", "store/serve", "store/trust", "store/origin", "store/tree", "store/object"},
		modules: []string{"golang.org/x/sync"},
	},
	"store/serve": {
		imports: []string{"internal/access", "internal/bounded", "store/origin", "store/tree", "store/object"},
		modules: []string{"github.com/prometheus/client_golang", "golang.org/x/sys"},
	},
	"store/trust": {
		imports: []string{"internal/beneath", "store/origin", "store/tree", "store/object", "internal/owner"},
		modules: []string{"golang.org/x/sys"},
	},
	"store/origin": {
		imports: []string{"internal/owner", "store/tree", "store/object"},
		modules: []string{"github.com/google/go-containerregistry"},
	},
	"store/chunker": {
		modules: []string{"github.com/zeebo/blake3"},
	},
	"lazyfs/libraries": {
		imports: []string{"store/erofs"},
		modules: []string{"golang.org/x/sys"},
	},
	"lazyfs/fuse": {
		imports: []string{"store/erofs"},
		modules: []string{"golang.org/x/sys", "golang.org/x/sync"},
	},
	"store/cache": {
		imports: []string{"internal/beneath", "store/tree", "store/object", "internal/owner"},
		modules: []string{"golang.org/x/sys", "golang.org/x/time"},
	},
	"node": {
		imports: []string{"internal/access", "internal/bounded", "internal/beneath", "internal/cgroup", "internal/problem", "lazyfs", "lazyfs/libraries", "store/cache", "store/origin", "store/trust", "store/tree", "store/object", "internal/owner"},
		modules: []string{"golang.org/x/sys", "gopkg.in/yaml.v3", "github.com/prometheus/client_golang"},
	},
	"lazyfs": {
		imports: []string{"lazyfs/fuse"},
		modules: []string{"golang.org/x/sys"},
	},
	"store/tree": {
		imports: []string{"store/object"},
	},
	"store/object": {
		modules: []string{"github.com/klauspost/compress", "github.com/zeebo/blake3", "lukechampine.com/blake3"},
	},
	"transfer": {
		imports: []string{"record"},
	},
	"transfer/choose": {
		imports: []string{"internal/beneath", "transfer", "transfer/link", "transfer/peer", "transfer/stream", "transfer/testbed"},
		modules: []string{"golang.org/x/sys"},
	},
	"transfer/stream": {
		imports: []string{"internal/beneath", "internal/owner", "internal/bounded", "transfer", "store", "store/object", "store/tree"}, // the last for tests
		modules: []string{"github.com/klauspost/compress", "golang.org/x/sync", "golang.org/x/sys"},
	},
	"transfer/stats": {
		modules: []string{"gonum.org/v1/gonum"},
	},
	"transfer/report": {
		imports: []string{"internal/outputs", "internal/beneath", "transfer", "transfer/stats", "record"},
		modules: []string{"github.com/parquet-go/parquet-go"},
	},
	"transfer/capture": {
		imports: []string{"internal/owner", "transfer", "internal/netrelay"}, // the last for tests
		modules: []string{"golang.org/x/net", "golang.org/x/sys"},
	},
	"transfer/link": {
		imports: []string{"internal/problem", "transfer"},
		modules: []string{"gopkg.in/yaml.v3"},
	},
	"transfer/peer": {
		imports: []string{"internal/owner", "transfer/link"},
		modules: []string{"golang.org/x/sys"},
	},
	"transfer/testbed": {
		imports: []string{"transfer", "transfer/link", "transfer/peer", "transfer/capture", "record"},
		modules: []string{"golang.org/x/sys"},
	},
	"report": {
		imports: []string{"internal/beneath", "engine", "engine/queue", "hotstart", "hotstart/calls", "record", "internal/owner"},
	},
	"engine/kubernetes": {
		imports: []string{"engine/pack", "internal/kubeapi"},
		modules: []string{"k8s.io/api", "k8s.io/apimachinery", "k8s.io/client-go", "sigs.k8s.io/yaml"},
	},
	"engine/slurm": {
		imports: []string{"internal/beneath", "engine/pack", "engine/queue", "recipe", "internal/owner"},
		modules: []string{"golang.org/x/sys"},
	},
	"engine/pack": {
		// Its tests execute a spawner, which is their own binary.
		imports: []string{"internal/beneath", "engine", "engine/local", "engine/queue", "engine/spawn", "hotstart", "recipe", "record"},
	},
	"engine/shim": {
		imports: []string{"internal/bounded", "internal/beneath", "internal/cgroup", "engine", "engine/local", "engine/pack", "engine/queue", "engine/slurm", "engine/spawn", "record", "internal/owner"},
		modules: []string{"golang.org/x/sys"},
	},
	"engine/local": {
		imports: []string{"internal/beneath", "engine", "engine/queue", "engine/spawn", "recipe", "hotstart", "record"},
		modules: []string{"golang.org/x/sys"},
	},
	"engine/queue": {
		imports: []string{"internal/beneath", "internal/problem", "engine", "engine/spawn", "hotstart", "recipe", "record", "internal/owner"},
		modules: []string{"golang.org/x/sys"},
	},
	"engine/spawn": {
		imports: []string{"internal/owner"},
		modules: []string{"golang.org/x/sys"},
	},
	"engine": {
		imports: []string{"internal/beneath", "recipe", "hotstart", "record", "internal/owner"},
		modules: []string{"golang.org/x/sys"},
	},
	"recipe": {
		imports: []string{"internal/problem", "hotstart", "hotstart/placeholder", "store/tree"},
		modules: []string{"gopkg.in/yaml.v3", "github.com/zeebo/blake3"},
	},
	"cmd/premix-shim": {
		imports: []string{"hotstart/calls"},
	},
	"tools": {
		imports: []string{"internal/problem", "internal/owner"},
		modules: []string{"gopkg.in/yaml.v3"},
	},
	"hotstart/around": {
		modules: []string{"golang.org/x/sys"},
	},
	"hotstart/calls": {
		imports: []string{"hotstart/around", "internal/beneath", "internal/owner", "tools"},
		modules: []string{"golang.org/x/sys"},
	},
	"hotstart/dropin": {
		imports: []string{"hotstart", "hotstart/around", "hotstart/calls", "hotstart/inplace", "internal/beneath", "internal/owner", "internal/problem", "internal/units", "tools"},
		modules: []string{"golang.org/x/sys", "gopkg.in/yaml.v3"},
	},
	"hotstart": {
		imports: []string{"internal/beneath", "hotstart/around", "hotstart/tracer", "hotstart/frozen", "hotstart/placeholder", "image", "image/bundle", "internal/owner", "internal/spare"},
		modules: []string{"golang.org/x/sys", "github.com/zeebo/blake3", "github.com/klauspost/compress"},
	},
	"hotstart/placeholder": {
		modules: []string{"github.com/zeebo/blake3", "github.com/klauspost/compress"},
	},
	"hotstart/inplace": {
		imports: []string{"internal/beneath", "hotstart", "hotstart/around", "hotstart/tracer", "hotstart/frozen", "hotstart/placeholder", "internal/owner"},
		modules: []string{"golang.org/x/sys", "github.com/zeebo/blake3"},
	},
	"hotstart/frozen": {
		imports: []string{"hotstart/tracer"},
		modules: []string{"github.com/zeebo/blake3", "golang.org/x/sys"},
	},
	"hotstart/tracer": {
		imports: []string{"hotstart/around"},
		modules: []string{"golang.org/x/sys"},
	},
	"blast/database": {
		imports: []string{"internal/beneath", "blast/fasta", "store", "store/tree", "internal/owner", "internal/spare"},
		modules: []string{"github.com/zeebo/blake3", "golang.org/x/sys"},
	},
	"blast/service": {
		imports: []string{"internal/access", "internal/beneath", "blast/database", "blast/fasta", "blast/search", "record"},
		modules: []string{"github.com/prometheus/client_golang", "golang.org/x/sys"},
	},
	"blast/search": {
		imports: []string{"internal/beneath", "blast/archive", "blast/database"},
	},
	"blast/archive": {},
	"blast/fasta": {
		imports: []string{"internal/problem"},
		modules: []string{"github.com/klauspost/compress"},
	},
	"record": {
		imports: []string{"internal/beneath", "internal/owner"},
		modules: []string{"github.com/parquet-go/parquet-go", "golang.org/x/sys"},
	},
	// Written for the tests: they mount.
	"store/erofs": {
		modules: []string{"golang.org/x/sys"},
	},
	"replay/results": {
		imports: []string{"internal/beneath", "replay/simulate", "replay/machine", "replay/trace", "record"},
	},
	"replay/policy": {
		imports: []string{"internal/problem", "replay/simulate", "replay/machine", "replay/room", "replay/trace"},
		modules: []string{"gopkg.in/yaml.v3"},
	},
	"replay/pack": {
		imports: []string{"replay/policy", "replay/simulate", "replay/machine", "replay/trace"},
	},
	"replay/simulate": {
		imports: []string{"replay/machine", "replay/room", "replay/trace"},
	},
	"replay/room": {
		imports: []string{"replay/trace"},
	},
	"replay/machine": {
		imports: []string{"internal/problem", "replay/trace"},
		modules: []string{"gopkg.in/yaml.v3"},
	},
	"replay/generate": {
		imports: []string{"replay/trace"},
	},
	"replay/trace": {
		imports: []string{"engine", "engine/queue", "record"},
		modules: []string{"github.com/klauspost/compress"},
	},
	"scripts/vulnerabilities": {
		modules: []string{"golang.org/x/mod"},
	},
	"internal/access":  {imports: []string{"internal/beneath", "internal/owner"}},
	"internal/arrows":  {},
	"internal/wording": {},
	"internal/bounded": {
		modules: []string{"golang.org/x/sys"},
	},
	"internal/mountinfo": {},
	"internal/cgroup": {
		modules: []string{"golang.org/x/sys"},
	},
	"internal/quantile": {},
	"internal/regex":    {},
	"internal/units":    {},
	"internal/spare":    {},
	"internal/exit":     {},
	"internal/browser":  {imports: []string{"internal/shortdir"}},
	"internal/shortdir": {},
	"internal/faulty":   {},
	"internal/kubeapi": {
		modules: []string{"k8s.io/api", "k8s.io/apimachinery", "k8s.io/client-go", "k8s.io/klog"},
	},
	"internal/kubebox": {
		imports: []string{"internal/kubeapi", "internal/ports"},
		modules: []string{"k8s.io/api", "k8s.io/apimachinery", "k8s.io/client-go"},
	},
	"internal/awkward": {
		modules: []string{"golang.org/x/sys"},
	},
	"internal/figures": {
		modules: []string{"golang.org/x/sys"},
	},
	"internal/outputs": {},
	"internal/beneath": {
		imports: []string{"internal/owner"},
		modules: []string{"github.com/zeebo/blake3", "golang.org/x/sys"},
	},
	"internal/workbench": {
		imports: []string{"internal/beneath", "internal/netrelay"},
		modules: []string{"golang.org/x/sys"},
	},
	"internal/owner": {
		imports: []string{"internal/bounded"},
		modules: []string{"golang.org/x/sys"},
	},
	"internal/lines": {
		modules: []string{"golang.org/x/sys"},
	},
	"internal/lock": {
		modules: []string{"golang.org/x/sys"},
	},
	"internal/parquetparts": {
		modules: []string{"github.com/parquet-go/parquet-go"},
	},
	"internal/ports": {},
	"internal/problem": {
		modules: []string{"gopkg.in/yaml.v3"},
	},
	"internal/unmount": {
		modules: []string{"golang.org/x/sys"},
	},
	"internal/slurmbox": {
		imports: []string{"internal/ports"},
	},
	"internal/netrelay": {
		modules: []string{"golang.org/x/sys"},
	},
}

// ground are the packages that every room may import. They import one another and the
// standard library alone.
var ground = []string{"internal/exit", "internal/lines", "internal/lock", "internal/mountinfo", "internal/quantile", "internal/regex", "internal/units"}

// testRooms are for tests, and some for benchmarks too.
var testRooms = []string{"internal/awkward", "internal/browser", "internal/faulty", "internal/kubebox", "internal/ports", "internal/shortdir", "internal/slurmbox", "internal/unmount", "internal/workbench"}

var testModules = []string{
	"github.com/containerd/containerd",       // pkg/archive
	"github.com/google/go-containerregistry", // registry
	"github.com/hanwen/go-fuse",              // posixtest
	"github.com/parquet-go/parquet-go",       // what others read of a table
	"github.com/rogpeppe/go-internal",
	"github.com/santhosh-tekuri/jsonschema",
	"gopkg.in/yaml.v3",
	"k8s.io/api", // what internal/kubebox is asked about
	"k8s.io/apimachinery",
	"k8s.io/client-go",
}

// listed is what `go list -json` tells of a package, as far as it is used here.
type listed struct {
	ImportPath   string
	Dir          string
	GoFiles      []string
	Imports      []string
	TestImports  []string
	XTestImports []string
}

func TestArrowsPointDownward(t *testing.T) {
	for _, p := range packages(t) {
		name := strings.TrimPrefix(p.ImportPath, module+"/")
		allowed, ok := rooms[name]
		if !ok {
			t.Errorf("room %s is not in the table of internal/arrows", name)
			continue
		}
		for _, path := range p.Imports {
			if err := allowed.permits(path, nil); err != nil {
				t.Errorf("%s imports %s: %v", name, path, err)
			}
		}
		for _, path := range slices.Concat(p.TestImports, p.XTestImports) {
			if path == p.ImportPath {
				continue
			}
			if slices.Contains(testRooms, strings.TrimPrefix(path, module+"/")) {
				continue
			}
			if err := allowed.permits(path, testModules); err != nil {
				t.Errorf("a test of %s imports %s: %v", name, path, err)
			}
		}
	}
}

// permits returns nil where the room may import path.
func (r room) permits(path string, more []string) error {
	if name, ok := strings.CutPrefix(path, module+"/"); ok {
		if !slices.Contains(r.imports, name) && !slices.Contains(ground, name) {
			return errors.New("this arrow is not in the table")
		}
		return nil
	}
	first, _, _ := strings.Cut(path, "/")
	if !strings.Contains(first, ".") {
		return nil // the standard library
	}
	within := func(m string) bool { return path == m || strings.HasPrefix(path, m+"/") }
	if !slices.ContainsFunc(r.modules, within) && !slices.ContainsFunc(more, within) {
		return errors.New("this module is not in the table")
	}
	return nil
}

// The table itself must have no way back up.
func TestTableHasNoCycle(t *testing.T) {
	const (
		entered = 1
		left    = 2
	)
	state := map[string]int{}
	var visit func(name string, path []string)
	visit = func(name string, path []string) {
		path = append(path, name)
		switch state[name] {
		case entered:
			t.Errorf("cycle: %s", strings.Join(path, " -> "))
			return
		case left:
			return
		}
		state[name] = entered
		r, ok := rooms[name]
		if !ok {
			t.Errorf("%s: no such room", strings.Join(path, " -> "))
		}
		for _, next := range r.imports {
			visit(next, path)
		}
		state[name] = left
	}
	for name := range rooms {
		visit(name, nil)
	}
}

func TestPermits(t *testing.T) {
	r := room{imports: []string{"record"}, modules: []string{"example.org/m"}}
	for _, c := range []struct {
		path string
		ok   bool
	}{
		{"os/exec", true},
		{module + "/record", true},
		{module + "/engine", false},
		{module + "/record/deeper", false},
		{"example.org/m", true},
		{"example.org/m/v2", true},
		{"example.org/more", false},
	} {
		if err := r.permits(c.path, nil); (err == nil) != c.ok {
			t.Errorf("permits(%s) = %v, want permitted: %v", c.path, err, c.ok)
		}
	}
}

func TestEveryRoomSaysWhatItIsFor(t *testing.T) {
	for _, p := range packages(t) {
		name := strings.TrimPrefix(p.ImportPath, module+"/")
		if len(p.GoFiles) == 0 {
			continue // only tests
		}
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, "doc.go"), nil, parser.ParseComments)
		if err != nil {
			t.Errorf("room %s: %v", name, err)
			continue
		}
		if file.Doc == nil {
			t.Errorf("room %s: doc.go has no package comment", name)
		}
		if len(file.Decls) > 0 {
			t.Errorf("room %s: doc.go has code", name)
		}
	}
}

func TestNothingRunsInInit(t *testing.T) {
	for _, p := range packages(t) {
		for _, base := range p.GoFiles {
			path := filepath.Join(p.Dir, base)
			fset := token.NewFileSet()
			file, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Error(err)
				continue
			}
			for _, d := range file.Decls {
				if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name == "init" {
					t.Errorf("%s: init function", fset.Position(f.Pos()))
				}
			}
		}
	}
}

// TestOneHome refuses what one package does for all others.
func TestOneHome(t *testing.T) {
	habits := []struct {
		text  string   // of a line
		homes []string // packages, and directories with a slash at the end
		use   string
	}{
		{`"KMGT`, []string{"internal/units", "engine/shim"}, "internal/units"},
		{`[KMGT`, []string{"internal/units"}, "internal/units"},
		{"unix.Flock(", []string{"internal/lock"}, "internal/lock"},
		{"self/mountinfo", []string{"internal/mountinfo", "watch/collect", "engine/local"}, "internal/mountinfo"}, // these read a root that tests give
		{"func quantile(", nil, "internal/quantile"},
		{"func median(", []string{"bench/"}, "internal/quantile"}, // of a field of results
		{"os.Rename(", []string{"internal/beneath", "bench/"}, "Move, Write or Replace of internal/beneath"},
		{"os.CreateTemp(", []string{"internal/owner", "image/bundle", "transfer/capture"}, "Write or Create of internal/beneath"}, // these give the file no other name
	}
	for _, p := range packages(t) {
		name := strings.TrimPrefix(p.ImportPath, module+"/")
		for _, base := range p.GoFiles {
			path := filepath.Join(p.Dir, base)
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			n := 0
			for line := range strings.Lines(string(b)) {
				n++
				for _, h := range habits {
					home := func(dir string) bool {
						return dir == name || strings.HasSuffix(dir, "/") && strings.HasPrefix(name, dir)
					}
					if strings.Contains(line, h.text) && !slices.ContainsFunc(h.homes, home) {
						t.Errorf("%s:%d: use %s", path, n, h.use)
					}
				}
			}
		}
	}
}

// packages lists the module's packages.
func packages(t *testing.T) []listed {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Dir,GoFiles,Imports,TestImports,XTestImports", module+"/...")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	list, err := decode(out)
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	if len(list) == 0 {
		t.Fatal("go list found no package")
	}
	// The go command caches a test's success by what the test itself read, and
	// knows nothing of what go list saw: reading the directories here makes a
	// new file or a new room a reason to run again.
	for _, p := range list {
		for _, dir := range []string{p.Dir, filepath.Dir(p.Dir)} {
			if _, err := os.ReadDir(dir); err != nil {
				t.Fatal(err)
			}
		}
	}
	return list
}

func decode(out []byte) ([]listed, error) {
	var list []listed
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		err := d.Decode(&p)
		if errors.Is(err, io.EOF) {
			return list, nil
		}
		if err != nil {
			return nil, fmt.Errorf("entry %d: %w", len(list), err)
		}
		list = append(list, p)
	}
}
