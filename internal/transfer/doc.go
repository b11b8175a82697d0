// Package transfer defines the terms for copying data between two machines, and the table
// in which every measured copy is a row. The packages below it measure, compare and choose.
//
// Words:
//
//   - here is the machine on which premix runs; the peer is the other one. A link is
//     the network path between the two; [link] reads its description.
//   - A protocol is a program, or a pair of them, that copies; [link] knows some and
//     takes any that has a command line.
//   - A copy is one execution of a protocol's command. Its direction is [Get] or
//     [Put]: the client is always here, so that get is down and put is up.
//   - down is from the peer to here, and up from here to the peer, whatever the
//     direction of the copy: acknowledgements of a get are up.
//   - A round is one copy by each measured protocol of each data, in random order.
//   - speed is the size of the data divided by the whole time of the command; steady
//     is the rate between a quarter and 95 % of the carried bytes, without handshake,
//     slow start and end.
//   - ratio is the number of bytes on the wire, in both directions and with headers, divided by the
//     size of the data.
//   - A copy is disturbed if the link carried other traffic, too, or if packets
//     escaped the capture. Its row is kept and marked, but not used to choose.
//
// A directory of results holds
//
//	transfers-*.jsonl    one table (package record) an invocation, rows of [Copy]
//	packets/ID.parquet   every packet of a copy, rows of [Packet], where asked for
//	pcap/ID.pcap         the same for other programs, where asked for
//	transfers.parquet    all rows, written by the report
package transfer
