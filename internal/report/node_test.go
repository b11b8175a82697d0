package report

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"premix/internal/hotstart/calls"
)

func TestNode(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PREMIX_HOME", dir)
	started := time.Now()
	for _, s := range []calls.Start{
		{Tool: "bwa", Start: "cold", Why: "first"},
		{Tool: "bwa", Start: "hot", Saved: 1.5, Bytes: 3 << 30},
		{Tool: "bwa", Start: "hot", Saved: 2, Bytes: 1 << 30},
		{Tool: "STAR", Start: "cold", Why: "second"},
	} {
		calls.RecordStart(s)
	}
	// Another machine with the same home directory has separate starts.
	f, err := os.OpenFile(filepath.Join(dir, "calls/starts.jsonl"), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(`{"time":"2999-01-01T00:00:00Z","node":"elsewhere.invalid","tool":"bwa","start":"hot","saved":100}` + "\n"); err != nil {
		t.Fatal(err)
	}
	f.Close()
	n, err := ReadNode(started)
	if err != nil || n.Hot != 2 || n.Cold != 2 || n.Saved != 3.5 || n.Bytes != 4<<30 || len(n.Tools) != 2 {
		t.Fatalf("%+v, %v", n, err)
	}
	if got := n.Tools[0]; got != (NodeTool{Tool: "STAR", Sum: calls.Sum{Cold: 1}, Why: "second"}) {
		t.Errorf("%+v", got)
	}
	var text, list strings.Builder
	if err := n.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{": 2 hot starts and 2 cold ones; hot starts saved 3.5s of loading, and 4 GiB of memory", "\nbwa ", " first\n"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("%q is missing in\n%s", want, &text)
		}
	}
	if err := n.WriteJSON(&list); err != nil || !strings.Contains(list.String(), `"bytes": 4294967296`) {
		t.Errorf("%v\n%s", err, &list)
	}
	if n, err := ReadNode(time.Now()); err != nil || n.Hot+n.Cold != 0 {
		t.Errorf("%+v, %v", n, err)
	}
}
