package node

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"premix/internal/kit/exit"
	"premix/internal/lazyfs"
	"premix/internal/store/neighbour"
	"premix/internal/store/object"
)

// Version is the version of the control protocol, and of the journal.
const Version = 1

// Kind is the class of an [Error], on which a caller can decide.
type Kind string

// The kinds of errors. The command line gives each an exit code.
const (
	KindUsage       Kind = "usage"       // the request is wrong, or not possible in this place
	KindUnavailable Kind = "unavailable" // this machine does not support it
	KindBusy        Kind = "busy"        // the mount is in use
	KindOrigin      Kind = "origin"      // no origin answered with the needed data
	KindTrust       Kind = "trust"       // the answer of an origin is not trusted
	KindNotRunning  Kind = "not running" // no node is running
	KindNotMounted  Kind = "not mounted"
	KindNoTree      Kind = "no tree" // the origins answer, but do not have the tag
	KindInternal    Kind = "internal"
)

// Error is an error of the node, or of a client that could not reach it.
type Error struct {
	Kind     Kind   `json:"kind"`
	Message  string `json:"error"`
	HintText string `json:"hint,omitempty"`
	// Holders are the processes that use a mount, for KindBusy.
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

// Hint returns the hint for the user.
func (e *Error) Hint() string { return e.HintText }

// Holder is a process that uses a mount.
type Holder struct {
	PID  int    `json:"pid"`
	Name string `json:"name"` // of its executable, as in comm (proc_pid_comm(5))
	How  string `json:"how"`  // "working directory", "root", "open file", "mapped file"
}

// IsKind reports whether err is or wraps an [Error] of the kind.
func IsKind(err error, k Kind) bool {
	var e *Error
	return errors.As(err, &e) && e.Kind == k
}

func usage(hint, format string, args ...any) error {
	return &Error{Kind: KindUsage, Message: fmt.Sprintf(format, args...), HintText: hint}
}

// statusOf returns the HTTP status of a kind.
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

// MountRequest requests a mount. Paths are absolute.
type MountRequest struct {
	// ID is random. A client that lost its connection repeats the request with the same
	// ID, and gets its own mount instead of an error that the directory is in use.
	ID  string `json:"id"`
	Ref string `json:"ref"`
	Dir string `json:"dir"`
	// Within is a directory below which the node chooses Dir by the tree's digest; ""
	// means the node's own directory. See [Attach].
	Within string `json:"within,omitempty"`
	// CVMFS is the repository to be mounted instead of a tree, or nil. Ref is its URL then.
	CVMFS *Repository `json:"cvmfs,omitempty"`
	// Layer is the layer of an image in a registry to be mounted instead of a tree, or nil.
	// Ref is a name for it then.
	Layer   *Layer   `json:"layer,omitempty"`
	Origins []string `json:"origins,omitempty"` // in order of preference; none: the configured ones
	Proxies []string `json:"proxies,omitempty"`
	// Files, which are read again whenever the tree is mounted again.
	KeyFile     string `json:"key_file,omitempty"`
	Credentials string `json:"credentials,omitempty"` // see origin.ReadCredentials
	CAFile      string `json:"ca_file,omitempty"`

	Profile       string         `json:"profile,omitempty"`    // of a tree, to prefetch; "" for the default one, "none" for no prefetch
	Record        string         `json:"record,omitempty"`     // file for the recorded profile
	Eager         bool           `json:"eager,omitempty"`      // fetch all, as fast as possible
	Background    int64          `json:"background,omitempty"` // fetch all at this rate, bytes per second; 0: do not
	Backend       lazyfs.Backend `json:"backend,omitempty"`
	AllowRollback bool           `json:"allow_rollback,omitempty"`
	// Own shows all files as the user's, where the node is an ordinary user's.
	Own bool `json:"own,omitempty"`
	// Namespace is the client's mount namespace, from /proc/self/ns/mnt.
	Namespace string `json:"namespace,omitempty"`
}

// UmountRequest requests the end of one mount, or of all.
type UmountRequest struct {
	Dir  string `json:"dir,omitempty"`
	All  bool   `json:"all,omitempty"`
	Lazy bool   `json:"lazy,omitempty"` // permitted while it is in use: it disappears now, and ends with its last use
}

// TreeRequest names trees in the cache. A tree is named by at least 8 digits of its
// digest, or by a reference under which it is or was mounted.
type TreeRequest struct {
	Tree string `json:"tree,omitempty"`
	All  bool   `json:"all,omitempty"`
	RAM  bool   `json:"ram,omitempty"` // pin into memory
}

// RestartRequest requests another worker.
type RestartRequest struct {
	Exe string `json:"exe,omitempty"` // absolute path of the binary; "" for the running one
}

// StopRequest requests the node's end.
type StopRequest struct {
	Lazy bool `json:"lazy,omitempty"` // permitted while mounts are in use
}

// Mounted describes a mount in a status.
type Mounted struct {
	ID      string         `json:"id"`
	Ref     string         `json:"ref"`
	Tree    object.Digest  `json:"tree,omitzero"` // absent for a repository that follows revisions; of a layer in a registry, the digest of its description, and of other repositories a digest of the content
	Dir     string         `json:"dir"`
	State   string         `json:"state"`            // "mounted", or "failed": it should be mounted
	Backend lazyfs.Backend `json:"backend"`          // the one in use
	Reason  string         `json:"reason,omitempty"` // why it is not a better one
	Note    string         `json:"note,omitempty"`   // a note for the user
	Error   string         `json:"error,omitempty"`  // why it is "failed"

	// Repository is set for a repository of CVMFS, which has a Revision, and none of the
	// figures below.
	Repository bool   `json:"repository,omitempty"`
	Revision   uint64 `json:"revision,omitempty"` // that is shown

	// Fetched is the number of bytes received from the origins of this mount since the
	// worker began.
	Fetched int64 `json:"fetched"`

	// Figures of the tree since the worker began, of all of its mounts. Bytes are bytes
	// of the image.
	Total          int64   `json:"total"`
	Present        int64   `json:"present"`         // in the cache
	FetchedContent int64   `json:"fetched_content"` // of fetched chunks
	Copied         int64   `json:"copied"`          // from other trees in the cache
	Hits           int64   `json:"hits"`            // chunks read that were in the cache
	Misses         int64   `json:"misses"`          // chunks read that a reader waited for
	HitRatio       float64 `json:"hit_ratio"`       // 1 if no chunk was read
	Errors         int64   `json:"errors"`          // reads that failed
	Corrupt        int64   `json:"corrupt"`         // chunks that were wrong on disk
	NotKept        int64   `json:"not_kept"`        // chunks not kept for lack of space
	Slowest        []Fetch `json:"slowest,omitempty"`

	LastError string    `json:"last_error,omitempty"`
	Profile   string    `json:"profile"` // state of the prefetch
	Record    string    `json:"record,omitempty"`
	Eager     bool      `json:"eager,omitempty"`
	Since     time.Time `json:"since"`
	Origins   []Origin  `json:"origins"`
}

// Fetch records a fetch that took long.
type Fetch struct {
	Chunk   int       `json:"chunk"` // of the image
	Seconds float64   `json:"seconds"`
	At      time.Time `json:"at"`
}

// Origin describes an origin in a status.
type Origin struct {
	URL       string  `json:"url"`
	State     string  `json:"state"`
	Requests  int64   `json:"requests"`
	Bytes     int64   `json:"bytes"`
	Errors    int64   `json:"errors"`
	Corrupt   int64   `json:"corrupt"` // wrong objects
	LastError string  `json:"last_error,omitempty"`
	P99       float64 `json:"p99_seconds"` // of recent fetches
}

// Neighbours describes the neighbours of a node in a status.
type Neighbours struct {
	Address string             `json:"address,omitempty"` // at which they ask this node
	Asked   []neighbour.Status `json:"asked"`
	Given   neighbour.Counts   `json:"given"` // to them
}

const originHealthy = "healthy"

// Status describes the node.
type Status struct {
	Version    int       `json:"version"`
	Premix     string    `json:"premix"` // version of the worker's binary
	Dir        string    `json:"dir"`
	Cache      string    `json:"cache"`
	Supervisor int       `json:"supervisor"` // process id
	Worker     int       `json:"worker"`
	Since      time.Time `json:"since"`  // of the worker
	Deaths     int       `json:"deaths"` // recent deaths of workers
	Namespace  string    `json:"namespace"`
	Mounts     []Mounted `json:"mounts"`

	Neighbours *Neighbours `json:"neighbours,omitempty"`
}
