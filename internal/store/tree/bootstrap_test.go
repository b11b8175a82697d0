package tree

import (
	"bytes"
	"testing"

	"premix/internal/store/object"
)

func TestBootstrap(t *testing.T) {
	manifest, page := object.Sum([]byte("m")), object.Sum([]byte("p"))
	var w BootstrapWriter
	w.File(InfoPath, []byte("info"))
	w.Object(manifest, []byte("stored manifest"))
	w.Later(page, []byte("stored page"))
	b := w.Bytes()
	headAt := -1
	for n := range len(b) + 1 {
		o, head, all, err := ParseBootstrap(b[:n:n])
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
			bad = append([]byte(bootstrapMagic), bad...)
		}
		if _, _, _, err := ParseBootstrap(bad); !IsInvalid(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The bootstrap arrives byte by byte. The reader returns each item once, and of an
// incomplete object the part that has arrived.
func TestBootstrapReader(t *testing.T) {
	page := object.Sum([]byte("p"))
	var w BootstrapWriter
	w.File(InfoPath, []byte("info"))
	w.Later(page, []byte("stored page"))
	b := w.Bytes()
	r := NewBootstrapReader()
	var seen string
	for n := range len(b) + 1 {
		if err := r.Take(b[:n:n]); err != nil {
			t.Fatalf("%d of %d bytes: %v", n, len(b), err)
		}
		d, part, ok := r.Arriving(b[:n:n])
		switch {
		case ok && (d != page || !r.Head || string(part) != "stored page"[:len(part)]):
			t.Errorf("%d of %d bytes: %s, %q", n, len(b), d.Short(), part)
		case ok:
			seen = string(part)
		}
		if r.All(b[:n]) != (n == len(b)) {
			t.Errorf("%d of %d bytes: all %t", n, len(b), r.All(b[:n]))
		}
	}
	if seen != "stored pag" || string(r.Objects[page]) != "stored page" || string(r.Files[InfoPath]) != "info" {
		t.Errorf("of the object %q was seen on its way, %+v", seen, r.Bootstrap)
	}
}

func FuzzParseBootstrap(f *testing.F) {
	var w BootstrapWriter
	w.File(InfoPath, []byte("info"))
	w.Later(object.Sum(nil), []byte("x"))
	f.Add(w.Bytes())
	f.Fuzz(func(t *testing.T, b []byte) {
		o, head, all, err := ParseBootstrap(b)
		if err != nil && (o != nil || !IsInvalid(err)) || err == nil && o == nil || all && !head {
			t.Errorf("%+v, %t, %t, %v", o, head, all, err)
		}
		r := NewBootstrapReader()
		for n := range len(b) + 1 {
			if err := r.Take(b[:n]); err != nil {
				return
			}
			r.Arriving(b[:n])
		}
		if err != nil || r.Head != head || r.All(b) != all || len(r.Objects) != len(o.Objects) {
			t.Errorf("bit by bit: %+v, at once: %+v, %v", r, o, err)
		}
	})
}

func TestBootstrapPaths(t *testing.T) {
	a, b := Ref{Name: "a", Tag: "b"}, Ref{Name: "a/b", Tag: "start"}
	if a.BootstrapPath("start") == b.BootstrapPath("start") || a.BootstrapPath("x") == a.BootstrapPath("y") {
		t.Error("two bootstraps have one path")
	}
}
