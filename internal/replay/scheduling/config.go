package scheduling

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"premix/internal/kit/exit"
	"premix/internal/kit/problem"
	"premix/internal/replay/machine"
	"premix/internal/replay/simulate"
	"premix/internal/replay/trace"
)

// The orders.
const (
	FCFS        = "fcfs"
	SJF         = "sjf"
	Multifactor = "multifactor"
)

// Recorded is not a policy, but the schedule in the trace: the times at which jobs began in
// reality. It is the name of its Config, and its order.
const Recorded = "recorded"

// The ways to backfill.
const (
	None         = "none"
	EASY         = "easy"
	Conservative = "conservative"
	Slurm        = "slurm"
)

// Config describes a policy of premix, as in a policy file.
type Config struct {
	Name       string       `yaml:"name" json:"name"`
	Order      string       `yaml:"order" json:"order"`
	Backfill   string       `yaml:"backfill" json:"backfill"`
	Depth      int          `yaml:"depth" json:"depth,omitempty"`           // number of jobs that a pass of backfilling examines; 0: all
	Interval   machine.Span `yaml:"interval" json:"interval,omitempty"`     // between passes of Slurm's backfilling; 0: at each moment
	Window     machine.Span `yaml:"window" json:"window,omitempty"`         // how far ahead Slurm's backfilling plans; 0: to the end
	Resolution machine.Span `yaml:"resolution" json:"resolution,omitempty"` // length of the slots in which it plans

	Weights  Weights      `yaml:"weights" json:"weights,omitzero"`
	MaxAge   machine.Span `yaml:"max_age" json:"max_age,omitempty"`
	HalfLife machine.Span `yaml:"half_life" json:"half_life,omitempty"`
	Calc     machine.Span `yaml:"calc_period" json:"calc_period,omitempty"`
	Small    bool         `yaml:"favor_small" json:"favor_small,omitempty"`
	Fair     string       `yaml:"fair_share" json:"fair_share,omitempty"` // tree or classic
	Dampen   float64      `yaml:"dampening" json:"dampening,omitempty"`   // of classic

	Exec    []string     `yaml:"exec" json:"exec,omitempty"` // command of an external policy
	Timeout machine.Span `yaml:"timeout" json:"timeout,omitempty"`
}

// Weights are the weights of Slurm's priority/multifactor.
type Weights struct {
	Age       int64 `yaml:"age" json:"age"`
	FairShare int64 `yaml:"fair_share" json:"fair_share"`
	Size      int64 `yaml:"size" json:"size"`
	Partition int64 `yaml:"partition" json:"partition"`
	QOS       int64 `yaml:"qos" json:"qos"`
}

// BuiltIns returns the names of the built-in policies.
func BuiltIns() []string {
	return []string{"fcfs", "sjf", "easy", "conservative", "multifactor", Recorded}
}

// builtIn returns a built-in policy by name.
func builtIn(name string) (Config, bool) {
	switch name {
	case "fcfs":
		return Config{Name: name, Order: FCFS, Backfill: None}, true
	case "sjf":
		return Config{Name: name, Order: SJF, Backfill: None}, true
	case "easy":
		return Config{Name: name, Order: FCFS, Backfill: EASY}, true
	case "conservative":
		return Config{Name: name, Order: FCFS, Backfill: Conservative, Depth: 100}, true
	case "multifactor":
		c := Config{Name: name, Order: Multifactor, Backfill: Slurm}
		c.defaults()
		return c, true
	case Recorded:
		return Config{Name: name, Order: Recorded}, true
	}
	return Config{}, false
}

// defaults sets the values that a file does not set: Slurm's defaults, but equal weights
// except for fair share, since Slurm's default weights are all 0.
func (c *Config) defaults() {
	if c.Order == "" {
		c.Order = FCFS
	}
	if c.Backfill == "" {
		c.Backfill = EASY
	}
	if c.Backfill == Slurm && c.Depth == 0 {
		c.Depth = 500
	}
	if c.Backfill == Slurm && c.Interval == 0 {
		c.Interval = machine.Span(30 * trace.Second)
	}
	if c.Backfill == Slurm && c.Window == 0 {
		c.Window = machine.Span(trace.Day)
	}
	if c.Backfill == Slurm && c.Resolution == 0 {
		c.Resolution = machine.Span(trace.Minute)
	}
	if c.Order == Multifactor {
		if c.Weights == (Weights{}) {
			c.Weights = Weights{Age: 1000, FairShare: 10000, Size: 1000, Partition: 1000, QOS: 1000}
		}
		if c.MaxAge == 0 {
			c.MaxAge = machine.Span(trace.Week)
		}
		if c.HalfLife == 0 {
			c.HalfLife = machine.Span(trace.Week)
		}
		if c.Calc == 0 {
			c.Calc = machine.Span(5 * trace.Minute)
		}
		if c.Fair == "" {
			c.Fair = "tree"
		}
		if c.Dampen == 0 {
			c.Dampen = 1
		}
	}
	if c.Timeout == 0 {
		c.Timeout = machine.Span(30 * trace.Second)
	}
}

func (c *Config) check() error {
	one := func(what, value string, of ...string) error {
		if slices.Contains(of, value) {
			return nil
		}
		return fmt.Errorf("policy %s: %s: is one of %s, not %q", c.Name, what, strings.Join(of, ", "), value)
	}
	if c.Name == "" {
		return errors.New("a policy has no name")
	}
	if len(c.Exec) > 0 {
		return nil
	}
	err := errors.Join(one("order", c.Order, FCFS, SJF, Multifactor), one("backfill", c.Backfill, None, EASY, Conservative, Slurm))
	if c.Order == Multifactor {
		err = errors.Join(err, one("fair_share", c.Fair, "tree", "classic"))
		if c.Dampen < 0 {
			err = errors.Join(err, fmt.Errorf("policy %s: dampening: is more than 0", c.Name))
		}
	}
	if c.Depth < 0 {
		err = errors.Join(err, fmt.Errorf("policy %s: depth: is at least 0", c.Name))
	}
	return err
}

// ReadFile reads a policy file: a list of policies.
func ReadFile(path string) ([]Config, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, exit.Errorf(exit.Usage, "give a file of policies; premix help replay describes it", "%w", err)
	}
	list, err := Parse(b)
	if err != nil {
		return nil, exit.Errorf(exit.Usage, "premix help replay describes the file", "%s: %v", path, err)
	}
	return list, nil
}

// Parse parses policies.
func Parse(b []byte) ([]Config, error) {
	var file struct {
		Policies []Config `yaml:"policies"`
	}
	dec := yaml.NewDecoder(bytes.NewReader(b))
	dec.KnownFields(true)
	if err := dec.Decode(&file); err != nil && err != io.EOF {
		return nil, errors.New(problem.Words(err))
	}
	if len(file.Policies) == 0 {
		return nil, errors.New("policies: is missing or empty")
	}
	seen := make(map[string]bool)
	for i := range file.Policies {
		c := &file.Policies[i]
		c.defaults()
		if err := c.check(); err != nil {
			return nil, err
		}
		if seen[c.Name] {
			return nil, fmt.Errorf("policy %s stands there twice", c.Name)
		}
		seen[c.Name] = true
	}
	return file.Policies, nil
}

// Choose returns the policies with the given names, from a file or built in. exec:COMMAND
// is an external one.
func Choose(names []string, file []Config) ([]Config, error) {
	var list []Config
	for _, name := range names {
		if command, ok := strings.CutPrefix(name, "exec:"); ok {
			c := Config{Name: name, Exec: strings.Fields(command)}
			c.defaults()
			if len(c.Exec) == 0 {
				return nil, exit.Errorf(exit.Usage, "write it as in exec:./policy.py", "exec: names no command")
			}
			list = append(list, c)
			continue
		}
		at := slices.IndexFunc(file, func(c Config) bool { return c.Name == name })
		if at >= 0 {
			list = append(list, file[at])
			continue
		}
		c, ok := builtIn(name)
		if !ok {
			known := BuiltIns()
			for _, c := range file {
				known = append(known, c.Name)
			}
			return nil, exit.Errorf(exit.Usage, "it is one of "+strings.Join(known, ", ")+", or exec:COMMAND", "unknown policy %q", name)
		}
		list = append(list, c)
	}
	return list, nil
}

// New returns a policy. It must not be called for Recorded: simulate.Recorded returns that
// schedule.
func New(c Config) simulate.Policy {
	if len(c.Exec) > 0 {
		return &External{config: c}
	}
	return &scheduler{Config: c}
}
