package transfer

import (
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"premix/internal/kit/exit"
	"premix/internal/kit/owner"
	"premix/internal/record"
)

// Direction of a copy.
type Direction string

const (
	Get Direction = "get" // from the peer to here
	Put Direction = "put" // from here to the peer
)

// The causes of a failed copy, in [Copy.Cause]. It is empty for a copy that succeeded.
const (
	CauseExit      = "exit"      // the command ended with a status other than 0, or by a signal
	CauseTimeout   = "timeout"   // it was killed with all its children at its timeout
	CauseStall     = "stall"     // it was killed with all its children, because it made no progress
	CauseContent   = "content"   // the content that arrived differs from the source
	CauseWire      = "wire"      // it did not use the expected protocol: for example, no UDP packet was seen
	CauseServer    = "server"    // its server did not start
	CausePeer      = "peer"      // the peer could not be reached
	CauseInterrupt = "interrupt" // premix was asked to end
	CauseCapture   = "capture"   // the capture failed
)

// SizeEdges are the upper bounds, in bytes and inclusive, of the bins of
// [Copy.Histogram]; the last bin has none. Sizes are those of frames with their
// Ethernet header, as captured: see [Copy.Offload].
var SizeEdges = []int{64, 128, 256, 512, 1024, 1518, 9018}

// Copy is the row of one copy. Times are UTC, durations seconds, sizes bytes,
// rates bytes a second.
type Copy struct {
	ID        string    `json:"id" parquet:"id"` // unique, and sorts by time
	Link      string    `json:"link" parquet:"link,dict"`
	Protocol  string    `json:"protocol" parquet:"protocol,dict"`
	Direction Direction `json:"direction" parquet:"direction,dict"`
	Size      int64     `json:"size" parquet:"size"`          // of the data
	Files     int       `json:"files" parquet:"files"`        // 1: a single file; more: a tree with this number of files
	Round     int       `json:"round" parquet:"round"`        // from 1, within the invocation
	Order     int       `json:"order" parquet:"order"`        // from 1, within the invocation
	Period    string    `json:"period" parquet:"period,dict"` // peak or off-peak, if the link defines them
	Command   string    `json:"command" parquet:"command,dict"`
	Host      string    `json:"host" parquet:"host,dict"` // name of here
	Here      string    `json:"here" parquet:"here,dict"` // address
	Peer      string    `json:"peer" parquet:"peer,dict"` // address

	Started time.Time `json:"started" parquet:"started,timestamp(nanosecond)"`
	Hour    float64   `json:"hour" parquet:"hour"`   // of the day at which it started, local time, 0 to 24
	Setup   float64   `json:"setup" parquet:"setup"` // duration of starting its server, before the copy: not in Seconds
	Seconds float64   `json:"seconds" parquet:"seconds"`
	Speed   float64   `json:"speed" parquet:"speed"`
	Steady  float64   `json:"steady" parquet:"steady"`      // 0: the copy was too short
	First   float64   `json:"first" parquet:"first"`        // until the first byte of payload in the direction of the data
	Flowing float64   `json:"flowing" parquet:"flowing"`    // until 64 KiB had been carried: more than a handshake needs; 0: never
	Ratio   float64   `json:"ratio" parquet:"ratio"`        // 0: not captured
	OK      bool      `json:"ok" parquet:"ok"`              // the command succeeded, and the content is right
	Cause   string    `json:"cause" parquet:"cause,dict"`   // why not OK: one of the causes
	Error   string    `json:"error" parquet:"error"`        // the same for people
	Exit    int       `json:"exit" parquet:"exit"`          // status of the command; -1 by a signal
	SHA256  string    `json:"sha256" parquet:"sha256,dict"` // of the content; for a tree, of the list that sha256sum prints, sorted by name

	BytesDown       int64   `json:"bytes_down" parquet:"bytes_down"` // including all headers, also Ethernet
	BytesUp         int64   `json:"bytes_up" parquet:"bytes_up"`
	PacketsDown     int64   `json:"packets_down" parquet:"packets_down"`
	PacketsUp       int64   `json:"packets_up" parquet:"packets_up"`
	PayloadDown     int64   `json:"payload_down" parquet:"payload_down"` // content of TCP and UDP packets
	PayloadUp       int64   `json:"payload_up" parquet:"payload_up"`
	RetransmitsDown int64   `json:"retransmits_down" parquet:"retransmits_down"` // TCP segments that begin before the end of those already seen
	RetransmitsUp   int64   `json:"retransmits_up" parquet:"retransmits_up"`
	TCP             int64   `json:"tcp" parquet:"tcp"` // packets
	UDP             int64   `json:"udp" parquet:"udp"`
	Histogram       []int64 `json:"histogram" parquet:"histogram,list"` // packets by size, see SizeEdges
	Connections     int     `json:"connections" parquet:"connections"`  // TCP connections and UDP flows with payload

	Congestion       string `json:"congestion" parquet:"congestion,dict"`               // default for new connections here
	CongestionPeer   string `json:"congestion_peer" parquet:"congestion_peer,dict"`     // and at the peer
	CongestionSocket string `json:"congestion_socket" parquet:"congestion_socket,dict"` // of the copy's own sockets here, while it ran

	CPU           float64 `json:"cpu" parquet:"cpu"`                              // user and system, of the command and its children here
	CPUPeer       float64 `json:"cpu_peer" parquet:"cpu_peer"`                    // at the peer, see CPUPeerSource
	CPUPeerSource string  `json:"cpu_peer_source" parquet:"cpu_peer_source,dict"` // server: of sshd and the protocol's server; machine: of all programs there; empty: unknown

	Capture     string  `json:"capture" parquet:"capture,dict"` // packet, tcpdump or none
	Interface   string  `json:"interface" parquet:"interface,dict"`
	MTU         int     `json:"mtu" parquet:"mtu"`
	Offload     string  `json:"offload" parquet:"offload,dict"`  // offloads that join or split packets below the capture: tso, gso, gro, lro
	Oversize    int64   `json:"oversize" parquet:"oversize"`     // frames larger than the MTU permits: each was several packets on the wire
	Drops       int64   `json:"drops" parquet:"drops"`           // packets that the capture missed
	Others      int64   `json:"others" parquet:"others"`         // bytes of other traffic on the interface during the copy
	Disturbed   string  `json:"disturbed" parquet:"disturbed"`   // why; empty: not disturbed
	Background  float64 `json:"background" parquet:"background"` // rate on the interface before the copy began
	Packets     string  `json:"packets" parquet:"packets"`       // file of all packets, relative to the directory of results
	PremixBuild string  `json:"premix" parquet:"premix,dict"`    // version that measured
}

// Usable reports whether a copy may be compared with others.
func (c *Copy) Usable() bool { return c.OK && c.Disturbed == "" }

// Bytes returns the bytes on the wire in both directions.
func (c *Copy) Bytes() int64 { return c.BytesDown + c.BytesUp }

// Data returns a short name for the copied data: 500M, or 10000x4K.
func (c *Copy) Data() string { return DataName(c.Size, c.Files) }

// DataName returns a short name for data of a size in a number of files.
func DataName(size int64, files int) string {
	if files > 1 {
		return fmt.Sprintf("%dx%s", files, Short(size/int64(files)))
	}
	return Short(size)
}

// Short returns a size in the form of link files.
func Short(n int64) string {
	for _, u := range []struct {
		name string
		unit int64
	}{{"T", 1 << 40}, {"G", 1 << 30}, {"M", 1 << 20}, {"K", 1 << 10}} {
		if n >= u.unit {
			if n%u.unit == 0 {
				return fmt.Sprintf("%d%s", n/u.unit, u.name)
			}
			return fmt.Sprintf("%.3g%s", float64(n)/float64(u.unit), u.name)
		}
	}
	return fmt.Sprint(n)
}

// Packet is the row of one captured packet.
type Packet struct {
	Time    float64 `json:"time" parquet:"time"` // seconds since the command was started
	Down    bool    `json:"down" parquet:"down"`
	Size    int32   `json:"size" parquet:"size"`       // of the frame
	Payload int32   `json:"payload" parquet:"payload"` // within TCP or UDP
	TCP     bool    `json:"tcp" parquet:"tcp"`
	Port    int32   `json:"port" parquet:"port"` // of here: identifies the connection
}

// NoResults is returned for a directory without a table of copies.
type NoResults struct{ Dir string }

func (e *NoResults) Error() string { return fmt.Sprintf("%s has no results of transfers", e.Dir) }

// ExitCode implements exit.Coded.
func (*NoResults) ExitCode() exit.Code { return exit.Usage }

// Hint returns the command that makes results.
func (e *NoResults) Hint() string { return "premix transfer bench LINK.yaml --out " + e.Dir }

// tables is the pattern of the names of the tables in a directory.
const tables = "transfers-*.jsonl"

// Create creates a table in the directory of results dir, and the directory if necessary.
func Create(dir string, h record.Header) (*record.Writer, error) {
	if err := owner.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	h.Table = "transfer"
	for n := 1; ; n++ {
		w, err := record.Create(filepath.Join(dir, strings.Replace(tables, "*", fmt.Sprintf("%04d", n), 1)), h)
		if !errors.Is(err, os.ErrExist) {
			return w, err
		}
	}
}

// Read returns all copies in directories of results, sorted by time.
func Read(dirs ...string) ([]Copy, error) {
	var all []Copy
	for _, dir := range dirs {
		// A directory's name may contain wildcards, so only the names inside are matched.
		names, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) {
			return nil, err
		}
		found := false
		for _, e := range names {
			if ok, err := filepath.Match(tables, e.Name()); err != nil || !ok {
				continue
			}
			found = true
			if _, _, err := record.Read(filepath.Join(dir, e.Name()), func(c *Copy) error {
				all = append(all, *c)
				return nil
			}); err != nil {
				return nil, err
			}
		}
		if !found {
			return nil, &NoResults{Dir: dir}
		}
	}
	slices.SortStableFunc(all, func(a, b Copy) int { return a.Started.Compare(b.Started) })
	return all, nil
}

// Rows returns an iterator over copies for [record.ToParquet].
func Rows(copies []Copy) iter.Seq2[*Copy, error] {
	return func(yield func(*Copy, error) bool) {
		for i := range copies {
			if !yield(&copies[i], nil) {
				return
			}
		}
	}
}
