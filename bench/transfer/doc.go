// Transfer measures every protocol that premix knows and this machine has, between
// two network namespaces with a link of a given rate, delay and loss between them,
// by premix transfer bench: from a real sshd, nginx, GridFTP server, XRootD.
//
// Words used here:
//
//   - A cell is a link (lan: 1 Gbit/s, 0.3 ms there and back; far: 50 ms; lossy: 50 ms
//     and a loss of 0.1 % each way; trips: one second there and back, so that seconds
//     are round trips) with a congestion control (cubic or bbr), the same at both ends.
//   - lan and far carry up to 64 KiB at once, as network cards do that cut packets
//     themselves: otherwise it is the relay's CPU time that is measured. The relay has
//     no loss with that, so that lossy goes packet by packet.
//   - A row of a cell's table is a protocol; its columns are sizes, and the figures
//     medians of the speed, in Mbit/s. timeout stands for copies that were ended.
//   - premix is premix's own protocol as it comes, which asks for BBR; premix-system
//     the same with the congestion control of the cell.
//   - get is premix transfer get, which chooses by what was measured in the same
//     cell; its peer is the best protocol there. It is timed as a whole, with
//     choosing and verifying.
//   - sshd's users read no ~/.bashrc of this machine, which bash would execute for every
//     command that comes by ssh, but not for sftp: that is no property of a protocol.
//   - The cost of the capture is the time of a copy with it, against that of the same
//     copy without it, in turns.
//
// Without options there is one size, one tree, one congestion control and one
// repetition, which takes some minutes; -full is the whole table.
//
// Figures are printed as tables and written as JSON Lines to results.jsonl in the
// work directory; all rows of all copies are in its directory results/CELL, where
// premix transfer report reads them.
package main
