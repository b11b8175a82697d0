package hotstart

import (
	"encoding/json"
	"os"
	"regexp"
	"sync"
	"syscall"
	"time"

	"premix/image/bundle"
)

// A stage is this same binary, executed again by a Starter to stand between it
// and the tool: as root it is PID 1 of the task's own PID namespace, and it is
// always the tool's parent and the only process that traces it. It ends with
// premix, and what it started ends with it.
//
// Starter and stage talk over a socket in JSON, one object a message. The
// first message is a stageConfig; then requests go one way and events the
// other.

// StageArg is the first argument of a stage's command line.
const StageArg = "__stage"

// stageSocket is the descriptor of the socket in a stage.
const stageSocket = 3

// FixedDir is where, as root, every task sees its own directory. Tools that
// print their working directory print the same for every sample.
const FixedDir = "/run/premix/work"

// pagesPath is where the page file of a snapshot is in a container.
const pagesPath = "/run/premix/pages"

// logDir is where, in a stage's own mount namespace, CRIU logs a restore.
const logDir = "/run/premix/log"

// role is what a stage is for.
type role string

const (
	roleCold     role = "cold"     // execute the tool for one task
	roleRestore  role = "restore"  // restore a snapshot for one task
	roleLoad     role = "load"     // execute the tool, hold it at its input as a template
	roleTemplate role = "template" // restore a snapshot, hold it as a template
)

type stageConfig struct {
	Role       role
	Namespaces bool   // own PID and mount namespaces: work in FixedDir
	Exe        string // program to execute; empty: find Argv[0] by PATH
	Argv       []string
	Env        []string
	Inputs     []string
	Ready      ReadyKind
	Line       string
	Stream     bool
	Task       Task   // Dir is the template's own for roleLoad and roleTemplate
	Hide       string // directory that the tool must not see: other tasks' files
	Criu       string
	Images     string           // for roleRestore and roleTemplate
	PageFile   string           // that the images map; empty: none
	Container  *containerConfig // nil: none
}

// containerConfig says which container a tool runs in, and where that is made.
type containerConfig struct {
	Request bundle.Request
	Bundle  string // directory
	ID      string
	Upper   string // directory whose content the root's upper layer begins with; empty: none
}

func (c *stageConfig) line() *regexp.Regexp {
	if c.Line == "" {
		return nil
	}
	return regexp.MustCompile(c.Line) // compiled once already, by the recipe
}

type op string

const (
	opFork   op = "fork"   // start Task from the template
	opDump   op = "dump"   // write the template's images to Dir; it ends
	opSignal op = "signal" // send Signal to task ID
)

type request struct {
	Op     op
	ID     int
	Task   Task
	Hide   string
	Dir    string
	Signal syscall.Signal
	// For opFork: that of the task.
	Container *containerConfig
}

type eventKind string

const (
	evHeld    eventKind = "held"    // the template is at its input
	evStarted eventKind = "started" // task ID runs
	evExited  eventKind = "exited"  // task ID has ended
	evDumped  eventKind = "dumped"
	evFailed  eventKind = "failed" // request ID (0: the role itself) could not be carried out
)

type event struct {
	Kind  eventKind
	ID    int
	Pid   int
	Exit  Exit
	Error string
	Ended bool // with evFailed: the tool itself ended before it came to its input
	// For evHeld.
	Template templateInfo
}

// templateInfo describes a held template.
type templateInfo struct {
	NoFork string        // why it cannot be forked; empty if it can
	Files  []string      // binary and libraries that it has mapped
	Loaded time.Duration // from its start until it was held
	Behind *program      // the tool proper, where a wrapper only waits for it
}

// program is what a wrapper (a shell script that chooses a build for the CPU,
// say) has executed in the end.
type program struct {
	Exe  string   `json:"exe"`
	Argv []string `json:"argv"`
	Env  []string `json:"env"`
}

// link is one end of the socket.
type link struct {
	f   *os.File
	dec *json.Decoder
	mu  sync.Mutex // serialises send
	enc *json.Encoder
}

func newLink(f *os.File) *link {
	return &link{f: f, dec: json.NewDecoder(f), enc: json.NewEncoder(f)}
}

func (l *link) send(v any) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.enc.Encode(v)
}

func (l *link) receive(v any) error { return l.dec.Decode(v) }
