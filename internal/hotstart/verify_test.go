package hotstart

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestShare(t *testing.T) {
	for text, want := range map[string]Share{"all": 1, "none": 0, "2%": 0.02, "12.5 %": 0.125, "0.5%": 0.005} {
		got, err := ParseShare(text)
		if err != nil || got != want {
			t.Errorf("%q is %v, %v", text, got, err)
		}
		if again, err := ParseShare(got.String()); err != nil || again != want {
			t.Errorf("%q is printed as %q", text, got)
		}
	}
	for _, text := range []string{"", "2", "0%", "100%", "-1%", "NaN%", "%", "some"} {
		if got, err := ParseShare(text); err == nil {
			t.Errorf("%q is %v", text, got)
		}
	}
}

// A snapshot in quarantine has no memory and keeps its first reason. Neither it nor another
// snapshot with the same key is used.
func TestQuarantine(t *testing.T) {
	b := newBench(t, newSpec("-m", "2", "-b", "input"), Hot)
	b.mustPrepare("sum\n")
	id := b.starter.Snapshot()
	if id == "" {
		t.Fatal("no snapshot")
	}
	if err := b.starter.Note(Use{Run: "/a"}); err != nil {
		t.Fatal(err)
	}
	// There are two snapshots, as after concurrent preparations by two runs.
	if err := os.Rename(filepath.Join(b.store, id), filepath.Join(b.store, "kept")); err != nil {
		t.Fatal(err)
	}
	other := benchIn(t, newSpec("-m", "2", "-b", "input"), Hot, b.dir, b.store)
	other.mustPrepare("sum\n")
	if err := os.Rename(filepath.Join(b.store, "kept"), filepath.Join(b.store, id)); err != nil {
		t.Fatal(err)
	}
	d := Difference{Sample: "S1", Reason: "stdout differs"}
	if err := b.starter.Quarantine(id, d); err != nil {
		t.Fatal(err)
	}
	if kind, why := b.starter.Decision(); kind != Cold || !strings.Contains(why, "sample S1: stdout differs") {
		t.Errorf("decided on %s: %s", kind, why)
	}
	if err := Quarantine(b.store, id, Difference{Sample: "S2", Reason: "another"}); err != nil {
		t.Fatal(err)
	}
	if got := QuarantinedAs(b.store, id); got == nil || *got != d {
		t.Errorf("the reason is %+v", got)
	}
	snap, err := Find(b.store, id)
	if err != nil || snap.Whole() || !snap.Quarantined() {
		t.Errorf("%+v, %v", snap, err)
	}
	if _, runs, err := Uses(b.store, id); err != nil || !slices.Equal(runs, []string{"/a"}) {
		t.Errorf("its runs are %v, %v", runs, err)
	}
	// A run that uses the snapshot at this time continues cold.
	b.starter.decide(Hot, "as before")
	if r := b.run("sum\n"); r.proc.Kind != Cold || !r.exit.OK() || !strings.Contains(r.proc.Reason, "in quarantine") {
		t.Errorf("a %s start: %s", r.proc.Kind, r.proc.Reason)
	}
	later := benchIn(t, newSpec("-m", "2", "-b", "input"), Hot, b.dir, b.store)
	var unavailable *Unavailable
	if err := later.prepare("sum\n"); !errors.As(err, &unavailable) || !strings.Contains(unavailable.Reason, "sample S1: stdout differs") {
		t.Errorf("prepared: %v", err)
	}
	if err := Quarantine(b.store, "none", d); err != nil {
		t.Errorf("one that is not there: %v", err)
	}
	if err := Quarantine(b.store, "../"+filepath.Base(b.store), d); err == nil {
		t.Error("a path was taken for an id")
	}
}

func TestUses(t *testing.T) {
	b := newBench(t, newSpec("-m", "2", "input"), Hot)
	b.mustPrepare("sum\n")
	for _, u := range []Use{{Run: "/a"}, {CPU: 2, Spent: 1, Verified: 1}, {Run: "/b"}, {Run: "/a"}, {CPU: 3}} {
		if err := b.starter.Note(u); err != nil {
			t.Fatal(err)
		}
	}
	sum, runs, err := Uses(b.store, b.starter.Snapshot())
	if err != nil || sum != (Use{CPU: 5, Spent: 1, Verified: 1}) || !slices.Equal(runs, []string{"/a", "/b"}) {
		t.Errorf("%+v, %v, %v", sum, runs, err)
	}
}

// Streams are compared by bytes, except for the lines that vary, which match each other.
func TestCopyStdout(t *testing.T) {
	digest := func(spec Spec, text string) string {
		var to bytes.Buffer
		sum, err := (&Starter{spec: spec}).CopyStdout(&to, strings.NewReader(text))
		if err != nil || to.String() != text {
			t.Fatalf("copied %q, %v", &to, err)
		}
		return string(sum)
	}
	date := Spec{Varies: []VariableLines{{File: "stdout", Lines: regexp.MustCompile("^date")}}}
	for _, c := range []struct {
		spec Spec
		a, b string
		same bool
	}{
		{Spec{}, "a\nb", "a\nb", true},
		{Spec{}, "a\nb", "a\nb\n", false},
		{date, "a\ndate 1\nb\n", "a\ndate 2\nb\n", true},
		{date, "a\ndate 1\nb\n", "a\nb\n", false},
		{date, "a\ndate 1\nb\n", "a\ndate 1\nc\n", false},
		{Spec{Varies: []VariableLines{{File: "stdout"}}}, "a", "b", true},
	} {
		if same := digest(c.spec, c.a) == digest(c.spec, c.b); same != c.same {
			t.Errorf("%q and %q: %v", c.a, c.b, same)
		}
	}
}
