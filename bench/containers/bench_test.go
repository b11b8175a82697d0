package main

import (
	"bytes"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"premix/internal/testkit/figures"
	"premix/internal/testkit/netrelay"
	"premix/internal/testkit/workbench"
)

func testBenchmark(t *testing.T, human io.Writer) *benchmark {
	t.Helper()
	l, err := workbench.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	l.Log = func(string, ...any) {}
	r, err := figures.Open(filepath.Join(l.Dir, "results.jsonl"), human)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return &benchmark{Results: r, lab: &lab{l}}
}

// A published image can be pulled: its manifest by tag and by digest, and every blob.
func TestPublish(t *testing.T) {
	b := testBenchmark(t, io.Discard)
	dir := filepath.Join(b.lab.Dir, "layouts/x")
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	layer := static.NewLayer([]byte("a layer"), types.OCILayer)
	if err := writeLayout(dir, []v1.Layer{layer}, []map[string]string{{"about": "it"}}); err != nil {
		t.Fatal(err)
	}
	if err := b.lab.publish("x", dir); err != nil {
		t.Fatal(err)
	}
	o, err := b.lab.Serve(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	digest, err := manifestOf(dir)
	if err != nil {
		t.Fatal(err)
	}
	get := func(path string) string {
		t.Helper()
		resp, err := http.Get(o.URL + "/v2/x/" + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		content, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s, %v", path, resp.Status, err)
		}
		return string(content)
	}
	byTag := get("manifests/latest")
	if !strings.Contains(byTag, `"about":"it"`) || get("manifests/"+digest.String()) != byTag {
		t.Errorf("the manifest is %s", byTag)
	}
	m, err := v1.ParseManifest(strings.NewReader(byTag))
	if err != nil {
		t.Fatal(err)
	}
	if got := get("blobs/" + m.Layers[0].Digest.String()); got != "a layer" {
		t.Errorf("the layer is %q", got)
	}
	get("blobs/" + m.Config.Digest.String())
}

func TestChainID(t *testing.T) {
	const a, b = "sha256:aa", "sha256:bb"
	if got := chainID("", a); got != a {
		t.Errorf("the lowest layer's is %s", got)
	}
	// The command is: printf 'sha256:aa sha256:bb' | sha256sum
	if got, want := chainID(a, b), "sha256:b68ad689d6d1ec110ea1c13617437ad6f3766d4b3b309f6a603a222e07a0164f"; got != want {
		t.Errorf("it is %s, want %s", got, want)
	}
}

// The figures are medians, with a ratio to the full pull.
func TestReport(t *testing.T) {
	var human bytes.Buffer
	b := testBenchmark(t, &human)
	got := map[string]measured{
		"full":   {"pull": {3, 1, 2}, "first": {4, 4, 4}, "run": {1, 1, 1}, "warm": {1, 1, 1}, "bytes": {10, 10, 10}, "requests": {3, 3, 3}},
		"premix": {"pull": {0.1, 0.1, 0.1}, "first": {0.4, 0.4, 0.4}, "run": {1.5, 1.5, 1.5}, "warm": {1, 1, 1}, "bytes": {1, 1, 1}, "requests": {9, 9, 9}},
	}
	im, err := find([]string{"science"}, []string{"r"})
	if err != nil || len(im) != 1 || len(im[0].cases) != 1 {
		t.Fatalf("%+v, %v", im, err)
	}
	if err := b.report(&place{network: "link", link: new(netrelay.Link)}, im[0], im[0].cases[0], []contender{{name: "full"}, {name: "premix"}}, got); err != nil {
		t.Fatal(err)
	}
	found := map[string]figures.Figure{}
	for _, f := range b.All {
		found[f.Name] = f
	}
	if f := found["containers/link/science/r/pull/full"]; f.Value != 2 || f.Peer != "" {
		t.Errorf("%+v", f)
	}
	if f := found["containers/link/science/r/first/premix"]; f.Value != 0.4 || f.Peer != "full" || f.Ratio != 10 {
		t.Errorf("%+v", f)
	}
	for _, want := range []string{"10.0x sooner", "1.50"} {
		if !strings.Contains(human.String(), want) {
			t.Errorf("the table has no %s:\n%s", want, human.String())
		}
	}
	if _, err := find([]string{"none"}, nil); err == nil {
		t.Error("an image that is not there was found")
	}
}
