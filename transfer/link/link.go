package link

import (
	"os"
	"time"

	"premix/transfer"
)

// Link is a link file that was checked.
type Link struct {
	Name string
	Path string // absolute; empty: it was made from a name alone

	Host       string // name or address of the peer
	Port       int    // of its sshd
	User       string
	Identity   string // file of a private key; empty: ssh's own choice
	KnownHosts string // file; empty: ssh's own
	// Control is a socket through which ssh shares one connection, see ControlPath in
	// ssh_config(5); empty: each command has a connection of its own.
	Control string

	Directory     string // here, for what is copied
	PeerDirectory string // at the peer

	Interface string // empty: where the route to the peer goes
	Data      []Data
	Ways      []transfer.Direction
	Repeat    int
	Seed      uint64
	Timeout   time.Duration // of one copy
	Stall     time.Duration // see StallOf; 0: as is usual
	Quiet     Quiet
	Peak      []Span // of the day, local time; none: periods are not told apart
	Protocols []Protocol
}

// Data is what is copied: one file, or a tree of equal ones.
type Data struct {
	Files int
	Size  int64 // of all together
}

// String is the data as link files name it.
func (d Data) String() string { return transfer.DataName(d.Size, d.Files) }

// Quiet says when a link is quiet enough.
type Quiet struct {
	For  time.Duration // how long it is watched before a copy
	Rate int64         // bytes a second that are let pass
}

// Span of a day, from its beginning; To may be smaller than From, over midnight.
type Span struct{ From, To time.Duration }

// Contains tells whether a time of day is within the span.
func (s Span) Contains(at time.Duration) bool {
	if s.From <= s.To {
		return at >= s.From && at < s.To
	}
	return at >= s.From || at < s.To
}

// Period is peak or off-peak, or empty where the link does not say.
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

// Protocol is a way to copy. Scripts are empty where it can't.
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
	Open      bool   // see the package
	Resumes   bool   // the same command again goes on with a part
	Verifies  bool   // it ends well only if what it wrote is what was sent
	Stages    bool   // put makes a private copy beside its destination, and gives it its name
	Expect    string // udp: the capture must have seen UDP
}

const (
	// stallDirect is how long a copy from or to a server may make no progress, and
	// stallSSH one through ssh, which itself ends when the peer is silent: a peer may
	// take long to bring to disk what it has.
	stallDirect = time.Minute
	stallSSH    = 10 * time.Minute
)

// StallOf is how long a copy by a protocol may make no progress.
func (l *Link) StallOf(p *Protocol) time.Duration {
	switch {
	case l.Stall > 0:
		return l.Stall
	case p.Server != "":
		return stallDirect
	}
	return stallSSH
}

// AtPeer is NeedsPeer with the settings that it names.
func (p *Protocol) AtPeer() []string {
	var list []string
	for _, n := range p.NeedsPeer {
		list = append(list, os.Expand(n, func(name string) string { return p.Settings[name] }))
	}
	return list
}

// Script is the one for a direction, of a single file or a tree.
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
