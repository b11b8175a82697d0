package tree

import (
	"bytes"
	"testing"

	"premix/store/object"
)

func TestOpening(t *testing.T) {
	manifest, page := object.Sum([]byte("m")), object.Sum([]byte("p"))
	var w OpeningWriter
	w.File(InfoPath, []byte("info"))
	w.Object(manifest, []byte("stored manifest"))
	w.Later(page, []byte("stored page"))
	b := w.Bytes()
	headAt := -1
	for n := range len(b) + 1 {
		o, head, all, err := ParseOpening(b[:n:n])
		if err != nil {
			t.Fatalf("%d of %d bytes: %v", n, len(b), err)
		}
		if head && headAt < 0 {
			headAt = n
			if string(o.Files[InfoPath]) != "info" || string(o.Objects[manifest]) != "stored manifest" || len(o.Later) != 1 || o.Later[0] != page {
				t.Errorf("the head is %+v", o)
			}
		}
		if all != (n == len(b)) || all && string(o.Objects[page]) != "stored page" {
			t.Errorf("%d of %d bytes: all %t, %+v", n, len(b), all, o)
		}
	}
	if headAt < 0 || headAt >= len(b)-len("stored page") {
		t.Errorf("the head is whole after %d of %d bytes", headAt, len(b))
	}
	item := func(kind byte, name, data string) []byte {
		var i bytes.Buffer
		appendItem(&i, kind, name, []byte(data))
		return i.Bytes()
	}
	long := item('f', "x", "")
	long[6] = 0xff
	for name, bad := range map[string][]byte{
		"another magic":               []byte("premixO2"),
		"a web page":                  []byte("<html>"),
		"an unknown kind":             item('x', "a", "b"),
		"an object without a digest":  item('o', "short", "b"),
		"a file behind the head":      append(item('e', "", ""), item('f', "a", "b")...),
		"a promise behind the head":   append(item('e', "", ""), item('l', string(page[:]), "")...),
		"two ends":                    append(item('e', "", ""), item('e', "", "")...),
		"an item longer than allowed": long,
	} {
		if bad[0] != 'p' && bad[0] != '<' {
			bad = append([]byte(openingMagic), bad...)
		}
		if _, _, _, err := ParseOpening(bad); !IsInvalid(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzParseOpening(f *testing.F) {
	var w OpeningWriter
	w.File(InfoPath, []byte("info"))
	w.Later(object.Sum(nil), []byte("x"))
	f.Add(w.Bytes())
	f.Fuzz(func(t *testing.T, b []byte) {
		o, head, all, err := ParseOpening(b)
		if err != nil && (o != nil || !IsInvalid(err)) || err == nil && o == nil || all && !head {
			t.Errorf("%+v, %t, %t, %v", o, head, all, err)
		}
	})
}

func TestOpeningPaths(t *testing.T) {
	a, b := Ref{Name: "a", Tag: "b"}, Ref{Name: "a/b", Tag: "start"}
	if a.OpeningPath("start") == b.OpeningPath("start") || a.OpeningPath("x") == a.OpeningPath("y") {
		t.Error("two openings have one path")
	}
}
