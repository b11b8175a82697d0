package link

import (
	"os"
	"time"

	"premix/internal/transfer"
)

// Link is a checked link file.
type Link struct {
	Name string
	Path string // absolute; empty: the link has no file

	Host       string // name or address of the peer
	Port       int    // of its sshd
	User       string
	Identity   string // file with a private key; empty: ssh's default
	KnownHosts string // file; empty: ssh's default
	// Control is a socket through which ssh shares one connection, see ControlPath in
	// ssh_config(5). If it is empty, each command has its own connection.
	Control string

	Directory     string // here, for copied data
	PeerDirectory string // at the peer

	Interface string // empty: the interface of the route to the peer
	Data      []Data
	Ways      []transfer.Direction
	Repeat    int
	Seed      uint64
	Timeout   time.Duration // of one copy
	Stall     time.Duration // see StallOf; 0: the default
	Quiet     Quiet
	Peak      []Span // of the day, local time; none: there are no periods
	Protocols []Protocol
}

// Data is the data to copy: one file, or a tree of files of equal size.
type Data struct {
	Files int
	Size  int64 // of all files together
}

// String returns the data in the form of link files.
func (d Data) String() string { return transfer.DataName(d.Size, d.Files) }

// Quiet defines when a link is quiet enough to measure.
type Quiet struct {
	For  time.Duration // time for which the link is watched before a copy
	Rate int64         // permitted traffic, bytes a second
}

// Span is a span of a day. To is less than From if it contains midnight.
type Span struct{ From, To time.Duration }

// Contains reports whether a time of day is within the span.
func (s Span) Contains(at time.Duration) bool {
	if s.From <= s.To {
		return at >= s.From && at < s.To
	}
	return at >= s.From || at < s.To
}

// Period returns peak or off-peak, or "" if the link does not define them.
func (l *Link) Period(at time.Time) string {
	if len(l.Peak) == 0 {
		return ""
	}
	h, m, s := at.Clock()
	day := time.Duration(h)*time.Hour + time.Duration(m)*time.Minute + time.Duration(s)*time.Second
	for _, p := range l.Peak {
		if p.Contains(day) {
			return "peak"
		}
	}
	return "off-peak"
}

// Protocol is a way to copy. A script is empty if the protocol does not support the
// operation.
type Protocol struct {
	Name      string
	About     string
	Needs     []string // programs here
	NeedsPeer []string // programs at the peer
	Get, Put  string
	GetTree   string
	PutTree   string
	Server    string // executed at the peer, in the foreground
	Prepare   string // executed here once its server is ready
	Settings  map[string]string
	Open      bool   // see the package documentation
	Resumes   bool   // running the command again continues with a part
	Verifies  bool   // it succeeds only if the written data equals the source
	Stages    bool   // put writes a private copy beside its destination, and renames it
	Expect    string // udp: the capture must have seen UDP
}

const (
	// stallDirect is the time that a copy from or to a server may make no progress, and
	// stallSSH the same for a copy through ssh, which itself ends when the peer is silent:
	// a peer may need long to sync the data.
	stallDirect = time.Minute
	stallSSH    = 10 * time.Minute
)

// StallOf returns the time that a copy by a protocol may make no progress.
func (l *Link) StallOf(p *Protocol) time.Duration {
	switch {
	case l.Stall > 0:
		return l.Stall
	case p.Server != "":
		return stallDirect
	}
	return stallSSH
}

// AtPeer returns NeedsPeer with the values of settings in it.
func (p *Protocol) AtPeer() []string {
	var list []string
	for _, n := range p.NeedsPeer {
		list = append(list, os.Expand(n, func(name string) string { return p.Settings[name] }))
	}
	return list
}

// Script returns the script for a direction, and for a single file or a tree.
func (p *Protocol) Script(way transfer.Direction, tree bool) string {
	switch {
	case way == transfer.Get && tree:
		return p.GetTree
	case way == transfer.Get:
		return p.Get
	case tree:
		return p.PutTree
	}
	return p.Put
}
