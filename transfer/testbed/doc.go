// Package testbed measures copies over a link, one at a time.
//
// Words:
//
//   - A plan is the list of copies of one round: every protocol with everything
//     that it can copy, in each direction. Each round is shuffled anew, so that
//     what changes with time falls on all alike. The seed makes it repeatable.
//   - Sources are what is copied: bytes of AES-CTR with a key made of the seed, which
//     nothing can compress, and which both ends make for themselves where the peer
//     has openssl. So their digest is known without asking.
//   - A server is started before the first copy that needs it, and stays until the
//     end: what it costs to start is nobody's transfer.
//
// One copy: the link is watched for a while; the capture begins; the command runs;
// the capture ends, later than the command; the content is compared by SHA-256; and
// only then the row is written. Whatever fails becomes the cause in its row, and the
// next copy is done. What a command has left running is found by a variable in its
// environment, PREMIX_COPY, and killed.
//
// Everything lies in directories made for the purpose, here and at the peer, which
// are removed at the end.
package testbed
