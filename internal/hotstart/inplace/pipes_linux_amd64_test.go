package inplace

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/hotstart"
)

// fifo makes a FIFO in the place's directory.
func (p *place) fifo(name string) string {
	p.t.Helper()
	path := filepath.Join(p.dir, name)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		p.t.Fatal(err)
	}
	if err := unix.Mkfifo(path, 0o600); err != nil {
		p.t.Fatal(err)
	}
	return path
}

// piped lets each execution of a call find a FIFO, to which a program writes text. The writer
// comes after the time late, and sleeps for as long before its first byte.
func (p *place) piped(v *invocation, name, text string, late time.Duration) {
	p.fifo(name) // for the preparation
	front := v.front
	v.front = func(cmd *exec.Cmd) {
		if front != nil {
			front(cmd)
		}
		path := p.fifo(name)
		writer := exec.Command("/bin/sh", "-c", `sleep "$1"; exec > "$2"; sleep "$1"; printf %s "$3"`, "sh", fmt.Sprint(late.Seconds()), path, text)
		if err := writer.Start(); err != nil {
			p.t.Fatal(err)
		}
		p.t.Cleanup(func() {
			_ = writer.Process.Kill() // it may wait for a reader
			_ = writer.Wait()
		})
	}
}

// TestPipes makes calls whose input is a FIFO: tools that open it after their data, and before.
func TestPipes(t *testing.T) {
	const name, other = "SRR5204809_1.pipe", "SRR5204810_1.pipe"
	for _, early := range []bool{false, true} {
		p := newPlace(t)
		args := func(name string) []string {
			args := []string{"-R", "{label:sample}", "index", "{input:" + name + "}"}
			if early {
				args = append([]string{"-f", "open"}, args...)
			}
			return args
		}
		v := func(name, text string, late time.Duration) invocation {
			v := invocation{args: args(name)}
			p.piped(&v, name, text, late)
			return v
		}
		p.mustPrepare(v(name, "", 0))
		p.wantHot(v(name, reads(0, 300), 0))
		p.wantHot(v(other, reads(1, 1000), 0)) // more than a pipe holds
		p.wantHot(v(other, reads(1, 2), 300*time.Millisecond))
		p.wantHot(v(other, "", 100*time.Millisecond))
		p.write("SRR5204811_1.pipe", reads(2, 20))
		regular := invocation{args: args("SRR5204811_1.pipe")}
		if early {
			p.wantCold(regular, `which is "file" instead of "pipe"`)
		} else {
			p.wantHot(regular) // a tool that has not looked at its input does not know what it is
		}
		if p.t.Failed() {
			t.Fatalf("early: %v", early)
		}
	}
}

// TestTwoPipes uses a tool that reads one FIFO to its end before the other has a byte, from a
// program that has opened both.
func TestTwoPipes(t *testing.T) {
	p := newPlace(t)
	v := invocation{args: []string{"-f", "open", "-g", "{input:SRR_2.pipe}", "index", "{input:SRR_1.pipe}"}}
	v.front = func(cmd *exec.Cmd) {
		one, two := p.fifo("SRR_1.pipe"), p.fifo("SRR_2.pipe")
		writer := exec.Command("/bin/sh", "-c", `exec 3> "$1" 4> "$2"; yes "a line of the first" | head -n 20000 >&3; exec 3>&-; echo second >&4`, "sh", one, two)
		if err := writer.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = writer.Process.Kill()
			_ = writer.Wait()
		})
	}
	p.fifo("SRR_1.pipe")
	p.fifo("SRR_2.pipe")
	p.mustPrepare(v)
	p.wantHot(v)
}

// TestPipeRefused uses tools that look at their pipe, or read it, before they load their data.
func TestPipeRefused(t *testing.T) {
	p := newPlace(t)
	p.fifo("SRR_1.pipe")
	p.wantUnfit(invocation{args: []string{"-q", "mode", "index", "{input:SRR_1.pipe}"}}, "it looks at its input, which is a pipe")
	p.wantUnfit(invocation{args: []string{"-f", "peek", "index", "{input:SRR_1.pipe}"}}, "it reads its input, which is a pipe")
}

// TestSubstitution makes a call with an inherited descriptor as its input, as of <(command).
func TestSubstitution(t *testing.T) {
	p := newPlace(t)
	v := func(text string) invocation {
		v := invocation{args: []string{"-p", "index", "{input:/dev/fd/3}"}}
		v.front = func(cmd *exec.Cmd) {
			writer := exec.Command("/usr/bin/printf", "%s", text)
			r, err := writer.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			cmd.ExtraFiles = []*os.File{r.(*os.File)}
			if err := writer.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				r.Close()
				_ = writer.Wait()
			})
		}
		return v
	}
	c := p.call(v(""))
	a := p.inherited(v(""))
	a.Extra = []int{3}
	c.Inherited, c.Running, c.Pipes = &a, true, []int{0}
	snap, err := Prepare(t.Context(), p.store, c, PrepareOptions{Scratch: t.TempDir(), Enough: 1, Log: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	snap.Close()
	p.wantHot(v(reads(0, 10)))
	p.wantHot(v(reads(3, 700)))
}

// TestPipeSignal ends a start that waits for the writer of its input.
func TestPipeSignal(t *testing.T) {
	p := newPlace(t)
	v := invocation{args: []string{"-f", "open", "index", "{input:SRR_1.pipe}"}}
	path := p.fifo("SRR_1.pipe")
	p.mustPrepare(v)
	for _, hot := range []bool{false, true} {
		cmd, _ := p.command(v, hot)
		for _, stream := range []*io.Writer{&cmd.Stdout, &cmd.Stderr} {
			f, err := os.CreateTemp(t.TempDir(), "stream")
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			*stream = f
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(time.Minute); !waits(cmd.Process.Pid, path, hot); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				_ = cmd.Process.Kill()
				t.Fatalf("hot %v: it does not wait for the writer of its input", hot)
			}
		}
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		if st := cmd.ProcessState.Sys().(syscall.WaitStatus); !st.Signaled() || st.Signal() != syscall.SIGTERM {
			t.Errorf("hot %v: it ends with %v, want SIGTERM", hot, cmd.ProcessState)
		}
		if _, err := os.OpenFile(path, os.O_WRONLY|unix.O_NONBLOCK, 0); !errors.Is(err, unix.ENXIO) {
			t.Errorf("hot %v: the pipe still has a reader (%v)", hot, err)
		}
	}
}

// waits reports whether a call waits for the writer of a FIFO: a plain one in open(2), and the tool
// of a hot one with a descriptor of the FIFO.
func waits(pid int, path string, hot bool) bool {
	if !hot {
		at, err := os.ReadFile(fmt.Sprintf("/proc/%d/wchan", pid))
		return err == nil && (strings.Contains(string(at), "partner") || strings.Contains(string(at), "fifo"))
	}
	all, err := hotstart.Processes(pid)
	if err != nil {
		return false
	}
	for _, process := range all {
		open, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", process))
		if err == nil && process != pid && slices.ContainsFunc(open, func(fd string) bool {
			to, err := os.Readlink(fd)
			return err == nil && to == path
		}) {
			return true
		}
	}
	return false
}
