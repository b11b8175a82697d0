// Package stream is premix's own protocol. It copies verified chunks over many connections,
// and sends only the chunks that the other end lacks.
//
// Words:
//
//   - The near end is the premix that the user started. The far end is premix
//     transfer serve, which the near end starts by a command, through ssh as a rule.
//     Either end may be the sender.
//   - The control connection is that command's standard input and output. Secrets
//     are sent through it, so that ssh authenticates the other end.
//   - A stream is a TCP connection with TLS 1.3 to a port that the far end opens for
//     the copy. The certificate is made for it and announced through the control
//     connection; the near end accepts no other, and sends a secret that it received the
//     same way. If the port can't be reached, the data takes the control
//     connection.
//   - A standing server is a far end that runs already. Its clients have a key: the
//     digest of its certificate, and a secret. Control connection and streams are then
//     connections to its one port, with different roles. A random number identifies those
//     of the same copy.
//   - An entry is a file, a directory, a symbolic link, or another name of a file. Other
//     types are left out and counted. An entry that cannot be read, or that changes during
//     the copy, is lost: it is left out and listed, unless the copy is of one file.
//   - A chunk is a piece of a file, named by its BLAKE3 digest, which the receiver
//     compares before it writes. A hole at the sender is a hole at the receiver.
//   - Offers are digests that the sender sends first if the receiver has
//     data already: a part of the same copy, or paths that the user names (files,
//     directories, a store). The receiver answers with the chunks that it lacks.
//
// If the receiver has no data, files are cut into pieces of equal size and sent without
// offers: there is no round trip, and no file is read twice. The first pieces take the
// control connection, which is ready while streams are being set up. A part of the same
// copy is compared in the same pieces, in place. For data in other paths the content
// decides where chunks end, as in a store (package internal/store/chunker), so that an inserted byte
// changes one chunk, and chunks have the names by which a store knows them.
//
// The receiver writes in place, at the given destination. A caller that needs the name to
// appear only with the whole copy passes a path in a private directory and renames it, as
// [Copy.Whole] does. A file at the destination that is not an entry is an error, and is
// never removed. All data is synced when a copy succeeds.
//
// Owners, names of one file, attributes and access control lists are copied if [Keep] says
// so. Without owners, set-user-ID, set-group-ID and sticky bits are not copied: they would
// give away the rights of the receiver. A directory keeps the set-group-ID bit that it
// inherited from its parent.
//
// # Form
//
// A frame is a kind (1 byte), the length of the payload (4 bytes, little-endian like all
// numbers) and the payload. The list of kinds shows which end sends them. A stream carries
// only data frames. Texts of entries are bytes, as file names are.
//
// # Number of streams
//
// Four on a link of less than 2 ms, set up at once, eight on a longer one, where each needs
// time to reach the speed of the link. Loss keeps a connection with CUBIC slow whatever the
// link could carry: as long as segments are retransmitted, and the last doubling has made
// the copy faster, the number is doubled, up to [maxStreams]. BBR does not need this; it is
// requested if the system permits it.
//
// QUIC is not used, and was not measured. Zhang et al., QUIC is not Quick Enough over Fast
// Internet (WWW 2024), find it slower than TCP with TLS on fast links.
package stream
