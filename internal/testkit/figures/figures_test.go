package figures

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

func TestRatios(t *testing.T) {
	if got := Lower(2, 6); got != 3 {
		t.Errorf("Lower(2, 6) = %v: 2 s are 3 times better than 6 s", got)
	}
	if got := Higher(6, 2); got != 3 {
		t.Errorf("Higher(6, 2) = %v: 6 a second are 3 times better than 2", got)
	}
	if Lower(0, 1) != 0 || Higher(1, 0) != 0 {
		t.Error("a ratio to nothing is not 0")
	}
}

// The figures of several runs are appended to one file, a line each.
func TestResults(t *testing.T) {
	path := filepath.Join(t.TempDir(), "results.jsonl")
	var human bytes.Buffer
	for _, f := range []Figure{{Name: "a/b", Value: 1.5, Unit: "s", Peer: "a/c", Ratio: 2}, {Name: "d", Value: 3, Unit: "B"}} {
		r, err := Open(path, &human)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Add(f); err != nil {
			t.Fatal(err)
		}
		r.Table("Title", [][]string{{"x", "y"}, {f.Name, Seconds(f.Value)}})
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"name":"a/b","value":1.5,"unit":"s","peer":"a/c","ratio":2}
{"name":"d","value":3,"unit":"B"}
`
	if string(got) != want {
		t.Errorf("written:\n%swant:\n%s", got, want)
	}
	if want := "\nTitle\n\n    x      y\n  a/b  1.5 s\n"; !bytes.HasPrefix(human.Bytes(), []byte(want)) {
		t.Errorf("printed:\n%q\nwant it to begin with:\n%q", human.String(), want)
	}
}

func TestTexts(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{Seconds(0.0000125), "12.5 us"}, {Seconds(0.0125), "12.5 ms"}, {Seconds(1.25), "1.25 s"}, {Seconds(125), "125 s"},
		{Times(0), "-"}, {Times(1.234), "1.23x"},
	} {
		if c.got != c.want {
			t.Errorf("printed %q, want %q", c.got, c.want)
		}
	}
}
