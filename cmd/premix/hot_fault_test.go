package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/hotstart"
	"premix/internal/kit/unmount"
)

// drop is a directory in which tests call tools through their shims and directly. Every process has
// the directory in its environment.
type drop struct {
	dir, home string
	uid       uint32   // of the callers; 0 means this user
	env       []string // added last
	torn      bool     // standard output is a pipe whose reader closes it after one byte
	timed     bool     // messages contain times
	calls     atomic.Int64
	want      map[[2]string]string // outcomes of direct calls, by tool and sample
}

// newDrop makes a drop with a tool that loads an index, under two names, and samples.
func newDrop(t *testing.T) *drop {
	t.Helper()
	if _, err := hotstart.CanTrace(); err != nil {
		t.Skip(err)
	}
	d := &drop{dir: t.TempDir()}
	d.home = filepath.Join(d.dir, "home")
	if err := os.Chmod(filepath.Dir(d.dir), 0o755); err != nil { // for other users
		t.Fatal(err)
	}
	d.shell(t, `mkdir bin tools o tmp; chmod 1777 tmp; chmod 777 o
gcc -O1 -o bin/tool "$SOURCE/internal/hotstart/inplace/testdata/tool.c"; cp bin/tool bin/other
printf 'flags: -p -n\noptions: {-R: label, -o: output}\narguments: [data, input]\n' >tools/tool.yaml; cp tools/tool.yaml tools/other.yaml
head -c 2000000 /dev/zero >index
for i in 1 2 3; do seq $((i * 40)) >S0$i.in; done
premix shim --dir shims tool other`)
	t.Cleanup(func() {
		d.settle(t)
	})
	return d
}

func (d *drop) environ(path string) []string {
	return append([]string{"PATH=" + path + filepath.Join(d.dir, "bin") + ":" + filepath.Dir(binary) + ":" + os.Getenv("PATH"), "HOME=" + d.dir, "PREMIX_HOME=" + d.home,
		"PREMIX_TOOLS=" + filepath.Join(d.dir, "tools"), "TMPDIR=" + filepath.Join(d.dir, "tmp"), "PREMIX_HOT_WORTH=1us", "DROP=" + d.dir}, d.env...)
}

// shell runs a script in the directory and returns its output.
func (d *drop) shell(t *testing.T, script string) string {
	t.Helper()
	source, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", "-euc", script)
	cmd.Dir, cmd.Env = d.dir, append(d.environ(""), "SOURCE="+source)
	cmd.SysProcAttr = d.user()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
	return string(out)
}

func (d *drop) user() *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Setpgid: true}
	if d.uid != 0 {
		a.Credential = &syscall.Credential{Uid: d.uid, Gid: d.uid}
	}
	return a
}

// call calls a tool with a sample, hot where possible or directly, and returns its status, its
// streams and its output. OUT in a word is replaced by a directory of the call. The callback may
// act on the process while it runs.
func (d *drop) call(t *testing.T, hot bool, meanwhile func(pid int), words ...string) string {
	t.Helper()
	own := fmt.Sprintf("o/%06d", d.calls.Add(1))
	dir := filepath.Join(d.dir, own)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Error(err)
		return ""
	}
	if err := os.Chown(dir, int(d.uid), int(d.uid)); d.uid != 0 && err != nil {
		t.Error(err)
		return ""
	}
	path := ""
	if hot {
		path = d.shims()
	}
	words = strings.Split(strings.ReplaceAll(strings.Join(words, "\x00"), "OUT", own), "\x00")
	cmd := exec.Command("/usr/bin/env", words...)
	cmd.Dir, cmd.Env, cmd.SysProcAttr = d.dir, d.environ(path), d.user()
	for i := range 2 {
		to, err := os.Create(filepath.Join(dir, fmt.Sprint(i+1)))
		if err != nil {
			t.Error(err)
			return ""
		}
		defer to.Close()
		if i == 0 {
			cmd.Stdout = to
		} else {
			cmd.Stderr = to
		}
	}
	if d.torn {
		r, w, err := os.Pipe()
		if err != nil {
			t.Error(err)
			return ""
		}
		cmd.Stdout = w
		defer w.Close()
		go func() {
			_, _ = r.Read(make([]byte, 1)) // or the end of the stream
			r.Close()
		}()
	}
	if err := cmd.Start(); err != nil {
		t.Error(err)
		return ""
	}
	if meanwhile != nil {
		meanwhile(cmd.Process.Pid)
	}
	_ = cmd.Wait() // the state shows the status
	all := fmt.Sprintln(cmd.ProcessState)
	for _, name := range []string{"1", "2", "out"} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if d.timed && name == "2" {
			b = number.ReplaceAll(b, []byte("N"))
		}
		all += fmt.Sprintf("%s: %v\n%s", name, err != nil, bytes.ReplaceAll(b, []byte(own), []byte("OUT")))
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Error(err)
	}
	return all
}

// number matches the numbers in messages, including the names of the directories of calls.
var number = regexp.MustCompile(`[ \t]*[0-9]+([.*][0-9]+)*|[ \t]*-?\b(inf|nan)\b`)

// line returns the words of a call of a tool.
func line(tool, sample string) []string {
	return []string{tool, "-p", "-R", "@RG:" + sample, "-o", "OUT/out", "index", sample + ".in"}
}

// dropTools and dropSamples are the tools and samples of a drop.
var (
	dropTools   = []string{"tool", "other"}
	dropSamples = []string{"S01", "S02", "S03", "S04"} // the last one is missing
)

// warm prepares a snapshot for the calls that line returns for a tool.
func (d *drop) warm(t *testing.T, tool string) {
	t.Helper()
	d.warmLine(t, "null,file,file", line(tool, "S01")...)
}

// warmLine prepares a snapshot for calls with the given kinds of streams.
func (d *drop) warmLine(t *testing.T, streams string, words ...string) {
	t.Helper()
	d.shell(t, "mkdir -p o/000000")
	args := []string{"hot", "warm", "--streams", streams, "--"}
	for _, w := range words {
		args = append(args, strings.ReplaceAll(w, "OUT", "o/000000"))
	}
	cmd := exec.Command(binary, args...)
	cmd.Dir, cmd.Env, cmd.SysProcAttr = d.dir, d.environ(d.shims()), d.user()
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
	}
}

// shims returns the beginning of PATH for calls that start hot where possible.
func (d *drop) shims() string { return filepath.Join(d.dir, "shims") + ":" }

// started returns the number of hot starts so far.
func (d *drop) started(t *testing.T) int {
	t.Helper()
	return strings.Count(d.shell(t, `cat "$PREMIX_HOME"/calls/starts*.jsonl 2>/dev/null || true`), `"start":"hot"`)
}

// atOnce returns the number of concurrent calls.
func atOnce() int { return long(8, 500) }

// storm makes calls, atOnce of them concurrently, and compares their outcomes with those of direct
// calls. A call may have any outcome if the callback reports that it has killed it.
func (d *drop) storm(t *testing.T, calls int, meanwhile func(number, pid int) (killed bool)) {
	t.Helper()
	if d.want == nil {
		d.want = map[[2]string]string{}
		for _, tool := range dropTools {
			for _, sample := range dropSamples {
				d.want[[2]string{tool, sample}] = d.call(t, false, nil, line(tool, sample)...)
			}
		}
	}
	var all sync.WaitGroup
	var number atomic.Int64
	for range min(calls, atOnce()) {
		all.Go(func() {
			for {
				n := int(number.Add(1))
				if n > calls {
					return
				}
				tool, sample := dropTools[n%2], dropSamples[n/2%len(dropSamples)]
				killed := false
				got := d.call(t, true, func(pid int) { killed = meanwhile(n, pid) }, line(tool, sample)...)
				if w := d.want[[2]string{tool, sample}]; got != w && !(killed && strings.HasPrefix(got, "signal: killed")) {
					t.Errorf("call %d, %s over %s: %s\nplain: %s", n, tool, sample, got, w)
				}
			}
		})
	}
	all.Wait()
}

// long returns many in long runs and few otherwise.
func long(few, many int) int {
	if os.Getenv("PREMIX_SOAK") != "" {
		return many
	}
	return few
}

// TestHotStorm makes concurrent calls while snapshots are prepared, and while the quota removes
// snapshots.
func TestHotStorm(t *testing.T) {
	d := newDrop(t)
	d.env = []string{"PREMIX_HOT_QUOTA=200K"} // for one of two snapshots
	d.storm(t, long(60, 500), func(int, int) bool { return false })
	d.settle(t)
	d.env = nil
	for _, tool := range dropTools {
		d.warm(t, tool)
	}
	before := d.started(t)
	d.storm(t, long(40, 500), func(int, int) bool { return false })
	if n := d.started(t) - before; n < long(40, 500) {
		t.Errorf("%d calls of %d started hot", n, long(40, 500))
	}
}

// TestHotKilled kills calls, their tools and preparations at any moment. The kills do not disturb
// other calls, and the next preparation removes the files that killed processes left behind.
func TestHotKilled(t *testing.T) {
	d := newDrop(t)
	var preparations atomic.Int64
	d.storm(t, long(60, 500), func(n, pid int) bool {
		if n%8 == 0 { // prepare again, and perhaps kill
			_ = os.RemoveAll(filepath.Join(d.home, "calls/forms")) // while other calls write there
		}
		time.Sleep(time.Duration(rand.IntN(long(30_000, 10_000_000))) * time.Microsecond) // a random moment
		switch n % 4 {
		case 0:
			_ = unix.Kill(pid, unix.SIGKILL) // it may have ended
			return true
		case 1: // the tool, if premix has started it
			for _, child := range d.processes() {
				if parentOf(child) == pid {
					_ = unix.Kill(child, unix.SIGKILL)
				}
			}
			return true
		case 2:
			for _, p := range d.processes() {
				if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p)); err == nil && strings.Contains(string(text), "--beside") {
					preparations.Add(1)
					_ = unix.Kill(p, unix.SIGKILL)
				}
			}
		}
		return false
	})
	t.Logf("%d preparations were killed", preparations.Load())
	// Killed calls leave no process, and the next preparation finds the lock free.
	d.settle(t)
	before := d.started(t)
	for _, tool := range dropTools {
		d.warm(t, tool)
		if got, want := d.call(t, true, nil, line(tool, "S02")...), d.call(t, false, nil, line(tool, "S02")...); got != want {
			t.Errorf("%s after that: %s\nplain: %s", tool, got, want)
		}
	}
	if n := d.started(t) - before; n != 2 {
		t.Errorf("%d calls of 2 started hot after that", n)
	}
	if left := d.shell(t, "ls tmp"); left != "" {
		t.Errorf("left in the directory of temporary files: %s", left)
	}
}

// settle waits until no process of the drop is left.
func (d *drop) settle(t *testing.T) {
	t.Helper()
	if !comes(func() bool { return len(d.processes()) == 0 }) {
		t.Fatalf("processes %v are left", d.processes())
	}
}

// processes returns the processes of the drop.
func (d *drop) processes() []int {
	return processes(func(_, environ string) bool { return strings.Contains(environ, "DROP="+d.dir+"\x00") })
}

// TestHotStore makes the store of snapshots vanish, change and fill up during calls.
func TestHotStore(t *testing.T) {
	d := newDrop(t)
	for _, tool := range dropTools {
		d.warm(t, tool)
	}
	d.shell(t, "mkdir saved; cp -a home/inplace home/calls saved")
	hot := 0
	for _, script := range []string{
		"rm -rf home/inplace",
		"mv home/inplace home/away",
		"chmod -R a-w home/inplace",
		"mv home/inplace home/away; ln -s away home/inplace",
		"mv home/inplace home/away; echo x >home/inplace",
		"for f in home/inplace/*/image home/inplace/*/plan; do echo x >$f; done",
		"rm -f home/inplace/*/snapshot.json",
		"rm -rf home",
	} {
		d.shell(t, "chmod -R u+w home; rm -rf home; cp -a saved home")
		calls := long(16, 500)
		d.storm(t, calls, func(n, _ int) bool {
			if n == calls/2 { // while other calls start
				cmd := exec.Command("sh", "-c", script)
				cmd.Dir = d.dir
				_ = cmd.Run() // calls write there too
			}
			return false
		})
		d.settle(t)
		hot += d.started(t)
	}
	if hot == 0 {
		t.Error("no call started hot")
	}
	t.Logf("%d calls started hot", hot)
}

// TestHotFull checks calls without room for snapshots, and without room for outputs.
func TestHotFull(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting a small file system needs root")
	}
	d := newDrop(t)
	small := func(dir, size string) {
		t.Helper()
		if err := os.MkdirAll(dir, 0o777); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=0700,size="+size); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := unmount.Dir(dir); err != nil {
				t.Error(err)
			}
		})
	}
	small(filepath.Join(d.home, "inplace"), "64k")
	d.storm(t, long(20, 500), func(int, int) bool { return false })
	d.settle(t)
	if left := d.shell(t, "ls home/inplace tmp"); left != "home/inplace:\n\ntmp:\n" {
		t.Errorf("left of preparations without room: %s", left)
	}
	d.home = filepath.Join(d.dir, "roomy")
	for _, tool := range dropTools {
		d.warm(t, tool)
	}
	before := d.started(t)
	full := filepath.Join(d.dir, "o")
	small(full, "64k")
	d.shell(t, "seq 100000 >S05.in")
	want := d.call(t, false, nil, line("tool", "S05")...)
	if !strings.HasPrefix(want, "exit status 8\n") {
		t.Fatalf("a plain call has room: %s", want)
	}
	for range long(5, 50) {
		if got := d.call(t, true, nil, line("tool", "S05")...); got != want {
			t.Errorf("without room: %.300s\nplain: %.300s", got, want)
		}
	}
	if d.started(t) == before {
		t.Error("no call started hot")
	}
}

// TestHotUsers lets two users call one tool, with their own directories of snapshots, and then with
// the other user's directory.
func TestHotUsers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can become another user")
	}
	d := newDrop(t)
	users := []*drop{d, {dir: d.dir, home: filepath.Join(d.dir, "home-1"), uid: 65533}, {dir: d.dir, home: filepath.Join(d.dir, "home-2"), uid: 65534}}
	for i, u := range users[1:] {
		if err := os.Mkdir(u.home, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(u.home, int(u.uid), int(u.uid)); err != nil {
			t.Fatal(err)
		}
		u.calls.Store(int64(100_000 * (i + 1)))
		for _, tool := range dropTools {
			u.warm(t, tool)
		}
	}
	var all sync.WaitGroup
	for _, u := range users[1:] {
		all.Go(func() {
			before := u.started(t)
			u.storm(t, long(30, 250), func(int, int) bool { return false })
			if n := u.started(t) - before; n < long(30, 250) {
				t.Errorf("%d calls of user %d started hot", n, u.uid)
			}
		})
	}
	all.Wait()
	// A user does not use the directory of another user.
	users[1].home = users[2].home
	users[1].storm(t, 8, func(int, int) bool { return false })
}

// TestHotBadInput has one bad sample among others. A tool that opens its input before it loads its
// data starts cold for this sample and hot for all others.
func TestHotBadInput(t *testing.T) {
	d := newDrop(t)
	d.shell(t, `printf 'flags: -p -s\noptions: {-R: label, -o: output}\narguments: [data, input]\n' >tools/tool.yaml`)
	words := func(sample string) []string { return append([]string{"tool", "-s"}, line("tool", sample)[1:]...) }
	d.warmLine(t, "null,file,file", words("S01")...)
	for range 2 {
		for _, sample := range []string{"S01", "S04", "S02", "S04", "S03"} { // S04 is missing
			before := d.started(t)
			got, want := d.call(t, true, nil, words(sample)...), d.call(t, false, nil, words(sample)...)
			d.settle(t)
			if got != want {
				t.Errorf("%s: %s\nplain: %s", sample, got, want)
			}
			if hot := d.started(t) > before; hot != (sample != "S04") {
				t.Errorf("%s started hot: %v\n%s", sample, hot, d.shell(t, `tail -n 1 "$PREMIX_HOME/calls/starts.jsonl"`))
			}
		}
	}
}

// TestHotErrors makes aligners fail, and ends them, in all the ways in which they fail without
// premix.
func TestHotErrors(t *testing.T) {
	data := os.Getenv("PREMIX_TESTDATA")
	if data == "" {
		t.Skip("PREMIX_TESTDATA is not set")
	}
	for _, c := range []struct {
		tool, index string
		words       []string // up to the inputs; OUTPUT is replaced by the option of an output
		hot         bool
	}{
		{"bwa", "bwa index genome.fa 2>log", []string{"bwa", "mem", "-R", `@RG\tID:SAMPLE\tSM:SAMPLE`, "OUTPUT", "genome.fa"}, true},
		{"minimap2", "minimap2 -x sr -d genome.mmi genome.fa 2>log", []string{"minimap2", "-ax", "sr", "-t", "1", "OUTPUT", "genome.mmi"}, true},
		// It keeps a lower-case copy of the name.
		{"samtools", "samtools faidx genome.fa", []string{"samtools", "view", "-h", "-T", "genome.fa", "OUTPUT"}, false},
	} {
		t.Run(c.tool, func(t *testing.T) {
			if _, err := exec.LookPath(c.tool); err != nil {
				t.Skip(err)
			}
			d := newDrop(t)
			d.timed = true
			ext := "_1.fq.gz"
			d.shell(t, "gzip -dc "+data+"/spneumo/GCF_001457635.fna.gz | head -n 8000 >genome.fa\n"+c.index+`
gzip -dc `+data+`/spneumo/ERR1438863_R1.fastq.gz 2>/dev/null | head -n 16000 >reads
head -n 6000 reads | gzip >S1_1.fq.gz; tail -n 8000 reads | gzip >S2_1.fq.gz
head -c 9000 S1_1.fq.gz >S4_1.fq.gz; : >S5_1.fq.gz; head -c 3000 index >S6_1.fq.gz; mkfifo S7_1.fq.gz
premix shim --dir shims `+c.tool)
			if c.tool == "samtools" { // it is not in the catalogue
				ext = ".bam"
				d.shell(t, `printf 'commands:\n  view:\n    flags: -h\n    options: {-T: data, -o: output}\n    arguments: [input]\n' >tools/samtools.yaml
awk 'NR % 4 == 1 { n = substr($1, 2) } NR % 4 == 2 { s = $0 } NR % 4 == 0 { print n "\t4\t*\t0\t0\t*\t*\t0\t0\t" s "\t" $0 }' reads >reads.sam
samtools view -b -o S1.bam reads.sam; tail -n 3000 reads.sam | samtools view -b -o S2.bam -
head -c 90000 S1.bam >S4.bam; : >S5.bam; head -c 3000 index >S6.bam; mkfifo S7.bam`)
			}
			words := func(sample string, output bool, more ...string) []string {
				var all []string
				for _, w := range c.words {
					switch {
					case w != "OUTPUT":
						all = append(all, strings.ReplaceAll(w, "SAMPLE", sample))
					case output:
						all = append(all, "-o", "OUT/out")
					}
				}
				return append(append(all, more...), sample+ext)
			}
			same := func(how string, hot bool, meanwhile func(int), words []string) {
				t.Helper()
				before := d.started(t)
				got, want := d.call(t, true, meanwhile, words...), d.call(t, false, meanwhile, words...)
				if got != want {
					t.Errorf("%s: %.900s\nplain: %.900s", how, got, want)
				}
				if is := d.started(t) > before; is != (hot && c.hot) {
					t.Errorf("%s: it started hot: %v\n%s", how, is, d.shell(t, `tail -n 2 "$PREMIX_HOME/calls/starts.jsonl"`))
				}
				first, _, _ := strings.Cut(want, "\n")
				t.Logf("%s: %s", how, first)
			}
			warm := func(streams string, output bool) {
				t.Helper()
				if c.hot {
					d.warmLine(t, streams, words("S1", output)...)
				}
			}
			warm("null,file,file", false)
			warm("null,file,file", true)
			for _, output := range []bool{false, true} {
				for sample, how := range map[string]string{"S1": "the first sample", "S2": "the second one", "S3": "missing", "S4": "truncated", "S5": "empty", "S6": "zeros"} {
					same(how, true, nil, words(sample, output))
				}
			}
			same("a wrong option", false, nil, words("S1", false, "--no-such-option"))
			for _, sig := range []syscall.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGHUP} {
				for _, group := range []int{1, -1} {
					same(fmt.Sprintf("%v to %d", sig, group), true, func(pid int) {
						opened := func() bool { // by the tool
							f, err := os.OpenFile(filepath.Join(d.dir, "S7"+ext), os.O_WRONLY|unix.O_NONBLOCK, 0)
							if err == nil {
								t.Cleanup(func() { f.Close() })
							}
							return err == nil
						}
						if !comes(opened) {
							t.Errorf("%v to %d: the tool does not open its input", sig, group)
						}
						if err := unix.Kill(group*pid, sig); err != nil {
							t.Error(err)
						}
					}, words("S7", true))
				}
			}
			d.torn = true
			warm("null,pipe,file", false)
			same("closed standard output", true, nil, words("S2", false))
			signal.Ignore(unix.SIGPIPE)
			heed := func() {
				c := make(chan os.Signal, 1)
				signal.Notify(c, unix.SIGPIPE) // Reset alone would leave it ignored
				signal.Stop(c)
			}
			defer heed()
			warm("null,pipe,file", false)
			same("closed standard output, SIGPIPE ignored", true, nil, words("S2", false))
			heed()
			d.torn = false
			if os.Geteuid() != 0 {
				return // no small file system can be mounted
			}
			if err := unix.Mount("tmpfs", filepath.Join(d.dir, "o"), "tmpfs", 0, "size=64k"); err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := unmount.Dir(filepath.Join(d.dir, "o")); err != nil {
					t.Error(err)
				}
			}()
			same("no room for the output", true, nil, words("S2", true))
			same("no room for standard output", true, nil, words("S2", false))
		})
	}
}
