package collect

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"reflect"
	"strings"
	"testing"
)

// answering returns the functions that execute and find programs; the answer depends on the
// command line.
func answering(t *testing.T, by map[string]*string) (run func(ctx context.Context, stdin, program string, args ...string) (string, error), find func(string) (string, error)) {
	run = func(_ context.Context, _, program string, args ...string) (string, error) {
		line := program + " " + strings.Join(args, " ")
		for part, answer := range by {
			if strings.Contains(line, part) {
				return *answer, nil
			}
		}
		t.Errorf("%s is executed", line)
		return "", errors.New("no such program")
	}
	find = func(name string) (string, error) {
		for part := range by {
			if strings.HasPrefix(part, name) {
				return name, nil
			}
		}
		return "", exec.ErrNotFound
	}
	return run, find
}

func gpuAnswers(b *bench) *gpu {
	smi, processes := recorded(b.t, "devices/nvidia-smi"), recorded(b.t, "devices/nvidia-processes")
	c := newGPU(b.machine, "", nil, func(pid string) string { return "/run of " + pid })
	c.run, c.find = answering(b.t, map[string]*string{"nvidia-smi --query-gpu": &smi, "nvidia-smi --query-compute-apps": &processes})
	b.write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.105.08\n")
	b.write("proc/10042/cgroup", "0::/premix-7.1.1/3.1\n")
	b.write("proc/10043/cgroup", "0::/premix-7.1.1/3.1/below\n")
	b.write("proc/10044/cgroup", "12:memory:/slurm/uid_1000/job_4711/step_0\n0::/\n")
	return c
}

func TestGPU(t *testing.T) {
	b := newBench(t)
	none := newGPU(b.machine, "", nil, nil)
	none.find = func(string) (string, error) { return "", exec.ErrNotFound }
	if none.present() {
		t.Error("there is a GPU")
	}
	c := gpuAnswers(b)
	if !c.present() {
		t.Error("there is no GPU")
	}
	b.look(c)
	b.sink.want(t, map[string]float64{
		`node.gpu_busy{gpu="0"}`: 0.97, `node.gpu_memory_used{gpu="0"}`: 30517 * mebi, `node.gpu_memory_total{gpu="0"}`: 40960 * mebi,
		`node.gpu_power{gpu="0"}`: 251.1, `node.gpu_temperature{gpu="0"}`: 64, `node.gpu_power{gpu="1"}`: -1, `node.gpu_busy{gpu="1"}`: 0,
		`task.gpu_busy{gpu="0",manager="premix",run="/run of 7",task="3.1"}`:   0.97,
		`task.gpu_memory{gpu="0",manager="premix",run="/run of 7",task="3.1"}`: 30511 * mebi,
		`task.gpu_busy{gpu="1",manager="slurm",task="4711.0"}`:                 0,
		`task.gpu_memory{gpu="1",manager="slurm",task="4711.0"}`:               0,
	})
	// An exporter of DCGM is asked in the place of nvidia-smi, and knows the task.
	b.sink = &recorder{}
	c.dcgm = "http://localhost:9400/metrics"
	text := strings.ReplaceAll(recorded(t, "devices/dcgm"), `Hostname=`, `hpc_job="4712",Hostname=`)
	c.get = func(context.Context, string) (string, error) { return text, nil }
	b.look(c)
	b.sink.want(t, map[string]float64{`node.gpu_busy{gpu="0"}`: 0, `node.gpu_memory_total{gpu="0"}`: 23033 * mebi, `node.gpu_power{gpu="0"}`: 16.365, `node.gpu_temperature{gpu="0"}`: 31,
		`task.gpu_busy{gpu="0",manager="slurm",task="4712"}`: 0})
}

func TestParseGPUs(t *testing.T) {
	r := func(gpu, uuid string, v ...float64) gpuReading {
		return gpuReading{gpu, uuid, v[0], v[1], v[2], v[3], v[4], ""}
	}
	amd := func(text string) []gpuReading {
		list, err := parseAMD(text)
		if err != nil {
			t.Error(err)
		}
		return list
	}
	rocm, err := parseROCm(recorded(t, "devices/rocm-smi"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name      string
		got, want []gpuReading
	}{
		{"dcgm", parseDCGM(recorded(t, "devices/dcgm")), []gpuReading{r("0", "GPU-c2f76b33-7953-256e-8f33-1343419b1a1c", 0, 0, 23033*mebi, 16.365, 31)}},
		{"a part of a GPU", parseDCGM(`DCGM_FI_DEV_FB_USED{gpu="2",UUID="u",GPU_I_PROFILE="1g.5gb",GPU_I_ID="7"} 5`), []gpuReading{r("2.7", "u", -1, 5*mebi, -1, -1, -1)}},
		{"not of DCGM", parseDCGM("go_goroutines 7\nDCGM_FI_DEV_GPU_UTIL{gpu=\"0\" 5\nDCGM_FI_DEV_GPU_UTIL 5\n"), nil},
		{"amd-smi", amd(recorded(t, "devices/amd-smi")), []gpuReading{r("0", "amd0", 0.42, 283*mebi, 294896*mebi, 239, 36)}},
		{"an old amd-smi", amd(`[{"gpu": 1, "usage": {"gfx_activity": 5}, "power": {"socket_power": "N/A"}}]`), []gpuReading{r("1", "amd1", 0.05, -1, -1, -1, -1)}},
		{"rocm-smi", rocm, []gpuReading{r("0", "card0", 0.1, -1, -1, 89, 40), r("1", "card1", 0.99, 200804560896, 308902100992, 266, 44)}},
		{"nvidia-smi without a GPU", parseNvidia("No devices were found\n"), nil},
		{"nvidia-smi with few values", parseNvidia("0, GPU-a, [Not Supported], 1, 2, ERR!, [N/A]\n"), []gpuReading{r("0", "GPU-a", -1, mebi, 2*mebi, -1, -1)}},
	} {
		if !reflect.DeepEqual(c.got, c.want) {
			t.Errorf("%s: got %+v, not %+v", c.name, c.got, c.want)
		}
	}
	for _, bad := range []string{"", "{", "null and void", `[{"gpu": "x"}]`} {
		if list, err := parseAMD(bad); err == nil {
			t.Errorf("amd-smi %q is %v", bad, list)
		}
	}
	if list, err := parseROCm("ERROR"); err == nil {
		t.Errorf("rocm-smi is %v", list)
	}
}

func infinibandFiles(b *bench) *infiniband {
	for name, v := range map[string]string{"port_rcv_data": "2221223609", "port_xmit_data": "26509113295", "port_rcv_packets": "87169372", "port_xmit_packets": "85734114",
		"port_xmit_discards": "0", "port_xmit_wait": "3599", "symbol_error": "0", "link_downed": "1", "port_rcv_errors": "2", "VL15_dropped": "0"} {
		b.write("sys/class/infiniband/mlx4_0/ports/1/counters/"+name, v+"\n")
	}
	b.write("sys/class/infiniband/mlx4_0/ports/2/counters/port_rcv_data", "N/A (no PMA)\n")
	return newInfiniband(b.machine)
}

func TestInfiniband(t *testing.T) {
	b := newBench(t)
	c := newInfiniband(b.machine)
	if c.present() {
		t.Error("there is a port")
	}
	b.look(c)
	c = infinibandFiles(b)
	if !c.present() {
		t.Error("there is no port")
	}
	b.look(c)
	b.write("sys/class/infiniband/mlx4_0/ports/1/counters/port_rcv_data", "2221223709\n")
	b.write("sys/class/infiniband/mlx4_0/ports/1/counters/link_downed", "2\n")
	b.look(c)
	b.sink.want(t, map[string]float64{
		`network.ib_received_bytes{device="mlx4_0",port="1"}`: 200, `network.ib_sent_bytes{device="mlx4_0",port="1"}`: 0, `network.ib_errors{device="mlx4_0",port="1"}`: 0.5,
		`network.ib_waits{device="mlx4_0",port="1"}`: 0, `network.ib_received_bytes{device="mlx4_0",port="2"}`: -1, `network.ib_errors{device="mlx4_0",port="2"}`: -1,
	})
}

func energyFiles(b *bench) *energy {
	for zone, name := range map[string]string{"intel-rapl:0": "package-0", "intel-rapl:0:0": "dram", "intel-rapl:1": "package-1", "intel-rapl-mmio:0": "package-0"} {
		b.write("sys/class/powercap/"+zone+"/name", name+"\n")
		b.write("sys/class/powercap/"+zone+"/energy_uj", "1000000\n")
		b.write("sys/class/powercap/"+zone+"/max_energy_range_uj", "262143328850\n")
	}
	b.write("sys/class/powercap/intel-rapl/enabled", "0\n")
	return newEnergy(b.machine)
}

func TestEnergy(t *testing.T) {
	b := newBench(t)
	c := newEnergy(b.machine)
	if c.present() {
		t.Error("there is a zone")
	}
	b.look(c)
	c = energyFiles(b)
	if !c.present() {
		t.Error("there is no zone")
	}
	b.write("sys/class/powercap/intel-rapl:1/energy_uj", "262143000000\n")
	b.look(c)
	b.write("sys/class/powercap/intel-rapl:0/energy_uj", "81000000\n")
	b.write("sys/class/powercap/intel-rapl:1/energy_uj", "39671150\n") // it wrapped
	b.look(c)
	b.sink.want(t, map[string]float64{`node.power_of{zone="package-0"}`: 40, `node.power_of{zone="package-0/dram"}`: 0, `node.power_of{zone="package-1"}`: 20})
}

func ipmiAnswers(b *bench) *ipmi {
	out := recorded(b.t, "devices/ipmi")
	c := newIPMI(b.machine)
	c.run, c.find = answering(b.t, map[string]*string{"ipmitool dcmi power reading": &out})
	return c
}

func TestIPMI(t *testing.T) {
	b := newBench(t)
	c := ipmiAnswers(b)
	if c.present() {
		t.Error("there is a controller")
	}
	b.write("dev/ipmi0", "")
	if !c.present() {
		t.Error("there is no controller")
	}
	b.look(c)
	b.sink.want(t, map[string]float64{"node.power": 214})
	for text, want := range map[string]float64{
		"Instantaneous power reading              : 214      Watts\n": 214, // of another program
		"    Power reading state is:                   deactivated\n": -1,
		"Invalid data field in request":                               -1,
	} {
		v, err := parseIPMI(text)
		if err != nil {
			v = -1
		}
		if v != want {
			t.Errorf("%q is %v, %v", text, v, err)
		}
	}
}

func jobstatsFiles(b *bench) *jobstats {
	b.write("proc/fs/lustre/obdfilter/work-OST0000/job_stats", recorded(b.t, "devices/ost-job_stats-2.15"))
	return newJobstats(b.machine)
}

func TestJobstats(t *testing.T) {
	b := newBench(t)
	c := newJobstats(b.machine)
	if c.present() {
		t.Error("there is a target")
	}
	c = jobstatsFiles(b)
	if !c.present() {
		t.Error("there is no target")
	}
	b.look(c)
	const file = "proc/fs/lustre/obdfilter/work-OST0000/job_stats"
	b.edit(file, "sum:         8392704", "sum:         8392904", "samples:           3, unit: bytes", "samples:           5, unit: bytes", "sum:            4096, sumsq", "sum:            4296, sumsq")
	b.look(c)
	job := func(quantity string) string {
		return fmt.Sprintf(`task.lustre_%s{manager="slurm",target="work-OST0000",task="4711"}`, quantity)
	}
	b.sink.want(t, map[string]float64{job("read_bytes"): 200, job("written_bytes"): -1, job("requests"): 1,
		`task.lustre_read_bytes{manager="process",target="work-OST0000",task="kworker/u8:1 x.0"}`: -1})
	b.look(c)
	b.sink.want(t, map[string]float64{job("read_bytes"): 0, job("requests"): 0}) // the series end at 0
	b.sink = &recorder{}
	b.look(c)
	b.sink.want(t, map[string]float64{job("read_bytes"): -1})

	if got := parseJobstats(recorded(t, "devices/ost-job_stats")); !reflect.DeepEqual(got, []jobStat{{"cluster-testjob1", 4096, 26214400, 27}, {"testjob2", 1024, 51200, 27}}) {
		t.Errorf("got %+v", got)
	}
	if got := parseJobstats("job_stats:\n"); got != nil {
		t.Errorf("of no job: %+v", got)
	}
	for id, want := range map[string]taskName{
		"4711": {manager: "slurm", task: "4711"}, "4711:1000:n7": {manager: "slurm", task: "4711"}, "cp.1000": {manager: "process", task: "cp.1000"},
		"cluster-testjob1": {manager: "lustre", task: "cluster-testjob1"}, "47a": {manager: "lustre", task: "47a"},
	} {
		if got := taskOfJobID(id); got != want {
			t.Errorf("%s is %+v", id, got)
		}
	}
}

func beegfsAnswers(b *bench, storage *string) *beegfs {
	meta := "23.174.134.23        56624 [sum]  0 [ack]  10 [close]  30911 [stat]\n"
	c := newBeeGFS(b.machine)
	c.run, c.find = answering(b.t, map[string]*string{"beegfs-ctl --clientstats --nodetype=meta": &meta, "beegfs-ctl --clientstats --nodetype=storage": storage})
	c.addresses = func() []string { return []string{"n1", "23.174.134.23"} }
	return c
}

func TestBeeGFS(t *testing.T) {
	b := newBench(t)
	storage := recorded(t, "devices/beegfs-storage")
	c := beegfsAnswers(b, &storage)
	if c.present() {
		t.Error("there is a client")
	}
	b.write("proc/fs/beegfs/1A2B-5F/config", "")
	if !c.present() {
		t.Error("there is no client")
	}
	b.look(c)
	storage = strings.NewReplacer("313.54 [MiB-rd]", "315.54 [MiB-rd]", "22385 [ops-rd]", "22395 [ops-rd]", "61957 [sum]", "61967 [sum]").Replace(storage) + "10.9.9.9   5 [sum]\n"
	b.look(c)
	b.sink.want(t, map[string]float64{"mount.beegfs_read_bytes": mebi, "mount.beegfs_written_bytes": 0, `mount.beegfs_requests{service="storage"}`: 5, `mount.beegfs_requests{service="meta"}`: 0,
		`mount.beegfs_calls{operation="ops-rd",service="storage"}`: 5, `mount.beegfs_calls{operation="stat",service="meta"}`: 0, `mount.beegfs_calls{operation="ack",service="meta"}`: -1})
}

func zfsFiles(b *bench) *zfs {
	for to, from := range map[string]string{"arcstats": "arcstats", "HOME/io": "io", "HOME/objset-0x36": "objset"} {
		b.write(kstat+"/"+to, recorded(b.t, "devices/zfs-"+from))
	}
	return newZFS(b.machine)
}

func TestZFS(t *testing.T) {
	b := newBench(t)
	c := newZFS(b.machine)
	if c.present() {
		t.Error("there is ZFS")
	}
	b.look(c)
	c = zfsFiles(b)
	if !c.present() {
		t.Error("there is no ZFS")
	}
	b.look(c)
	b.edit(kstat+"/arcstats", "1659178751", "1659178771")
	b.edit(kstat+"/HOME/io", "1884160  6450688  22", "1886160  6450688  32")
	b.write(kstat+"/HOME/objset-0x40", "36 1 0x01 7 2160 1 2\nname type data\nnread 4 100\nnwritten 4 4000\n") // a new dataset
	b.look(c)
	b.sink.want(t, map[string]float64{"node.zfs_cache": 16643882160, "node.zfs_cache_limit": 16884125696, "node.zfs_hits": 0, "node.zfs_misses": 10,
		`disk.zfs_read_bytes{pool="HOME"}`: 1000, `disk.zfs_reads{pool="HOME"}`: 5, `disk.zfs_written_bytes{pool="HOME"}`: 0,
		`mount.zfs_read_bytes{pool="HOME"}`: 50, `mount.zfs_written_bytes{pool="HOME"}`: 2000})
	if _, ok := parseZFSIO("x\ny\nz\n"); ok {
		t.Error("nonsense is I/O of a pool")
	}
}

// A machine without any of these has no such collector.
func TestNoDevices(t *testing.T) {
	b := newBench(t)
	w, err := New(Options{Sink: b.sink, Root: b.root, Clock: b.clock, Config: &Config{Node: "n1"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	for _, name := range []string{"gpu", "infiniband", "energy", "ipmi", "jobstats", "beegfs", "zfs"} {
		if w.has(name) {
			t.Errorf("there is the collector %s", name)
		}
	}
}

func FuzzDevices(f *testing.F) {
	for _, name := range []string{"dcgm", "ost-job_stats", "ost-job_stats-2.15", "ipmi", "beegfs-storage", "zfs-io", "zfs-objset", "nvidia-smi", "nvidia-processes", "amd-smi", "rocm-smi"} {
		f.Add(recordedFile(f, "devices/"+name))
	}
	f.Fuzz(func(t *testing.T, text string) {
		readings := parseDCGM(text)
		readings = append(readings, parseNvidia(text)...)
		if list, err := parseAMD(text); err == nil {
			readings = append(readings, list...)
		}
		if list, err := parseROCm(text); err == nil {
			readings = append(readings, list...)
		}
		for _, r := range readings {
			if r.busy > 1 {
				t.Errorf("a GPU is busy %v", r.busy)
			}
		}
		parseNvidiaProcesses(text)
		parseBeeGFS(text)
		parseKstat(text)
		parseZFSIO(text)
		for _, j := range parseJobstats(text) {
			if j.read < 0 || j.written < 0 || j.requests < 0 {
				t.Errorf("%+v", j)
			}
			taskOfJobID(j.id)
		}
		if v, err := parseIPMI(text); err == nil && v < 0 {
			t.Error(v)
		}
	})
}
