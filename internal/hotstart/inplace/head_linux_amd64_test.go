package inplace

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// header compiles testdata/head.c.
func header(t *testing.T) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "head")
	if b, err := exec.Command("cc", "-O1", "-o", out, "testdata/head.c").CombinedOutput(); err != nil {
		t.Fatalf("the tests need a C compiler: %v\n%s", err, b)
	}
	return out
}

func heads(program, way, sample string) invocation {
	return invocation{exe: program, args: []string{way, "{output:" + sample + "}", "index", "{input:" + sample + "_1.fq}"}}
}

// TestHeads makes calls of a tool that makes processes before it loads its data, and that has them
// read its input. Its children, its descriptors and the texts that it has from its children must be
// those of a plain call.
func TestHeads(t *testing.T) {
	program := header(t)
	for _, way := range []string{"plain", "over", "action", "timer", "stack", "files", "later-copy", "later-parity"} {
		t.Run(way, func(t *testing.T) {
			p := newPlace(t)
			p.write("SRR5204811_1.fq", reads(3, 10_000)) // more than a FIFO holds
			p.mustPrepare(heads(program, way, "SRR5204809"))
			for _, sample := range []string{"SRR5204809", "SRR5204810", "SRR5204811"} {
				p.wantHot(heads(program, way, sample))
			}
		})
	}
}

// TestHeadsOfInputs makes calls of the same tool whose inputs have another status.
func TestHeadsOfInputs(t *testing.T) {
	program, p := header(t), newPlace(t)
	p.mustPrepare(heads(program, "plain", "SRR5204809"))
	path := filepath.Join(p.dir, "SRR5204810_1.fq")
	hot := 0
	try := func(name string, change func() error) {
		t.Helper()
		if err := change(); err != nil {
			t.Fatal(err)
		}
		r := p.same(heads(program, "plain", "SRR5204810"))
		switch r.kind {
		case "hot <nil>":
			hot++
		default:
			t.Errorf("%s: %s", name, r.kind)
		}
	}
	for _, n := range []int{1, 9, 100, 3000} {
		try("size", func() error { return os.WriteFile(path, []byte(reads(1, n)), 0o644) })
	}
	for _, mode := range []os.FileMode{0o400, 0o444, 0o600, 0o640, 0o664, 0o666, 0o755, 0o777} {
		try(mode.String(), func() error { return os.Chmod(path, mode) })
	}
	for _, at := range []time.Time{time.Date(2001, 2, 3, 4, 5, 6, 7, time.UTC), time.Now().AddDate(0, -2, 5), time.Now().AddDate(2, 0, 0), time.Now()} {
		try(at.String(), func() error { return os.Chtimes(path, at, at) })
	}
	if os.Geteuid() == 0 {
		for _, id := range []int{65534, 4711} {
			try("owner", func() error { return os.Chown(path, id, id+1) })
		}
	}
	real := filepath.Join(t.TempDir(), "real")
	try("symlink", func() error {
		if err := os.Rename(path, real); err != nil {
			return err
		}
		return os.Symlink(real, path)
	})
	t.Logf("%d hot starts", hot)
}

// TestHeadsPlain makes calls that a snapshot cannot serve, although it was found for them. The tool
// then goes on as without a snapshot.
func TestHeadsPlain(t *testing.T) {
	program, p := header(t), newPlace(t)
	p.mustPrepare(heads(program, "plain", "SRR5204809"))
	for name, change := range map[string]func() error{
		"a missing input":    func() error { return os.Remove(filepath.Join(p.dir, "SRR5204810_1.fq")) },
		"an unexpected file": func() error { return os.WriteFile(filepath.Join(p.dir, "SRR5204810.fifo"), nil, 0o600) },
	} {
		if err := change(); err != nil {
			t.Fatal(name, err)
		}
		if r := p.same(heads(program, "plain", "SRR5204810")); !strings.HasPrefix(r.kind, "plain ") {
			t.Errorf("%s: %s", name, r.kind)
		}
		os.Remove(filepath.Join(p.dir, "SRR5204810.fifo"))
		p.write("SRR5204810_1.fq", reads(1, 200))
	}
}

// TestHeadsWithoutStore removes the store while the tool executes its head.
func TestHeadsWithoutStore(t *testing.T) {
	program, p := header(t), newPlace(t)
	p.mustPrepare(heads(program, "slow", "SRR5204809"))
	v := heads(program, "slow", "SRR5204810")
	v.front = func(*exec.Cmd) {
		time.AfterFunc(300*time.Millisecond, func() { os.RemoveAll(p.store) })
	}
	p.wantHot(v)
	if _, err := os.Stat(p.store); err == nil {
		t.Error("the store is still there")
	}
}

// TestHeadsRefused uses tools whose load depends on their children or their input, or that change
// their children or their files while they load.
func TestHeadsRefused(t *testing.T) {
	program := header(t)
	for way, reason := range map[string]string{
		"copy": "its memory differs", "pid": "its memory differs", "parity": "its memory differs",
		"reads": "it looks at", "waits": "it waits for a process", "kills": "it waits for a process, or sends it a signal",
		"forks": "it does not load its data after it has made its last child", "rewinds": "it reads on in",
		"all": "it waits for a process that reads its input",
	} {
		t.Run(way, func(t *testing.T) {
			newPlace(t).wantUnfit(heads(program, way, "SRR5204809"), reason)
		})
	}
	t.Run("early", func(t *testing.T) {
		newPlace(t).wantUnfit(heads(program, "early", "SRR5204809"), "it fails on the first part")
	})
}

// TestHeadsSignal ends calls while their heads run.
func TestHeadsSignal(t *testing.T) {
	program, p := header(t), newPlace(t)
	p.mustPrepare(heads(program, "plain", "SRR5204809"))
	for i := range 10 {
		cmd, _ := p.command(heads(program, "plain", "SRR5204810"), true)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(i) * 4 * time.Millisecond)
		_ = cmd.Process.Signal(os.Interrupt)
		err := cmd.Wait()
		if err != nil && !strings.Contains(err.Error(), "interrupt") {
			t.Errorf("after %d ms: %v", 4*i, err)
		}
		// Its shell may wait for a reader of the FIFO, or not have come to it.
		for unix.Kill(-cmd.Process.Pid, unix.SIGKILL) == nil {
			time.Sleep(time.Millisecond)
		}
		matches, _ := filepath.Glob(filepath.Join(p.dir, "SRR5204810.*"))
		for _, path := range matches {
			os.Remove(path)
		}
	}
}
