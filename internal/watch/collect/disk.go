package collect

import (
	"context"
	"os"
	"strings"
	"time"

	"premix/internal/watch"
)

// sector is the unit of /proc/diskstats for all devices
// (Documentation/admin-guide/iostats.rst).
const sector = 512

// disk is the collector of block devices. It leaves out partitions, which their disk
// includes, and devices that were never used, of which machines have many (loop, ram).
type disk struct {
	*machine
	b       batch
	devices kept[device]
}

type device struct {
	partition                                                     bool
	readBytes, writtenBytes, reads, writes, flushes, busy, queued *counter
	readWait, writeWait, inFlight                                 *gauge
	readCount, readTime, writeCount, writeTime                    steps
}

func newDisk(m *machine) *disk { return &disk{machine: m} }

// Name returns "disk".
func (d *disk) Name() string { return "disk" }

// Collect reads /proc/diskstats.
func (d *disk) Collect(_ context.Context, now time.Time, to watch.Sink) error {
	d.b.begin(now, d.now())
	text, err := d.read("proc/diskstats")
	if err != nil {
		return err
	}
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 14 {
			continue
		}
		d.device(f[2], f[3:])
	}
	d.devices.sweep(nil)
	to.Samples(d.b.samples)
	return nil
}

// device reports the fields after a device's name: reads, merged, sectors, ms; writes,
// merged, sectors, ms; in flight, ms busy, ms weighted; discards, merged, sectors, ms;
// flushes, ms.
func (d *disk) device(name string, f []string) {
	var v [17]float64
	for i := range min(len(f), len(v)) {
		v[i] = number(f[i])
	}
	if v[0]+v[4]+v[11] == 0 {
		return
	}
	dev := d.devices.get(name, func() *device { return d.newDevice(name) })
	if dev.partition {
		return
	}
	b := &d.b
	b.rate(dev.reads, v[0], 1)
	b.rate(dev.readBytes, v[2], sector)
	b.rate(dev.writes, v[4], 1)
	b.rate(dev.writtenBytes, v[6], sector)
	b.level(dev.inFlight, v[8])
	b.ratio(dev.busy, v[9], 1e-3)
	b.rate(dev.queued, v[10], 1e-3)
	if len(f) > 15 {
		b.rate(dev.flushes, v[15], 1)
	}
	b.wait(dev.readWait, &dev.readTime, &dev.readCount, v[3], v[0], 1e-3)
	b.wait(dev.writeWait, &dev.writeTime, &dev.writeCount, v[7], v[4], 1e-3)
}

func (d *disk) newDevice(name string) *device {
	// The kernel writes a / in a name as ! there.
	_, err := os.Stat(d.path("sys/class/block/" + strings.ReplaceAll(name, "/", "!") + "/partition"))
	return &device{partition: err == nil,
		reads: d.counter("disk.reads", name), readBytes: d.counter("disk.read_bytes", name),
		writes: d.counter("disk.writes", name), writtenBytes: d.counter("disk.written_bytes", name),
		flushes: d.counter("disk.flushes", name), busy: d.counter("disk.busy", name), queued: d.counter("disk.queued", name),
		readWait: d.level("disk.read_wait", name), writeWait: d.level("disk.write_wait", name), inFlight: d.level("disk.in_flight", name)}
}
