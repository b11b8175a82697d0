package local

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"premix/internal/kit/mountinfo"
)

// TestHierarchies reads cgroup layouts of different kinds of systems.
func TestHierarchies(t *testing.T) {
	unified := t.TempDir()
	user := filepath.Join(unified, "user.slice/run-1.scope")
	if err := os.MkdirAll(user, 0o777); err != nil {
		t.Fatal(err)
	}
	for dir, text := range map[string]string{unified: "cpuset cpu io memory hugetlb pids rdma misc", user: "cpu memory pids"} {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.controllers"), []byte(text+"\n"), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	const v1 = `25 1 0:22 / /sys/fs/cgroup rw,relatime shared:5 - tmpfs tmpfs rw,mode=755
26 25 0:23 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
27 25 0:24 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
28 25 0:25 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
29 25 0:26 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,name=systemd
`
	for _, c := range []struct {
		name, mountinfo, cgroup string
		want                    []hierarchy
	}{
		{"version 1", v1, "12:memory:/user/1\n5:pids:/user/1\n3:cpu,cpuacct:/\n1:name=systemd:/x\n", []hierarchy{
			{mount: "/sys/fs/cgroup/memory", own: "/sys/fs/cgroup/memory/user/1", controllers: []string{"memory"}},
			{mount: "/sys/fs/cgroup/pids", own: "/sys/fs/cgroup/pids/user/1", controllers: []string{"pids"}},
			{mount: "/sys/fs/cgroup/cpu,cpuacct", own: "/sys/fs/cgroup/cpu,cpuacct", controllers: []string{"cpu"}},
		}},
		{"version 2", "30 1 0:27 / " + unified + " rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n", "0::/user.slice/run-1.scope\n", []hierarchy{
			{mount: unified, own: user, v2: true, controllers: []string{"memory", "cpu", "pids"}},
		}},
		{"both: a controller belongs to one", v1 + "30 25 0:27 / " + unified + " rw - cgroup2 cgroup2 rw\n", "12:memory:/\n5:pids:/\n0::/\n", []hierarchy{
			{mount: "/sys/fs/cgroup/memory", own: "/sys/fs/cgroup/memory", controllers: []string{"memory"}},
			{mount: "/sys/fs/cgroup/pids", own: "/sys/fs/cgroup/pids", controllers: []string{"pids"}},
			{mount: unified, own: unified, v2: true, controllers: []string{"cpu"}},
		}},
		{"container that sees its own part", "40 1 0:30 /docker/ab /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n", "12:memory:/docker/ab/job\n", []hierarchy{
			{mount: "/sys/fs/cgroup/memory", own: "/sys/fs/cgroup/memory/job", controllers: []string{"memory"}},
		}},
		{"container that is its own part", "40 1 0:30 /docker/ab /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n", "12:memory:/docker/ab\n", []hierarchy{
			{mount: "/sys/fs/cgroup/memory", own: "/sys/fs/cgroup/memory", controllers: []string{"memory"}},
		}},
		{"path with a colon", "27 25 0:24 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n", "12:memory:/a:b\n", []hierarchy{
			{mount: "/sys/fs/cgroup/memory", own: "/sys/fs/cgroup/memory/a:b", controllers: []string{"memory"}},
		}},
		{"nothing mounted", "1 0 8:1 / / rw - ext4 /dev/sda rw\n", "0::/\n", nil},
		{"no files", "\n", "\n", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := hierarchies(c.mountinfo, c.cgroup); !reflect.DeepEqual(got, c.want) {
				t.Errorf("got %+v\nwant %+v", got, c.want)
			}
		})
	}
}

func TestMachineIsCutToCgroups(t *testing.T) {
	root := t.TempDir()
	own := filepath.Join(root, "a", "b")
	if err := os.MkdirAll(own, 0o777); err != nil {
		t.Fatal(err)
	}
	put := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(root, name), []byte(text+"\n"), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	h := hierarchy{mount: root, own: own, v2: true}
	if _, ok := h.memory(); ok {
		t.Error("a limit where there is none")
	}
	put("a/b/memory.max", "max")
	put("a/memory.max", "1048576")
	put("a/b/cpu.max", "max 100000")
	put("a/cpu.max", "150000 100000")
	if got, ok := h.memory(); !ok || got != 1<<20 {
		t.Errorf("memory %d, %v", got, ok)
	}
	if got, ok := h.quota(); !ok || got != 1.5 {
		t.Errorf("quota %v, %v", got, ok)
	}
	if got := cores([]hierarchy{h}); got != 1 {
		t.Errorf("cores %d", got)
	}
	if got, err := memory([]hierarchy{h}); err != nil || got != 1<<20 {
		t.Errorf("memory %d, %v", got, err)
	}
	old := hierarchy{mount: root, own: own}
	put("memory.limit_in_bytes", "9223372036854771712")
	put("a/b/memory.limit_in_bytes", "4096")
	put("a/cpu.cfs_quota_us", "-1")
	put("a/b/cpu.cfs_quota_us", "50000")
	put("a/b/cpu.cfs_period_us", "100000")
	if got, ok := old.memory(); !ok || got != 4096 {
		t.Errorf("memory %d, %v", got, ok)
	}
	if got, ok := old.quota(); !ok || got != 0.5 {
		t.Errorf("quota %v, %v", got, ok)
	}
}

// TestVersion2Limits uses a recorded version 2 layout: the own cgroup is delegated to this user,
// and its controllers are not yet enabled for children.
func TestVersion2Limits(t *testing.T) {
	own := t.TempDir()
	c, lacks := newCgroups([]hierarchy{{mount: own, own: own, v2: true, controllers: []string{"memory", "cpu", "pids"}}}, 6)
	if c == nil || len(lacks) > 0 {
		t.Fatalf("no cgroups: %v", lacks)
	}
	g, err := c.add("7.1", limits{memory: 1 << 30, threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	parent := filepath.Join(own, parentName(os.Getpid()))
	task := filepath.Join(parent, "7.1")
	if !reflect.DeepEqual(g.dirs, []string{task}) {
		t.Errorf("directories %v", g.dirs)
	}
	for path, want := range map[string]string{
		parent + "/cpu.max":                "600000 100000",
		task + "/memory.max":               "1073741824",
		task + "/memory.swap.max":          "0",
		task + "/memory.oom.group":         "1",
		task + "/cpu.weight":               "200",
		task + "/pids.max":                 "4096",
		own + "/cgroup.subtree_control":    "+pids", // plain files keep the last value written
		parent + "/cgroup.subtree_control": "+pids",
	} {
		if got := readString(path); got != want {
			t.Errorf("%s is %q, want %q", strings.TrimPrefix(path, own), got, want)
		}
	}
	if err := os.WriteFile(task+"/memory.events", []byte("low 0\nhigh 0\nmax 31\noom 1\noom_kill 3\noom_group_kill 1\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	if n := g.oomKills(); n != 3 {
		t.Errorf("oom kills %d", n)
	}
}

func TestVersion2KeepsWhatIsDelegated(t *testing.T) {
	own := t.TempDir()
	if err := os.WriteFile(filepath.Join(own, "cgroup.subtree_control"), []byte("memory pids\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	c, lacks := newCgroups([]hierarchy{{mount: own, own: own, v2: true, controllers: []string{"memory", "pids"}}}, 1)
	if c == nil || len(lacks) > 0 {
		t.Fatalf("no cgroups: %v", lacks)
	}
	if got := readString(filepath.Join(own, "cgroup.subtree_control")); got != "memory pids" {
		t.Errorf("subtree control was written: %q", got)
	}
	if len(c.parents[0].enabled) > 0 {
		t.Errorf("enabled %v", c.parents[0].enabled)
	}
}

func TestNoCgroupsIsToldAndNotFatal(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "gone")
	c, lacks := newCgroups([]hierarchy{{own: missing, controllers: []string{"memory"}}}, 1)
	if c != nil || len(lacks) != 1 || !strings.HasPrefix(lacks[0], "memory of tasks: mkdir "+missing) {
		t.Fatalf("cgroups %v, lacks %q", c, lacks)
	}
	g, err := c.add("1.1", limits{memory: 64 << 20, threads: 3})
	if err != nil || len(g.dirs) != 0 || g.oomKills() != 0 || g.remove() != nil || c.close() != nil {
		t.Errorf("group %+v, error %v", g, err)
	}
	if _, lacks := newCgroups(nil, 1); !slices.Equal(lacks, []string{"memory, CPU and processes of tasks: no cgroup hierarchy is mounted"}) {
		t.Errorf("lacks %q", lacks)
	}
}

// The same error in several hierarchies is reported once, as an ordinary user sees it with version
// 1. The test uses a directory in which no user can make a directory.
func TestOneReasonIsToldOnce(t *testing.T) {
	const closed = "/sys/kernel"
	if err := os.Mkdir(closed+"/x", 0o755); !errors.Is(err, fs.ErrPermission) && !errors.Is(err, unix.EROFS) {
		t.Skipf("a directory in %s gives %v, not a refusal", closed, err)
	}
	gone := filepath.Join(t.TempDir(), "gone")
	_, lacks := newCgroups([]hierarchy{
		{own: closed, controllers: []string{"pids"}},
		{own: gone, controllers: []string{"cpu"}},
		{own: closed, controllers: []string{"memory"}},
	}, 1)
	if len(lacks) != 2 || lacks[0] != "memory and processes of tasks: no right to make cgroups" || !strings.HasPrefix(lacks[1], "CPU of tasks: mkdir "+gone) {
		t.Errorf("lacks %q", lacks)
	}
}

// writable returns the hierarchies in which this process can make cgroups.
func writable(t *testing.T) []hierarchy {
	t.Helper()
	list := thisHierarchies()
	if len(list) == 0 {
		t.Skip("no cgroup hierarchy with a memory, cpu or pids controller is mounted")
	}
	for _, h := range list {
		if err := unix.Access(h.own, unix.W_OK); err != nil {
			t.Skipf("no permission to make cgroups in %s: %v", h.own, err)
		}
	}
	return list
}

func TestKernelTakesTheLimits(t *testing.T) {
	list := writable(t)
	c, lacks := newCgroups(list, 2)
	if c == nil || len(lacks) > 0 {
		t.Fatalf("no cgroups: %v", lacks)
	}
	g, err := c.add("1.1", limits{memory: 64 << 20, threads: 3})
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range c.parents {
		want := map[string]string{}
		switch {
		case p.has("memory") && p.v2:
			want["memory.max"] = "67108864"
		case p.has("memory"):
			want["memory.limit_in_bytes"] = "67108864"
		case p.has("cpu"):
			want["cpu.shares"] = "3072"
		case p.has("pids"):
			want["pids.max"] = "4096"
		}
		for name, value := range want {
			if got := readString(filepath.Join(g.dirs[i], name)); got != value {
				t.Errorf("%s is %q, want %q", name, got, value)
			}
		}
	}
	sleeper := join(t, g.dirs)
	if err := g.remove(); err != nil {
		t.Error(err)
	}
	if err := c.close(); err != nil {
		t.Error(err)
	}
	if err := sleeper.Wait(); err == nil {
		t.Error("the process in the cgroup was not killed")
	}
	for _, p := range c.parents {
		if _, err := os.Lstat(p.dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left: %v", p.dir, err)
		}
	}
}

// join starts a process that joins cgroups and then sleeps.
func join(t *testing.T, dirs []string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sh", append([]string{"-c", `for d do echo 0 >"$d/cgroup.procs" || exit 1; done; echo in; exec sleep 600`, "sh"}, dirs...)...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "in\n" {
		t.Fatalf("the process did not join: %q, %v", line, err)
	}
	return cmd
}

// premix kills and removes cgroups in the kernel's version 2 hierarchy, with or without
// controllers.
func TestKernelVersion2Removes(t *testing.T) {
	var own string
	mounts, err := mountinfo.Read()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mounts {
		for line := range strings.Lines(readString("/proc/self/cgroup") + "\n") {
			if path, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "0::"); ok && m.Type == "cgroup2" {
				own = m.Shows(path)
			}
		}
	}
	if own == "" {
		t.Skip("no cgroup version 2 hierarchy is mounted")
	}
	dir := filepath.Join(own, fmt.Sprintf("premix-test-%d", os.Getpid()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Skipf("no permission to make a cgroup: %v", err)
	}
	if err := os.Mkdir(filepath.Join(dir, "in"), 0o755); err != nil {
		t.Fatal(err)
	}
	sleeper := join(t, []string{filepath.Join(dir, "in")})
	if err := removeGroups(dir); err != nil {
		t.Error(err)
	}
	if err := sleeper.Wait(); err == nil {
		t.Error("the process in the cgroup was not killed")
	}
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the cgroup is left: %v", err)
	}
}

func TestStaleParentsAreCleaned(t *testing.T) {
	// Each premix removes the stale cgroups in its own cgroup, including those of other tests: use
	// a cgroup that no other test uses.
	own := filepath.Join(writable(t)[0].own, fmt.Sprintf("test-%d", os.Getpid()))
	if err := os.Mkdir(own, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := removeGroups(own); err != nil {
			t.Error(err)
		}
	})
	dead := exec.Command("true")
	if err := dead.Run(); err != nil {
		t.Fatal(err)
	}
	name := func(pid int, start, ns string) string {
		return filepath.Join(own, fmt.Sprintf("premix-%d.%s.%s", pid, start, ns))
	}
	stale := []string{
		name(dead.ProcessState.Pid(), "123", pidNamespace()), // there is no such process
		name(os.Getppid(), "1", pidNamespace()),              // the process number is in use again
	}
	kept := []string{
		filepath.Join(own, parentName(os.Getppid())),       // alive
		name(dead.ProcessState.Pid(), "123", "4026000000"), // of another PID namespace, so its state is unknown
		filepath.Join(own, "premix-x"),
	}
	for _, dir := range append(append([]string{}, stale...), kept...) {
		if err := os.MkdirAll(filepath.Join(dir, "1.1"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	sleeper := join(t, []string{filepath.Join(stale[0], "1.1")})
	cleanStale(own)
	if err := sleeper.Wait(); err == nil {
		t.Error("a process in a stale cgroup was not killed")
	}
	for _, dir := range stale {
		if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("stale %s is left: %v", dir, err)
		}
	}
	for _, dir := range kept {
		if _, err := os.Lstat(dir); err != nil {
			t.Errorf("%s was removed: %v", dir, err)
		}
	}
}

// has reports whether tasks can be limited by a controller.
func (c *cgroups) has(controller string) bool {
	if c == nil {
		return false
	}
	for i := range c.parents {
		if c.parents[i].has(controller) {
			return true
		}
	}
	return false
}
