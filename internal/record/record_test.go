package record_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"

	"premix/internal/record"
)

func example(n int) record.Task {
	at := time.Date(2026, 1, 2, 3, 4, 5, n, time.UTC)
	return record.Task{
		Task: n, Sample: fmt.Sprintf("s%d", n), Try: 1, Slot: n % 3, Start: "fork", Reason: "a reason with \"quotes\" and ünïcode",
		Queued: at, Started: at.Add(time.Second), Finished: at.Add(2 * time.Second),
		Wait: 1, Latency: 0.003, Seconds: 1, User: 0.5, System: 0.25, MaxRSS: 1 << 30, ReadBytes: 4096, WriteBytes: 1,
		Outputs: []string{"a.sam", "b/c.bam"}, StderrOffset: 17, StderrLength: 4,
	}
}

func create(t *testing.T, path string) *record.Writer {
	t.Helper()
	w, err := record.Create(path, record.Header{Table: "task", Premix: "v1"})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func TestCommitsComeBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "t.jsonl")
	w := create(t, path)
	const writers, each = 8, 25
	var wg sync.WaitGroup
	for i := range writers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for j := range each {
				if err := w.Commit(example(i*each + j)); err != nil {
					t.Error(err)
				}
			}
		}()
	}
	wg.Wait()
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	h, all, err := readAll[record.Task](path)
	if err != nil {
		t.Fatal(err)
	}
	if h.Table != "task" || h.Premix != "v1" || h.Format != record.Format {
		t.Errorf("header %+v", h)
	}
	seen := map[int]record.Task{}
	for _, r := range all {
		seen[r.Task] = r
	}
	if len(all) != writers*each || len(seen) != writers*each {
		t.Fatalf("%d records of %d tasks, want %d", len(all), len(seen), writers*each)
	}
	for n, r := range seen {
		if !reflect.DeepEqual(r, example(n)) {
			t.Fatalf("record %d came back as %+v", n, r)
		}
	}
	if _, err := record.Create(path, record.Header{}); !errors.Is(err, os.ErrExist) {
		t.Errorf("a table was made in place of another: %v", err)
	}
}

// The space that is reserved for failures on a full disk must not remain allocated to the table.
func TestCloseGivesBackReservedSpace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "t.jsonl")
	w := create(t, path)
	if err := w.Commit(example(1)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() != int64(len(text)) || bytes.ContainsRune(text, 0) || !bytes.HasSuffix(text, []byte("}\n")) {
		t.Errorf("the table has %d bytes and ends in %q", info.Size(), text[len(text)-10:])
	}
}

// A table that is cut at any byte gives exactly the records before the cut.
func TestEveryCut(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "t.jsonl")
	w := create(t, path)
	const records = 3
	for i := range records {
		if err := w.Commit(example(i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	cut := filepath.Join(dir, "cut.jsonl")
	for n := range len(text) + 1 {
		if err := os.WriteFile(cut, text[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		_, all, err := readAll[record.Task](cut)
		if err != nil {
			t.Fatalf("cut at %d: %v", n, err)
		}
		// A record is complete with its closing brace, with or without a newline.
		lines := bytes.SplitAfter(text[:n], []byte("\n"))
		want := 0
		for i, l := range lines {
			if i > 0 && bytes.HasSuffix(bytes.TrimSuffix(l, []byte("\n")), []byte("}")) {
				want++
			}
		}
		if len(all) != want {
			t.Fatalf("cut at %d: %d records, want %d", n, len(all), want)
		}
		for i, r := range all {
			if r.Task != i {
				t.Fatalf("cut at %d: record %d is of task %d", n, i, r.Task)
			}
		}
	}
}

func TestReadDamage(t *testing.T) {
	const header = `{"table":"task","format":1}` + "\n"
	long := strings.Repeat("x", record.MaxLine+10)
	for _, c := range []struct {
		name, text    string
		records, torn int
	}{
		{"empty file", "", 0, 0},
		{"no header", "{\"task\":1}\n{\"task\":2}\n", 0, 1},
		{"torn header", `{"table":"ta`, 0, 1},
		{"header only", header, 0, 0},
		{"no newline at the end", header + `{"task":1}`, 1, 0},
		{"torn line in between", header + "{\"task\":1}\n{\"ta\n{\"task\":3}\n", 2, 1},
		{"block of zeros after a crash", header + "{\"task\":1}\n" + strings.Repeat("\x00", 500), 1, 1},
		{"line too long", header + "{\"task\":1}\n" + long + "\n{\"task\":2}\n", 2, 1},
		{"line too long at the end", header + "{\"task\":1}\n" + long, 1, 1},
		{"empty lines", header + "\n\n{\"task\":1}\n\n", 1, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "t.jsonl")
			if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			records := 0
			_, torn, err := record.Read(path, func(*record.Task) error { records++; return nil })
			if err != nil || records != c.records || torn != c.torn {
				t.Errorf("%d records, %d torn, error %v; want %d and %d", records, torn, err, c.records, c.torn)
			}
		})
	}
}

func TestNewerFormatIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "t.jsonl")
	if err := os.WriteFile(path, []byte("{\"table\":\"task\",\"format\":99}\n{\"task\":1}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, _, err := readAll[record.Task](path)
	var format *record.FormatError
	if !errors.As(err, &format) || format.Format != 99 || format.Hint() == "" {
		t.Errorf("error %v", err)
	}
}

// A reader that follows a growing table gets each record once, wherever a read ends.
func TestFollow(t *testing.T) {
	const header, first, second = "{\"table\":\"task\",\"format\":1}\n", "{\"task\":1}\n", "{\"task\":2}\n"
	text := header + first + second
	f, err := os.Create(filepath.Join(t.TempDir(), "t.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var got string
	end := int64(0)
	for i := range text {
		if _, err := f.WriteString(text[i : i+1]); err != nil {
			t.Fatal(err)
		}
		end, err = record.Follow(f, end, func(line []byte, at int64) error {
			if string(line) != text[at:at+int64(len(line))] {
				t.Errorf("%q at %d", line, at)
			}
			got += string(line)
			return nil
		})
		if want := int64(strings.LastIndexByte(text[:i+1], '\n') + 1); err != nil || end != want {
			t.Fatalf("after %d bytes: %d, %v; want %d", i+1, end, err, want)
		}
	}
	if got != first+second {
		t.Errorf("%q", got)
	}
	for head, wrong := range map[string]bool{"{\"format\":0}\n": false, "rubbish\n": false, "{\"format\":99}\n": true} {
		if _, err := f.WriteAt([]byte(head), 0); err != nil {
			t.Fatal(err)
		}
		end, err := record.Follow(f, 0, func([]byte, int64) error { return errors.New("a line was read") })
		var format *record.FormatError
		if end != 0 || errors.As(err, &format) != wrong || !wrong && err != nil {
			t.Errorf("%q: %d, %v", head, end, err)
		}
	}
}

func TestReadStopsAtTheError(t *testing.T) {
	path := filepath.Join(t.TempDir(), "t.jsonl")
	w := create(t, path)
	for i := range 3 {
		if err := w.Commit(example(i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	stop, n := errors.New("stop"), 0
	_, _, err := record.Read(path, func(*record.Task) error { n++; return stop })
	if !errors.Is(err, stop) || n != 1 {
		t.Errorf("%d records, error %v", n, err)
	}
}

func TestParquetComesBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "t.parquet")
	const records = 100
	source := func(yield func(*record.Task, error) bool) {
		for i := range records {
			r := example(i)
			if !yield(&r, nil) {
				return
			}
		}
	}
	if err := record.ToParquet(path, source); err != nil {
		t.Fatal(err)
	}
	rows, err := parquet.ReadFile[record.Task](path)
	if err != nil {
		t.Fatal(err)
	}
	if len(rows) != records {
		t.Fatalf("%d rows, want %d", len(rows), records)
	}
	for i, r := range rows {
		r.Queued, r.Started, r.Finished = r.Queued.UTC(), r.Started.UTC(), r.Finished.UTC()
		if !reflect.DeepEqual(r, example(i)) {
			t.Fatalf("row %d came back as\n%+v, want\n%+v", i, r, example(i))
		}
	}
}

func TestParquetAppearsWholeOrNotAtAll(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "t.parquet")
	if err := os.WriteFile(path, []byte("the one before"), 0o600); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("broken")
	err := record.ToParquet(path, func(yield func(*record.Task, error) bool) {
		r := example(1)
		_ = yield(&r, nil) && yield(nil, broken)
	})
	if !errors.Is(err, broken) {
		t.Fatalf("error %v", err)
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "the one before" {
		t.Errorf("the file before is gone: %q, %v", text, err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("%d files are left, error %v", len(entries), err)
	}
}

// readAll returns all records of the table at path.
func readAll[T any](path string) (record.Header, []T, error) {
	var all []T
	h, _, err := record.Read(path, func(v *T) error {
		all = append(all, *v)
		return nil
	})
	return h, all, err
}
