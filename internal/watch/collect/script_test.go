package collect

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// configured returns the script of a configuration that contains only this script.
func configured(t *testing.T, script string) Script {
	t.Helper()
	path := filepath.Join(t.TempDir(), "watch.yaml")
	if err := os.WriteFile(path, []byte("scripts:\n  - {name: x, "+script+"}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	c, err := ReadConfig(path)
	if err != nil {
		t.Fatal(err)
	}
	return c.Scripts[0]
}

func TestScripts(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	for _, c := range []struct {
		name, script, first, second string
		want                        map[string]float64
		err                         string
	}{
		{"pattern", `series: temperature, labels: {rack: r1}, pattern: '(?m)^(?P<sensor>[^|]+)\|\s*(?P<value>[\d.]+) degrees'`,
			"CPU 1 | 47.5 degrees C\nFan | 900 RPM\nInlet|21 degrees C\n", "CPU 1 | 48 degrees C\n",
			map[string]float64{`vendor.temperature{rack="r1",sensor="CPU 1"}`: 48, `vendor.temperature{rack="r1",sensor="Inlet"}`: 21}, ""},
		{"names", `pattern: '(?P<name>\w+)=(?P<value>\S+)'`, "A=1 b=2", "A=3 b=x", map[string]float64{"vendor.a": 3, "vendor.b": 2}, `"x" is not a number`},
		{"lines", `format: lines, unit: s`, "# HELP\nup 1\nslow{queue=\"a \\\"b\\\"\",n=\"1\"} 2.5e-3\n", "up 0\nslow{queue=} 1\n",
			map[string]float64{"vendor.up": 0, `vendor.slow{n="1",queue="a \"b\""}`: 0.0025}, "the labels are not of the form"},
		{"counter", `format: lines, unit: /s, counter: true`, "n 10\nm 5\n", "n 30\nm 1\n", map[string]float64{"vendor.n": 10, "vendor.m": -1}, ""},
		{"nothing", `format: lines`, "a 1\n", "", map[string]float64{"vendor.a": 1}, "the pattern matches nothing"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t)
			s := newScript(b.machine, configured(t, `command: cat `+out+`, `+c.script))
			b.root = t.TempDir()
			var err error
			for _, text := range []string{c.first, c.second} {
				if err := os.WriteFile(out, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
				b.clock.advance(2 * time.Second)
				err = s.Collect(context.Background(), b.wall(), b.sink)
			}
			b.sink.want(t, c.want)
			if got := errorText(err); (c.err == "") != (got == "") || !strings.Contains(got, c.err) {
				t.Errorf("error %q, want %q", got, c.err)
			}
		})
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestScriptsThatFail(t *testing.T) {
	b := newBench(t)
	for command, want := range map[string]string{
		`"echo bad >&2; exit 3"`: "exit status 3: bad",
		`[/no/such/program]`:     "execute program",
	} {
		err := newScript(b.machine, configured(t, "format: lines, command: "+command)).Collect(context.Background(), b.wall(), b.sink)
		if !strings.Contains(errorText(err), want) {
			t.Errorf("%s: %v", command, err)
		}
	}
	// Excessive output is read up to a limit, and the script is then ended.
	s := newScript(b.machine, configured(t, `format: lines, command: "head -c 3000000 /dev/zero | tr '\\0' 'x'; echo"`))
	if err := s.Collect(context.Background(), b.wall(), b.sink); err == nil || len(err.Error()) > 500 {
		t.Errorf("%.600v", err)
	}
}

// A script that hangs is killed together with children that have left its process group.
// Processes that a finished script has left are killed too.
func TestScriptsThatHang(t *testing.T) {
	dir := t.TempDir()
	b := newBench(t)
	pids := func() []int {
		var list []int
		for _, name := range []string{"self", "child", "hidden"} {
			text, err := os.ReadFile(filepath.Join(dir, name))
			n, cerr := strconv.Atoi(strings.TrimSpace(string(text)))
			if err != nil || cerr != nil {
				return nil
			}
			list = append(list, n)
		}
		return list
	}
	command := `command: "echo $$ > ` + dir + `/self; trap '' TERM; sleep 1000 & echo $! > ` + dir + `/child; ` +
		`setsid sh -c 'echo $$ > ` + dir + `/hidden; exec sleep 1000' & `
	s := newScript(b.machine, configured(t, "format: lines, interval: 2m, timeout: 2m, "+command+`wait"`))
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		for end := time.Now().Add(2 * time.Minute); pids() == nil && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
		cancel()
	}()
	err := s.Collect(ctx, b.wall(), b.sink)
	var hung *hungError
	if !errors.As(err, &hung) || !strings.Contains(err.Error(), "was killed") {
		t.Fatalf("%v", err)
	}
	for i, pid := range pids() {
		answers(t, func() bool { return gone(pid) })
		_ = i
	}
	if len(pids()) != 3 {
		t.Fatal("it has not begun")
	}
	// This script ends, and leaves a child in its process group.
	s = newScript(b.machine, configured(t, `format: lines, command: "sleep 1000 </dev/null >/dev/null 2>&1 & echo $! > `+dir+`/child; echo a 1"`))
	if err := s.Collect(context.Background(), b.wall(), b.sink); err != nil {
		t.Fatal(err)
	}
	b.sink.want(t, map[string]float64{"vendor.a": 1})
	child := pids()[1]
	answers(t, func() bool { return gone(child) })
}

// gone reports whether a process has ended, even if its parent has not waited for it.
func gone(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return true
	}
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err != nil || strings.Contains(string(stat), ") Z ")
}

// A script that hangs does not delay other collectors, and is reported as an event.
func TestScriptThatHangsDelaysNobody(t *testing.T) {
	sink := &recorder{}
	s := configured(t, `format: lines, interval: 200ms, timeout: 100ms, command: "sleep 1000"`)
	w, err := New(Options{Sink: sink, Interval: MinInterval, Config: &Config{Node: "n1", Scripts: []Script{s}}, Only: []string{"node", "x"}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		w.Run(ctx)
	}()
	answers(t, func() bool {
		list := w.Status()
		return strings.Contains(list[1].Error, "did not end within") && !list[0].Last.IsZero()
	})
	turns := func() int {
		sink.mu.Lock()
		defer sink.mu.Unlock()
		n := 0
		for _, s := range sink.samples {
			if s.ID.Name == "node.running" {
				n++
			}
		}
		return n
	}
	n := turns()
	answers(t, func() bool { return turns() > n+5 })
	cancel()
	<-finished
	if got := sink.kinds(); got != "script_killed" {
		t.Errorf("events: %s", got)
	}
}
