package recipe

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// Any text gives a recipe or problems. Each problem has a message and a position in the text.
func FuzzLoad(f *testing.F) {
	files, err := filepath.Glob("../../examples/recipes/*.yaml")
	if err != nil || len(files) == 0 {
		f.Fatalf("there are no recipes: %v", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add([]byte("name: x\ncommand: cat ${r1}\ninputs: [r1]\noutputs: {stdout: '${sample}.txt'}\n"))
	f.Add([]byte("a: &a [*a, *a]\n<<: *a\n"))
	f.Add([]byte("name: {a: [b, {c: !!binary x}]}\nready: {line: '(((('}\nretries: 1e99\nmemory: 99999999999999G\n"))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := parse("r.yaml", filepath.Join(dir, "r.yaml"), text, Sources{})
		var problems Problems
		switch {
		case err == nil && (r == nil || r.Name == "" || r.Threads < 1):
			t.Fatalf("%+v", r)
		case err == nil:
		case !errors.As(err, &problems) || len(problems) == 0:
			t.Fatalf("%T: %v", err, err)
		}
		for _, p := range problems {
			if p.Message == "" || p.Line < 0 {
				t.Fatalf("%+v", p)
			}
		}
	})
}
