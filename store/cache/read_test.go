package cache

import (
	"errors"
	"io"
	"testing"
)

func TestReadAt(t *testing.T) {
	w := newWorld()
	s := w.publish(t, shape{seed: 1, chunks: 100, mean: 20_000, meta: 3, page: 7, holes: true})
	c := openCache(t, t.TempDir(), Options{})
	tr := openTree(t, c, s.digest, w)
	n := int64(len(s.image))
	for _, r := range [][2]int64{{0, 1}, {0, 4096}, {4096, 4096}, {n - 1, 1}, {n - 1, 5000}, {1, n - 2}, {0, n}, {0, n + 1}, {12345, 54321}} {
		mustRead(t, tr, s, r[0], r[1])
	}
	if got, err := tr.ReadAt(t.Context(), make([]byte, 1), n); got != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("a read at the end: %d, %v", got, err)
	}
	if _, err := tr.ReadAt(t.Context(), make([]byte, 1), -1); err == nil {
		t.Error("a read below 0 succeeded")
	}
	if !tr.IsComplete() {
		t.Errorf("everything was read, and it is not complete: %+v", tr.Stats())
	}
	readAll(t, tr, s)
	for d, n := range w.asked {
		if n != 1 {
			t.Errorf("object %s was fetched %d times", d.Short(), n)
		}
	}
}
