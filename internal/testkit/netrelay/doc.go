// Package netrelay simulates a network of two hosts, with a given rate, delay and
// loss, on one machine: two network namespaces, each with one TAP device, and a
// relay in this process that carries frames from one to the other.
//
// Tests and benchmarks of lazily mounted trees and of transfers need a delay, and
// the loopback device has none. The kernel's own means (netem) is a module that
// many kernels are built without. The relay needs only /dev/net/tun and root.
//
// Words used here:
//
//   - A link is the relay with its two ends, each of which is a host: a network
//     namespace with the address [Host.Addr].
//   - A direction of a link takes frames one by one. A frame waits until the frames
//     before it have been sent at the rate of the link (a token bucket of depth
//     zero: frames are evenly spaced), then it travels for the delay. A frame that
//     would wait longer than [Options.Queue] is dropped (drop-tail). Loss removes
//     frames at random before they enter the queue.
//   - A wire packet is a packet as a cable carries it: at most MTU bytes and an
//     Ethernet header. The rate counts 24 bytes more for each (preamble, checksum
//     and gap, IEEE 802.3), so that a link of 1 Gbit/s is as fast as a cable of
//     1 Gbit/s.
//
// With [Options.Offload] the kernel passes up to 64 KiB of TCP at once, as it does
// to a network card that makes packets itself, and the relay costs a fraction of the
// CPU time. The time on the wire is the same, but a full queue drops up to 64 KiB at
// once. Offload cannot be combined with loss.
//
// Namespaces have no names. They end with the link, or with this process, so a crash
// leaves nothing behind. [Host.Start] starts a program on a host.
package netrelay
