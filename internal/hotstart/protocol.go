package hotstart

import (
	"encoding/json"
	"os"
	"regexp"
	"sync"
	"syscall"
	"time"

	"premix/internal/hotstart/frozen"
	"premix/internal/image/bundle"
)

// A supervisor is a child process of the Starter with the same binary. It is the tool's parent
// and the only process that traces the tool. It ends with premix, and all processes that
// it started end with it.
//
// Starter and supervisor exchange JSON over a socket, one object per message. The Starter sends
// requests, and the supervisor sends events. The request opBegin starts a turn, which is one
// task or template. The event evIdle, or the end of the supervisor, ends the turn.

// SupervisorArg is the first argument of a supervisor's command line.
const SupervisorArg = "__stage"

// supervisorSocket is the descriptor of the socket in a supervisor.
const supervisorSocket = 3

// FixedDir is where, as root, every task sees its own directory. Tools that
// print their working directory print the same for every sample.
const FixedDir = "/run/premix/work"

// role is the purpose of a supervisor.
type role string

const (
	roleCold role = "cold" // execute the tool for one task
	roleHot  role = "hot"  // start a snapshot for one task
	roleLoad role = "load" // execute the tool, hold it at its input as a template
)

type supervisorConfig struct {
	Role       role
	Namespaces bool   // a mount namespace of its own, and a PID namespace with a Container: work in FixedDir
	Exe        string // program to execute; empty: find Argv[0] by PATH
	Argv       []string
	Env        []string
	Inputs     []string
	Ready      ReadyKind
	Line       string
	Stream     bool
	Task       Task             // Dir is the template's own for roleLoad
	Hide       string           // directory that the tool must not see: other tasks' files
	Watch      bool             // for roleCold: collect the tool's looks at files
	Open       int              // for roleLoad: the open of an input at which the tool is stopped, from 1 on
	Early      bool             // for roleLoad: end the tool before it changes what another one could see
	LastPid    int              // for roleLoad in a PID namespace: the process id before the tool's
	Seed       []byte           // for roleLoad: of the random bytes that the tool gets; nil: the kernel's
	Clock      frozen.Moment    // for roleLoad with Seed: the time at which the tool begins
	Image      string           // for roleHot: the file with the frozen process
	PageFile   string           // for roleHot
	Mapped     []Stamp          // for roleHot: files that the process maps or opens, without digests
	Late       *frozen.Late     // for roleHot: late words to write; nil: none
	Noise      string           // for roleHot: file of patches for a proof; empty: none
	Container  *containerConfig // nil: none
}

// containerConfig describes the container of a tool, and the directory of its bundle.
type containerConfig struct {
	Request bundle.Request
	Bundle  string // directory
	ID      string
	Upper   string // directory whose content the root's upper layer begins with; empty: none
}

func (c *supervisorConfig) line() *regexp.Regexp {
	if c.Line == "" {
		return nil
	}
	return regexp.MustCompile(c.Line) // compiled once already, by the recipe
}

type op string

const (
	opBegin   op = "begin"   // begin the turn that Config describes
	opRead    op = "read"    // read Image, between turns: the next turn is likely to use it
	opFreeze  op = "freeze"  // write the template to Dir; it ends
	opCompare op = "compare" // compare the template with the template that was written to Dir, and end it
	opSignal  op = "signal"  // send Signal to the task
)

type request struct {
	Op     op
	Turn   int               // a request for a turn that is over is ignored
	Config *supervisorConfig // for opBegin
	Image  string            // for opRead
	ID     int
	Dir    string
	First  frozen.Preparation // for opCompare: of the template in Dir
	Words  []frozen.LateWord  // for opCompare: late words of both templates
	Late   *frozen.Late       // for opCompare: writes of a start from the template in Dir with the words of this one
	Signal syscall.Signal
}

type eventKind string

const (
	evHeld     eventKind = "held"    // the template is at its input
	evStarted  eventKind = "started" // the task runs
	evExited   eventKind = "exited"  // the task has ended
	evFrozen   eventKind = "frozen"
	evCompared eventKind = "compared"
	evIdle     eventKind = "idle"   // the turn is over, nothing is left of it, and the supervisor waits for the next
	evFailed   eventKind = "failed" // request ID (0: the role itself) could not be carried out
)

type event struct {
	Kind  eventKind
	ID    int
	Pid   int
	Exit  Exit
	Error string
	Ended bool // with evFailed: the tool itself ended before it came to its input
	// Refused is set, with evFailed, where the tool has state that cannot be restored.
	Refused bool
	Looks   []access // with evHeld, and with evExited where they were asked for
	// Tracing is the CPU time that the supervisor has taken for its turn, with evExited of
	// a watched tool.
	Tracing time.Duration
	// For evHeld.
	Template templateInfo
	// For evCompared.
	Comparison *frozen.Comparison
	Prefix     []byte // of the template's streamed stdout
}

// templateInfo describes a held template.
type templateInfo struct {
	Loaded    time.Duration // from its start until it was held
	Behind    *program      // the tool proper, where a wrapper only waits for it
	Processes int           // that it consists of
	Prepared  frozen.Preparation
	Threads   bool // the tool has made threads
}

// program is the last program that a wrapper has executed. A wrapper is for example a
// shell script that chooses a build for the CPU.
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
