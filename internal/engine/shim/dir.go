package shim

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"premix/internal/engine"
	"premix/internal/engine/local"
	"premix/internal/engine/queue"
	"premix/internal/engine/slurm"
	"premix/internal/kit/beneath"
	"premix/internal/kit/exit"
	"premix/internal/kit/owner"
	"premix/internal/record"
)

// ClientNames are the programs that a shim directory has.
var ClientNames = []string{"sbatch", "squeue", "scancel", "sacct", "scontrol", "sinfo", "srun", "salloc", "sstat", "sprio", "sshare", "sacctmgr"}

// Names of the cluster and its partition in the answers to clients.
const (
	clusterName      = "premix"
	defaultPartition = "local"
)

// Config describes how the jobs of a shim directory are run. It is config.json.
type Config struct {
	Format int           `json:"format"`
	Jobs   int           `json:"jobs,omitempty"`   // cores that jobs take together; 0: the machine's
	Memory int64         `json:"memory,omitempty"` // bytes that jobs take together; 0: all
	Idle   time.Duration `json:"idle"`             // time after which an idle worker ends, in ns

	// Resources are what jobs hold besides cores and memory, NAME=N or NAME=SIZE. Devices are the
	// ids of the GPUs among them, if Make was called where some were given; else they are 0, 1
	// and so on.
	Resources []string `json:"resources,omitempty"`
	Devices   string   `json:"devices,omitempty"`

	// Engine is where jobs run: "" for this machine, or slurm.
	Engine  string   `json:"engine,omitempty"`
	Options []string `json:"options,omitempty"` // of the engine, KEY=VALUE
	Env     []string `json:"env,omitempty"`     // in which Slurm's own programs are called; Make fills it in
}

const configFormat = 1

// DefaultIdle is time after which an idle worker ends.
const DefaultIdle = time.Minute

// Grace is the time between SIGTERM and SIGKILL. It is the default of Slurm's KillWait.
const Grace = 30 * time.Second

// minJobAge is how long squeue shows a job that has ended.
const minJobAge = 5 * time.Minute

func statePath(dir, name string) string { return filepath.Join(dir, engine.StateDir, "slurm", name) }

// Make makes a shim directory, or changes its configuration, and returns the directory
// of its clients. binary is the premix that the clients execute. A running worker keeps the
// configuration that it started with.
func Make(dir, binary, version string, c Config) (bin string, err error) {
	if dir, err = filepath.Abs(dir); err != nil {
		return "", err
	}
	defer func() { err = engine.DirectoryError(dir, err) }()
	if err := c.setDevices(); err != nil {
		return "", err
	}
	if err := engine.MakeDir(dir); err != nil {
		return "", err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(statePath(dir, "config.json")); errors.Is(err, fs.ErrNotExist) && len(entries) > 0 {
		return "", &engine.DirError{Dir: dir, Reason: "holds something else", HintText: "name a new directory with --dir"}
	}
	if err := os.MkdirAll(filepath.Join(dir, engine.StateDir), 0o700); err != nil {
		return "", err
	}
	q, err := queue.Open(dir, version, true)
	if err != nil {
		return "", err
	}
	if err := q.Close(); err != nil {
		return "", err
	}
	bin = filepath.Join(dir, "bin")
	for _, d := range []string{bin, statePath(dir, "")} {
		if err := os.MkdirAll(d, 0o775); err != nil {
			return "", err
		}
	}
	if err := belongs(dir); err != nil {
		return "", err
	}
	c.Format = configFormat
	switch c.Engine {
	case "", "local":
		c.Engine = ""
	case slurm.Name:
		if _, err := newCluster(&c); err != nil {
			return "", err
		}
		c.Env = outside(dir)
	default:
		return "", exit.Errorf(exit.Usage, "it is local or slurm", "the programs of Slurm cannot have engine %q behind them", c.Engine)
	}
	text, err := json.MarshalIndent(&c, "", "  ")
	if err != nil {
		return "", err
	}
	if err := replace(statePath(dir, "config.json"), append(text, '\n'), 0o664); err != nil {
		return "", err
	}
	for _, name := range ClientNames {
		script := fmt.Sprintf("#!/bin/sh\n# %s of premix, before the jobs in %q.\nexec %s %s %s %s \"$@\"\n", name, dir, shellQuote(binary), ClientArg, shellQuote(dir), name)
		if err := replace(filepath.Join(bin, name), []byte(script), 0o775); err != nil {
			return "", err
		}
	}
	return bin, nil
}

// setDevices checks the resources of a configuration, and finds the ids of the GPUs among them.
func (c *Config) setDevices() error {
	g, err := parseGres(c.Resources)
	if err != nil {
		return err
	}
	if g.total[gpuName] > 0 {
		c.Devices = os.Getenv(gpuVariable)
	}
	return local.CheckResources(g.total)
}

// belongs refuses a shim directory of another user, who would control the jobs and the
// answers of the worker.
func belongs(dir string) error {
	if err := owner.CheckNamed(dir); err != nil {
		return err
	}
	for _, d := range []string{filepath.Join(dir, "bin"), filepath.Join(dir, engine.StateDir), statePath(dir, "")} {
		if err := owner.Directory(d); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// shellQuote quotes always: a client must work from any place.
func shellQuote(s string) string { return queue.Quote(s) }

// replace writes a file, whole or not at all, unless it is as wished already.
func replace(path string, text []byte, mode fs.FileMode) error {
	old, err := os.ReadFile(path)
	if err == nil && string(old) == string(text) {
		return nil
	}
	return beneath.Replace(path, mode, beneath.Volatile, text)
}

func readConfig(dir string) (*Config, error) {
	path := statePath(dir, "config.json")
	if err := belongs(dir); err != nil {
		return nil, engine.DirectoryError(dir, err)
	}
	text, err := owner.ReadConfig(path)
	if err != nil {
		return nil, &engine.DirError{Dir: dir, Reason: fmt.Sprintf("is not a shim directory: %v", err), HintText: "premix slurm-shim --dir DIR makes one", Err: err}
	}
	c := &Config{}
	if err := json.Unmarshal(text, c); err != nil {
		return nil, &engine.DirError{Dir: dir, Reason: fmt.Sprintf("has a bad configuration: %v", err), HintText: "premix slurm-shim --dir DIR writes it again", Err: err}
	}
	if c.Format > configFormat {
		return nil, &record.FormatError{Path: path, Format: c.Format}
	}
	return c, nil
}

// nodeName is the name of the one node.
var nodeName = sync.OnceValue(func() string {
	name, err := os.Hostname()
	if err != nil || name == "" {
		return "localhost"
	}
	return name
})

// groupName is the name of the group of this process.
var groupName = sync.OnceValue(func() string {
	id := strconv.Itoa(os.Getgid())
	if g, err := user.LookupGroupId(id); err == nil {
		return g.Name
	}
	return id
})

// userName is the name of the user of this process.
var userName = sync.OnceValue(func() string {
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return strconv.Itoa(os.Getuid())
})
