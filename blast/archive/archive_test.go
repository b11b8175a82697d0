package archive

import (
	"bytes"
	"errors"
	"io"
	"os"
	"testing"
)

func TestScratch(t *testing.T) {
	f := os.Getenv("ARCH")
	if f == "" { t.Skip() }
	b, err := os.ReadFile(f)
	if err != nil { t.Fatal(err) }
	m := NewMerger([]Source{{Archives: bytes.NewReader(b)}})
	var out bytes.Buffer
	w := NewWriter(&out)
	for {
		h, err := m.Next()
		if errors.Is(err, io.EOF) { break }
		if err != nil { t.Fatal(err) }
		t.Log(h.Queries, h.Hitlist)
		w.Begin(h)
		for {
			a, err := m.Query()
			if errors.Is(err, io.EOF) { break }
			if err != nil { t.Fatal(err) }
			w.Add(a...)
		}
		tl, err := m.Tail()
		if err != nil { t.Fatal(err) }
		if err := w.End(tl); err != nil { t.Fatal(err) }
	}
	os.WriteFile("/tmp/w-blastsearch/out.asn", out.Bytes(), 0o666)
	if !bytes.Equal(out.Bytes(), b) { t.Error("differs") }
}
