// Transfer measures every protocol that premix knows and this machine has, between
// two network namespaces with a link of a given rate, delay and loss between them,
// by premix transfer bench: from a real sshd, nginx, GridFTP server, XRootD.
//
// Words used here:
//
//   - A cell is a link (lan: 1 Gbit/s, 0.3 ms there and back; far: 50 ms; lossy: 50 ms
//     and a loss of 0.1 % each way; trips: one second there and back, so that seconds
//     are round trips) with a congestion control (cubic or bbr), the same at both ends.
//
//   - lan and far carry up to 64 KiB at once, as network cards do that cut packets
//     themselves: otherwise it is the relay's CPU time that is measured. The relay has
//     no loss with that, so that lossy goes packet by packet.
//
//   - A row of a cell's table is a protocol; its columns are sizes, and the figures
//     medians of the speed, in Mbit/s. timeout stands for copies that were ended.
//
//   - premix is premix's own protocol as it comes, which asks for BBR; premix-system
//     the same with the congestion control of the cell.
//
//   - get is premix transfer get, which chooses by what was measured in the same
//     cell; its peer is the best of the protocols that it may choose. get-open is the
//     same with --allow-open, and its peer the best of all, whose server runs already
//     while get has to start it. Both are copies like others, timed as whole commands,
//     in turns with their peers, up to 128 MiB. get-server is get from a standing server
//     of premix, which runs already like those of its peer, the best of all.
//
//   - sshd's users read no ~/.bashrc of this machine, which bash would execute for every
//     command that comes by ssh, but not for sftp: that is no property of a protocol.
//
//   - The cost of the capture is the time of a copy with it, against that of the same
//     copy without it, in turns.
//
//   - The probe is premix transfer probe, which is to answer within a minute.
//
// Without options every cell and every protocol has at least one copy of 5 and 100 MiB,
// and lan one of 1 GiB and a tree of 10,000 files, in at most -budget (20 minutes); what
// is not reached by then is named. -full is the whole table, which takes hours.
//
// On a machine that others use too a cell at a time is best, while nobody else is there.
// Each of these takes less than six minutes where the link is all that is waited for; what
// is slower than -timeout is shown as such, and -data is best on a tmpfs of 6 GB:
//
//	bench-transfer -budget 6m -links lan -congestion cubic -sizes 5M,100M -trees none -parts grid,get -reps 5 -protocols premix,scp,scp-legacy
//	bench-transfer -budget 6m -links lan -congestion cubic -sizes 5M,100M,1G -trees none -parts grid -reps 5 -protocols premix-server,curl
//	bench-transfer -budget 6m -links far,lossy -congestion bbr -sizes 100M -parts grid -reps 2 -timeout 20s -protocols premix,premix-server,scp,rsync,rsyncd,curl
//	bench-transfer -budget 6m -links far -congestion cubic -sizes none -trees 10000x4K -parts grid -reps 2 -timeout 45s -protocols premix,premix-server,scp,rsync,tar,rsyncd
//	bench-transfer -budget 6m -links lossy -congestion cubic -sizes none -trees 10000x4K -parts grid -timeout 45s -protocols premix,premix-server,scp,rsync,tar,rsyncd
//	bench-transfer -budget 6m -links lan -congestion cubic -sizes 2.5G -trees none -parts grid -timeout 60s -protocols premix,premix-server,scp,rsync,rsyncd,curl
//	bench-transfer -budget 6m -links far -congestion cubic -sizes 2.5G -parts grid -timeout 90s -protocols premix,premix-server,scp,rsyncd,curl
//
// Figures are printed as tables and written as JSON Lines to results.jsonl in the
// work directory; all rows of all copies are in its directory results/CELL, where
// premix transfer report reads them.
package main
