package programs

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"
)

func TestRun(t *testing.T) {
	out, err := Run(context.Background(), "in", "sh", "-c", "cat; echo sh: error: no such queue >&2; echo second >&2; exit 3")
	if out != "in" || err == nil || err.Error() != "sh: sh: error: no such queue; second" || Message(err) != "no such queue; second" {
		t.Errorf("%q %v", out, err)
	}
	if _, err := Run(context.Background(), "", "sh", "-c", "exit 3"); err == nil || Message(err) != "exit status 3" {
		t.Error(err)
	}
}

// Two processes share an answer, including an error. An answer is not shared if its request was
// cancelled.
func TestShared(t *testing.T) {
	t.Setenv("PREMIX_HOME", t.TempDir())
	t.Setenv("CLUSTER", "a")
	asked := 0
	get := func(after time.Time, text string, err error) *Answer[string] {
		t.Helper()
		s := NewShared[string]("batch", "jobs", time.Hour, "CLUSTER") // as another process
		a, gerr := s.Get(context.Background(), after, func(context.Context) (string, error) {
			asked++
			return text, err
		})
		if gerr != nil {
			t.Fatal(gerr)
		}
		return a
	}
	first := get(time.Time{}, "one", nil)
	if second := get(time.Time{}, "two", nil); second.Value != "one" || !second.Started.Equal(first.Started) || asked != 1 {
		t.Errorf("%+v, asked %d times", second, asked)
	}
	if later := get(time.Now(), "", errors.New("no controller")); later.Err() == nil || asked != 2 {
		t.Errorf("%+v, asked %d times", later, asked)
	}
	if again := get(time.Time{}, "four", nil); again.Err() == nil || again.Err().Error() != "no controller" || asked != 2 {
		t.Errorf("%+v, asked %d times", again, asked)
	}
	t.Setenv("CLUSTER", "b")
	if other := get(time.Time{}, "five", nil); other.Value != "five" {
		t.Errorf("another cluster gets %+v", other)
	}
	t.Setenv("CLUSTER", "c")
	s := NewShared[string]("batch", "jobs", time.Hour, "CLUSTER")
	ctx, cancel := context.WithCancel(context.Background())
	if _, err := s.Get(ctx, time.Time{}, func(context.Context) (string, error) { cancel(); return "", nil }); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if text, err := os.ReadFile(s.path); err == nil {
		t.Errorf("it is shared: %s", text)
	} else if !strings.Contains(s.path, "/run/batch/jobs-") {
		t.Error(s.path)
	}
}
