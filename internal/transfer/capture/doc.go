// Package capture counts the packets between here and a peer, with their sizes, times and
// retransmissions.
//
// Words:
//
//   - A capture is a socket of packet(7) with a ring (TPACKET_V3) that the kernel
//     fills and premix reads in place. A filter in the kernel (classic BPF) lets
//     through packets between the two addresses and cuts them to the headers; the
//     machine's other traffic costs only the time of the filter.
//   - Totals are the counts of a capture. [Tally] computes them from frames,
//     from the ring or from a file that tcpdump wrote. A test checks that both
//     give equal numbers.
//   - Drops are packets that found the ring full. The kernel counts them.
//   - Offloads (segmentation when sending, joining when receiving) happen between
//     the cable and the capture: one captured frame of up to 64 KiB was then many
//     packets. [Offload] returns the active ones; frames larger than the MTU are counted
//     as oversize. Bytes lack the headers of packets that were joined.
//
// A capture is active when [Open] returns. [Capture.Stop] continues for [Drain], because
// the last packets of a connection come after its program has ended.
//
// On a loopback device the kernel shows each packet twice; outgoing packets are skipped, as
// in libpcap.
//
// pcap files have timestamps in nanoseconds (magic number a1b23c4d), see
// https://www.ietf.org/archive/id/draft-ietf-opsawg-pcap-03.html.
package capture
