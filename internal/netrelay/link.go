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

// Options describe a link. Both directions are alike.
type Options struct {
	// Rate in bits a second; 0: as fast as the relay is.
	Rate int64
	// Delay is how long a frame is under way, one way.
	Delay time.Duration
	// Queue is how long a frame may wait to be sent; 0: the time of a round trip,
	// at least 10 ms.
	Queue time.Duration
	// Loss is the probability that a frame is lost.
	Loss float64
	// MTU of the devices; 0: 1500.
	MTU int
	// Offload lets the kernel hand over up to 64 KiB at once. See the package.
	Offload bool
	// Seed of the random numbers that decide about loss.
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
	Lost    int64 // wire packets taken by loss
	Dropped int64 // wire packets that found the queue full
}

// Link joins two hosts.
type Link struct {
	A, B *Host

	ab, ba *direction
	left   atomic.Int64  // bytes until the link goes dark, where that is to come
	dark   chan struct{} // closed when it does
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
	// A host is told where the other is: the first packet of a measurement should
	// not wait for address resolution.
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

// Counters tells what went from A to B and from B to A.
func (l *Link) Counters() (ab, ba Counters) { return l.ab.counters(), l.ba.counters() }

// Cut has the link carry nothing, in either direction, or carry frames again. What is
// under way is lost. Devices stay up: nobody is told.
func (l *Link) Cut(cut bool) {
	l.ab.cut.Store(cut)
	l.ba.cut.Store(cut)
}

// CutAfter cuts the link, as [Link.Cut] does, as soon as it has carried n more bytes in both
// directions together. The channel is closed then. Whoever reads the counters and calls Cut
// may come too late.
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

// Close ends the link and gives up the hosts. Programs that still run on them
// keep their namespace, and reach nobody.
func (l *Link) Close() error {
	l.once.Do(func() {
		l.A.close()
		l.B.close()
		l.work.Wait()
	})
	return nil
}

// closed says whether an error means that the device was closed by us.
func closed(err error) bool { return errors.Is(err, os.ErrClosed) }
