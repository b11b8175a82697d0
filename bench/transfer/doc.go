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
//   - lan and far carry up to 64 KiB at once, like network cards that segment packets
//     themselves: otherwise the CPU time of the relay would be the limit. In this mode
//     the relay cannot lose packets, so that lossy carries single packets.
//
//   - A row of a cell's table is a protocol; its columns are sizes, and the figures
//     medians of the speed, in Mbit/s. timeout marks copies that the benchmark ended.
//
//   - premix is premix's own protocol with its defaults, which asks for BBR;
//     premix-system uses the congestion control of the cell instead.
//
//   - get is premix transfer get, which chooses by the measurements of the same
//     cell; its peer is the best of the protocols that it may choose. get-open is the
//     same with --allow-open, and its peer is the best of all protocols, whose server
//     already runs while get has to start it. Both are copies like others, timed as
//     whole commands, in turns with their peers, up to 128 MiB. get-server is get from a
//     standing server of premix, which already runs, like the servers of its peer, the
//     best of all protocols.
//
//   - sshd's users do not read ~/.bashrc of this machine, which bash would execute for
//     every command over ssh, but not for sftp: it is not a property of a protocol.
//
//   - The cost of the capture is the time of a copy with it, against the time of the
//     same copy without it, in turns.
//
//   - The probe is premix transfer probe, which should answer within a minute.
//
// Without options every cell and every protocol has at least one copy of 5 and 100 MiB,
// and lan one of 1 GiB and a tree of 10,000 files, in at most -budget (20 minutes); the
// output names the rest. -full is the whole table, which takes hours.
//
// On a shared machine, run one cell at a time, while there is no other load. Each of these
// commands takes less than six minutes if the link is the only limit. Copies slower than
// -timeout are marked, and -data is best on a tmpfs of 6 GB:
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
// work directory; its directory results/CELL has all rows of all copies, which
// premix transfer report reads.
package main
