package frozen

import (
	"bytes"
	"reflect"
	"testing"
)

// TestKept compares two processes that have kept a path from their heads. A start has another path
// there, and keeps all of it, also where these two paths have the same eight bytes.
func TestKept(t *testing.T) {
	const start = 0x10000
	memory := func(path string) []byte { return append([]byte(path), make([]byte, pageSize-len(path))...) }
	a, b := memory("/scratch1/tmp/premix/work-a"), memory("/scratch2/tmp/premix/work-b")
	head := func(data []byte) *Head {
		return &Head{Maps: []HeadMap{{Range: Range{start, start + pageSize}, Data: bytes.Clone(data)}}}
	}
	path := Range{start, start + 27}
	c := &comparer{heads: [2]*Head{head(a), head(b)}, out: &Comparison{}, groups: map[string]*Group{}, modules: map[string]*module{}, im: [2]*Image{{}, {}}}
	c.heads[0].Free = []Range{path}
	c.confirm(&VMA{Range: Range{start, start + pageSize}}, 0, a, b)
	if got := join(c.out.Kept); !reflect.DeepEqual(got, []Range{path}) || len(c.out.Unexplained) > 0 || !bytes.Equal(a, b) {
		t.Errorf("kept %x of %x, unexplained %v", got, path, c.out.Unexplained)
	}
}
