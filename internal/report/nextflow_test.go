package report

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"premix/internal/hotstart/calls"
)

func TestNextflow(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PREMIX_HOME", filepath.Join(dir, "home"))
	task := filepath.Join(dir, "work/ab/cdef0123456789abcdef0123456789")
	other := filepath.Join(dir, "work/ab/cdef1123456789abcdef0123456789")
	for _, c := range []struct {
		dir   string
		start calls.Start
	}{
		{task, calls.Start{Tool: "bwa", Start: "hot", Saved: 1.5, Bytes: 1000}},
		{filepath.Join(task, "below"), calls.Start{Tool: "bwa", Start: "hot", Saved: 2, Bytes: 1}},
		{task, calls.Start{Tool: "samtools", Start: "cold", Why: "no index"}},
		{other, calls.Start{Tool: "bwa", Start: "cold", Why: "first"}},
		{dir, calls.Start{Tool: "bwa", Start: "hot", Saved: 100}},
	} {
		if err := os.MkdirAll(c.dir, 0o777); err != nil {
			t.Fatal(err)
		}
		t.Chdir(c.dir)
		calls.RecordStart(c.start)
	}
	trace := filepath.Join(dir, "trace.txt")
	write := func(text string) {
		if err := os.WriteFile(trace, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	write("task_id\thash\tname\tstatus\n1\tab/cdef01\tmap (1)\tCOMPLETED\n2\tab/cdef11\tmap (2)\tFAILED\n3\t00/000000\tmap (3)\tCOMPLETED\n4\tab/cdef01\tmap (1)\tCACHED\n")
	n, err := ReadNextflow(trace)
	if err != nil {
		t.Fatal(err)
	}
	var text, list strings.Builder
	if err := n.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	want := `task_id	hash	name	status	hot	cold	saved_seconds	not_loaded_bytes
1	ab/cdef01	map (1)	COMPLETED	2	1	3.5	1001
2	ab/cdef11	map (2)	FAILED	0	1	0.0	0
3	00/000000	map (3)	COMPLETED	0	0	0.0	0
4	ab/cdef01	map (1)	CACHED	0	0	0.0	0
`
	if text.String() != want {
		t.Errorf("the trace is\n%s, want\n%s", &text, want)
	}
	if err := n.WriteJSON(&list); err != nil || strings.Count(list.String(), `"hash"`) != 4 || !strings.Contains(list.String(), `"saved_seconds": "3.5"`) {
		t.Errorf("%v\n%s", err, &list)
	}
	for text, want := range map[string]string{
		"":                           "there is no column hash",
		"task_id\tname\n1\ta\n":      "there is no column hash",
		"hash\tname\nab/cdef01\n":    "the line has 1 fields, and the header has 2",
		"hash\nab/cdef01\nx\ty\nz\n": "the line has 2 fields, and the header has 1",
	} {
		write(text)
		if _, err := ReadNextflow(trace); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
	if _, err := ReadNextflow(filepath.Join(dir, "none")); err == nil {
		t.Error("a missing file is read")
	}
}
