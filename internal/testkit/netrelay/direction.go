package netrelay

import (
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// wireOverhead is the number of bytes that a cable carries besides a frame:
	// preamble 8, checksum 4, gap between frames 12.
	wireOverhead = 24
	// smallFrame is the size up to which a waiting frame is copied to a small
	// buffer. Most of them are acknowledgements.
	smallFrame = 2 << 10
	// largeFrame is the size of the largest frame, with offload, and its headers.
	largeFrame = 72 << 10
	// waiting is the number of frames that a direction can hold; more are dropped.
	waiting = 1 << 16
	// slack is the shortest sleep. Frames that are due within it are sent together.
	slack = 50 * time.Microsecond
)

// direction carries frames from one device to the other. receive computes the time
// at which a frame is due, send sends it then.
type direction struct {
	in, out *os.File
	o       Options
	random  *rand.Rand
	begin   time.Time
	queue   chan frame

	// free is the time, since begin, when all admitted frames will have been sent.
	free time.Duration

	cut     atomic.Bool      // no frame is carried
	carried func(size int64) // is called for each frame that enters the queue

	packets, bytes, lost, dropped atomic.Int64
}

// frame is a frame that waits.
type frame struct {
	data []byte
	due  time.Duration // since begin
}

var (
	smallBuffers = sync.Pool{New: func() any { return new([smallFrame]byte) }}
	largeBuffers = sync.Pool{New: func() any { return new([largeFrame]byte) }}
)

func newDirection(in, out *os.File, o Options, stream uint64) *direction {
	return &direction{in: in, out: out, o: o, random: rand.New(rand.NewPCG(o.Seed, stream)), begin: time.Now(),
		queue: make(chan frame, waiting)}
}

func (d *direction) counters() Counters {
	return Counters{Packets: d.packets.Load(), Bytes: d.bytes.Load(), Lost: d.lost.Load(), Dropped: d.dropped.Load()}
}

// receive reads frames until the device is closed.
func (d *direction) receive() {
	defer close(d.queue)
	buf := largeBuffers.Get().(*[largeFrame]byte)
	for {
		n, err := d.in.Read(buf[:])
		if err != nil {
			// Every error means that the device is closed, which ends the direction.
			return
		}
		packets, size := 1, n
		if d.o.Offload {
			packets, size = wirePackets(buf[:n])
		}
		if d.cut.Load() {
			d.dropped.Add(int64(packets))
			continue
		}
		due, ok := d.admit(time.Since(d.begin), packets, size)
		if !ok {
			continue
		}
		f := frame{due: due}
		if n <= smallFrame {
			small := smallBuffers.Get().(*[smallFrame]byte)
			f.data = small[:copy(small[:], buf[:n])]
		} else {
			f.data = buf[:n]
			buf = largeBuffers.Get().(*[largeFrame]byte)
		}
		select {
		case d.queue <- f:
		default:
			d.dropped.Add(int64(packets))
			release(f.data)
		}
	}
}

// admit returns the time at which a frame that comes now will arrive, unless it is
// lost or dropped. The frame is packets wire packets of size bytes together.
func (d *direction) admit(now time.Duration, packets, size int) (due time.Duration, ok bool) {
	if d.o.Loss > 0 && d.random.Float64() < d.o.Loss {
		d.lost.Add(int64(packets))
		return 0, false
	}
	d.free = max(d.free, now)
	if d.free-now > d.o.Queue {
		d.dropped.Add(int64(packets))
		return 0, false
	}
	if d.o.Rate > 0 {
		bits := 8 * int64(size+packets*wireOverhead)
		d.free += time.Duration(float64(bits) / float64(d.o.Rate) * float64(time.Second))
	}
	d.packets.Add(int64(packets))
	d.bytes.Add(int64(size))
	d.carried(int64(size))
	return d.free + d.o.Delay, true
}

// send writes frames when they are due. It has a thread of its own, which sleeps
// in the kernel: Go's timers can be late by a millisecond in an idle process.
func (d *direction) send() {
	runtime.LockOSThread()
	// Otherwise the kernel may add 50 us to a sleep. The thread is never unlocked, so
	// it ends with this goroutine.
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1000, 0, 0, 0)
	for f := range d.queue {
		for {
			wait := f.due - time.Since(d.begin)
			if wait <= 0 {
				break
			}
			ts := unix.NsecToTimespec(int64(max(wait, slack)))
			_ = unix.Nanosleep(&ts, nil) // if a signal interrupts it, the loop sleeps again
		}
		if d.cut.Load() {
			release(f.data)
			continue
		}
		// A write fails if the other device is closed or down. A network does not
		// report a missing receiver either.
		_, err := d.out.Write(f.data)
		release(f.data)
		if closed(err) {
			for f := range d.queue {
				release(f.data)
			}
			return
		}
	}
}

func release(data []byte) {
	if cap(data) == smallFrame {
		smallBuffers.Put((*[smallFrame]byte)(data[:smallFrame]))
		return
	}
	largeBuffers.Put((*[largeFrame]byte)(data[:largeFrame]))
}
