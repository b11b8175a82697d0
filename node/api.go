package node

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"premix/internal/exit"
	"premix/lazyfs"
	"premix/store/object"
)

// Version is the version of the control protocol, and of the journal.
const Version = 1

// Kind says what a caller can do about an [Error].
type Kind string

// The kinds of errors. The command line gives each an exit code.
const (
	KindUsage       Kind = "usage"       // what was asked for is wrong, or not possible there
	KindUnavailable Kind = "unavailable" // this machine cannot do it
	KindBusy        Kind = "busy"        // somebody uses what should go
	KindOrigin      Kind = "origin"      // no origin gave what is needed
	KindTrust       Kind = "trust"       // what an origin gave is not to be trusted
	KindNotRunning  Kind = "not running" // there is no node
	KindNotMounted  Kind = "not mounted"
	KindNoTree      Kind = "no tree" // the origins answer, and have no such tag
	KindInternal    Kind = "internal"
)

// Error is a refusal of the node, or of the client that could not reach it.
type Error struct {
	Kind    Kind   `json:"kind"`
	Message string `json:"error"`
	Way     string `json:"hint,omitempty"`
	// Holders are the processes that hold a mount, for KindBusy.
	Holders []Holder `json:"holders,omitempty"`
}

func (e *Error) Error() string { return e.Message }

// ExitCode implements exit.Coded.
func (e *Error) ExitCode() exit.Code {
	switch e.Kind {
	case KindUsage, KindNotMounted, KindNoTree:
		return exit.Usage
	case KindUnavailable:
		return exit.Unavailable
	case KindBusy:
		return exit.Directory
	case KindOrigin:
		return exit.Origin
	case KindTrust:
		return exit.Trust
	case KindNotRunning:
		return exit.Failed
	}
	return exit.Internal
}

// Hint names the way out.
func (e *Error) Hint() string { return e.Way }

// Holder is a process that holds a mount.
type Holder struct {
	PID  int    `json:"pid"`
	Name string `json:"name"` // of its executable, as in comm (proc_pid_comm(5))
	How  string `json:"how"`  // "working directory", "root", "open file", "mapped file"
}

// IsKind tells whether err is or wraps an [Error] of the kind.
func IsKind(err error, k Kind) bool {
	var e *Error
	return errors.As(err, &e) && e.Kind == k
}

func usage(way, format string, args ...any) error {
	return &Error{Kind: KindUsage, Message: fmt.Sprintf(format, args...), Way: way}
}

// statusOf is the HTTP status that goes with a kind.
func statusOf(k Kind) int {
	switch k {
	case KindUsage, KindNoTree:
		return http.StatusBadRequest
	case KindBusy:
		return http.StatusConflict
	case KindUnavailable, KindOrigin, KindTrust:
		return http.StatusUnprocessableEntity
	}
	return http.StatusInternalServerError
}

// MountRequest asks for a mount. Paths are absolute.
type MountRequest struct {
	// ID is random: a client that lost its connection asks again with the same
	// one, and is not told that its own mount is in the way.
	ID  string `json:"id"`
	Ref string `json:"ref"`
	Dir string `json:"dir"`
	// Within is a directory below which the node chooses Dir by the tree's digest;
	// "" for the node's own. See [Attach].
	Within  string   `json:"within,omitempty"`
	Origins []string `json:"origins,omitempty"` // in order of preference; none: those of the configuration
	Proxies []string `json:"proxies,omitempty"`
	// Files, which are read again whenever the mount is made again.
	KeyFile     string `json:"key_file,omitempty"`
	Credentials string `json:"credentials,omitempty"` // see origin.ReadCredentials
	CAFile      string `json:"ca_file,omitempty"`

	Profile       string         `json:"profile,omitempty"`    // to prefetch; "" for the usual one, "none"
	Record        string         `json:"record,omitempty"`     // file for the profile that is recorded
	Eager         bool           `json:"eager,omitempty"`      // fetch all, as fast as possible
	Background    int64          `json:"background,omitempty"` // fetch all at this rate, bytes a second; 0: don't
	Backend       lazyfs.Backend `json:"backend,omitempty"`
	AllowRollback bool           `json:"allow_rollback,omitempty"`
	// Namespace is the client's mount namespace, as in /proc/self/ns/mnt.
	Namespace string `json:"namespace,omitempty"`
}

// UmountRequest asks for the end of a mount, or of all.
type UmountRequest struct {
	Dir  string `json:"dir,omitempty"`
	All  bool   `json:"all,omitempty"`
	Lazy bool   `json:"lazy,omitempty"` // also where somebody uses it: it goes from sight now, and for good when nobody does
}

// TreeRequest names trees of the cache. A tree is named by at least 8 digits of
// its digest, or by a reference under which it is or was mounted.
type TreeRequest struct {
	Tree string `json:"tree,omitempty"`
	All  bool   `json:"all,omitempty"`
	RAM  bool   `json:"ram,omitempty"` // pin into memory
}

// RestartRequest asks for another worker.
type RestartRequest struct {
	Exe string `json:"exe,omitempty"` // absolute path of the binary; "" for the one that runs
}

// StopRequest asks for the node's end.
type StopRequest struct {
	Lazy bool `json:"lazy,omitempty"` // also where mounts are used
}

// Mounted is a mount in a status.
type Mounted struct {
	ID      string         `json:"id"`
	Ref     string         `json:"ref"`
	Tree    object.Digest  `json:"tree"`
	Dir     string         `json:"dir"`
	State   string         `json:"state"`            // "mounted", or "failed": it ought to be there
	Backend lazyfs.Backend `json:"backend"`          // the one in use
	Reason  string         `json:"reason,omitempty"` // why not one that is better
	Note    string         `json:"note,omitempty"`   // to be told to whoever mounts
	Error   string         `json:"error,omitempty"`  // why it is "failed"

	// Fetched is what the origins of this mount have sent, bytes, since the worker began.
	Fetched int64 `json:"fetched"`

	// Figures of the tree since the worker began, whoever has it mounted. Bytes are
	// those of the image.
	Total          int64   `json:"total"`
	Present        int64   `json:"present"`         // in the cache
	FetchedContent int64   `json:"fetched_content"` // of chunks that were fetched
	Copied         int64   `json:"copied"`          // from other trees in the cache
	Hits           int64   `json:"hits"`            // chunks read that were in the cache
	Misses         int64   `json:"misses"`          // chunks read that were waited for
	HitRatio       float64 `json:"hit_ratio"`       // 1 where no chunk was read
	Errors         int64   `json:"errors"`          // reads that failed
	Corrupt        int64   `json:"corrupt"`         // chunks that were wrong on disk
	NotKept        int64   `json:"not_kept"`        // chunks for which the cache had no room
	Slowest        []Fetch `json:"slowest,omitempty"`

	LastError string    `json:"last_error,omitempty"`
	Profile   string    `json:"profile"` // state of the prefetch
	Record    string    `json:"record,omitempty"`
	Eager     bool      `json:"eager,omitempty"`
	Since     time.Time `json:"since"`
	Origins   []Origin  `json:"origins"`
}

// Fetch is a fetch that took long.
type Fetch struct {
	Chunk   int       `json:"chunk"` // of the image
	Seconds float64   `json:"seconds"`
	At      time.Time `json:"at"`
}

// Origin is an origin in a status.
type Origin struct {
	URL       string  `json:"url"`
	State     string  `json:"state"`
	Requests  int64   `json:"requests"`
	Bytes     int64   `json:"bytes"`
	Errors    int64   `json:"errors"`
	Corrupt   int64   `json:"corrupt"` // wrong objects
	LastError string  `json:"last_error,omitempty"`
	P99       float64 `json:"p99_seconds"` // of the last fetches
}

const originHealthy = "healthy"

// Status is what a node tells of itself.
type Status struct {
	Version    int       `json:"version"`
	Premix     string    `json:"premix"` // version of the worker's binary
	Dir        string    `json:"dir"`
	Cache      string    `json:"cache"`
	Supervisor int       `json:"supervisor"` // process id
	Worker     int       `json:"worker"`
	Since      time.Time `json:"since"`  // the worker's
	Deaths     int       `json:"deaths"` // of workers before it, lately
	Namespace  string    `json:"namespace"`
	Mounts     []Mounted `json:"mounts"`
}
