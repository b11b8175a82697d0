// Package transfer is about copying data between two machines: what a copy is
// called, and the table in which every measured copy is a row. The packages below
// it measure, compare and choose.
//
// Words:
//
//   - here is the machine that premix runs on, the peer is the other one. A link is
//     the way between the two, with everything on it: [link] reads its description.
//   - A protocol is a program, or a pair of them, that copies; [link] knows some and
//     takes any that has a command line.
//   - A copy is one execution of a protocol's command. Its direction is [Get] or
//     [Put]: the client is always here, so that get is down and put is up.
//   - down is from the peer to here, and up from here to the peer, whatever the
//     direction of the copy: acknowledgements of a get are up.
//   - A round is one copy of everything that is to be measured, in random order.
//   - speed is the size of the data divided by the whole time of the command; steady
//     is the rate between a quarter and 95 % of what was carried, without handshake,
//     slow start and end.
//   - ratio is what was on the wire, both directions and all headers, divided by the
//     size of the data.
//   - A copy is disturbed when the link carried something else too, or packets
//     escaped the capture. Its row is kept and marked, and not used to choose.
//
// A directory of results holds
//
//	transfers-*.jsonl    one table (package record) an invocation, rows of [Copy]
//	packets/ID.parquet   every packet of a copy, rows of [Packet], where asked for
//	pcap/ID.pcap         the same for other programs, where asked for
//	transfers.parquet    all rows, written by the report
package transfer
