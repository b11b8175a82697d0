// Package capture sees every packet between here and a peer: how many, how large,
// when, and which of them were sent twice.
//
// Words:
//
//   - A capture is a socket of packet(7) with a ring (TPACKET_V3) that the kernel
//     fills and premix reads in place. A filter in the kernel (classic BPF) lets
//     through what is between the two addresses and cuts it to the headers; the
//     rest of the machine's traffic costs nothing more than the filter.
//   - Totals are what is counted of a capture. [Tally] makes them from frames,
//     wherever these come from: the ring, or a file that tcpdump wrote. The two
//     give equal numbers, which a test holds.
//   - Drops are packets that found the ring full. The kernel counts them.
//   - Offloads (segmentation when sending, joining when receiving) happen between
//     the cable and the capture: one captured frame of up to 64 KiB was then many
//     packets. [Offload] tells which are on; frames larger than the MTU are counted
//     as oversize. Bytes lack the headers of packets that were joined.
//
// A capture listens from the moment at which [Open] returns, so nobody has to wait
// for it; [Capture.Stop] goes on for [Drain], as the last packets of a connection
// come after its program has ended.
//
// On a loopback device the kernel shows each packet twice; what is going out is
// left out, as libpcap does.
//
// pcap files have timestamps in nanoseconds (magic number a1b23c4d), see
// https://www.ietf.org/archive/id/draft-ietf-opsawg-pcap-03.html.
package capture
