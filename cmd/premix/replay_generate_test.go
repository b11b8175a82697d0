package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"premix/internal/replay/trace"
)

// An interrupted generate leaves the old file and no partial file. A partial trace would look like
// a complete, shorter one.
func TestInterruptedTrace(t *testing.T) {
	dir := t.TempDir()
	like, out := filepath.Join(dir, "like.swf"), filepath.Join(dir, "out.swf")
	if err := os.WriteFile(like, []byte("1 0 -1 30 1 -1 -1 1 30 -1 1 1 1 -1 1 1 -1 -1\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	jobs, err := trace.Open(like, trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	a := &app{}
	if err := a.writeTrace(context.Background(), jobs, out, 1, 1); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(out)
	if err != nil || !strings.Contains(string(whole), "\n1 0 ") {
		t.Fatalf("%q, %v", whole, err)
	}
	stop := errors.New("stop")
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(stop)
	if err := a.writeTrace(ctx, jobs, out, 2, 1); !errors.Is(err, stop) {
		t.Errorf("interrupted: %v", err)
	}
	after, err := os.ReadFile(out)
	if err != nil || string(after) != string(whole) {
		t.Errorf("%q, %v", after, err)
	}
	if list, err := os.ReadDir(dir); err != nil || len(list) != 2 {
		t.Errorf("%v, %v", list, err)
	}
}
