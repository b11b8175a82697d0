// Package netrelay is a network of two hosts in one machine, with the distance
// between them made to measure: two network namespaces, each with one TAP
// device, and a relay in this process that carries frames from one to the other.
//
// It exists because distance is what lazily mounted trees and transfer protocols
// are about, and the loopback device has none. The kernel's own means (netem) is
// a module that many kernels are built without; the relay needs /dev/net/tun and
// root, nothing else.
//
// Words used here:
//
//   - A link is the relay with its two ends, each of which is a host: a network
//     namespace with the address that [Host.Addr] tells.
//   - A direction of a link takes frames one by one. A frame waits until those
//     before it have been sent at the rate of the link (a token bucket of depth
//     zero: what is sent is evenly spaced), then it is under way for the delay.
//     A frame that would have to wait longer than the queue is long is dropped
//     (drop-tail). Loss takes frames at random before they enter the queue.
//   - A wire packet is what a cable would carry: at most MTU bytes and an Ethernet
//     header. The rate counts 24 bytes more for each (preamble, checksum and gap,
//     IEEE 802.3), so that 1 Gbit/s carries what a cable of 1 Gbit/s carries.
//
// With [Options.Offload] the kernel hands over up to 64 KiB of TCP at once, as it
// does to a network card that cuts packets itself, and the relay costs a fraction
// of the CPU time. Time on the wire is counted as before, but what a full queue
// drops is then up to 64 KiB together. Loss is refused with it.
//
// Namespaces have no names. They end with the link, with this process at the
// latest, and nothing has to be cleaned up after a crash. A program that is to
// run on a host is started by [Host.Start].
package netrelay
