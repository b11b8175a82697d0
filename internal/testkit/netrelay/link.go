package netrelay

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// Options describe a link. Both directions have the same properties.
type Options struct {
	// Rate in bits per second; 0: no limit.
	Rate int64
	// Delay is the time that a frame travels, one way.
	Delay time.Duration
	// Queue is the longest time that a frame may wait to be sent; 0: the time of a
	// round trip, at least 10 ms.
	Queue time.Duration
	// Loss is the probability that a frame is lost.
	Loss float64
	// MTU of the devices; 0: 1500.
	MTU int
	// Offload lets the kernel pass up to 64 KiB at once. See the package.
	Offload bool
	// Seed of the random numbers for loss.
	Seed uint64
}

func (o *Options) complete() error {
	if o.Queue == 0 {
		o.Queue = max(2*o.Delay, 10*time.Millisecond)
	}
	if o.MTU == 0 {
		o.MTU = 1500
	}
	switch {
	case o.Rate < 0 || o.Delay < 0 || o.Queue < 0:
		return errors.New("rate, delay and queue of a link cannot be negative")
	case o.Loss < 0 || o.Loss > 1:
		return fmt.Errorf("loss of %g: a probability is between 0 and 1", o.Loss)
	case o.MTU < 576 || o.MTU > 9000:
		return fmt.Errorf("MTU of %d: the relay carries 576 to 9000", o.MTU)
	case o.Offload && o.Loss > 0:
		return errors.New("loss with offload: 64 KiB would be lost at once")
	}
	return nil
}

// Counters of one direction, since the link was made.
type Counters struct {
	Packets int64 // wire packets that entered the queue
	Bytes   int64 // their bytes, with Ethernet headers
	Lost    int64 // wire packets that were lost
	Dropped int64 // wire packets that found the queue full
}

// Link joins two hosts.
type Link struct {
	A, B *Host

	ab, ba *direction
	left   atomic.Int64  // bytes until CutAfter cuts the link
	dark   chan struct{} // closed when CutAfter cuts the link
	work   sync.WaitGroup
	once   sync.Once
}

// New makes two hosts and the link between them. The caller must be root.
func New(o Options) (*Link, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	l := &Link{}
	var err error
	if l.A, err = newHost(netip.AddrFrom4([4]byte{10, 99, 0, 1}), o); err != nil {
		return nil, fmt.Errorf("make a host: %w", err)
	}
	if l.B, err = newHost(netip.AddrFrom4([4]byte{10, 99, 0, 2}), o); err != nil {
		l.A.close()
		return nil, fmt.Errorf("make a host: %w", err)
	}
	// The first packet of a measurement should not wait for address resolution.
	if err := errors.Join(l.A.neighbour(l.B), l.B.neighbour(l.A)); err != nil {
		l.A.close()
		l.B.close()
		return nil, err
	}
	l.ab = newDirection(l.A.tap, l.B.tap, o, 1)
	l.ba = newDirection(l.B.tap, l.A.tap, o, 2)
	for _, d := range []*direction{l.ab, l.ba} {
		d.carried = l.spend
		l.work.Go(d.receive)
		l.work.Go(d.send)
	}
	return l, nil
}

// Counters returns the counters from A to B and from B to A.
func (l *Link) Counters() (ab, ba Counters) { return l.ab.counters(), l.ba.counters() }

// Cut cuts the link in both directions, or makes it carry frames again. Frames that are
// travelling are lost. Devices stay up, so programs get no notice.
func (l *Link) Cut(cut bool) {
	l.ab.cut.Store(cut)
	l.ba.cut.Store(cut)
}

// CutAfter cuts the link, as [Link.Cut] does, as soon as it has carried n more bytes in both
// directions together, and then closes the channel. It is exact, while a caller that polls
// the counters and calls Cut may be late.
func (l *Link) CutAfter(n int64) <-chan struct{} {
	l.dark = make(chan struct{})
	l.left.Store(n)
	return l.dark
}

// spend counts the bytes of a frame for CutAfter.
func (l *Link) spend(size int64) {
	if left := l.left.Add(-size); left <= 0 && left+size > 0 {
		l.Cut(true)
		close(l.dark)
	}
}

// Close ends the link and closes the hosts. Programs that still run on a host keep
// its namespace, without a connection.
func (l *Link) Close() error {
	l.once.Do(func() {
		l.A.close()
		l.B.close()
		l.work.Wait()
	})
	return nil
}

// closed reports whether an error means that Close has closed the device.
func closed(err error) bool { return errors.Is(err, os.ErrClosed) }
