// Package stream is premix's own way to copy: verified chunks over many connections,
// of which only those travel that the other end has not.
//
// Words:
//
//   - The near end is the premix that the user started. The far end is premix
//     transfer serve, which the near end starts by a command, through ssh as a rule.
//     Either may be the sender.
//   - The control connection is that command's standard input and output. What is
//     secret goes through it, so whom to believe is ssh's affair.
//   - A stream is a TCP connection with TLS 1.3 to a port that the far end opens for
//     the copy. The certificate is made for it and announced through the control
//     connection; the near end believes no other, and shows a secret that it got the
//     same way. Where the port can't be reached the data takes the control
//     connection.
//   - A standing server is a far end that runs already. Its clients have a key: the
//     digest of its certificate, and a secret. Control connection and streams are then
//     connections to its one port, told apart by their role, and found to be of the same
//     copy by a random number.
//   - An entry is a file, a directory, a symbolic link, or another name of a file. What
//     is none of these is left out, and counted. What cannot be read, or changes while it
//     is, is lost: it is left out and listed, unless the copy is of one file.
//   - A chunk is a piece of a file, named by its BLAKE3 digest, which the receiver
//     compares before it writes. What is a hole at the sender is one at the receiver.
//   - Offers are digests that the sender sends ahead where the receiver has
//     something: a part of the same copy, or what the user names as had (files,
//     directories, a store). The receiver answers with the ones that it wants.
//
// Without anything had, files are cut into pieces of the same size and sent unasked:
// there is no round trip, and nothing is read twice. The first of them take the control
// connection, which is there while streams are being set up. A part is compared in the
// same pieces, in place. For what is had elsewhere the content decides where chunks
// end, as in a store (package store/chunker), so that an inserted byte changes one
// chunk, and chunks have the names by which a store knows them.
//
// The receiver writes in place, at the destination that it was given: whoever wants
// a name to stand for a whole copy gives one in a private directory and renames, as
// [Job.Whole] does. What is there and is no entry is an error, never removed.
// Everything is on disk when a copy has ended well.
//
// Owners, names of one file, attributes and access control lists are kept where [Keep]
// says so. Without owners set-user-ID, set-group-ID and sticky bits do not arrive: they would give the rights of
// the receiver. A directory keeps the set-group-ID bit that it has from the directory that
// it is in.
//
// # Form
//
// A frame is a kind (1 byte), the length of what follows (4 bytes, little-endian
// like all numbers) and that. See the kinds for which end sends what. A stream
// carries data frames alone. Texts of entries are bytes, as file names are.
//
// # How many streams
//
// Four on a link of less than 2 ms, set up at once, eight on a longer one, where each
// has to find out on its own how much the link takes. Loss keeps a connection with
// CUBIC slow whatever the link could carry: as long as segments are sent again, and the
// last doubling has made the copy faster, the number is doubled, up to [maxStreams]. BBR
// needs none of this; it is asked for where the system permits it.
//
// QUIC is not used, and was not measured here. Zhang et al., QUIC is not Quick Enough
// over Fast Internet (WWW 2024), find it slower than TCP with TLS on fast links.
package stream
