package watch

import (
	"context"
	"slices"
	"strings"
	"time"
)

// Layer is the part of the system that a series belongs to. It is the part of the series'
// name before the first dot.
type Layer string

// The layers, from the hardware up, in the order in which they are shown.
const (
	LayerNode      Layer = "node"      // processors, memory, pressure of the machine
	LayerDisk      Layer = "disk"      // block devices
	LayerNetwork   Layer = "network"   // interfaces, TCP
	LayerMount     Layer = "mount"     // file systems: local, NFS, Lustre, GPFS
	LayerStore     Layer = "store"     // premix's node: cache, mounts, fetches
	LayerScheduler Layer = "scheduler" // queues of Slurm and of premix
	LayerTask      Layer = "task"      // tasks and their cgroups
	LayerVendor    Layer = "vendor"    // output of scripts that a site adds
)

// Layers is the list of all layers in the order in which they are shown.
var Layers = []Layer{LayerNode, LayerDisk, LayerNetwork, LayerMount, LayerStore, LayerScheduler, LayerTask, LayerVendor}

// Label is a key and a value that distinguish a series from others with its name.
type Label struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// ID identifies a series.
type ID struct {
	Name   string  // layer.quantity, lower case, words joined by underscores: disk.read_bytes
	Labels []Label // sorted by key; each key occurs once
}

// NewID returns the ID with a name and labels, given as key, value, key, value. It panics
// if a key lacks its value.
func NewID(name string, labels ...string) ID {
	id := ID{Name: name}
	for i := 0; i < len(labels); i += 2 {
		id.Labels = append(id.Labels, Label{labels[i], labels[i+1]})
	}
	slices.SortFunc(id.Labels, func(a, b Label) int { return strings.Compare(a.Key, b.Key) })
	return id
}

// Layer returns the layer that the series belongs to.
func (id ID) Layer() Layer {
	layer, _, _ := strings.Cut(id.Name, ".")
	return Layer(layer)
}

// Label returns the value of a label, or "" if the ID does not have it.
func (id ID) Label(key string) string {
	for _, l := range id.Labels {
		if l.Key == key {
			return l.Value
		}
	}
	return ""
}

// String returns name{key="value",...} with values quoted as in the Prometheus text format
// (https://prometheus.io/docs/instrumenting/exposition_formats/). Two IDs have the same
// string if and only if they are equal.
func (id ID) String() string {
	if len(id.Labels) == 0 {
		return id.Name
	}
	var b strings.Builder
	b.WriteString(id.Name)
	for i, l := range id.Labels {
		b.WriteByte("{,"[min(i, 1)])
		b.WriteString(l.Key)
		b.WriteString(`="`)
		quoted.WriteString(&b, l.Value) // a strings.Builder returns no error
		b.WriteByte('"')
	}
	b.WriteByte('}')
	return b.String()
}

var quoted = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

// Unit is the unit of a value.
type Unit string

// The units.
const (
	Bytes          Unit = "B"
	BytesPerSecond Unit = "B/s"
	PerSecond      Unit = "/s"
	Seconds        Unit = "s"
	Cores          Unit = "cores" // seconds of processor time a second
	Ratio          Unit = "ratio" // 0 to 1
	Watts          Unit = "W"
	Celsius        Unit = "°C"
	Count          Unit = "count"
)

// Sample is one value of a series.
type Sample struct {
	ID    ID
	Unit  Unit
	Time  time.Time // kept to the millisecond
	Value float64   // finite
}

// ProcessEngine is the Engine of a process that is not of premix.
const ProcessEngine = "process"

// Task is a command that ran, or that is running. It is reported twice with the same Key:
// at its beginning with End zero, and at its end.
type Task struct {
	Key      string    `json:"key"`  // unique for all time: directory, number and try
	Name     string    `json:"name"` // sample or command
	Run      string    `json:"run"`  // directory of the run
	Step     string    `json:"step"` // recipe or group
	User     string    `json:"user"`
	Node     string    `json:"node"`
	Engine   string    `json:"engine"` // local, slurm, kubernetes
	Start    string    `json:"start"`  // kind of start: fork, hot, copy, cold
	Reason   string    `json:"reason"` // why that kind, or the cause of the task's failure
	Queued   time.Time `json:"queued"` // zero where unknown
	Began    time.Time `json:"began"`
	End      time.Time `json:"end"` // zero while it runs
	Exit     int       `json:"exit"`
	OK       bool      `json:"ok"`
	Cores    float64   `json:"cores"`     // reserved
	Memory   int64     `json:"memory"`    // requested, bytes; 0 without a limit
	CPU      float64   `json:"cpu"`       // seconds, user and system
	MaxRSS   int64     `json:"max_rss"`   // bytes
	Read     int64     `json:"read"`      // bytes from storage
	Written  int64     `json:"written"`   // bytes to storage
	WarmedIn float64   `json:"warmed_in"` // seconds from start to reading its input; 0 where unknown
}

// Event is something that happened at a moment.
type Event struct {
	Time  time.Time `json:"time"`
	Node  string    `json:"node"`
	Layer Layer     `json:"layer"`
	Kind  string    `json:"kind"` // collector_failed, clock_jumped, mount_added, ...
	Text  string    `json:"text"` // one sentence for people
}

// Sink receives the collected data. Its methods may be called by several goroutines at
// once, do not retain their arguments, and do not wait for a disk.
type Sink interface {
	Samples([]Sample)
	Task(Task)
	Event(Event)
}

// Collector collects the data of one part of a machine.
type Collector interface {
	// Name returns one word for messages and configuration: disk, slurm.
	Name() string
	// Collect reports the present state to the sink, all of it with the time now. It stops
	// when the context ends, which is before its next call.
	Collect(ctx context.Context, now time.Time, to Sink) error
}
