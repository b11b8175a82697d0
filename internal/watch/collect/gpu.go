package collect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"premix/internal/watch"
)

// gpu is the collector of GPUs. It asks nvidia-smi, amd-smi or rocm-smi, or an exporter of
// NVIDIA's DCGM where the configuration has its address.
type gpu struct {
	*machine
	b        batch
	run      func(ctx context.Context, stdin, program string, args ...string) (string, error)
	get      func(ctx context.Context, url string) (string, error)
	find     func(program string) (path string, err error)
	dcgm     string // address of the exporter; "" for none
	patterns []taskPattern
	runOf    func(pid string) string
	devices  kept[gpuDevice]
	tasks    kept[gpuTask]
}

type gpuDevice struct{ busy, used, total, power, temperature *gauge }

type gpuTask struct{ busy, memory *gauge }

// gpuReading is what a program reports of one GPU. A negative value is not known.
type gpuReading struct {
	gpu         string // its index
	uuid        string
	busy        float64 // 0 to 1
	used, total float64 // memory, bytes
	power       float64 // watts
	temperature float64 // degrees Celsius
	task        string  // job of the batch system, where the exporter knows it
}

// gpuProcess is a process that uses a GPU.
type gpuProcess struct {
	pid, uuid string
	memory    float64 // bytes; negative if not known
}

func newGPU(m *machine, dcgm string, patterns []taskPattern, runOf func(pid string) string) *gpu {
	return &gpu{machine: m, run: runProgram, get: getText, find: exec.LookPath, dcgm: dcgm, patterns: append(slices.Clone(patterns), taskPatterns()...), runOf: runOf}
}

// Name returns "gpu".
func (c *gpu) Name() string { return "gpu" }

// there reports whether a file of the machine exists.
func (m *machine) there(name string) bool {
	_, err := os.Stat(m.path(name))
	return err == nil
}

// program returns the first of some programs that is installed, "" if none is.
func (c *gpu) program(names ...string) string {
	for _, name := range names {
		if path, err := c.find(name); err == nil {
			return path
		}
	}
	return ""
}

func (c *gpu) nvidia() bool {
	return c.there("proc/driver/nvidia/version") && c.program("nvidia-smi") != ""
}

func (c *gpu) amd() bool { return c.there("dev/kfd") && c.program("amd-smi", "rocm-smi") != "" }

// present reports whether the machine has a GPU and a program that knows about it.
func (c *gpu) present() bool { return c.dcgm != "" || c.nvidia() || c.amd() }

// Queries of nvidia-smi, whose help has all fields (nvidia-smi --help-query-gpu).
const (
	nvidiaQuery     = "index,uuid,utilization.gpu,memory.used,memory.total,power.draw,temperature.gpu"
	nvidiaProcesses = "pid,gpu_uuid,used_memory"
	nvidiaFormat    = "csv,noheader,nounits"
)

// Collect asks once.
func (c *gpu) Collect(ctx context.Context, now time.Time, to watch.Sink) error {
	c.b.begin(now, c.now())
	var list []gpuReading
	var processes []gpuProcess
	var errs []error
	take := func(more []gpuReading, err error) {
		list = append(list, more...)
		errs = append(errs, err)
	}
	switch {
	case c.dcgm != "":
		text, err := c.get(ctx, c.dcgm)
		if err != nil {
			return err
		}
		take(parseDCGM(text), nil)
	case c.nvidia():
		program := c.program("nvidia-smi")
		out, err := c.run(ctx, "", program, "--query-gpu="+nvidiaQuery, "--format="+nvidiaFormat)
		take(parseNvidia(out), err)
		if err == nil {
			out, err = c.run(ctx, "", program, "--query-compute-apps="+nvidiaProcesses, "--format="+nvidiaFormat)
			processes = parseNvidiaProcesses(out)
			errs = append(errs, err)
		}
	}
	if c.amd() {
		if program := c.program("amd-smi"); program != "" {
			out, err := c.run(ctx, "", program, "metric", "--json")
			if err == nil {
				take(parseAMD(out))
			} else {
				take(nil, err)
			}
		} else {
			out, err := c.run(ctx, "", c.program("rocm-smi"), "--showuse", "--showmeminfo", "vram", "--showpower", "--showtemp", "--showuniqueid", "--json")
			if err == nil {
				take(parseROCm(out))
			} else {
				take(nil, err)
			}
		}
	}
	level := func(g *gauge, v float64) {
		if v >= 0 {
			c.b.level(g, v)
		}
	}
	by := make(map[string]gpuReading)
	for _, r := range list {
		by[r.uuid] = r
		d := c.devices.get(r.gpu, func() *gpuDevice {
			return &gpuDevice{c.level("node.gpu_busy", r.gpu), c.level("node.gpu_memory_used", r.gpu), c.level("node.gpu_memory_total", r.gpu),
				c.level("node.gpu_power", r.gpu), c.level("node.gpu_temperature", r.gpu)}
		})
		level(d.busy, r.busy)
		level(d.used, r.used)
		level(d.total, r.total)
		level(d.power, r.power)
		level(d.temperature, r.temperature)
		if r.task != "" {
			t := c.task(r.gpu, taskName{manager: "slurm", task: r.task}, "")
			level(t.busy, r.busy)
			level(t.memory, r.used)
		}
	}
	c.devices.sweep(nil)
	sums := make(map[[2]string]*gpuShare)
	for _, p := range processes {
		name, run, ok := c.taskOf(p.pid)
		r, known := by[p.uuid]
		if !ok || !known {
			continue
		}
		key := [2]string{name.manager + "\x00" + run + "\x00" + name.task, r.gpu}
		s := sums[key]
		if s == nil {
			s = &gpuShare{name: name, run: run, device: r}
			sums[key] = s
		}
		s.memory += max(p.memory, 0)
	}
	for _, s := range sums {
		t := c.task(s.device.gpu, s.name, s.run)
		level(t.busy, s.device.busy)
		level(t.memory, s.memory)
	}
	c.tasks.sweep(nil)
	to.Samples(c.b.samples)
	return errors.Join(errs...)
}

// gpuShare is the part of a task in one GPU.
type gpuShare struct {
	name   taskName
	run    string
	device gpuReading
	memory float64
}

func (c *gpu) task(gpu string, name taskName, run string) *gpuTask {
	return c.tasks.get(gpu+"\x00"+name.manager+"\x00"+run+"\x00"+name.task, func() *gpuTask {
		return &gpuTask{c.level("task.gpu_busy", gpu, name.manager, run, name.task), c.level("task.gpu_memory", gpu, name.manager, run, name.task)}
	})
}

// taskOf returns the task that a process belongs to, by its cgroup.
func (c *gpu) taskOf(pid string) (name taskName, run string, ok bool) {
	if _, err := strconv.ParseUint(pid, 10, 32); err != nil {
		return name, "", false
	}
	text, err := c.read("proc/" + pid + "/cgroup")
	if err != nil {
		return name, "", false // it has ended
	}
	for line := range strings.Lines(text) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) < 3 {
			continue
		}
		// The process may be in a cgroup below the task's.
		for path := f[2]; path != "" && path != "/"; path = path[:strings.LastIndexByte(path, '/')] {
			if _, name, ok := recognise(c.patterns, path); ok {
				if name.pid != "" && c.runOf != nil {
					run = c.runOf(name.pid)
				}
				return name, run, true
			}
		}
	}
	return name, "", false
}

// known parses a number. Other text, as in "[N/A]" or "[Not Supported]", is -1.
func known(text string) float64 {
	v, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
	if err != nil || v < 0 {
		return -1
	}
	return v
}

// times returns v times factor, or v if it is not known.
func times(v, factor float64) float64 {
	if v < 0 {
		return v
	}
	return v * factor
}

const mebi = 1 << 20

// parseNvidia parses the answer of nvidia-smi to nvidiaQuery in nvidiaFormat:
//
//	0, GPU-c2f76b33-7953-256e-8f33-1343419b1a1c, 97, 30517, 40960, 251.10, 64
func parseNvidia(text string) []gpuReading {
	var list []gpuReading
	for line := range strings.Lines(text) {
		f := strings.Split(strings.TrimSpace(line), ",")
		if len(f) != 7 || known(f[0]) < 0 {
			continue
		}
		list = append(list, gpuReading{gpu: strings.TrimSpace(f[0]), uuid: strings.TrimSpace(f[1]), busy: min(times(known(f[2]), 0.01), 1),
			used: times(known(f[3]), mebi), total: times(known(f[4]), mebi), power: known(f[5]), temperature: known(f[6])})
	}
	return list
}

// parseNvidiaProcesses parses the answer of nvidia-smi to nvidiaProcesses.
func parseNvidiaProcesses(text string) []gpuProcess {
	var list []gpuProcess
	for line := range strings.Lines(text) {
		f := strings.Split(strings.TrimSpace(line), ",")
		if len(f) == 3 && known(f[0]) > 0 {
			list = append(list, gpuProcess{strings.TrimSpace(f[0]), strings.TrimSpace(f[1]), times(known(f[2]), mebi)})
		}
	}
	return list
}

// parseDCGM parses the metrics of dcgm-exporter (https://github.com/NVIDIA/dcgm-exporter).
// With --hpc-job-mapping-dir they have the label hpc_job: the job of Slurm that has the GPU.
func parseDCGM(text string) []gpuReading {
	var list []gpuReading
	at := make(map[string]int)
	free := make(map[string]float64)
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "DCGM_FI_") {
			continue
		}
		v, err := parseLine(strings.TrimSpace(line))
		if err != nil {
			continue
		}
		labels := make(map[string]string)
		for i := 0; i+1 < len(v.labels); i += 2 {
			labels[v.labels[i]] = v.labels[i+1]
		}
		name := labels["gpu"]
		if name == "" {
			continue
		}
		if part := labels["GPU_I_ID"]; part != "" {
			name += "." + part // a part of a GPU (MIG)
		}
		i, ok := at[name]
		if !ok {
			i = len(list)
			at[name] = i
			list = append(list, gpuReading{gpu: name, uuid: labels["UUID"], busy: -1, used: -1, total: -1, power: -1, temperature: -1})
		}
		r := &list[i]
		if r.task == "" {
			r.task = labels["hpc_job"]
		}
		switch v.name {
		case "DCGM_FI_DEV_GPU_UTIL":
			r.busy = min(times(v.v, 0.01), 1)
		case "DCGM_FI_DEV_FB_USED":
			r.used = times(v.v, mebi)
		case "DCGM_FI_DEV_FB_FREE":
			free[name] += v.v * mebi
		case "DCGM_FI_DEV_FB_RESERVED":
			free[name] += v.v * mebi
		case "DCGM_FI_DEV_POWER_USAGE":
			r.power = v.v
		case "DCGM_FI_DEV_GPU_TEMP":
			r.temperature = v.v
		}
	}
	for name, i := range at {
		if r := &list[i]; r.used >= 0 && free[name] > 0 {
			r.total = r.used + free[name]
		}
	}
	return list
}

// amdValue is a number of amd-smi: {"value": 22, "unit": "W"}, a plain number, or "N/A".
type amdValue struct{ v float64 }

// UnmarshalJSON reads any of the forms.
func (a *amdValue) UnmarshalJSON(text []byte) error {
	a.v = -1
	var pair struct {
		Value json.RawMessage `json:"value"`
		Unit  string          `json:"unit"`
	}
	factor := 1.0
	if len(text) > 0 && text[0] == '{' {
		if err := json.Unmarshal(text, &pair); err != nil {
			return err
		}
		text = pair.Value
		switch pair.Unit {
		case "KB":
			factor = 1 << 10
		case "MB":
			factor = mebi // amd-smi counts in powers of 1024
		case "GB":
			factor = 1 << 30
		}
	}
	a.v = times(known(strings.Trim(string(text), `"`)), factor)
	return nil
}

// amdMetric is one GPU in the answer of `amd-smi metric --json`.
type amdMetric struct {
	GPU   int `json:"gpu"`
	Usage struct {
		GFX *amdValue `json:"gfx_activity"`
	} `json:"usage"`
	Memory struct {
		Total *amdValue `json:"total_vram"`
		Used  *amdValue `json:"used_vram"`
	} `json:"mem_usage"`
	Power struct {
		Socket *amdValue `json:"socket_power"`
	} `json:"power"`
	Temperature struct {
		Edge    *amdValue `json:"edge"`
		Hotspot *amdValue `json:"hotspot"`
	} `json:"temperature"`
}

func (a *amdValue) or(other *amdValue) float64 {
	if a != nil && a.v >= 0 {
		return a.v
	}
	if other != nil {
		return other.v
	}
	return -1
}

// parseAMD parses the answer of `amd-smi metric --json`: a list of GPUs, which newer
// versions have as "gpu_data" of an object.
func parseAMD(text string) ([]gpuReading, error) {
	var metrics []amdMetric
	if err := json.Unmarshal([]byte(text), &metrics); err != nil {
		var object struct {
			Data []amdMetric `json:"gpu_data"`
		}
		if err := json.Unmarshal([]byte(text), &object); err != nil {
			return nil, fmt.Errorf("amd-smi: %w", err)
		}
		metrics = object.Data
	}
	var list []gpuReading
	for _, m := range metrics {
		list = append(list, gpuReading{gpu: strconv.Itoa(m.GPU), uuid: "amd" + strconv.Itoa(m.GPU), busy: min(times(m.Usage.GFX.or(nil), 0.01), 1),
			used: m.Memory.Used.or(nil), total: m.Memory.Total.or(nil), power: m.Power.Socket.or(nil), temperature: m.Temperature.Edge.or(m.Temperature.Hotspot)})
	}
	return list, nil
}

// parseROCm parses the answer of rocm-smi with --json: an object of cards, whose keys are
// texts for people that differ between versions.
func parseROCm(text string) ([]gpuReading, error) {
	var cards map[string]map[string]any
	// Warnings may stand before the object.
	if i := strings.IndexByte(text, '{'); i > 0 {
		text = text[i:]
	}
	if err := json.Unmarshal([]byte(text), &cards); err != nil {
		return nil, fmt.Errorf("rocm-smi: %w", err)
	}
	var list []gpuReading
	for card, values := range cards {
		index, ok := strings.CutPrefix(card, "card")
		if !ok || known(index) < 0 {
			continue
		}
		value := func(keys ...string) float64 {
			for _, k := range keys {
				if v, ok := values[k]; ok {
					if n := known(fmt.Sprint(v)); n >= 0 {
						return n
					}
				}
			}
			return -1
		}
		list = append(list, gpuReading{gpu: index, uuid: card, busy: min(times(value("GPU use (%)"), 0.01), 1),
			used: value("VRAM Total Used Memory (B)"), total: value("VRAM Total Memory (B)"),
			power:       value("Average Graphics Package Power (W)", "Current Socket Graphics Package Power (W)"),
			temperature: value("Temperature (Sensor edge) (C)", "Temperature (Sensor junction) (C)")})
	}
	slices.SortFunc(list, func(a, b gpuReading) int { return strings.Compare(a.gpu, b.gpu) })
	return list, nil
}

// getText returns the body of an answer.
func getText(ctx context.Context, url string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s answers %s", url, resp.Status)
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxOutput))
	return string(text), err
}
