// Package testbed measures copies over a link, one at a time.
//
// Words:
//
//   - A plan is the list of copies of one round: every protocol with all data
//     that it can copy, in each direction. Each round is shuffled separately, so that
//     changes over time affect all protocols alike. The seed makes it repeatable.
//   - Sources are the data to copy: bytes of AES-CTR with a key derived from the seed, which
//     cannot be compressed, and which both ends generate themselves if the peer
//     has openssl. Their digest is therefore known in advance.
//   - A server is started before the first copy that needs it, and stays until the
//     end: the cost of starting it is not part of a copy.
//
// One copy: the link is watched for a while; the capture begins; the command runs; the
// capture ends, later than the command; the content is compared by SHA-256; and only then
// the row is written. A failure is stored as the cause in the row, and the next copy
// begins. Processes that a command has left running are found by the variable PREMIX_COPY
// in their environment, and killed.
//
// All data is in temporary directories, here and at the peer, which are removed at the end.
package testbed
