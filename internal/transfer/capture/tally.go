package capture

import (
	"encoding/binary"
	"net/netip"
	"time"

	"premix/internal/transfer"
)

// Tick is the resolution of [Totals.Series].
const Tick = 10 * time.Millisecond

// Totals are the counts of a capture.
type Totals struct {
	Down, Up    Direction
	TCP, UDP    int64
	Histogram   []int64 // by transfer.SizeEdges
	Oversize    int64   // frames that are larger than the MTU permits
	Drops       int64
	Connections int
	Series      []TickBytes // payload by ticks since the tally began
	DownTimes   Times
	UpTimes     Times
	Packets     []Packet // if requested
}

// Direction holds the counts of one direction.
type Direction struct{ Packets, Bytes, Payload, Retransmits int64 }

// Times are the times of one direction; zero if an event did not happen.
type Times struct {
	First   time.Time // byte of payload
	Flowing time.Time // time at which 64 KiB of payload had been carried: handshakes need less
}

const flowing = 64 << 10

// TickBytes is the payload of one tick.
type TickBytes struct{ Down, Up int64 }

// Packet is a captured packet in the fewest bytes: a capture may have millions.
type Packet struct {
	At      time.Duration // since the tally began
	Size    uint32
	Payload uint32
	Port    uint16 // of here
	Down    bool
	TCP     bool
}

// Tally counts frames.
type Tally struct {
	here, peer netip.Addr
	except     uint16 // port of a connection that is not counted; 0: none
	mtu        int
	keep       bool
	begin      time.Time
	t          Totals
	next       map[connection]*edges
	// ends stores, for connections with the same address at both ends, which of the two
	// ports is here.
	ends map[connection]bool
}

// connection is a pair of ports.
type connection struct {
	tcp        bool
	here, peer uint16
}

// edges are the sequence numbers after the last byte seen of a connection.
type edges struct {
	seen    [2]bool
	next    [2]uint32
	counted bool
}

const (
	down = 0
	up   = 1
)

// NewTally returns a Tally of packets between two addresses, whose times are relative to
// begin.
func NewTally(o Options, begin time.Time) *Tally {
	return &Tally{here: o.Here.Unmap(), peer: o.Peer.Unmap(), except: o.ExceptPort, mtu: o.MTU, keep: o.Packets, begin: begin,
		t: Totals{Histogram: make([]int64, len(transfer.SizeEdges)+1)}, next: map[connection]*edges{}, ends: map[connection]bool{}}
}

// Totals returns the counts so far.
func (y *Tally) Totals() *Totals { return &y.t }

// ethernet is the length of the link's header: 14 bytes, with the protocol last.
const ethernet = 14

// Add counts a frame that begins with an Ethernet header. data is its captured part, size
// its whole length.
func (y *Tally) Add(at time.Time, data []byte, size int) {
	src, dst, proto, l4, total, ok := network(data)
	if !ok {
		return
	}
	w := up
	self := y.here == y.peer
	switch {
	case src == y.here && dst == y.peer:
	case src == y.peer && dst == y.here:
		w = down
	default:
		return
	}
	c, payload, seq, flags := connection{}, 0, uint32(0), byte(0)
	const tcp, udp = 6, 17
	switch {
	case proto == tcp && len(l4) >= 20:
		c.tcp = true
		payload = total - 4*int(l4[12]>>4)
		seq, flags = binary.BigEndian.Uint32(l4[4:]), l4[13]
	case proto == udp && len(l4) >= 8:
		payload = total - 8
	}
	if len(l4) >= 4 && (proto == tcp || proto == udp) {
		c.here, c.peer = binary.BigEndian.Uint16(l4), binary.BigEndian.Uint16(l4[2:])
		if self && !y.outward(c, flags) {
			w = down
		}
		if w == down {
			c.here, c.peer = c.peer, c.here
		}
	}
	if c.tcp && y.except != 0 && c.here == y.except {
		return
	}
	payload = max(payload, 0)
	way, times := &y.t.Up, &y.t.UpTimes
	if w == down {
		way, times = &y.t.Down, &y.t.DownTimes
	}
	way.Packets++
	way.Bytes += int64(size)
	way.Payload += int64(payload)
	if payload > 0 && times.First.IsZero() {
		times.First = at
	}
	if way.Payload >= flowing && times.Flowing.IsZero() {
		times.Flowing = at
	}
	switch {
	case c.tcp:
		y.t.TCP++
	case proto == udp:
		y.t.UDP++
	}
	bin := 0
	for bin < len(transfer.SizeEdges) && size > transfer.SizeEdges[bin] {
		bin++
	}
	y.t.Histogram[bin]++
	if y.mtu > 0 && size > y.mtu+ethernet {
		y.t.Oversize++
	}
	y.follow(c, w, way, seq, flags, payload)
	since := max(at.Sub(y.begin), 0)
	if payload > 0 {
		tick := int(since / Tick)
		for len(y.t.Series) <= tick && tick < maxTicks {
			y.t.Series = append(y.t.Series, TickBytes{})
		}
		if tick < maxTicks {
			if w == down {
				y.t.Series[tick].Down += int64(payload)
			} else {
				y.t.Series[tick].Up += int64(payload)
			}
		}
	}
	if y.keep {
		y.t.Packets = append(y.t.Packets, Packet{At: since, Size: uint32(size), Payload: uint32(payload), Port: c.here, Down: w == down, TCP: c.tcp})
	}
}

// outward reports whether a packet between two ports of the same address comes from here,
// which is the end that opened the connection. In c, the source port is the one here.
func (y *Tally) outward(c connection, flags byte) bool {
	back := connection{c.tcp, c.peer, c.here}
	begins := c.tcp && flags&(tcpSYN|tcpACK) == tcpSYN
	if out, ok := y.ends[c]; ok && !begins {
		return out
	}
	out := true
	switch {
	case begins:
	case c.tcp && flags&tcpSYN != 0: // the answer
		out = false
	case c.tcp:
		out = c.here > c.peer // the connection is older than the capture: servers have the low ports
	}
	y.ends[c], y.ends[back] = out, !out
	return out
}

// maxTicks is the number of ticks in a day.
const maxTicks = int(24 * time.Hour / Tick)

// follow updates the sequence numbers of a connection. A segment that begins before the
// expected number fills a hole or is a repetition: at both ends of a link that is a
// retransmission, or rarely a reordered packet.
func (y *Tally) follow(c connection, w int, way *Direction, seq uint32, flags byte, payload int) {
	if payload == 0 && flags&tcpSYN == 0 {
		return
	}
	e := y.next[c]
	// A SYN begins a new connection, even if its ports were used before.
	if e == nil || c.tcp && flags&tcpSYN != 0 && w == up && payload == 0 {
		if e == nil {
			e = &edges{}
			y.next[c] = e
		}
		e.seen = [2]bool{}
		e.counted = false
	}
	if payload > 0 && !e.counted {
		e.counted = true
		y.t.Connections++
	}
	if !c.tcp {
		return
	}
	end := seq + uint32(payload)
	if flags&tcpSYN != 0 {
		end++
	}
	if !e.seen[w] {
		e.seen[w], e.next[w] = true, end
		return
	}
	if payload > 0 && int32(seq-e.next[w]) < 0 {
		way.Retransmits++
	}
	if int32(end-e.next[w]) > 0 {
		e.next[w] = end
	}
}

const (
	tcpSYN = 0x02
	tcpACK = 0x10
)

// network parses the header of IPv4 or IPv6. total is the length of the payload, and l4 its
// captured part, which is empty for a later fragment.
func network(b []byte) (src, dst netip.Addr, proto byte, l4 []byte, total int, ok bool) {
	if len(b) < ethernet+20 {
		return
	}
	kind := binary.BigEndian.Uint16(b[12:])
	b = b[ethernet:]
	switch kind {
	case 0x0800:
		header := 4 * int(b[0]&0x0f)
		if header < 20 || len(b) < header {
			return
		}
		src, dst = netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20]))
		proto, total = b[9], int(binary.BigEndian.Uint16(b[2:]))-header
		l4 = b[header:]
		if binary.BigEndian.Uint16(b[6:])&0x1fff != 0 {
			l4, proto = nil, 0
		}
		return src, dst, proto, l4, total, true
	case 0x86dd:
		if len(b) < 40 {
			return
		}
		src, dst = netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40]))
		// Extension headers are rare on links for data; a packet with one counts as neither
		// TCP nor UDP.
		return src, dst, b[6], b[40:], int(binary.BigEndian.Uint16(b[4:])), true
	}
	return
}
