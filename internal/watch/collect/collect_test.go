package collect

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/engine/slurm"
	"premix/internal/hotstart/calls"
	"premix/internal/node"
	"premix/internal/watch"
)

// recorder is a sink that keeps everything.
type recorder struct {
	mu      sync.Mutex
	samples []watch.Sample
	tasks   []watch.Task
	events  []watch.Event
}

func (r *recorder) Samples(list []watch.Sample) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.samples = append(r.samples, list...)
}

func (r *recorder) Task(t watch.Task) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tasks = append(r.tasks, t)
}

func (r *recorder) Event(e watch.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
}

// last is the last value of a series, by its text without the node.
func (r *recorder) last(id string) (float64, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range slices.Backward(r.samples) {
		if text(s.ID) == id {
			return s.Value, true
		}
	}
	return 0, false
}

func text(id watch.ID) string {
	var rest []string
	for _, l := range id.Labels {
		if l.Key != "node" {
			rest = append(rest, l.Key, l.Value)
		}
	}
	return watch.NewID(id.Name, rest...).String()
}

func (r *recorder) kinds() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []string
	for _, e := range r.events {
		list = append(list, e.Kind)
	}
	return strings.Join(list, " ")
}

// want compares values of series. A negative one stands for none.
func (r *recorder) want(t *testing.T, values map[string]float64) {
	t.Helper()
	for id, want := range values {
		got, ok := r.last(id)
		switch {
		case want < 0 && ok:
			t.Errorf("%s is %v, and should not be there", id, got)
		case want >= 0 && !ok:
			t.Errorf("there is no %s", id)
		case want >= 0 && math.Abs(got-want) > 1e-7*math.Max(1, want): // rates have 24 bits
			t.Errorf("%s is %v, want %v", id, got, want)
		}
	}
}

// bench is a machine made of files, with a clock that is set.
type bench struct {
	*machine
	t     *testing.T
	clock *fakeClock
	sink  *recorder
}

func newBench(t *testing.T) *bench {
	t.Helper()
	root := t.TempDir()
	copyTree(t, "testdata/root", root)
	clock := &fakeClock{moment: Moment{Wall: time.Date(2026, 11, 17, 12, 0, 0, 0, time.UTC)}}
	return &bench{t: t, clock: clock, sink: &recorder{}, machine: &machine{catalogue: newCatalogue("n1"), root: root,
		now: func() time.Time { return time.Unix(0, 0).Add(clock.Now().Mono) }, wall: func() time.Time { return clock.Now().Wall }}}
}

func copyTree(t *testing.T, from, to string) {
	t.Helper()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
}

// look has a collector look, and lets two seconds pass before.
func (b *bench) look(c watch.Collector) {
	b.t.Helper()
	b.clock.advance(2 * time.Second)
	if err := c.Collect(context.Background(), b.wall(), b.sink); err != nil {
		b.t.Fatalf("%s: %v", c.Name(), err)
	}
}

func (b *bench) write(name, text string) {
	b.t.Helper()
	path := b.path(name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		b.t.Fatal(err)
	}
}

// edit replaces text in a file, which must be there.
func (b *bench) edit(name string, oldNew ...string) {
	b.t.Helper()
	text, err := b.read(name)
	if err != nil {
		b.t.Fatal(err)
	}
	for i := 0; i < len(oldNew); i += 2 {
		if !strings.Contains(text, oldNew[i]) {
			b.t.Fatalf("%s has no %q", name, oldNew[i])
		}
		text = strings.Replace(text, oldNew[i], oldNew[i+1], 1)
	}
	b.write(name, text)
}

// field is a word of the line that begins with a word.
func (b *bench) field(name, line string, n int) float64 {
	b.t.Helper()
	text, err := b.read(name)
	if err != nil {
		b.t.Fatal(err)
	}
	for l := range strings.Lines(text) {
		if f := strings.Fields(l); len(f) > n && f[0] == line {
			return number(f[n])
		}
	}
	b.t.Fatalf("%s has no line %s", name, line)
	return 0
}

func TestHardware(t *testing.T) {
	b := newBench(t)
	c := newHardware(b.machine)
	b.write("proc/stat", "cpu  1000 10 500 9000 100 5 5 3 7 0\ncpu0 500 5 250 4500 50 5 5 3 7 0\ncpu1 500 5 250 4500 50 0 0 0 0 0\nctxt 5000\nprocesses 70\nprocs_running 3\nprocs_blocked 1\n")
	b.write("proc/meminfo", "MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    600 kB\nBuffers:          50 kB\nCached:          300 kB\nSwapTotal:       200 kB\nSwapFree:        150 kB\nDirty:             8 kB\nWriteback:         4 kB\nAnonPages:        77 kB\n")
	b.write("proc/vmstat", "pgmajfault 10\npswpin 3\npswpout 4\noom_kill 0\n")
	b.write("proc/pressure/io", "some avg10=0.00 avg60=0.00 avg300=0.00 total=1000000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=500000\n")
	b.look(c)
	b.sink.want(t, map[string]float64{
		"node.cpu_user": -1, `node.cpu_busy{cpu="0"}`: -1, "node.forks": -1, // nothing is known yet
		"node.running": 3, "node.blocked": 1, "node.memory_total": 1024000, "node.memory_cached": 350 * 1024, "node.swap_used": 50 * 1024,
	})
	b.write("proc/stat", "cpu  1200 10 560 9100 120 5 5 3 7 0\ncpu0 600 5 280 4550 60 5 5 3 7 0\ncpu1 500 5 250 4500 50 0 0 0 0 0\nctxt 5600\nprocesses 80\nprocs_running 3\nprocs_blocked 1\n")
	b.write("proc/vmstat", "pgmajfault 30\npswpin 5\npswpout 4\noom_kill 2\n")
	b.write("proc/pressure/io", "some avg10=0.00 avg60=0.00 avg300=0.00 total=1500000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=9900000\n")
	b.look(c)
	b.sink.want(t, map[string]float64{
		"node.cpu_user": 1, "node.cpu_system": 0.3, "node.cpu_wait": 0.1, "node.cpu_idle": 0.5, "node.cpu_stolen": 0,
		`node.cpu_busy{cpu="0"}`: 130.0 / 190, `node.cpu_busy{cpu="1"}`: -1,
		"node.context_switches": 300, "node.forks": 5, "node.major_faults": 10, "node.oom_kills": 1,
		"node.swap_in": float64(os.Getpagesize()), "node.swap_out": 0,
		`node.pressure{kind="some",resource="io"}`: 0.25, `node.pressure{kind="full",resource="io"}`: 1,
	})
	// A counter that began at 0 again gives no value, and then continues.
	b.write("proc/vmstat", "pgmajfault 4\noom_kill 2\n")
	b.sink = &recorder{}
	b.look(c)
	b.sink.want(t, map[string]float64{"node.major_faults": -1, "node.oom_kills": 0, "node.swap_in": -1})
	b.write("proc/vmstat", "pgmajfault 10\noom_kill 2\n")
	b.look(c)
	b.sink.want(t, map[string]float64{"node.major_faults": 3})
}

func TestRecordedMachine(t *testing.T) {
	b := newBench(t)
	for _, c := range []watch.Collector{newHardware(b.machine), newDisk(b.machine), newNetwork(b.machine), newMounts(b.machine), newNFS(b.machine)} {
		b.look(c)
		b.look(c)
	}
	// Nothing changed in between.
	for _, s := range b.sink.samples {
		if (s.Unit == watch.PerSecond || s.Unit == watch.BytesPerSecond) && s.Value != 0 {
			t.Errorf("%s: %v", s.ID, s.Value)
		}
	}
	b.sink.want(t, map[string]float64{
		`node.load{minutes="1"}`: b.float("proc/loadavg", 0), "node.memory_total": 1024 * b.field("proc/meminfo", "MemTotal:", 1),
		`disk.in_flight{device="vda"}`: 0, `disk.reads{device="vda"}`: 0, `disk.reads{device="loop4"}`: -1, `network.sent_bytes{interface="lo"}`: 0,
	})
}

func (b *bench) float(name string, n int) float64 {
	var v float64
	text, _ := b.read(name)
	if _, err := fmt.Sscan(strings.Fields(text)[n], &v); err != nil {
		b.t.Fatal(err)
	}
	return v
}

func TestDisk(t *testing.T) {
	b := newBench(t)
	c := newDisk(b.machine)
	b.write("sys/class/block/sda1/partition", "1\n")
	b.write("proc/diskstats", `   8       0 sda 100 0 1000 50 200 0 2000 80 3 1000 300 0 0 0 0 7 9
   8       1 sda1 90 0 900 50 200 0 2000 80 3 1000 300 0 0 0 0 7 9
   7       0 loop0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0
   8      16 sdb 5 0 5 5 5 0 5 5 0 5 5
`)
	b.look(c)
	b.write("proc/diskstats", `   8       0 sda 110 0 3000 100 202 0 2400 88 5 5000 1300 0 0 0 0 9 9
   8       1 sda1 95 0 900 50 200 0 2000 80 3 1000 300 0 0 0 0 7 9
   8      16 sdb 5 0 5 5 9 0 5 5 0 5 5
`)
	b.look(c)
	b.sink.want(t, map[string]float64{
		`disk.reads{device="sda"}`: 5, `disk.read_bytes{device="sda"}`: 512000, `disk.read_wait{device="sda"}`: 0.005,
		`disk.writes{device="sda"}`: 1, `disk.written_bytes{device="sda"}`: 200 * 512, `disk.write_wait{device="sda"}`: 0.004,
		`disk.in_flight{device="sda"}`: 5, `disk.busy{device="sda"}`: 1, `disk.queued{device="sda"}`: 0.5, `disk.flushes{device="sda"}`: 1,
		`disk.reads{device="sda1"}`: -1, `disk.reads{device="loop0"}`: -1,
		`disk.writes{device="sdb"}`: 2, `disk.flushes{device="sdb"}`: -1, `disk.read_wait{device="sdb"}`: -1,
	})
	// A disk that is removed and inserted again begins at 0.
	b.write("proc/diskstats", "   8       0 sda 111 0 3000 100 202 0 2400 88 5 5000 1300\n")
	b.look(c)
	b.sink = &recorder{}
	b.write("proc/diskstats", "   8       0 sda 4 0 30 10 20 0 20 8 0 50 13\n   8      16 sdb 50 0 5 5 90 0 5 5 0 5 5\n")
	b.look(c)
	b.sink.want(t, map[string]float64{`disk.reads{device="sda"}`: -1, `disk.reads{device="sdb"}`: -1, `disk.in_flight{device="sdb"}`: 0})
}

func TestNetwork(t *testing.T) {
	b := newBench(t)
	c := newNetwork(b.machine)
	head := "Inter-|   Receive |  Transmit\n face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n"
	b.write("proc/net/dev", head+"  eth0: 1000 10 0 1 0 0 0 0 2000 20 1 0 0 0 0 0\n  ifb0: 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n")
	snmp := "Ip: Forwarding\nIp: 1\nTcp: CurrEstab OutSegs RetransSegs EstabResets\nTcp: 4 %d 7 2\nUdp: InErrors\nUdp: 3\n"
	b.write("proc/net/snmp", fmt.Sprintf(snmp, 100))
	b.look(c)
	b.write("proc/net/dev", head+"  eth0:3000 14 2 1 0 0 0 0 2400 30 1 8 0 0 0 0\n")
	b.write("proc/net/snmp", fmt.Sprintf(snmp, 150))
	b.look(c)
	b.sink.want(t, map[string]float64{
		`network.received_bytes{interface="eth0"}`: 1000, `network.received_packets{interface="eth0"}`: 2,
		`network.sent_bytes{interface="eth0"}`: 200, `network.sent_packets{interface="eth0"}`: 5,
		`network.errors{interface="eth0"}`: 1, `network.drops{interface="eth0"}`: 4, `network.drops{interface="ifb0"}`: -1,
		"network.tcp_sent": 25, "network.tcp_retransmits": 0, "network.tcp_connections": 4, "network.udp_errors": 0, "network.tcp_resets": 0,
	})
}

func TestNFS(t *testing.T) {
	b := newBench(t)
	c := newNFS(b.machine)
	b.look(c)
	b.edit("proc/self/mountstats", "1210214218 1000 295483", "1210218218 1600 295483",
		"GETATTR: 100 101 1 9608 1460 3 64 82 2", "GETATTR: 104 109 3 9608 1460 3 84 122 4")
	b.look(c)
	m := `{mount="/home/with blank"`
	b.sink.want(t, map[string]float64{
		"mount.nfs_read_bytes" + m + "}": 2000, "mount.nfs_written_bytes" + m + "}": 300,
		"mount.nfs_requests" + m + `,operation="getattr"}`: 2, "mount.nfs_round_trip" + m + `,operation="getattr"}`: 0.005,
		"mount.nfs_time" + m + `,operation="getattr"}`: 0.01, "mount.nfs_retransmits" + m + `,operation="getattr"}`: 2,
		"mount.nfs_timeouts" + m + `,operation="getattr"}`: 1, "mount.nfs_errors" + m + `,operation="getattr"}`: 1,
		"mount.nfs_requests" + m + `,operation="read"}`: 0, "mount.nfs_requests" + m + `,operation="write"}`: -1,
		`mount.nfs_requests{mount="/mnt/old",operation="read"}`: 0, `mount.nfs_errors{mount="/mnt/old",operation="read"}`: -1,
		`mount.nfs_read_bytes{mount="/"}`: -1,
	})
	if err := os.Remove(b.path("proc/self/mountstats")); err != nil {
		t.Fatal(err)
	}
	b.look(c) // a kernel without NFS
}

// lustreFiles puts the recorded statistics where old and new versions have them.
func lustreFiles(b *bench) {
	for from, to := range map[string]string{
		"llite": "proc/fs/lustre/llite/work-ffff8104435c8c00/stats", "osc": "sys/kernel/debug/lustre/osc/work-OST0000-osc-ffff81032792f800/stats",
		"mdc": "sys/kernel/debug/lustre/mdc/work-MDT0000-mdc-ffff8104435c8c00/stats",
	} {
		text, err := os.ReadFile("testdata/lustre/" + from)
		if err != nil {
			b.t.Fatal(err)
		}
		b.write(to, string(text))
	}
}

func TestLustre(t *testing.T) {
	b := newBench(t)
	c := newLustre(b.machine)
	b.look(c) // no Lustre
	if len(b.sink.samples) > 0 {
		t.Error(b.sink.samples)
	}
	lustreFiles(b)
	b.look(c)
	b.edit("proc/fs/lustre/llite/work-ffff8104435c8c00/stats", "716800 5971968", "716800 5972968", "1048576 249338619", "1048576 249340619",
		"open                      481", "open                      487")
	b.edit("sys/kernel/debug/lustre/osc/work-OST0000-osc-ffff81032792f800/stats", "2000 samples [usec] 31 19323671 4000000", "2010 samples [usec] 31 19323671 4200000")
	b.look(c)
	b.sink.want(t, map[string]float64{
		`mount.lustre_read_bytes{filesystem="work"}`: 500, `mount.lustre_written_bytes{filesystem="work"}`: 1000,
		`mount.lustre_calls{filesystem="work",operation="open"}`: 3, `mount.lustre_calls{filesystem="work",operation="read"}`: 0,
		`mount.lustre_requests{target="work-OST0000"}`: 5, `mount.lustre_round_trip{target="work-OST0000"}`: 0.02,
		`mount.lustre_requests{target="work-MDT0000"}`: 0, `mount.lustre_round_trip{target="work-MDT0000"}`: -1,
	})
}

func recorded(t *testing.T, name string) string {
	t.Helper()
	return recordedFile(t, name)
}

func recordedFile(t testing.TB, name string) string {
	t.Helper()
	text, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// gpfsAnswers makes a collector that hears recorded answers.
func gpfsAnswers(b *bench, mmpmon, mmdiag *string) *gpfs {
	c := newGPFS(b.machine)
	b.write("usr/lpp/mmfs/bin/mmpmon", "")
	c.run = func(_ context.Context, _, program string, _ ...string) (string, error) {
		if filepath.Base(program) == "mmpmon" {
			return *mmpmon, nil
		}
		return *mmdiag, nil
	}
	return c
}

func TestGPFS(t *testing.T) {
	b := newBench(t)
	io, waiters := recorded(t, "gpfs/mmpmon"), recorded(t, "gpfs/waiters")
	none := newGPFS(b.machine)
	b.look(none)
	c := gpfsAnswers(b, &io, &waiters)
	b.look(c)
	io = strings.NewReplacer("3592793024", "3592795024", "_oc_ 6758", "_oc_ 6768", "_iu_ 169", "_iu_ 3").Replace(io)
	b.look(c)
	want := map[string]float64{
		`mount.gpfs_read_bytes{filesystem="scratch"}`: 1000, `mount.gpfs_written_bytes{filesystem="scratch"}`: 0,
		`mount.gpfs_calls{filesystem="scratch",operation="open"}`: 5, `mount.gpfs_calls{filesystem="project",operation="inode_update"}`: -1, // it began anew
		`mount.gpfs_calls{filesystem="project",operation="close"}`: 0,
		`mount.gpfs_waiters{reason="for I/O completion"}`:          2, `mount.gpfs_longest_wait{reason="for I/O completion"}`: 64.3890,
		`mount.gpfs_waiters{reason="for poll on sock"}`: 1, `mount.gpfs_longest_wait{reason="Waiting to reap fsck pointer"}`: 6861.7395,
		`mount.gpfs_waiters{reason="RebuildWorkThread"}`: 1,
	}
	b.sink.want(t, want)
	// The other form of the same.
	b.sink = &recorder{}
	waiters = recorded(t, "gpfs/waiters-Y")
	b.look(c)
	for id := range want {
		if !strings.Contains(id, "reason") {
			delete(want, id)
		}
	}
	b.sink.want(t, want)
	// Nobody waits any more: series end at 0, once.
	waiters = ""
	b.look(c)
	b.sink.want(t, map[string]float64{`mount.gpfs_waiters{reason="for I/O completion"}`: 0, `mount.gpfs_longest_wait{reason="RebuildWorkThread"}`: 0})
	b.sink = &recorder{}
	b.look(c)
	b.sink.want(t, map[string]float64{`mount.gpfs_waiters{reason="for I/O completion"}`: -1})
	if got := parseMmpmon("_fs_io_s_ _n_ 1.1.1.1 _nn_ h _rc_ 1 _t_ 1 _tu_ 2 _cl_ - _fs_ -\n_io_s_ _n_ 1.1.1.1 _nn_ h _rc_ 0 _t_ 1 _tu_ 2 _br_ 5 _bw_ 6 _oc_ 1\n"); len(got) != 1 || got[0].system != "all" || got[0].written != 6 || got[0].calls["open"] != 1 {
		t.Errorf("%+v", got)
	}
}

func TestMounts(t *testing.T) {
	b := newBench(t)
	c := newMounts(b.machine)
	release := make(chan struct{})
	var mu sync.Mutex
	asked := 0
	c.statfs = func(path string, st *unix.Statfs_t) error {
		if strings.HasSuffix(path, "/dead") {
			mu.Lock()
			asked++
			mu.Unlock()
			<-release
		}
		*st = unix.Statfs_t{Blocks: 100, Bavail: 40, Bsize: 1 << 20, Frsize: 4096, Files: 10, Ffree: 7}
		return nil
	}
	rootfs := "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n28 27 254:0 /x /bind rw - ext4 /dev/vda rw\n29 27 0:5 / /proc rw - proc proc rw\n"
	b.write("proc/self/mountinfo", rootfs)
	b.look(c)
	b.sink.want(t, map[string]float64{`mount.size{mount="/",type="ext4"}`: 409600, `mount.available{mount="/",type="ext4"}`: 40 * 4096,
		`mount.inodes{mount="/",type="ext4"}`: 10, `mount.inodes_free{mount="/",type="ext4"}`: 7, `mount.size{mount="/bind",type="ext4"}`: -1, `mount.size{mount="/proc",type="proc"}`: -1})
	if got := b.sink.kinds(); got != "" {
		t.Error("events: " + got)
	}
	// A dead server does not delay the other mounts.
	b.write("proc/self/mountinfo", rootfs+`30 27 0:60 / /mnt/dead rw - nfs4 server:/x rw
`)
	// The last round waits for the mounts that answer; a round in which none answers ends, too.
	hurried, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	for _, ctx := range []context.Context{hurried, hurried, hurried, context.Background()} {
		b.clock.advance(2 * time.Second)
		b.sink.mu.Lock()
		b.sink.samples = nil
		b.sink.mu.Unlock()
		if err := c.Collect(ctx, b.wall(), b.sink); err != nil {
			t.Fatal(err)
		}
	}
	b.sink.want(t, map[string]float64{`mount.size{mount="/mnt/dead",type="nfs4"}`: -1, `mount.answer{mount="/mnt/dead",type="nfs4"}`: 6, `mount.size{mount="/",type="ext4"}`: 409600})
	if got := b.sink.kinds(); got != "mount_added mount_hangs" {
		t.Error("events: " + got)
	}
	mu.Lock()
	if asked != 1 {
		t.Errorf("it was asked %d times", asked)
	}
	mu.Unlock()
	close(release)
	answers(t, func() bool {
		b.look(c)
		return b.sink.kinds() == "mount_added mount_hangs mount_answers"
	})
	b.write("proc/self/mountinfo", rootfs)
	b.look(c)
	if got := b.sink.kinds(); got != "mount_added mount_hangs mount_answers mount_removed" {
		t.Error("events: " + got)
	}
}

// TestMountChatter: containers that come and go leave a few events, and one for the rest.
func TestMountChatter(t *testing.T) {
	b := newBench(t)
	c := newMounts(b.machine)
	c.statfs = func(_ string, st *unix.Statfs_t) error { *st = unix.Statfs_t{}; return nil }
	rootfs := "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n"
	b.write("proc/self/mountinfo", rootfs)
	b.look(c)
	for i := range 50 {
		b.clock.advance(time.Second)
		b.write("proc/self/mountinfo", rootfs+fmt.Sprintf("%d 27 0:%d / /run/c%d rw - tmpfs tmpfs rw\n", 100+i, 100+i, i))
		b.look(c)
	}
	b.clock.advance(time.Second)
	b.write("proc/self/mountinfo", rootfs)
	b.look(c)
	if got, want := b.sink.kinds(), strings.TrimSpace("mount_added"+strings.Repeat(" mount_added mount_removed", 2)+" mount_added"); got != want {
		t.Errorf("events %q, want %q", got, want)
	}
	b.clock.advance(10 * time.Minute)
	b.look(c)
	if got := b.sink.kinds(); !strings.HasSuffix(got, " mounts_changed") || strings.Count(got, "mounts_changed") != 1 {
		t.Errorf("events %q", got)
	}
	b.sink.mu.Lock()
	last := b.sink.events[len(b.sink.events)-1].Text
	b.sink.mu.Unlock()
	if want := "46 more file systems were mounted and 48 unmounted within 13 minutes."; last != want {
		t.Errorf("%q, want %q", last, want)
	}
}

// answers waits until something is so.
func answers(t *testing.T, is func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it does not come")
		}
	}
}

// nodeAnswers makes a collector that hears of a node of premix.
func nodeAnswers(b *bench) (*store, *node.Status) {
	s := &node.Status{Deaths: 1, Mounts: []node.Mounted{
		{Ref: "refs/yeast:1", State: "mounted", Total: 1000, Present: 250, FetchedContent: 100, Hits: 10, Misses: 5,
			Origins: []node.Origin{{URL: "https://example.org/store", Requests: 5, Bytes: 500, P99: 0.2}}},
		{Ref: "refs/again", State: "failed", Origins: []node.Origin{{URL: "https://example.org/store", Requests: 1, Bytes: 1, Errors: 1, P99: 0.1}}}}}
	s.Mounts[0].Tree[0] = 1
	c := newStore(b.machine)
	c.ask = func(context.Context) (*node.Status, *node.CacheStatus, error) {
		cache := &node.CacheStatus{}
		cache.Used, cache.Free = 70, 30
		return s, cache, nil
	}
	return c, s
}

func TestStore(t *testing.T) {
	b := newBench(t)
	c, s := nodeAnswers(b)
	b.look(c)
	s.Mounts[0].Hits, s.Mounts[0].FetchedContent = 30, 300
	s.Mounts[0].Origins[0].Requests = 9
	b.look(c)
	b.sink.want(t, map[string]float64{"store.mounts": 2, "store.failed_mounts": 1, "store.worker_deaths": 1, "store.cache_used": 70, "store.cache_free": 30,
		`store.hits{tree="refs/yeast:1"}`: 10, `store.fetched_bytes{tree="refs/yeast:1"}`: 100, `store.present{tree="refs/yeast:1"}`: 0.25,
		`store.origin_requests{origin="https://example.org/store"}`: 2, `store.origin_p99{origin="https://example.org/store"}`: 0.2})
	c.ask = func(context.Context) (*node.Status, *node.CacheStatus, error) {
		return nil, nil, &node.Error{Kind: node.KindNotRunning}
	}
	b.look(c) // no node is no failure
}

// slurmAnswers makes a collector that hears of Slurm.
func slurmAnswers(b *bench) (*scheduler, *slurm.Census) {
	census := &slurm.Census{Started: b.now(), Jobs: []slurm.Counted{{Partition: "short", State: "running", Jobs: 2}, {Partition: "short", State: "pending", Jobs: 499}},
		Diag: map[string]float64{"Jobs submitted": 501, "Jobs started": 2, "Jobs completed": 0, "Jobs failed": 0, "Agent queue size": 0, "Server thread count": 3,
			"Main schedule statistics.Last cycle": 3009, "Main schedule statistics.Mean cycle": 3009, "Main schedule statistics.Last queue length": 1,
			"Backfilling stats.Last cycle": 108, "Backfilling stats.Last depth cycle": 1}}
	c := newScheduler(b.machine, slurmInterval)
	c.take = func(context.Context, time.Duration) (*slurm.Census, error) { return census, nil }
	return c, census
}

func TestScheduler(t *testing.T) {
	b := newBench(t)
	c, census := slurmAnswers(b)
	b.look(c)
	b.sink.want(t, map[string]float64{`scheduler.jobs{partition="short",state="pending"}`: 499, "scheduler.cycle": 0.003009, "scheduler.threads": 3, "scheduler.jobs_started": -1})
	b.sink = &recorder{}
	b.look(c) // the same census again
	if len(b.sink.samples) > 0 {
		t.Error(b.sink.samples)
	}
	census.Started = census.Started.Add(10 * time.Second)
	census.Jobs, census.Diag["Jobs started"] = census.Jobs[:1], 22
	b.look(c)
	b.sink.want(t, map[string]float64{`scheduler.jobs{partition="short",state="pending"}`: 0, `scheduler.jobs{partition="short",state="running"}`: 2, "scheduler.jobs_started": 2})
}

// The catalogue lists the series that collectors report, on a machine that has
// everything; and the page of the documentation has it, too.
func TestCatalogue(t *testing.T) {
	b := newBench(t)
	lustreFiles(b)
	fakeGroups(b)
	io, waiters := recorded(t, "gpfs/mmpmon"), recorded(t, "gpfs/waiters")
	store, _ := nodeAnswers(b)
	scheduler, census := slurmAnswers(b)
	storage := recorded(t, "devices/beegfs-storage")
	w, err := New(Options{Sink: b.sink, Root: b.root, Clock: b.clock, Config: &Config{Node: "n1"}, Only: []string{"watch"}})
	if err != nil {
		t.Fatal(err)
	}
	w.turns[0].last = time.Unix(1, 0)
	group := newCgroups(b.machine, nil, func(string) string { return "/a/run" })
	t.Cleanup(group.Close)
	tasks := newTasks(b.machine, "", "", nil)
	t.Cleanup(func() { tasks.Close() })
	t.Setenv("PREMIX_HOME", t.TempDir())
	calls.RecordStart(calls.Start{Tool: "bwa", Start: "cold"})
	hot := newStarts(b.machine)
	lostMounts(b)
	pid := lostFiles(b)
	lost := newLost(b.machine, nil, func(string) string { return "/a/run" })
	t.Cleanup(lost.tree.close)
	all := []watch.Collector{newHardware(b.machine), newDisk(b.machine), newNetwork(b.machine), newMounts(b.machine), newNFS(b.machine), newLustre(b.machine),
		gpfsAnswers(b, &io, &waiters), group, tasks, hot, lost, newTakers(b.machine, func() map[int]bool { return nil }, func(int) string { return "sdb1" }), newProcesses(b.machine), store, scheduler, newSelf(w),
		gpuAnswers(b), infinibandFiles(b), energyFiles(b), ipmiAnswers(b), jobstatsFiles(b), beegfsAnswers(b, &storage), zfsFiles(b)}
	for _, c := range all {
		b.look(c)
	}
	// Something happened everywhere.
	b.write("proc/stat", strings.ReplaceAll(firstLine(mustRead(b, "proc/stat")), "cpu ", "cpu0 ")+"\n"+mustRead(b, "proc/stat"))
	b.write("proc/diskstats", " 8 0 sda 1 0 1 1 1 0 1 1 0 1 1 0 0 0 0 1 1\n")
	b.edit("proc/self/mountstats", "GETATTR: 100 101 1 9608 1460 3 64 82 2", "GETATTR: 104 109 3 9608 1460 3 84 122 4")
	b.edit("sys/kernel/debug/lustre/osc/work-OST0000-osc-ffff81032792f800/stats", "2000 samples", "2010 samples")
	b.edit("sys/fs/cgroup/cpu/premix-7.1.1/3.1/cpu.stat", "nr_periods 10", "nr_periods 20")
	const stats = "proc/fs/lustre/obdfilter/work-OST0000/job_stats"
	b.edit(stats, "sum:         8392704", "sum:         8392904", "samples:           2, unit: usecs", "samples:           5, unit: usecs", "sum:               0, sumsq", "sum:               9, sumsq")
	b.edit(fmt.Sprintf("proc/%d/stat", pid), "30 10 5 5", "9030 10 9005 5", " 2000 ", " 50000 ")
	b.edit(fmt.Sprintf("proc/%d/io", pid), "write_bytes: 8192", "write_bytes: 9998192")
	census.Started = census.Started.Add(time.Minute)
	for range 2 {
		for _, c := range all {
			b.look(c)
		}
		b.write("proc/diskstats", " 8 0 sda 2 0 1 2 2 0 1 2 0 1 1 0 0 0 0 1 1\n")
		b.write("proc/stat", strings.ReplaceAll(mustRead(b, "proc/stat"), "cpu0 ", "cpu0 9"))
	}
	reported := make(map[string]string)
	for _, s := range b.sink.samples {
		var keys []string
		for _, l := range s.ID.Labels {
			if l.Key != "node" {
				keys = append(keys, l.Key)
			}
		}
		if old := reported[s.ID.Name]; len(old) <= len(string(s.Unit)+" "+strings.Join(keys, " ")) {
			reported[s.ID.Name] = string(s.Unit) + " " + strings.Join(keys, " ")
		}
	}
	page, err := os.ReadFile("../../../docs/watch.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range Catalogue {
		got, ok := reported[e.Name]
		if want := string(e.Unit) + " " + e.Labels; !ok || got != want {
			t.Errorf("%s: reported as %q, the catalogue has %q", e.Name, got, want)
		}
		delete(reported, e.Name)
		labels := strings.ReplaceAll(e.Labels, " ", ", ")
		if row := fmt.Sprintf("| `%s` | %s | %s | %s |\n", e.Name, e.Unit, labels, e.Help); !strings.Contains(string(page), row) {
			t.Errorf("docs/watch.md lacks\n%s", row)
		}
	}
	for name := range reported {
		t.Errorf("%s is not in the catalogue", name)
	}
	for line := range strings.Lines(string(page)) {
		name, _, ok := strings.Cut(strings.TrimPrefix(line, "| `"), "` | ")
		if layer, _, dot := strings.Cut(name, "."); strings.HasPrefix(line, "| `") && ok && dot && slices.Contains(watch.Layers, watch.Layer(layer)) &&
			!slices.ContainsFunc(Catalogue, func(e Entry) bool { return e.Name == name }) {
			t.Errorf("docs/watch.md has %s, the catalogue has not", name)
		}
	}
}

func mustRead(b *bench, name string) string {
	text, err := b.read(name)
	if err != nil {
		b.t.Fatal(err)
	}
	return text
}

// On the real machine all collectors do what they can. There may be programs of a Slurm
// that does not run, or runs for another test.
func TestThisMachine(t *testing.T) {
	sink := &recorder{}
	w, err := New(Options{Sink: sink, Interval: MinInterval, Config: &Config{Collectors: map[string]Setting{"mount": {Interval: MinInterval}, "watch": {Interval: MinInterval}, "slurm": {On: new(bool)}}}})
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
		has := make(map[string]bool)
		sink.mu.Lock()
		for _, s := range sink.samples {
			has[s.ID.Name] = true
		}
		sink.mu.Unlock()
		for _, name := range []string{"node.cpu_user", "node.memory_total", "node.cpu_busy", "network.received_bytes", "mount.size", "task.running", "node.watch_cpu", "node.watch_seconds"} {
			if !has[name] {
				return false
			}
		}
		return true
	})
	cancel()
	<-finished
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	for _, s := range w.Status() {
		if s.Error != "" {
			t.Errorf("%s: %s", s.Name, s.Error)
		}
	}
	for _, s := range sink.samples {
		if s.Value < 0 || math.IsNaN(s.Value) || s.Unit == watch.Ratio && s.Value > 1 {
			t.Errorf("%s is %v", s.ID, s.Value)
		}
	}
}
