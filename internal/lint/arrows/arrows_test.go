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

// layer is one line of the table.
type layer struct {
	imports []string // packages that it may import
	modules []string // modules that it may import in addition to the standard library
}

// layers lists the packages from the command line down. The tests of a package must keep to
// the same line, and may also import testModules.
var layers = map[string]layer{
	"watch": {},
	"watch/series": {
		imports: []string{"kit/owner", "kit/beneath", "watch", "record", "kit/parquetparts"},
		modules: []string{"github.com/klauspost/compress", "github.com/parquet-go/parquet-go", "golang.org/x/sys"},
	},
	"watch/alert": {
		imports: []string{"kit/access", "kit/beneath", "kit/owner", "kit/problem", "watch", "watch/series"},
		modules: []string{"gopkg.in/yaml.v3"},
	},
	"watch/relay": {
		imports: []string{"kit/beneath", "watch"},
		modules: []string{"github.com/klauspost/compress"},
	},
	"watch/explain": {
		imports: []string{"watch", "watch/series"},
	},
	"watch/web": {
		imports: []string{"kit/access", "kit/htmlpage", "watch", "watch/series", "watch/explain", "watch/alert", "watch/relay", "hotstart", "kit/bounded", "node", "record", "replay/results", "transfer", "transfer/summary"},
		modules: []string{"github.com/klauspost/compress", "github.com/prometheus/client_golang", "google.golang.org/protobuf"},
	},
	"watch/collect": {
		imports: []string{"kit/beneath", "kit/problem", "watch", "engine", "engine/queue", "engine/slurm", "engine/spawn", "hotstart/calls", "lazyfs", "node", "record", "kit/owner"},
		modules: []string{"golang.org/x/sys", "gopkg.in/yaml.v3"},
	},
	"files": {
		imports: []string{"kit/beneath", "kit/parquetparts", "kit/owner"},
		modules: []string{"github.com/parquet-go/parquet-go", "golang.org/x/sys"},
	},
	"files/page": {
		imports: []string{"kit/htmlpage", "files"},
	},
	"files/packdir": {
		imports: []string{"kit/beneath", "node", "store", "store/tree", "kit/owner"},
		modules: []string{"github.com/zeebo/blake3", "golang.org/x/sys"},
	},
	"files/content": {
		modules: []string{"github.com/zeebo/blake3", "golang.org/x/sys"},
	},
	"files/policy": {
		imports: []string{"kit/beneath", "kit/owner", "kit/problem", "files", "files/content"},
		modules: []string{"github.com/parquet-go/parquet-go", "golang.org/x/sys", "golang.org/x/time", "gopkg.in/yaml.v3"},
	},
	"files/tiers": {
		imports: []string{"kit/beneath", "kit/problem", "files/content", "files/tiers/ring"},
		modules: []string{"github.com/hanwen/go-fuse", "github.com/zeebo/blake3", "golang.org/x/sys", "gopkg.in/yaml.v3"},
	},
	"files/tiers/ring": {
		modules: []string{"golang.org/x/sys"},
	},
	"docs": {},
	"demo": {
		imports: []string{"demo/aligner", "kit/htmlpage"},
	},
	"demo/aligner": {},
	"doctor": {
		imports: []string{"hotstart"},
		modules: []string{"golang.org/x/sys"},
	},
	"cmd/premix-demo": {
		imports: []string{"demo/aligner"},
	},
	"release": {},
	"manual": {
		modules: []string{"github.com/spf13/cobra", "github.com/spf13/pflag"},
	},
	"cmd/premix": {
		imports: []string{"kit/outputs", "kit/access", "kit/bounded", "kit/problem", "kit/beneath", "files/tiers", "watch", "watch/alert", "watch/relay", "watch/collect", "watch/series", "watch/web", "files", "files/packdir", "files/page", "files/policy", "blast/cluster", "blast/database", "blast/diamond", "blast/fasta", "blast/part", "blast/search", "blast/service", "engine", "engine/batch", "engine/kubernetes", "engine/local", "engine/pilot", "engine/queue", "engine/shim", "engine/slurm", "engine/spawn", "recipe", "hotstart/tools", "hotstart", "hotstart/procstate", "hotstart/calls", "hotstart/dropin", "record", "report", "replay/generate", "replay/machine", "replay/combine", "replay/scheduling", "replay/results", "replay/simulate", "replay/trace", "image", "image/bundle", "image/snapshotter", "image/tagsync", "store", "store/mirror", "store/server", "store/trust", "store/origin", "store/tree", "store/object", "node", "lazyfs", "transfer", "transfer/link", "transfer/peer", "transfer/capture", "transfer/testbed", "transfer/summary", "transfer/choose", "transfer/stream", "testkit/netrelay", "kit/owner", "store/erofs", "docs", "manual", "release", "demo", "cvmfs", "replay/whatif", "doctor"},
		modules: []string{"github.com/spf13/cobra", "github.com/spf13/pflag", "golang.org/x/term", "golang.org/x/sys"},
	},
	"bench/hotstart": {
		imports: []string{"recipe", "hotstart", "testkit/figures", "testkit/workbench"},
		modules: []string{"golang.org/x/sys"},
	},
	"bench/tools": {
		imports: []string{"testkit/figures", "testkit/workbench"},
		modules: []string{"golang.org/x/sys", "github.com/zeebo/blake3"},
	},
	"bench/dropin": {
		imports: []string{"testkit/figures", "testkit/workbench"},
		modules: []string{"golang.org/x/sys"},
	},
	"bench/containers": {
		imports: []string{"testkit/figures", "testkit/netrelay", "testkit/workbench"},
		modules: []string{"github.com/google/go-containerregistry", "golang.org/x/sys"},
	},
	"bench/files": {
		imports: []string{"files/tiers/ring", "files", "testkit/figures"},
		modules: []string{"github.com/parquet-go/parquet-go", "golang.org/x/sys"},
	},
	"bench/watch": {
		imports: []string{"watch", "watch/collect", "watch/relay", "watch/series", "testkit/figures"},
		modules: []string{"golang.org/x/sys"},
	},
	"bench/blast": {
		imports: []string{"testkit/figures", "testkit/ports", "testkit/workbench"},
		modules: []string{"golang.org/x/sys"},
	},
	"bench/tasks": {
		imports: []string{"testkit/figures", "testkit/kubetest", "testkit/slurmtest"},
		modules: []string{"golang.org/x/sys", "k8s.io/api", "k8s.io/apimachinery"},
	},
	"bench/replay": {
		imports: []string{"testkit/figures"},
	},
	"bench/store": {
		imports: []string{"testkit/cvmfsrepo", "testkit/figures", "testkit/netrelay", "testkit/ports", "testkit/workbench"},
		modules: []string{"golang.org/x/sync", "golang.org/x/sys"},
	},
	"bench/transfer": {
		imports: []string{"transfer", "testkit/figures", "testkit/netrelay", "testkit/workbench"},
		modules: []string{"golang.org/x/sys"},
	},
	"bench/travel": {
		imports: []string{"testkit/figures", "testkit/netrelay", "testkit/workbench"},
		modules: []string{"golang.org/x/sys"},
	},
	"examples": {},
	"examples/recipes": {
		imports: []string{"recipe", "hotstart", "testkit/netrelay"},
	},
	"image": {
		imports: []string{"kit/login", "image/layer", "store", "store/erofs", "store/tree", "store/object"},
		modules: []string{"github.com/google/go-containerregistry", "github.com/klauspost/compress", "golang.org/x/sys"},
	},
	"image/bundle": {
		imports: []string{"kit/owner", "image"},
		modules: []string{"github.com/google/go-containerregistry", "github.com/moby/profiles", "github.com/opencontainers/runtime-spec", "golang.org/x/sys", "golang.org/x/term"},
	},
	"image/tagsync": {
		imports: []string{"kit/beneath", "kit/login", "kit/problem", "image", "store", "store/tree", "store/object", "kit/owner"},
		modules: []string{"github.com/google/go-containerregistry", "gopkg.in/yaml.v3"},
	},
	"image/snapshotter": {
		imports: []string{"kit/beneath", "kit/access", "image", "image/lazylayer", "kit/login", "kit/bounded", "node", "lazyfs", "store/tree", "store/object", "kit/owner", "kit/unixpeer"},
		modules: []string{"github.com/containerd/containerd", "github.com/containerd/continuity", "github.com/containerd/errdefs", "github.com/google/go-containerregistry", "google.golang.org/grpc", "google.golang.org/protobuf", "golang.org/x/sys", "golang.org/x/sync"},
	},
	"image/lazylayer": {
		imports: []string{"kit/dial", "image/layer", "store/cache", "store/erofs", "store/object"}, // the first for tests
		modules: []string{"github.com/google/go-containerregistry", "github.com/klauspost/compress", "golang.org/x/sys"},
	},
	"image/layer": {
		modules: []string{"golang.org/x/sys"},
	},
	"store": {
		imports: []string{"kit/beneath", "kit/ondisk", "store/chunker", "store/erofs", "store/tree", "store/object", "kit/owner"},
		modules: []string{"github.com/klauspost/compress", "golang.org/x/sys", "golang.org/x/sync"},
	},
	"store/neighbour": {
		imports: []string{"kit/access", "kit/bounded", "store/object", "store/origin"},
		modules: []string{"golang.org/x/time"},
	},
	"store/mirror": {
		imports: []string{"store", "store/server", "store/trust", "store/origin", "store/tree", "store/object"},
		modules: []string{"golang.org/x/sync"},
	},
	"store/server": {
		imports: []string{"kit/access", "kit/bounded", "store/origin", "store/tree", "store/object"},
		modules: []string{"github.com/prometheus/client_golang", "golang.org/x/sys"},
	},
	"store/trust": {
		imports: []string{"kit/beneath", "store/origin", "store/tree", "store/object", "kit/owner"},
		modules: []string{"golang.org/x/sys"},
	},
	"store/origin": {
		imports: []string{"kit/dial", "kit/login", "kit/owner", "store/tree", "store/object"},
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
		imports: []string{"kit/beneath", "store/tree", "store/object", "kit/owner"},
		modules: []string{"golang.org/x/sys", "golang.org/x/time"},
	},
	"node": {
		imports: []string{"kit/access", "kit/bounded", "kit/beneath", "kit/cgroup", "kit/login", "kit/problem", "cvmfs", "image/lazylayer", "lazyfs", "lazyfs/libraries", "store/cache", "store/neighbour", "store/erofs", "store/origin", "store/trust", "store/tree", "store/object", "kit/owner", "kit/unixpeer"},
		modules: []string{"golang.org/x/sys", "gopkg.in/yaml.v3", "github.com/google/go-containerregistry", "github.com/prometheus/client_golang"},
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
		imports: []string{"kit/owner", "record"},
	},
	"transfer/choose": {
		imports: []string{"kit/beneath", "transfer", "transfer/link", "transfer/peer", "transfer/stream", "transfer/testbed"},
		modules: []string{"golang.org/x/sys"},
	},
	"transfer/stream": {
		imports: []string{"kit/beneath", "kit/owner", "kit/bounded", "transfer", "store", "store/object", "store/tree"}, // the last for tests
		modules: []string{"github.com/klauspost/compress", "golang.org/x/sync", "golang.org/x/sys"},
	},
	"transfer/stats": {
		modules: []string{"gonum.org/v1/gonum"},
	},
	"transfer/summary": {
		imports: []string{"kit/htmlpage", "kit/outputs", "kit/beneath", "transfer", "transfer/stats", "record", "kit/owner"},
		modules: []string{"github.com/parquet-go/parquet-go"},
	},
	"transfer/capture": {
		imports: []string{"kit/owner", "transfer", "testkit/netrelay"}, // the last for tests
		modules: []string{"golang.org/x/net", "golang.org/x/sys"},
	},
	"transfer/link": {
		imports: []string{"kit/problem", "transfer"},
		modules: []string{"gopkg.in/yaml.v3"},
	},
	"transfer/peer": {
		imports: []string{"kit/owner", "transfer/link"},
		modules: []string{"golang.org/x/sys"},
	},
	"transfer/testbed": {
		imports: []string{"kit/owner", "kit/beneath", "transfer", "transfer/link", "transfer/peer", "transfer/capture", "record"},
		modules: []string{"golang.org/x/sys"},
	},
	"report": {
		imports: []string{"kit/htmlpage", "kit/beneath", "kit/outputs", "engine", "engine/queue", "hotstart", "hotstart/calls", "record", "kit/owner", "kit/problem"},
	},
	"engine/kubernetes": {
		imports: []string{"engine/pilot", "testkit/kubeapi"},
		modules: []string{"k8s.io/api", "k8s.io/apimachinery", "k8s.io/client-go", "sigs.k8s.io/yaml"},
	},
	"engine/slurm": {
		imports: []string{"engine/pilot", "engine/programs", "engine/queue", "recipe", "kit/owner"},
		modules: []string{"golang.org/x/sys"},
	},
	"engine/batch": {
		imports: []string{"engine/pilot", "engine/programs", "engine/queue", "testkit/fakebatch"},
	},
	"engine/programs": {
		imports: []string{"kit/beneath", "kit/owner"},
	},
	"engine/pilot": {
		// Its tests execute a spawner, which is their own binary.
		imports: []string{"kit/owner", "kit/beneath", "engine", "engine/local", "engine/queue", "engine/spawn", "hotstart", "recipe", "record"},
	},
	"engine/shim": {
		imports: []string{"kit/bounded", "kit/beneath", "kit/cgroup", "engine", "engine/local", "engine/pilot", "engine/queue", "engine/slurm", "engine/spawn", "record", "kit/owner", "kit/unixpeer"},
		modules: []string{"golang.org/x/sys", "gopkg.in/yaml.v3"},
	},
	"engine/local": {
		imports: []string{"kit/beneath", "engine", "engine/queue", "engine/spawn", "recipe", "hotstart", "record"},
		modules: []string{"golang.org/x/sys"},
	},
	"engine/queue": {
		imports: []string{"kit/beneath", "kit/problem", "engine", "engine/spawn", "hotstart", "recipe", "record", "kit/owner"},
		modules: []string{"golang.org/x/sys"},
	},
	"engine/spawn": {
		imports: []string{"kit/owner"},
		modules: []string{"golang.org/x/sys"},
	},
	"engine": {
		imports: []string{"kit/beneath", "recipe", "hotstart", "record", "kit/owner"},
		modules: []string{"golang.org/x/sys"},
	},
	"recipe": {
		imports: []string{"kit/problem", "hotstart", "hotstart/placeholder", "store/tree"},
		modules: []string{"gopkg.in/yaml.v3", "github.com/zeebo/blake3"},
	},
	"cmd/premix-shim": {
		imports: []string{"hotstart/calls"},
	},
	"hotstart/tools": {
		imports: []string{"kit/problem", "kit/owner"},
		modules: []string{"gopkg.in/yaml.v3"},
	},
	"hotstart/procstate": {
		modules: []string{"golang.org/x/sys"},
	},
	"hotstart/calls": {
		imports: []string{"hotstart/procstate", "kit/beneath", "kit/owner", "hotstart/tools"},
		modules: []string{"golang.org/x/sys"},
	},
	"hotstart/dropin": {
		imports: []string{"hotstart", "hotstart/procstate", "hotstart/calls", "hotstart/inplace", "kit/beneath", "kit/owner", "kit/problem", "kit/units", "hotstart/tools"},
		modules: []string{"golang.org/x/sys", "gopkg.in/yaml.v3"},
	},
	"hotstart": {
		imports: []string{"kit/beneath", "hotstart/procstate", "hotstart/tracer", "hotstart/frozen", "hotstart/late", "hotstart/placeholder", "image", "image/bundle", "kit/owner", "kit/spare"},
		modules: []string{"golang.org/x/sys", "github.com/zeebo/blake3", "github.com/klauspost/compress"},
	},
	"hotstart/placeholder": {
		modules: []string{"github.com/zeebo/blake3", "github.com/klauspost/compress"},
	},
	"hotstart/inplace": {
		imports: []string{"kit/beneath", "hotstart", "hotstart/procstate", "hotstart/tracer", "hotstart/frozen", "hotstart/late", "hotstart/placeholder", "kit/owner", "kit/spare"},
		modules: []string{"golang.org/x/sys", "github.com/zeebo/blake3"},
	},
	"hotstart/late": {
		imports: []string{"hotstart/frozen"},
	},
	"hotstart/frozen": {
		imports: []string{"hotstart/tracer"},
		modules: []string{"github.com/zeebo/blake3", "golang.org/x/sys"},
	},
	"hotstart/tracer": {
		imports: []string{"hotstart/procstate"},
		modules: []string{"golang.org/x/sys"},
	},
	"blast/database": {
		imports: []string{"kit/beneath", "blast/fasta", "store", "store/tree", "kit/owner", "kit/spare"},
		modules: []string{"github.com/zeebo/blake3", "golang.org/x/sys"},
	},
	"blast/service": {
		imports: []string{"kit/htmlpage", "kit/access", "kit/beneath", "blast/database", "blast/fasta", "blast/part", "blast/search", "record", "kit/owner"},
		modules: []string{"github.com/prometheus/client_golang", "golang.org/x/sys"},
	},
	"blast/search": {
		imports: []string{"blast/archive", "blast/database", "blast/part"},
	},
	"blast/diamond": {
		imports: []string{"blast/database", "blast/part"},
		modules: []string{"golang.org/x/sync"},
	},
	"blast/part": {
		imports: []string{"kit/beneath", "blast/database"},
	},
	"blast/cluster": {
		imports: []string{"kit/access", "kit/beneath", "kit/bounded", "blast/database", "blast/part", "store", "store/erofs", "store/object"},
		modules: []string{"golang.org/x/sync"},
	},
	"blast/archive": {},
	"blast/fasta": {
		imports: []string{"kit/problem"},
		modules: []string{"github.com/zeebo/blake3", "github.com/klauspost/compress"},
	},
	"cvmfs": {
		imports: []string{"kit/beneath", "kit/exit", "kit/lock", "lazyfs/fuse", "store/cache"},
		modules: []string{"golang.org/x/crypto", "golang.org/x/sync", "golang.org/x/sys", "modernc.org/sqlite"},
	},
	"record": {
		imports: []string{"kit/beneath", "kit/owner"},
		modules: []string{"github.com/parquet-go/parquet-go", "golang.org/x/sys"},
	},
	// The module is for the tests, which mount images.
	"store/erofs": {
		imports: []string{"kit/exit", "kit/ondisk"},
		modules: []string{"golang.org/x/sys"},
	},
	"replay/results": {
		imports: []string{"kit/htmlpage", "kit/beneath", "replay/simulate", "replay/machine", "replay/trace", "record", "kit/owner"},
	},
	"replay/scheduling": {
		imports: []string{"kit/problem", "replay/simulate", "replay/machine", "replay/freecapacity", "replay/trace"},
		modules: []string{"gopkg.in/yaml.v3"},
	},
	"replay/whatif": {
		imports: []string{"kit/exit", "replay/machine", "replay/results", "replay/scheduling", "replay/simulate", "replay/trace"},
	},
	"replay/combine": {
		imports: []string{"replay/scheduling", "replay/simulate", "replay/machine", "replay/trace"},
	},
	"replay/simulate": {
		imports: []string{"replay/machine", "replay/freecapacity", "replay/trace"},
	},
	"replay/freecapacity": {
		imports: []string{"replay/trace"},
	},
	"replay/machine": {
		imports: []string{"kit/problem", "replay/trace"},
		modules: []string{"gopkg.in/yaml.v3"},
	},
	"replay/generate": {
		imports: []string{"replay/trace"},
	},
	"replay/trace": {
		imports: []string{"engine", "engine/queue", "record"},
		modules: []string{"github.com/klauspost/compress"},
	},
	"scripts/pictures": {},
	"scripts/ociimage": {
		modules: []string{"github.com/google/go-containerregistry"},
	},
	"scripts/vulnerabilities": {
		modules: []string{"golang.org/x/mod"},
	},
	"kit/access":   {imports: []string{"kit/beneath", "kit/owner"}},
	"lint/arrows":  {},
	"lint/wording": {},
	"kit/bounded": {
		imports: []string{"kit/unixpeer"},
		modules: []string{"golang.org/x/sys"},
	},
	"kit/mountinfo": {},
	"kit/proc":      {},
	"kit/cgroup": {
		modules: []string{"golang.org/x/sys"},
	},
	"kit/quantile": {},
	"kit/ondisk": {
		modules: []string{"golang.org/x/sys"},
	},
	"kit/regex":         {},
	"kit/units":         {},
	"kit/spare":         {},
	"kit/dial":          {},
	"kit/exit":          {},
	"testkit/fakebatch": {},
	"testkit/browser":   {imports: []string{"testkit/shortdir"}},
	"testkit/shortdir":  {},
	"testkit/faulty":    {},
	"testkit/kubeapi": {
		modules: []string{"k8s.io/api", "k8s.io/apimachinery", "k8s.io/client-go", "k8s.io/klog"},
	},
	"testkit/kubetest": {
		imports: []string{"testkit/kubeapi", "testkit/ports"},
		modules: []string{"k8s.io/api", "k8s.io/apimachinery", "k8s.io/client-go"},
	},
	"testkit/testtree": {
		modules: []string{"golang.org/x/sys"},
	},
	"testkit/figures": {
		modules: []string{"golang.org/x/sys"},
	},
	"kit/outputs":  {},
	"kit/htmlpage": {},
	"kit/beneath": {
		imports: []string{"kit/owner"},
		modules: []string{"golang.org/x/sys"},
	},
	"kit/unixpeer": {
		imports: []string{"kit/owner"},
		modules: []string{"golang.org/x/sys"},
	},
	"testkit/workbench": {
		imports: []string{"kit/beneath", "testkit/netrelay"},
		modules: []string{"golang.org/x/sys"},
	},
	"kit/owner": {
		modules: []string{"golang.org/x/sys"},
	},
	"kit/hostlist": {},
	"kit/lines": {
		modules: []string{"golang.org/x/sys"},
	},
	"kit/login": {
		modules: []string{"github.com/docker/cli", "github.com/docker/docker-credential-helpers", "github.com/google/go-containerregistry"},
	},
	"kit/lock": {
		modules: []string{"golang.org/x/sys"},
	},
	"kit/parquetparts": {
		modules: []string{"github.com/parquet-go/parquet-go"},
	},
	"testkit/ports": {},
	"kit/problem": {
		modules: []string{"gopkg.in/yaml.v3"},
	},
	"kit/unmount": {
		modules: []string{"golang.org/x/sys"},
	},
	"testkit/slurmtest": {
		imports: []string{"testkit/ports"},
	},
	"testkit/cvmfsrepo": {
		modules: []string{"golang.org/x/crypto", "golang.org/x/sys", "modernc.org/sqlite"},
	},
	"testkit/netrelay": {
		modules: []string{"golang.org/x/sys"},
	},
}

// ground lists the packages that every package may import. They import only one another and
// the standard library.
var ground = []string{"kit/exit", "kit/hostlist", "kit/lines", "kit/lock", "kit/mountinfo", "kit/proc", "kit/quantile", "kit/regex", "kit/units"}

// testPackages lists packages for tests, of which benchmarks use some too.
var testPackages = []string{"testkit/cvmfsrepo", "testkit/testtree", "testkit/browser", "testkit/faulty", "testkit/kubetest", "testkit/ports", "testkit/shortdir", "testkit/slurmtest", "kit/unmount", "testkit/workbench"}

var testModules = []string{
	"github.com/containerd/containerd",         // pkg/archive
	"github.com/containerd/stargz-snapshotter", // makes eStargz layers
	"github.com/emersion/go-sasl",              // authentication of the next
	"github.com/emersion/go-smtp",              // a mail server
	"github.com/google/go-containerregistry",   // registry
	"github.com/hanwen/go-fuse",                // posixtest
	"github.com/parquet-go/parquet-go",         // reads tables as other programs do
	"github.com/rogpeppe/go-internal",
	"github.com/santhosh-tekuri/jsonschema",
	"gopkg.in/yaml.v3",
	"k8s.io/api", // the types of requests to internal/testkit/kubetest
	"k8s.io/apimachinery",
	"k8s.io/client-go",
}

// listed contains the fields of a package in the output of `go list -json` that are used
// here.
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
		name := short(p.ImportPath)
		allowed, ok := layers[name]
		if !ok {
			t.Errorf("package %s is not in the table of internal/lint/arrows", name)
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
			if slices.Contains(testPackages, short(path)) {
				continue
			}
			if err := allowed.permits(path, testModules); err != nil {
				t.Errorf("a test of %s imports %s: %v", name, path, err)
			}
		}
	}
}

// TestShimStaysSmall checks that the program of shims links no package that costs much at each
// start: a shim passes most calls on.
func TestShimStaysSmall(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", module+"/cmd/premix-shim").Output()
	if err != nil {
		t.Fatal(err)
	}
	deps := strings.Fields(string(out))
	if !slices.Contains(deps, module+"/internal/hotstart/calls") {
		t.Errorf("the shim does not depend on hotstart/calls: %q", deps)
	}
	for _, path := range []string{"net", "crypto/rand", "crypto/sha256", "github.com/zeebo/blake3", "text/template"} {
		if slices.Contains(deps, path) {
			t.Errorf("the shim depends on %s", path)
		}
	}
}

// short returns the name of a package of this module in the table: its path below
// internal, or below the module's root. It returns other paths as they are.
func short(path string) string {
	name, ok := strings.CutPrefix(path, module+"/")
	if !ok {
		return path
	}
	return strings.TrimPrefix(name, "internal/")
}

// permits returns nil if the package may import path.
func (r layer) permits(path string, more []string) error {
	if name := short(path); name != path {
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

// The table must not have a cycle.
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
		r, ok := layers[name]
		if !ok {
			t.Errorf("%s: no such package", strings.Join(path, " -> "))
		}
		for _, next := range r.imports {
			visit(next, path)
		}
		state[name] = left
	}
	for name := range layers {
		visit(name, nil)
	}
}

func TestPermits(t *testing.T) {
	r := layer{imports: []string{"record"}, modules: []string{"example.org/m"}}
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

func TestEveryPackageHasADoc(t *testing.T) {
	for _, p := range packages(t) {
		name := short(p.ImportPath)
		if len(p.GoFiles) == 0 {
			continue // only tests
		}
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, "doc.go"), nil, parser.ParseComments)
		if err != nil {
			t.Errorf("package %s: %v", name, err)
			continue
		}
		if file.Doc == nil {
			t.Errorf("package %s: doc.go has no package comment", name)
		}
		if len(file.Decls) > 0 {
			t.Errorf("package %s: doc.go has code", name)
		}
	}
}

// TestNames refuses two packages of one name, whose users would have to rename one of them.
func TestNames(t *testing.T) {
	seen := map[string]string{}
	for _, p := range packages(t) {
		name := short(p.ImportPath)
		switch top, _, _ := strings.Cut(name, "/"); top {
		case "cmd", "bench", "scripts":
			continue // programs
		}
		base := name[strings.LastIndexByte(name, '/')+1:]
		if other, ok := seen[base]; ok {
			t.Errorf("packages %s and %s have the same name", other, name)
		}
		seen[base] = name
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

// TestOneHome refuses code for a purpose that another package already serves.
func TestOneHome(t *testing.T) {
	habits := []struct {
		text  string   // part of a line of code
		homes []string // packages, and directories with a slash at the end
		use   string
	}{
		{`"KMGT`, []string{"kit/units", "engine/shim"}, "kit/units"},
		{`[KMGT`, []string{"kit/units"}, "kit/units"},
		{"g Mbit/s", []string{"kit/units", "bench/"}, "kit/units"},
		{"f GiB", nil, "kit/units"},
		{"d GiB", nil, "kit/units"},
		{"d MiB", nil, "kit/units"},
		{"d GB", []string{"bench/"}, "kit/units"},
		{"d MB", []string{"bench/"}, "kit/units"},
		{"time.ParseDuration(", []string{"kit/units"}, "kit/units"},
		{"unix.Flock(", []string{"kit/lock"}, "kit/lock"},
		{"unix.FcntlFlock(", []string{"engine/queue"}, "kit/lock, or TakeLock of internal/engine/queue"},
		{"self/mountinfo", []string{"kit/mountinfo", "watch/collect", "engine/local"}, "kit/mountinfo"}, // these read a root that tests give
		{"func quantile(", nil, "kit/quantile"},
		{"func median(", []string{"bench/"}, "kit/quantile"},                                                      // the median of a field of results
		{"unix.Renameat", []string{"kit/beneath", "files/policy", "files/tiers"}, "Move of internal/kit/beneath"}, // these move the files of users
		{"--ground: #", nil, "kit/htmlpage"},
		{"<!doctype html>", []string{"kit/htmlpage", "kit/outputs", "testkit/browser"}, "New of internal/kit/htmlpage"},
		{"os.Rename(", []string{"kit/beneath", "bench/"}, "Move, Write or Replace of internal/kit/beneath"},
		{"os.CreateTemp(", []string{"kit/owner", "kit/ondisk", "image/bundle", "transfer/capture", "cvmfs", "testkit/cvmfsrepo"}, "Write or Create of internal/kit/beneath"}, // these never rename the file
	}
	for _, p := range packages(t) {
		name := short(p.ImportPath)
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
	// The go command caches the result of a test by the files that the test itself read,
	// and does not know the files that go list read. The test therefore reads the
	// directories, so that it runs again after a file or a package was added.
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
