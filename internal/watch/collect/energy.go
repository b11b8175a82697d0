package collect

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"premix/internal/kit/regex"
	"premix/internal/watch"
)

// energy is the collector of the counters of energy of processors and memory (RAPL), below
// /sys/class/powercap (Documentation/power/powercap/powercap.rst of Linux). Only root can read
// them since Linux 5.10.
type energy struct {
	*machine
	b     batch
	zones kept[energyZone]
}

type energyZone struct {
	power *counter
	last  float64 // microjoules, as read
	total float64 // without the wraps of the counter
}

func newEnergy(m *machine) *energy { return &energy{machine: m} }

// Name returns "energy".
func (c *energy) Name() string { return "energy" }

const powercap = "sys/class/powercap"

// zonesOf returns the directories of all zones.
func (c *energy) zonesOf() []string {
	dirs, err := filepath.Glob(c.path(powercap + "/*rapl*:*")) // the pattern is correct
	if err != nil {
		return nil
	}
	// intel-rapl-mmio has zones of intel-rapl once more, and is to come after it.
	slices.SortStableFunc(dirs, func(a, b string) int { return cmp.Compare(strings.Count(a, "-mmio"), strings.Count(b, "-mmio")) })
	return dirs
}

func (c *energy) present() bool {
	for _, dir := range c.zonesOf() {
		if f, err := os.Open(filepath.Join(dir, "energy_uj")); err == nil {
			f.Close() // it is only read
			return true
		}
	}
	return false
}

// zoneName makes the label of a zone from its directory and its name: package-0 for
// intel-rapl:0, package-0/dram for intel-rapl:0:1.
func zoneName(names map[string]string, dir string) string {
	base := filepath.Base(dir)
	name := names[base]
	if i := strings.LastIndexByte(base, ':'); i >= 0 && names[base[:i]] != "" {
		return names[base[:i]] + "/" + name
	}
	return name
}

// Collect reads all counters.
func (c *energy) Collect(_ context.Context, now time.Time, to watch.Sink) error {
	c.b.begin(now, c.now())
	dirs := c.zonesOf()
	names := make(map[string]string)
	one := func(dir, file string) string {
		text, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			return ""
		}
		return strings.TrimSpace(string(text))
	}
	for _, dir := range dirs {
		names[filepath.Base(dir)] = one(dir, "name")
	}
	seen := make(map[string]bool)
	for _, dir := range dirs {
		name := zoneName(names, dir)
		v := known(one(dir, "energy_uj"))
		if name == "" || v < 0 || seen[name] {
			continue
		}
		seen[name] = true
		z := c.zones.get(filepath.Base(dir), func() *energyZone {
			return &energyZone{power: c.counter("node.power_of", name), last: v}
		})
		delta := v - z.last
		if delta < 0 {
			delta += known(one(dir, "max_energy_range_uj")) // it began again from 0
		}
		z.last = v
		z.total += max(delta, 0)
		c.b.rate(z.power, z.total, 1e-6)
	}
	c.zones.sweep(nil)
	to.Samples(c.b.samples)
	return nil
}

// ipmi is the collector of the power of the machine, which its management controller
// measures (Data Center Manageability Interface, "Get Power Reading").
type ipmi struct {
	*machine
	b     batch
	run   func(ctx context.Context, stdin, program string, args ...string) (string, error)
	find  func(program string) (path string, err error)
	power *gauge
}

func newIPMI(m *machine) *ipmi {
	return &ipmi{machine: m, run: runProgram, find: exec.LookPath, power: m.level("node.power")}
}

// Name returns "ipmi".
func (c *ipmi) Name() string { return "ipmi" }

func (c *ipmi) present() bool {
	if !c.there("dev/ipmi0") && !c.there("dev/ipmi/0") && !c.there("dev/ipmidev/0") {
		return false
	}
	_, err := c.find("ipmitool")
	return err == nil
}

var wattsLine = regex.Lazy(`(?m)^\s*Instantaneous power reading(?: is)?\s*:\s*(\d+)\s*Watts`)

// errNoPower is returned for a controller that does not measure the power.
var errNoPower = errors.New("ipmitool reports no power reading")

// parseIPMI returns the power in watts from the output of `ipmitool dcmi power reading`.
func parseIPMI(text string) (float64, error) {
	m := wattsLine().FindStringSubmatch(text)
	if m == nil {
		return 0, errNoPower
	}
	return number(m[1]), nil
}

// Collect asks once.
func (c *ipmi) Collect(ctx context.Context, now time.Time, to watch.Sink) error {
	c.b.begin(now, c.now())
	program, err := c.find("ipmitool")
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, exec.ErrNotFound) {
			return nil
		}
		return err
	}
	out, err := c.run(ctx, "", program, "dcmi", "power", "reading")
	if err != nil {
		return err
	}
	watts, err := parseIPMI(out)
	if err != nil {
		return err
	}
	c.b.level(c.power, watts)
	to.Samples(c.b.samples)
	return nil
}
