package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// Lengths of the windows of TestExplainTrials.
const (
	trialWindow = 6 * time.Second
	trialPause  = 4 * time.Second
	trialBefore = 26 * time.Second
)

// planted is a cause that a trial plants, and the answer that names it.
type planted struct {
	name  string
	kind  string // of the finding
	thing string // part of its thing
	by    string // beginning of the program, or of the text after it
	start func() (stop func())
	// before reports whether a finding without a cost names the cause: a series of the thing.
	before func(f explained) bool
}

// explained is a finding as the trials read it.
type explained struct {
	Name, Kind, By, Thing, Sentence string
	Labels                          map[string]string
	Cost                            float64 `json:"cost_seconds"`
}

type explanation struct {
	Findings []explained
	Notes    []explained
	Lost     lostTime
}

type lostTime struct {
	Observed float64 `json:"observed_seconds"`
	Share    float64 `json:"share"`
	Usual    float64 `json:"usual_share"`
	Causes   []struct {
		Cause, Thing string
		Share        float64
		Usual        float64 `json:"usual_share"`
		Most         float64 `json:"greatest_share"`
	}
}

// causes returns the causes with their shares: in the window, the usual one and the greatest
// before.
func (l lostTime) causes() (list []string) {
	for _, c := range l.Causes {
		list = append(list, fmt.Sprintf("%s %s %.2f %.2f %.2f", c.Cause, filepath.Base(c.Thing), c.Share, c.Usual, c.Most))
	}
	return list
}

// trialMachine is a machine with tasks of premix that use a disk, memory, a FUSE file
// system and two networks, beside a load of twice its processors.
type trialMachine struct {
	t                   *testing.T
	dir, disk, device   string
	hang                string // while this file exists, the FUSE file system does not answer
	cpu, memory, others string // cgroups
	slowed              *slowed
}

// TestExplainTrials plants each kind of cause beside running tasks on a loaded machine, and
// prints a JSON line for each window: the kind that explain names first, and the first
// finding of the order in which series left their usual range. It runs in namespaces of its
// own for mounts and networks. PREMIX_EXPLAIN_TRIALS is the number of trials of each kind, and
// PREMIX_EXPLAIN_KINDS names some of them.
func TestExplainTrials(t *testing.T) {
	rounds, err := strconv.Atoi(os.Getenv("PREMIX_EXPLAIN_TRIALS"))
	if err != nil || rounds < 1 {
		t.Skip("PREMIX_EXPLAIN_TRIALS is not set: a trial of all kinds takes four minutes, with a load of twice the processors")
	}
	if os.Geteuid() != 0 {
		t.Skip("to plant causes takes root")
	}
	for _, program := range []string{"unshare", "nsenter", "ip", "tc", "mkfs.ext4", "losetup", "bash"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s is not installed", program)
		}
	}
	for _, controller := range []string{"cpu", "memory"} {
		if _, err := os.Stat("/sys/fs/cgroup/" + controller + "/cgroup.procs"); err != nil {
			t.Skipf("cgroups of version 1 are not mounted: %v", err)
		}
	}
	if os.Getenv("PREMIX_TRIAL_ROLE") == "" {
		cmd := exec.Command("unshare", "--net", "--mount", os.Args[0], "-test.v", "-test.timeout=0", "-test.run=^TestExplainTrials$")
		cmd.Env = append(os.Environ(), "PREMIX_TRIAL_ROLE=trials", "PREMIX_TEST_BINARY="+binary)
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		if err := cmd.Run(); err != nil {
			t.Fatal(err)
		}
		return
	}
	first, before, of := map[string]int{}, map[string]int{}, map[string]int{}
	alarms, alarmsBefore, quiet := 0, 0, 0
	print := func(v map[string]any) {
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Println(string(text))
	}
	var names []string
	for round := range rounds {
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			m := newTrialMachine(t)
			m.load()
			began := time.Now()
			time.Sleep(trialBefore)
			var without []string
			ask := func(from, to time.Time) (now, former explanation) {
				q := url.Values{"start": {from.UTC().Format(time.RFC3339Nano)}, "end": {to.UTC().Format(time.RFC3339Nano)}, "without": without}
				m.slowed.get("explain", q, &now)
				q["without"] = append(slices.Clone(without), "task.lost", "task.observed")
				m.slowed.get("explain", q, &former)
				return now, former
			}
			for _, p := range m.kinds() {
				if only := os.Getenv("PREMIX_EXPLAIN_KINDS"); only != "" && !slices.Contains(strings.Split(only, ","), p.name) {
					continue
				}
				if !slices.Contains(names, p.name) {
					names = append(names, p.name)
				}
				time.Sleep(trialWindow + 500*time.Millisecond)
				end := time.Now().Add(-500 * time.Millisecond)
				now, former := ask(end.Add(-trialWindow), end)
				quiet++
				line := map[string]any{"window": "quiet", "round": round, "load": loadNow(), "lost": now.Lost.Share, "usual": now.Lost.Usual, "causes": now.Lost.causes(), "observed": now.Lost.Observed, "alarm": len(now.Findings) > 0, "former_alarm": len(former.Findings) > 0}
				if len(now.Findings) > 0 {
					alarms++
					line["named"] = now.Findings[0].Sentence
				}
				if len(former.Findings) > 0 {
					alarmsBefore++
				}
				print(line)
				start := time.Now()
				stop := p.start()
				time.Sleep(trialWindow - time.Second)
				// A second for the last samples.
				time.Sleep(time.Second)
				end = time.Now()
				time.Sleep(500 * time.Millisecond)
				now, former = ask(start.Add(-500*time.Millisecond), end)
				stop()
				of[p.name]++
				at := slices.IndexFunc(now.Findings, func(f explained) bool {
					return f.Kind == p.kind && strings.Contains(f.Thing, p.thing) && strings.HasPrefix(f.By, p.by)
				})
				atBefore := slices.IndexFunc(former.Findings, p.before)
				if at == 0 {
					first[p.name]++
				}
				if atBefore == 0 {
					before[p.name]++
				}
				line = map[string]any{"window": p.name, "round": round, "load": loadNow(), "lost": now.Lost.Share, "usual": now.Lost.Usual, "observed": now.Lost.Observed, "place": at + 1, "causes": now.Lost.causes(), "former_place": atBefore + 1}
				var said []string
				for _, f := range now.Findings[:min(3, len(now.Findings))] {
					said = append(said, f.Sentence)
				}
				line["named"] = said
				if len(former.Findings) > 0 {
					line["former_named"] = former.Findings[0].Sentence
				}
				print(line)
				time.Sleep(trialPause)
				without = append(without, start.Add(-time.Second).UTC().Format(time.RFC3339Nano)+"/"+time.Now().UTC().Format(time.RFC3339Nano))
			}
			t.Logf("round %d: %s", round, time.Since(began).Round(time.Second))
		})
	}
	for _, name := range names {
		print(map[string]any{"figure": "explain-trials", "kind": name, "first": first[name], "of": of[name], "former_first": before[name]})
	}
	print(map[string]any{"figure": "explain-trials", "kind": "quiet", "alarms": alarms, "of": quiet, "former_alarms": alarmsBefore})
}

func loadNow() float64 {
	text, _ := os.ReadFile("/proc/loadavg") // an empty text is 0
	one, _, _ := strings.Cut(string(text), " ")
	v, _ := strconv.ParseFloat(one, 64)
	return v
}

// role starts this test binary under a name, in one of its roles.
func (m *trialMachine) role(name, role string, args ...string) (stop func()) {
	return m.program(name, os.Args[0], []string{"-test.run=^TestTrialRole$"}, append(os.Environ(), "PREMIX_TRIAL_ROLE="+role, "PREMIX_TRIAL_ARGS="+strings.Join(args, " "), "GOMAXPROCS=2"))
}

// program starts a program under a name.
func (m *trialMachine) program(name, path string, args, env []string) (stop func()) {
	m.t.Helper()
	link := filepath.Join(m.dir, name)
	_ = os.Remove(link)
	if err := os.Symlink(path, link); err != nil {
		m.t.Fatal(err)
	}
	cmd := exec.Command(link, args...)
	cmd.Env = env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread() // Pdeathsig is sent when the thread ends
	err := cmd.Start()
	runtime.UnlockOSThread()
	if err != nil {
		m.t.Fatal(err)
	}
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
			_ = cmd.Wait()
		}
	}
	m.t.Cleanup(stop)
	return stop
}

func (m *trialMachine) run(name string, args ...string) string {
	m.t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		m.t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

func (m *trialMachine) write(path, text string) {
	m.t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		m.t.Fatal(err)
	}
}

// cgroup makes a cgroup of version 1 that the test removes.
func (m *trialMachine) cgroup(controller, name string) string {
	m.t.Helper()
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		m.t.Fatal(err)
	}
	own := "/"
	for line := range strings.Lines(string(text)) {
		if f := strings.SplitN(strings.TrimSpace(line), ":", 3); len(f) == 3 && slices.Contains(strings.Split(f[1], ","), controller) {
			own = f[2]
		}
	}
	dir := filepath.Join("/sys/fs/cgroup", controller, own, fmt.Sprintf("trial-%d-%s", os.Getpid(), name))
	if err := os.Mkdir(dir, 0o755); err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() {
		comes(func() bool { return os.Remove(dir) == nil })
	})
	return dir
}

// load starts as many busy processes as the machine lacks to a load of twice its processors.
func (m *trialMachine) load() {
	for i := range max(0, 2*runtime.NumCPU()-int(loadNow())) {
		m.role(fmt.Sprintf("load%d", i), "spin")
	}
}

func newTrialMachine(t *testing.T) *trialMachine {
	t.Helper()
	m := &trialMachine{t: t, dir: t.TempDir()}
	m.disk, m.hang = filepath.Join(m.dir, "disk"), filepath.Join(m.dir, "hang")
	answers := filepath.Join(m.dir, "answers")
	for _, d := range []string{m.disk, answers} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	m.cpu, m.memory, m.others = m.cgroup("cpu", "tasks"), m.cgroup("memory", "tasks"), m.cgroup("cpu", "others")
	m.write(filepath.Join(m.others, "cpu.shares"), "4096")

	// A disk.
	image := filepath.Join(m.dir, "image")
	m.write(image, "")
	if err := os.Truncate(image, 2560<<20); err != nil {
		t.Fatal(err)
	}
	m.run("mkfs.ext4", "-q", "-F", "-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0", image)
	loop := m.run("losetup", "--find", "--show", image)
	t.Cleanup(func() { m.run("losetup", "-d", loop) })
	m.run("mount", loop, m.disk)
	t.Cleanup(func() { comes(func() bool { return exec.Command("umount", m.disk).Run() == nil }) })
	m.device = filepath.Base(loop)
	data, err := os.Create(filepath.Join(m.disk, "data"))
	if err == nil {
		_, err = data.Write(make([]byte, 48<<20))
	}
	if err == nil {
		err = data.Sync()
	}
	if err == nil {
		// The first reader of a page is charged for it: let that be a task.
		err = unix.Fadvise(int(data.Fd()), 0, 0, unix.FADV_DONTNEED)
	}
	if err == nil {
		err = data.Close()
	}
	if err != nil {
		t.Fatal(err)
	}

	// A file system whose server can hang.
	m.role("nfslike", "fuse", answers, m.hang)
	t.Cleanup(func() {
		_ = os.Remove(m.hang)
		comes(func() bool { return exec.Command("umount", answers).Run() == nil })
	})
	waitFor(t, "the FUSE file system", func() bool { _, err := os.Stat(filepath.Join(answers, "file")); return err == nil })

	// Two networks.
	m.run("ip", "link", "set", "lo", "up")
	far := exec.Command("unshare", "--net", "sleep", "100000")
	if err := far.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = far.Process.Kill(); _ = far.Wait() })
	pid := strconv.Itoa(far.Process.Pid)
	waitFor(t, "the other network", func() bool {
		a, _ := os.Readlink("/proc/self/ns/net")
		b, _ := os.Readlink("/proc/" + pid + "/ns/net")
		return b != "" && a != b
	})
	m.run("ip", "link", "add", "trial0", "type", "veth", "peer", "name", "trial1", "netns", pid)
	t.Cleanup(func() { _ = exec.Command("ip", "link", "del", "trial0").Run() })
	m.run("ip", "addr", "add", "10.99.0.1/24", "dev", "trial0")
	m.run("ip", "link", "set", "trial0", "up")
	m.run("nsenter", "-t", pid, "-n", "ip", "addr", "add", "10.99.0.2/24", "dev", "trial1")
	m.run("nsenter", "-t", pid, "-n", "ip", "link", "set", "trial1", "up")
	m.run("nsenter", "-t", pid, "-n", "tc", "qdisc", "add", "dev", "trial1", "root", "tbf", "rate", "300mbit", "burst", "256kb", "latency", "30ms")
	m.role("near", "serve")
	m.program("far", "/usr/bin/nsenter", []string{"-t", pid, "-n", os.Args[0], "-test.run=^TestTrialRole$"}, append(os.Environ(), "PREMIX_TRIAL_ROLE=serve"))
	for _, host := range []string{"127.0.0.1", "10.99.0.2"} {
		waitFor(t, "a server", func() bool {
			c, err := net.Dial("tcp", host+":7000")
			if err == nil {
				c.Close()
			}
			return err == nil
		})
	}

	// The watch.
	config := filepath.Join(m.dir, "watch.yaml")
	m.write(config, "collectors:\n  mount: {interval: 1s}\n")
	m.slowed = &slowed{t: t}
	env := append(os.Environ(), "PREMIX_HOME="+filepath.Join(m.dir, "home"))
	watch := exec.Command(binary, "watch", "--listen", "127.0.0.1:0", "--data", filepath.Join(m.dir, "metrics"), "--config", config, "--processes")
	watch.Env, watch.Stderr = env, os.Stderr
	out, err := watch.StdoutPipe()
	if err == nil {
		err = watch.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = watch.Process.Signal(syscall.SIGTERM); _, _ = io.Copy(io.Discard, out); _ = watch.Wait() })
	lines := bufio.NewReader(out)
	line, err := lines.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	_, address, ok := strings.Cut(strings.TrimSpace(line), "http://")
	if !ok {
		t.Fatalf("premix watch says %q", line)
	}
	m.slowed.url = "http://" + strings.TrimSuffix(address, "/")
	if _, err := lines.ReadString('\n'); err != nil { // after this line the token exists
		t.Fatal(err)
	}
	m.slowed.token = bearer(t, filepath.Join(m.dir, "metrics", "token"))
	go func() { _, _ = io.Copy(io.Discard, lines) }()

	// The tasks.
	script := filepath.Join(m.dir, "task.sh")
	m.write(script, fmt.Sprintf(`i=0; while [ $i -lt 4000 ]; do i=$((i+1)); done
cat %[1]s/data >/dev/null
for i in 1 2 3 4; do dd if=/dev/zero of=%[1]s/out$1 bs=16k count=2 conv=fsync status=none || exit 1; done
cat %[1]s/data >/dev/null
cat %[2]s/file >/dev/null
for host in 127.0.0.1 10.99.0.2; do exec 3<>/dev/tcp/$host/7000; cat <&3 >/dev/null; exec 3>&-; done
sleep 0.1
`, m.disk, answers))
	var tasks strings.Builder
	for i := range 40000 {
		fmt.Fprintf(&tasks, "bash %s %d\n", script, i%8)
	}
	m.write(filepath.Join(m.memory, "memory.limit_in_bytes"), "220M")
	running := exec.Command("sh", "-c", fmt.Sprintf("echo $$ >%s/cgroup.procs; echo $$ >%s/cgroup.procs; exec %s task run --out %s -j 3 -", m.cpu, m.memory, binary, filepath.Join(m.dir, "run")))
	running.Env, running.Stdin = env, strings.NewReader(tasks.String())
	if err := running.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = running.Process.Signal(syscall.SIGTERM); _ = running.Wait() })
	return m
}

// kinds returns the causes to plant.
func (m *trialMachine) kinds() []planted {
	several := func(n int, start func(i int) func()) func() func() {
		return func() func() {
			var stops []func()
			for i := range n {
				stops = append(stops, start(i))
			}
			return func() {
				for _, stop := range stops {
					stop()
				}
			}
		}
	}
	one := func(start func() func(), after ...string) func() func() {
		return func() func() {
			stop := start()
			return func() {
				stop()
				for _, f := range after {
					_ = os.Remove(f)
				}
			}
		}
	}
	disk := func(f explained) bool { return f.Labels["device"] == m.device || f.Labels["mount"] == m.disk }
	return []planted{
		{"metadata storm", "metadata storm", m.device, "storm", func() func() { return m.role("storm", "storm", m.disk) }, disk},
		{"bandwidth hog", "bandwidth hog", m.device, "hog", one(func() func() { return m.role("hog", "hog", m.disk+"/hog") }, m.disk+"/hog"), disk},
		{"disk nearly full", "disk nearly full", "", "", one(func() func() { return m.role("filler", "fill", m.disk+"/filler") }, m.disk+"/filler"),
			func(f explained) bool { return disk(f) || f.Name == "task.failed" }},
		{"runaway log", "runaway log", m.device, "chatty", one(func() func() { return m.role("chatty", "log", m.disk+"/log") }, m.disk+"/log"), disk},
		{"memory thrash", "memory thrash", "", "eater", func() func() { return m.role("eater", "eat", m.memory) },
			func(f explained) bool {
				return strings.HasPrefix(f.Name, "node.memory_") || f.Labels["resource"] == "memory" || f.Name == "node.major_faults" || f.Name == "task.memory"
			}},
		{"fork storm", "fork storm", "", "forker", several(4, func(int) func() {
			return m.program("forker", "/bin/sh", []string{"-c", "while :; do /bin/true; done"}, os.Environ())
		}), func(f explained) bool {
			return f.Name == "node.forks" || f.Name == "node.exits" || f.Name == "node.context_switches"
		}},
		{"network saturation (veth)", "network saturation", "trial0", "", func() func() { return m.role("flood", "flood", "10.99.0.2") },
			func(f explained) bool { return f.Labels["interface"] == "trial0" }},
		{"network saturation (loopback)", "network saturation", "lo", "", several(4, func(int) func() { return m.role("flood", "flood", "127.0.0.1") }),
			func(f explained) bool { return f.Labels["interface"] == "lo" }},
		{"hung file system", "hung file system", "answers", "", func() func() {
			m.write(m.hang, "")
			return func() { _ = os.Remove(m.hang) }
		}, func(f explained) bool { return strings.HasSuffix(f.Labels["mount"], "/answers") }},
		{"processor taken", "processor taken", "", "taker", several(4, func(int) func() { return m.role("taker", "spin", m.others) }),
			func(f explained) bool {
				return f.Labels["resource"] == "cpu" || strings.HasPrefix(f.Name, "node.cpu") || f.Name == "node.running"
			}},
		{"throttled by quota", "throttled by quota", filepath.Base(m.cpu), "", func() func() {
			// premix makes a cgroup for tasks with limits below, whose quota would exceed this.
			list, _ := filepath.Glob(filepath.Join(m.cpu, "premix-*", "cpu.cfs_quota_us"))
			for _, f := range list {
				m.write(f, "-1")
			}
			m.write(filepath.Join(m.cpu, "cpu.cfs_quota_us"), "5000")
			return func() { m.write(filepath.Join(m.cpu, "cpu.cfs_quota_us"), "-1") }
		}, func(f explained) bool { return f.Name == "task.throttled" || f.Name == "task.cpu" }},
	}
}

// waitFor waits until a condition is true.
func waitFor(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !is(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s does not come", what)
		}
	}
}

// TestTrialRole is a program that TestExplainTrials starts, and not a test.
func TestTrialRole(t *testing.T) {
	args := strings.Fields(os.Getenv("PREMIX_TRIAL_ARGS"))
	check := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	enter := func(cgroup string) {
		check(os.WriteFile(filepath.Join(cgroup, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0o644))
	}
	switch os.Getenv("PREMIX_TRIAL_ROLE") {
	case "spin":
		for _, cgroup := range args {
			enter(cgroup)
		}
		for i := 1; i != 0; i += 2 { // an odd number: without end
		}
	case "storm":
		for i := range 16 {
			go func() {
				for n := 0; ; n++ {
					path := filepath.Join(args[0], fmt.Sprintf("storm-%d-%d", i, n))
					if f, err := os.Create(path); err == nil {
						_, _ = f.WriteString("x")
						_ = f.Sync()
						f.Close()
					}
					_ = os.Remove(path)
				}
			}()
		}
		select {}
	case "hog":
		f, err := os.Create(args[0])
		check(err)
		b := make([]byte, 4<<20)
		for at := int64(0); ; at = (at + int64(len(b))) % (128 << 20) {
			_, err := f.WriteAt(b, at)
			check(err)
			if at%(32<<20) == 0 {
				check(f.Sync())
			}
		}
	case "fill":
		f, err := os.Create(args[0])
		check(err)
		var st syscall.Statfs_t
		check(syscall.Fstatfs(int(f.Fd()), &st))
		length := int64(st.Bavail)*st.Bsize - 48<<20
		check(syscall.Fallocate(int(f.Fd()), 0, 0, length))
		_, err = f.Seek(length, io.SeekStart)
		check(err)
		b := make([]byte, 4<<20)
		for {
			if _, err := f.Write(b); err != nil {
				if b = b[:max(len(b)/2, 4096)]; len(b) == 4096 {
					time.Sleep(time.Millisecond) // and take the blocks that the tasks give back
				}
			}
		}
	case "log":
		f, err := os.OpenFile(args[0], os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		check(err)
		line := []byte(strings.Repeat("something went wrong and is tried again\n", 800))
		for began := time.Now(); ; {
			n, err := f.Write(line)
			check(err)
			// 250 MB/s: the disk is not full before the trial ends.
			if at, err := f.Seek(0, io.SeekEnd); err == nil && float64(at) > 250e6*time.Since(began).Seconds() {
				time.Sleep(time.Duration(n) * 4)
			}
		}
	case "eat":
		enter(args[0])
		var kept [][]byte
		usage := func() int {
			text, err := os.ReadFile(filepath.Join(args[0], "memory.stat"))
			check(err)
			for line := range strings.Lines(string(text)) {
				if v, ok := strings.CutPrefix(line, "total_rss "); ok {
					n, _ := strconv.Atoi(strings.TrimSpace(v))
					return n
				}
			}
			return 0
		}
		for {
			// Leave less for the page cache than the tasks read again and again.
			for usage() < 190<<20 {
				b := make([]byte, 1<<20)
				for i := 0; i < len(b); i += 4096 {
					b[i] = 1
				}
				kept = append(kept, b)
			}
			runtime.KeepAlive(kept)
			time.Sleep(20 * time.Millisecond)
		}
	case "serve":
		for port, endless := range map[string]bool{"7000": false, "7002": true} {
			l, err := net.Listen("tcp", ":"+port)
			check(err)
			go func() {
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					go func() {
						defer c.Close()
						b := make([]byte, 64<<10)
						for {
							if _, err := c.Write(b); err != nil || !endless {
								return
							}
						}
					}()
				}
			}()
		}
		select {}
	case "flood":
		for range 4 {
			c, err := net.Dial("tcp", args[0]+":7002")
			check(err)
			go func() { _, _ = io.Copy(io.Discard, c) }()
		}
		select {}
	case "fuse":
		server, err := fs.Mount(args[0], &sleepyRoot{hang: args[1]}, &fs.Options{MountOptions: fuse.MountOptions{DirectMount: true, FsName: "server:/export", Name: "nfslike"}})
		check(err)
		server.Wait()
	default:
		t.Skip("a part of TestExplainTrials")
	}
}

// sleepyRoot is a file system with one file, whose server does not answer while a file
// exists.
type sleepyRoot struct {
	fs.Inode
	hang string
}

func (r *sleepyRoot) nap() {
	for {
		if _, err := os.Stat(r.hang); err != nil {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (r *sleepyRoot) OnAdd(ctx context.Context) {
	r.AddChild("file", r.NewPersistentInode(ctx, &sleepyFile{r: r}, fs.StableAttr{}), false)
}

func (r *sleepyRoot) Statfs(_ context.Context, out *fuse.StatfsOut) syscall.Errno {
	r.nap()
	*out = fuse.StatfsOut{Blocks: 1 << 20, Bfree: 1 << 19, Bavail: 1 << 19, Bsize: 4096, Frsize: 4096}
	return 0
}

type sleepyFile struct {
	fs.Inode
	r *sleepyRoot
}

func (f *sleepyFile) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	out.Mode, out.Size = 0o644, 4096
	return 0
}

func (f *sleepyFile) Open(context.Context, uint32) (fs.FileHandle, uint32, syscall.Errno) {
	f.r.nap()
	return nil, fuse.FOPEN_DIRECT_IO, 0
}

func (f *sleepyFile) Read(_ context.Context, _ fs.FileHandle, b []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	f.r.nap()
	return fuse.ReadResultData(make([]byte, max(0, min(int64(len(b)), 4096-off)))), 0
}
