package inplace

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/hotstart/late"
	"premix/internal/hotstart/procstate"
)

// mustPrepare prepares a call that can start hot.
func (p *place) mustPrepare(v invocation) {
	p.t.Helper()
	if err := p.prepare(v); err != nil {
		p.t.Fatalf("prepare %v: %v", v.args, err)
	}
}

// wantUnfit prepares a call that must start cold.
func (p *place) wantUnfit(v invocation, reason string) {
	p.t.Helper()
	err := p.prepare(v)
	var u *Unfit
	if !errors.As(err, &u) || !strings.Contains(u.Reason, reason) {
		p.t.Errorf("prepare %v: %v, want *Unfit because of %q", v.args, err, reason)
	}
}

func TestWords(t *testing.T) {
	p := newPlace(t)
	v := func(name string) invocation {
		return invocation{args: []string{"-p", "-R", "@RG ID:{label:" + name + "}", "index", "{input:" + name + "_1.fq}"}}
	}
	p.mustPrepare(v("SRR5204809"))
	p.wantHot(v("SRR5204809"))
	p.wantHot(v("SRR5204810"))
	p.wantCold(v("SRR77"), NotPrepared)
	p.mustPrepare(v("SRR77"))
	p.wantHot(v("SRR77"))
	p.wantHot(v("SRR5204810"))
}

func TestStandardInput(t *testing.T) {
	for _, pipe := range []bool{false, true} {
		t.Run(fmt.Sprint("pipe ", pipe), func(t *testing.T) {
			p := newPlace(t)
			v := func(label, text string, join bool) invocation {
				return invocation{args: []string{"-R", "{label:" + label + "}", "index", "-"}, stdin: text, pipe: pipe, join: join}
			}
			p.mustPrepare(v("sample1", reads(0, 10), false))
			p.wantHot(v("sample1", reads(0, 10), false))
			p.wantHot(v("abcdefg", reads(1, 5000), false))
			p.wantCold(v("sample1", reads(0, 10), true), NotPrepared)
			p.mustPrepare(v("sample1", reads(0, 10), true))
			p.wantHot(v("1234x67", reads(1, 21), true))
		})
	}
}

func TestLateVariables(t *testing.T) {
	p := newPlace(t)
	v := func(option, value string) invocation {
		return invocation{args: []string{option, "RUN", "index", "{input:SRR5204809_1.fq}"}, env: []string{"RUN=" + value, "FIXED=1"}, late: []string{"RUN"}}
	}
	p.mustPrepare(v("-v", "first"))
	for _, value := range []string{"first", "", "x", strings.Repeat("long ", 200)} {
		p.wantHot(v("-v", value))
	}
	p.wantCold(v("-v", strings.Repeat("x", PadSize)), "more than")
	other := v("-v", "first")
	other.env[1] = "FIXED=2"
	p.wantCold(other, NotPrepared)
}

// TestCopiedVariables uses a tool that copies a late variable: one snapshot serves values of one
// form.
func TestCopiedVariables(t *testing.T) {
	p := newPlace(t)
	v := func(value string, more ...string) invocation {
		return invocation{args: []string{"-c", "RUN", "index", "{input:SRR5204809_1.fq}"}, env: append([]string{"RUN=" + value, "OLDPWD=/old", "SHLVL=1"}, more...), late: []string{"RUN"}}
	}
	p.mustPrepare(v("node-17"))
	for _, value := range []string{"node-17", "node-18", "abcd-ef"} {
		p.wantHot(v(value))
	}
	for _, value := range []string{"", "node-1", "node_17", "node-017"} {
		p.wantCold(v(value), "the variable RUN has a value of another form")
	}
	other := v("node-17")
	other.env[2] = "SHLVL=2"
	p.wantCold(other, "the variable SHLVL")
	p.wantCold(v("node-17", "_=/bin/x"), NotPrepared)
	p.mustPrepare(v("node-017"))
	p.wantHot(v("node-021"))
	p.wantHot(v("node-18"))
	// Its directory is the value in some calls.
	p.mustPrepare(v(p.dir))
	p.wantHot(v(p.dir))
	p.wantCold(v("/"+strings.Repeat("x", len(p.dir)-1)), "the variable RUN")
}

// elsewhere makes a directory next to the place's directory, with links to all of its files.
func (p *place) elsewhere(name string) string {
	p.t.Helper()
	dir := filepath.Join(filepath.Dir(p.dir), name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		p.t.Fatal(err)
	}
	for path := range p.files(p.dir) {
		if err := os.Symlink(path, filepath.Join(dir, filepath.Base(path))); err != nil {
			p.t.Fatal(err)
		}
	}
	return dir
}

func TestDirectories(t *testing.T) {
	p := newPlace(t)
	alike, other := p.elsewhere(strings.Repeat("e", 120)), p.elsewhere("other")
	v := func(dir string, args ...string) invocation {
		return invocation{dir: dir, args: append(args, "index", "{input:SRR5204809_1.fq}")}
	}
	p.mustPrepare(v(p.dir))
	for _, dir := range []string{p.dir, alike, other} {
		p.wantHot(v(dir))
	}
	p.mustPrepare(v(p.dir, "-d"))
	p.wantHot(v(p.dir, "-d"))
	p.wantHot(v(alike, "-d"))
	p.wantCold(v(other, "-d"), "working directory")
	p.mustPrepare(v(p.dir, "-q", "resolves"))
	p.wantHot(v(alike, "-q", "resolves"))
	p.wantUnfit(v(p.dir, "-q", "above"), "its looks at files differ")
}

// TestFormerDirectories calls a script of bash, which asks whether OLDPWD is a directory.
func TestFormerDirectories(t *testing.T) {
	bash := program(t, "/bin/bash")
	p := newPlace(t)
	script := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(script, []byte("#!"+bash+"\nexec "+tool+" \"$@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	v := func(dir, former, input string) invocation {
		return invocation{exe: script, dir: dir, args: []string{"index", "{input:" + input + "_1.fq}"}, env: []string{"OLDPWD=" + former, "SHLVL=2"}}
	}
	former := t.TempDir()
	for _, name := range []string{"first", "other"} {
		if err := os.Mkdir(filepath.Join(former, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	here, alike := p.elsewhere(strings.Repeat("a", 120)), p.elsewhere(strings.Repeat("b", 120))
	p.mustPrepare(v(here, former+"/first", "SRR5204809"))
	p.wantHot(v(here, former+"/first", "SRR5204809"))
	p.wantHot(v(alike, former+"/other", "SRR5204810"))
	p.wantCold(v(alike, former+"/third", "SRR5204810"), "the variable OLDPWD has a value of another form")
}

func TestFingerprint(t *testing.T) {
	p := newPlace(t)
	v := invocation{args: []string{"-e", "stop", "index", "{input:SRR5204809_1.fq}"}}
	p.mustPrepare(v)
	p.wantHot(v)
	p.write("stop", "")
	p.wantCold(v, "stop is new")
	if err := os.Remove(filepath.Join(p.dir, "stop")); err != nil {
		t.Fatal(err)
	}
	p.wantHot(v)
	text := readText(t, filepath.Join(p.dir, "index"))
	if err := os.Remove(filepath.Join(p.dir, "index")); err != nil {
		t.Fatal(err)
	}
	p.write("index", text)
	p.wantHot(v) // another file with the same content
	p.write("index", "b"+text[1:])
	p.wantCold(v, "index has changed")
}

func TestErrors(t *testing.T) {
	p := newPlace(t)
	v := func(input string, args ...string) invocation {
		return invocation{args: append(args, "index", "{input:"+input+"}")}
	}
	p.write("SRR5204811_1.fq", "")
	p.mustPrepare(v("SRR5204809_1.fq"))
	p.wantHot(v("SRR0000000_1.fq")) // it does not exist
	p.wantHot(v("SRR5204811_1.fq"))
	p.write("SRR5204812_1.fq", reads(0, 24)) // the tool exits with status 9
	p.wantHot(v("SRR5204812_1.fq"))
	p.mustPrepare(v("SRR5204809_1.fq", "-s"))
	p.wantHot(v("SRR5204810_1.fq", "-s"))
	p.wantCold(v("SRR0000000_1.fq", "-s"), "missing")
	p.wantCold(v("SRR5204811_1.fq", "-s"), "empty")
	p.mustPrepare(v("SRR5204809_1.fq", "-k")) // the tool keeps the size of its input and prints it
	p.wantHot(v("SRR5204809_1.fq", "-k"))
	p.wantHot(v("SRR5204812_1.fq", "-k"))
	p.wantUnfit(v("SRR5204809_1.fq", "-h", "-R", "{label:name}"), "its memory differs")
	var u *Unfit
	if err := p.prepare(v("SRR0000000_1.fq")); !errors.As(err, &u) || !u.Passing {
		t.Errorf("prepare without an input: %v", err)
	}
	if err := os.Chmod(filepath.Join(p.dir, "SRR5204810_1.fq"), 0); err != nil {
		t.Fatal(err)
	}
	p.wantHot(v("SRR5204810_1.fq"))
}

// TestPartOfStat uses a tool that keeps some of the stat(2) fields of its input.
func TestPartOfStat(t *testing.T) {
	p := newPlace(t)
	for _, name := range []string{"SRR5204809_1.fq", "SRR5204810_1.fq"} {
		v := invocation{args: []string{"-K", "index", "{input:" + name + "}"}}
		if name == "SRR5204809_1.fq" {
			p.mustPrepare(v)
		}
		p.wantHot(v)
	}
}

// TestDecisions uses tools that keep a decision about their late words, not the words themselves.
func TestDecisions(t *testing.T) {
	p := newPlace(t)
	p.enough = 0
	for _, option := range []string{"-l", "-m", "-i", "-t"} {
		for _, label := range []string{"Sample", "5ample", "ample", "Ample"} {
			p.wantUnfit(invocation{args: []string{option, "-R", "{label:" + label + "}", "index", "{input:SRR5204809_1.fq}"}}, "")
		}
	}
}

// TestKept uses tools that keep a fact that can differ between calls, but that does not differ in
// the kernel state or in the words of two preparations on one machine.
func TestKept(t *testing.T) {
	p := newPlace(t)
	for _, what := range []string{"parent", "group", "session", "nice", "io", "policy", "attributes", "slack", "links", "space", "empty", "small", "offset", "flags0", "flags1", "slashes",
		"lower", "capital", "hexadecimal"} {
		for _, label := range []string{"s1", "S1", "1s"} {
			v := invocation{args: []string{"-q", what, "-R", "{label:" + label + "}", "index", "{input:SRR5204809_1.fq}"}}
			switch what {
			case "small":
				v.stdin = reads(1, 10)
			case "empty", "offset":
				v.above = "above\n"
			}
			p.wantUnfit(v, "its memory differs")
		}
	}
	p.enough = 0
	p.wantUnfit(invocation{args: []string{"-q", "parity", "-R", "{label:S1}", "index", "{input:SRR5204809_1.fq}"}}, "")
	p.wantUnfit(invocation{args: []string{"-q", "truncate", "index", "{input:SRR5204809_1.fq}"}, above: "above\n"}, "it truncates")
}

// TestStreamsInUse starts calls whose streams are files that another program has used.
func TestStreamsInUse(t *testing.T) {
	p := newPlace(t)
	v := invocation{args: []string{"-R", "{label:sample1}", "index", "-"}, stdin: reads(1, 300)}
	p.mustPrepare(v)
	v.skip = 2000
	p.wantHot(v)
	v.above = "above\n"
	p.wantCold(v, NotPrepared) // programs treat an empty output in another way
	p.mustPrepare(v)
	for _, skip := range []int64{1, 3, 2999, 1<<20 + 1} {
		v.skip, v.above = skip, strings.Repeat("above\n", int(skip%1000))
		p.wantHot(v)
	}
	v.stdin = "@"
	p.wantHot(v)
}

// TestRelations makes calls whose words are related in another way than in the preparation, because
// a tool may compare its words.
func TestRelations(t *testing.T) {
	p := newPlace(t)
	v := func(label, input string) invocation {
		return invocation{args: []string{"-R", "{label:" + label + "}", "index", "{input:" + input + "_1.fq}"}}
	}
	p.mustPrepare(v("ABC5204809", "SRR5204809"))
	p.wantHot(v("ABC5204810", "SRR5204810"))
	p.wantCold(v("SRR5204810", "SRR5204810"), NotPrepared)
	p.mustPrepare(v("SRR5204810", "SRR5204810"))
	p.wantHot(v("SRR5204809", "SRR5204809"))
	if err := os.Symlink("SRR5204810_1.fq", filepath.Join(p.dir, "SRR5204819_1.fq")); err != nil {
		t.Fatal(err)
	}
	two := func(name, other string) invocation {
		return invocation{args: []string{"-o", "{output:" + other + "_1.fq}", "index", "{input:" + name + "_1.fq}"}}
	}
	p.mustPrepare(two("SRR5204809", "SRR5204899"))
	r := p.run(two("SRR5204810", "SRR5204819"), true)
	if !strings.Contains(r.kind, "are one file") {
		t.Errorf("with an input as its output, it started %s", r.kind)
	}
}

// TestInherited makes calls that inherit other limits or fewer CPUs.
func TestInherited(t *testing.T) {
	p := newPlace(t)
	c := p.call(invocation{args: []string{"index", "{input:SRR5204809_1.fq}"}})
	keys := map[string]string{}
	for name, change := range map[string]func(a *procstate.Inherited){
		"none": func(*procstate.Inherited) {}, "stack": func(a *procstate.Inherited) { a.Limits[2*unix.RLIMIT_STACK]-- }, "files": func(a *procstate.Inherited) { a.Limits[2*unix.RLIMIT_NOFILE]-- },
		"CPUs": func(a *procstate.Inherited) { a.CPUs++ }, "umask": func(a *procstate.Inherited) { a.Umask ^= 7 },
	} {
		a := procstate.Current()
		change(&a)
		c.Inherited = &a
		key, err := Key(c)
		if err != nil || keys[key] != "" {
			t.Errorf("%s: the key %s is that of %q, %v", name, key, keys[key], err)
		}
		keys[key] = name
	}
}

// TestShortDirectory uses a tool that keeps the path of its working directory, where this path is
// shorter than all paths of a preparation.
func TestShortDirectory(t *testing.T) {
	p := newPlace(t)
	dir, err := os.MkdirTemp("", "d")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	for _, name := range []string{"index", "SRR5204809_1.fq"} {
		if err := os.Link(filepath.Join(p.dir, name), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	v := invocation{dir: dir, args: []string{"-d", "index", "{input:SRR5204809_1.fq}"}}
	var u *Unfit
	if err := p.prepare(v); !errors.As(err, &u) || !u.Passing || !strings.Contains(err.Error(), "keeps the path of its working directory") {
		t.Errorf("prepared: %v", err)
	}
	p.wantCold(v, NotPrepared)
}

func TestContrast(t *testing.T) {
	words := []string{"SRR52_1.fq.gz", "SRR52_2.fq.gz", "/data/b/S1.sam", "/data/b/S0.sam", "12", "7", "/aB/bC/cD/dE/eF/fG/gH/hI/iJ/jK/kL/Mn/Op/Qr/St/Uv/Wx/Yz/01/23/45/67/89"}
	roles := []Role{Input, Input, Output, Output, Label, Label, Label}
	for range 100 {
		for use := range late.Capitals + 1 {
			got := late.Contrast(words, roles, use, map[int][]byte{0: []byte("z0")})
			for k, w := range words {
				if roles[k].Shape(got[k]) != roles[k].Shape(w) {
					t.Errorf("%q has another shape than %q", got[k], w)
				}
				for i, shape := 0, roles[k].Shape(w); i < len(w) && use != late.Digits; i++ {
					if got[k][i] == w[i] && (shape[i] == 'x' || shape[i] == 'd') && i < strings.LastIndexByte(shape, '|') {
						t.Errorf("%q has the letter of %q at %d", got[k], w, i)
					}
				}
				if got[k][0] == w[0] && w[0] != '/' || k == 0 && strings.ContainsRune("z0", rune(got[k][0])) {
					t.Errorf("%q begins with a letter that it must not begin with", got[k])
				}
			}
			for _, pair := range [][2]int{{0, 1}, {3, 2}, {4, 5}} {
				if a, b := pair[0], pair[1]; words[a] >= words[b] || got[a] <= got[b] {
					t.Errorf("the order of %q and %q is not that of %q and %q reversed", got[a], got[b], words[a], words[b])
				}
			}
		}
	}
}

// TestEarlyInput uses a tool that opens its input before it loads its index.
func TestEarlyInput(t *testing.T) {
	for _, way := range []string{"o", "p", "b"} {
		t.Run(way, func(t *testing.T) {
			p := newPlace(t)
			v := func(name string) invocation {
				return invocation{args: []string{"-f", way, "-R", "{label:" + name + "}", "index", "{input:" + name + "_1.fq}"}}
			}
			p.mustPrepare(v("SRR5204809"))
			p.wantHot(v("SRR5204809"))
			p.wantHot(v("SRR5204810"))
			p.write("SRR5204811_1.fq", strings.ReplaceAll(reads(3, 200), "@read", "@other"))
			p.wantHot(v("SRR5204811"))
			p.write("SRR5204812_1.fq", strings.ReplaceAll(reads(3, 200), "@read", ">read"))
			p.write("SRR5204813_1.fq", "@")
			if way == "o" {
				p.wantHot(v("SRR5204812"))
			} else {
				p.wantCold(v("SRR5204812"), "the bytes differ from its preparation")
			}
			p.wantCold(v("SRR5204813"), map[bool]string{true: "has 1 bytes, where", false: "the bytes differ from its preparation"}[way == "o"])
			p.write("SRR5204814_1.fq", "")
			p.wantCold(v("SRR5204814"), `"empty" instead of "file"`)
			p.wantCold(v("SRR5204815"), `"missing" instead of "file"`)
		})
	}
	p := newPlace(t)
	for way, reason := range map[string]string{"k": "its memory differs", "e": "to the end before", "m": "maps its input"} {
		p.wantUnfit(invocation{args: []string{"-f", way, "index", "{input:SRR5204809_1.fq}"}}, reason)
	}
}

func TestOutputs(t *testing.T) {
	p := newPlace(t)
	if err := os.Mkdir(filepath.Join(p.dir, "results"), 0o755); err != nil {
		t.Fatal(err)
	}
	outside := t.TempDir()
	for _, c := range []struct{ prefix, input string }{{"", ""}, {"results/", ""}, {outside + "/", p.dir + "/"}, {"../" + filepath.Base(p.dir) + "/", "../" + filepath.Base(p.dir) + "/"}} {
		v := func(name string, args ...string) invocation {
			return invocation{args: append(args, "-o", "{output:"+c.prefix+name+".txt}", "index", "{input:"+c.input+name+"_1.fq}")}
		}
		p.mustPrepare(v("SRR5204809"))
		p.wantHot(v("SRR5204810"))
		p.wantHot(v("SRR5204810")) // over the existing file
		log := func(name string) invocation {
			return v(name, "-R", "{label:"+name+"}", "-w", "{output:"+c.prefix+name+".log}")
		}
		p.mustPrepare(log("SRR5204809"))
		p.wantHot(log("SRR5204810"))
		if c.prefix == "" {
			p.write("SRR5204810.log", "what stood here before")
			p.wantCold(log("SRR5204810"), "SRR5204810.log")
		}
		if err := os.RemoveAll(filepath.Join(p.dir, "SRR5204810.log")); err != nil {
			t.Fatal(err)
		}
	}
}

func TestForeignWrites(t *testing.T) {
	p := newPlace(t)
	mark := filepath.Join(t.TempDir(), "mark")
	p.wantUnfit(invocation{args: []string{"-w", mark, "index", "{input:SRR5204809_1.fq}"}}, "writes to "+mark)
	if exists(mark) {
		t.Errorf("the preparation has written %s", mark)
	}
	later := filepath.Join(t.TempDir(), "later")
	for _, name := range []string{"out", later} {
		// No late word names this file, so it may belong to another program.
		p.mustPrepare(invocation{args: []string{"-o", name, "index", "{input:SRR5204809_1.fq}"}})
		if exists(filepath.Join(p.dir, "out")) || exists(later) {
			t.Errorf("the preparation has written %s", name)
		}
	}
	// Write through a link, and by a rename.
	script := filepath.Join(p.dir, "script")
	for _, text := range []string{"ln -s " + later + " out; echo x >out", "echo x >out; mv out " + later, "mkdir " + later + "; mv $1 " + later, "exec 3<>/dev/tcp/127.0.0.1/9"} {
		if err := os.WriteFile(script, []byte("#!/bin/bash\nread line <$1; "+text+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		var u *Unfit
		if err := p.prepare(invocation{exe: script, args: []string{"{input:SRR5204809_1.fq}"}}); !errors.As(err, &u) || exists(later) {
			t.Errorf("%s: %v, and %s exists: %v", text, err, later, exists(later))
		} else {
			t.Log(err)
		}
	}
	p.wantUnfit(invocation{args: []string{"-w", "{input:SRR5204810_1.fq}", "index", "{input:SRR5204809_1.fq}"}}, "is an input")
}

// asleep starts a call of a tool that sleeps at its end, and waits until it sleeps.
func (p *place) asleep(v invocation, hot bool, group bool) (*exec.Cmd, *strings.Builder, func()) {
	p.t.Helper()
	cmd, _ := p.command(v, hot)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: group}
	r, err := cmd.StderrPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	out, err := os.Create(filepath.Join(p.t.TempDir(), "out"))
	if err != nil {
		p.t.Fatal(err)
	}
	defer out.Close()
	cmd.Stdout = out
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	text := &strings.Builder{}
	b := make([]byte, 1)
	for !strings.Contains(text.String(), "asleep\n") {
		if _, err := r.Read(b); err != nil {
			p.t.Fatalf("%v: after %q", err, text)
		}
		text.Write(b)
	}
	return cmd, text, func() {
		rest, err := io.ReadAll(r)
		if err != nil {
			p.t.Error(err)
		}
		text.Write(rest)
	}
}

func TestSignals(t *testing.T) {
	p := newPlace(t)
	p.write("SRR5204809_1.fq", reads(0, 301))
	v := invocation{args: []string{"-n", "index", "{input:SRR5204809_1.fq}"}}
	c := p.call(v)
	a := p.inherited(v)
	a.Streams[2] = procstate.Pipe
	c.Inherited = &a
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	snap, err := Prepare(ctx, p.store, c, PrepareOptions{Scratch: t.TempDir(), Enough: 1})
	if err != nil {
		t.Fatal(err)
	}
	snap.Close()
	for _, hot := range []bool{true, false} {
		for _, test := range []struct {
			sig   syscall.Signal
			group bool
		}{{unix.SIGTERM, false}, {unix.SIGTERM, true}, {unix.SIGINT, true}, {unix.SIGINT, false}, {unix.SIGUSR1, false}, {unix.SIGKILL, false}} {
			cmd, text, rest := p.asleep(v, hot, true)
			pid := cmd.Process.Pid
			if test.group {
				pid = -pid
			}
			if err := unix.Kill(pid, test.sig); err != nil {
				t.Fatal(err)
			}
			rest()
			_ = cmd.Wait()
			st := cmd.ProcessState.Sys().(syscall.WaitStatus)
			handled := test.sig == unix.SIGINT || test.sig == unix.SIGUSR1
			switch {
			case handled && (st.ExitStatus() != 0 || !strings.Contains(text.String(), "got 1 signals")):
				t.Errorf("hot %v, %v to group %v: status %#x, %q", hot, test.sig, test.group, st, text)
			case !handled && st.Signal() != test.sig:
				t.Errorf("hot %v, %v to group %v: status %#x, %q", hot, test.sig, test.group, st, text)
			}
		}
	}
}

// TestJobControl stops a tool and its process group, as a terminal does, and continues it.
func TestJobControl(t *testing.T) {
	p := newPlace(t)
	p.write("SRR5204809_1.fq", reads(0, 301))
	v := invocation{args: []string{"-n", "index", "{input:SRR5204809_1.fq}"}}
	c := p.call(v)
	a := p.inherited(v)
	a.Streams[2] = procstate.Pipe
	c.Inherited = &a
	snap, err := Prepare(t.Context(), p.store, c, PrepareOptions{Scratch: t.TempDir(), Enough: 1})
	if err != nil {
		t.Fatal(err)
	}
	snap.Close()
	for _, hot := range []bool{true, false} {
		cmd, text, rest := p.asleep(v, hot, true)
		pid := cmd.Process.Pid
		if err := unix.Kill(-pid, unix.SIGTSTP); err != nil {
			t.Fatal(err)
		}
		var st unix.WaitStatus
		if _, err := unix.Wait4(pid, &st, unix.WUNTRACED, nil); err != nil || !st.Stopped() || st.StopSignal() != unix.SIGTSTP {
			t.Errorf("hot %v: status %#x, %v, want stopped by SIGTSTP", hot, st, err)
		}
		if err := unix.Kill(-pid, unix.SIGCONT); err != nil {
			t.Fatal(err)
		}
		if err := unix.Kill(-pid, unix.SIGUSR1); err != nil {
			t.Fatal(err)
		}
		rest()
		if err := cmd.Wait(); err != nil || !strings.Contains(text.String(), "got 1 signals") {
			t.Errorf("hot %v: %v, %q", hot, err, text)
		}
	}
}

func TestClosedOutput(t *testing.T) {
	p := newPlace(t)
	v := invocation{args: []string{"-p", "index", "{input:SRR5204809_1.fq}"}, pipe: true}
	p.mustPrepare(v)
	p.wantHot(v)
	for _, hot := range []bool{true, false} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		r.Close()
		cmd, _ := p.command(v, hot)
		errs, err := cmd.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		cmd.Stdout = w
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		w.Close()
		_, _ = io.ReadAll(errs)
		_ = cmd.Wait()
		if st := cmd.ProcessState.Sys().(syscall.WaitStatus); st.Signal() != unix.SIGPIPE {
			t.Errorf("hot %v: it ended with %v, want SIGPIPE", hot, cmd.ProcessState)
		}
	}
}

func TestInheritedDescriptor(t *testing.T) {
	p := newPlace(t)
	v := invocation{args: []string{"-3", "index", "{input:SRR5204809_1.fq}"}}
	var r *os.File
	v.front = func(cmd *exec.Cmd) {
		var w *os.File
		var err error
		if r, w, err = os.Pipe(); err != nil {
			t.Fatal(err)
		}
		cmd.ExtraFiles = []*os.File{w}
		t.Cleanup(func() { w.Close() })
	}
	c := p.call(v)
	a := p.inherited(v)
	a.Extra = []int{3}
	c.Inherited = &a
	snap, err := Prepare(t.Context(), p.store, c, PrepareOptions{Scratch: t.TempDir(), Enough: 1})
	if err != nil {
		t.Fatal(err)
	}
	snap.Close()
	for range 2 {
		if res := p.run(v, true); res.kind != "hot <nil>" {
			t.Errorf("it started %s", res.kind)
		}
		b := make([]byte, 100)
		n, err := r.Read(b)
		if err != nil || string(b[:n]) != "three\n" {
			t.Errorf("descriptor 3 got %q, %v", b[:n], err)
		}
		r.Close()
	}
	without := v
	without.front = nil
	p.wantCold(without, NotPrepared)
}

func TestTerminal(t *testing.T) {
	p := newPlace(t)
	p.write("SRR5204809_1.fq", reads(0, 302))
	v := func(name string) invocation {
		return invocation{args: []string{"-p", "-R", "{label:" + name + "}", "index", "{input:" + name + "_1.fq}"}}
	}
	run := func(name string, hot bool) string {
		master, slave, err := openTerminal()
		if err != nil {
			t.Fatal(err)
		}
		seen := collect(master)
		cmd, note := p.command(v(name), hot)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
		if err := cmd.Run(); err != nil {
			t.Error(err)
		}
		text, err := seen.all()
		if err != nil {
			t.Fatal(err)
		}
		slave.Close()
		master.Close()
		if hot {
			if kind := readText(t, note); kind != "hot <nil>" {
				t.Errorf("it started %s", kind)
			}
		}
		return string(text)
	}
	c := p.call(v("SRR5204809"))
	a := p.inherited(v("SRR5204809"))
	a.Streams[0], a.Streams[1], a.Streams[2], a.Joined = procstate.Terminal, procstate.Terminal, procstate.Terminal, true
	c.Inherited = &a
	snap, err := Prepare(t.Context(), p.store, c, PrepareOptions{Scratch: t.TempDir(), Enough: 1})
	if err != nil {
		t.Fatal(err)
	}
	snap.Close()
	for _, name := range []string{"SRR5204809", "SRR5204810"} {
		if hot, plain := run(name, true), run(name, false); hot != plain || len(hot) < 1000 {
			t.Errorf("%s: %d bytes on the terminal, plain %d", name, len(hot), len(plain))
		}
	}
}

// TestOrdinaryUser runs other tests as a user without privileges who cannot gain any.
func TestOrdinaryUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can become another user")
	}
	dir, err := os.MkdirTemp("", "premix-user-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chown(dir, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	exe, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(dir, "tests")
	if err := os.WriteFile(binary, exe, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--no-new-privs", binary, "-test.run", "^(TestWords|TestOutputs|TestStandardInput|TestSignals|TestErrors|TestKeepsRefused)$", "-test.v")
	cmd.Env = append(os.Environ(), "TMPDIR="+dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// A snapshot that another user may have written would run as this user: the command starts without
// a snapshot.
func TestForeignStore(t *testing.T) {
	p := newPlace(t)
	v := invocation{args: []string{"index", "{input:SRR5204809_1.fq}"}}
	p.mustPrepare(v)
	p.wantHot(v)
	dirs, err := filepath.Glob(filepath.Join(p.store, "*-*"))
	if err != nil || len(dirs) == 0 {
		t.Fatalf("%q, %v", dirs, err)
	}
	for _, dir := range append(dirs, p.store) {
		if err := os.Chmod(dir, 0o777); err != nil {
			t.Fatal(err)
		}
		p.wantCold(v, dir)
		if err := os.Chmod(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	p.wantHot(v)
}

// TestAddressesAndDates prepares tools whose output depends on their addresses, on random bytes of
// the kernel, or on the size of their input. They keep these values before they open their input. A
// tool that keeps the date starts hot, see TestDates.
func TestAddressesAndDates(t *testing.T) {
	p := newPlace(t)
	for _, test := range []struct {
		reason string
		args   []string
	}{
		{"from one cold start to the next", []string{"-A", "main"}},
		{"from one cold start to the next", []string{"-A", "stack"}},
		{"from one cold start to the next", []string{"-A", "heap"}},
		{"from one cold start to the next", []string{"-A", "random"}},
		{"differs from run to run", []string{"-N", "-o", "{output:SRR5204809.out}"}},
	} {
		p.wantUnfit(invocation{args: append(test.args, "index", "{input:SRR5204809_1.fq}")}, test.reason)
	}
	p.dated = true
	v := invocation{args: []string{"-D", "index", "{input:SRR5204809_1.fq}"}}
	p.mustPrepare(v)
	p.wantHot(v)
}
