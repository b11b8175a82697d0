// Package choose copies by the protocol that is fastest for a link, as far as that
// has been measured.
//
// Words:
//
//   - Measurements are the usable copies of a link, from wherever they were made
//     with it: premix transfer bench enters its directory of results in the list of
//     the link, probe measures into premix's own directory.
//   - An estimate is the time that a protocol will take: between two measured sizes
//     it is interpolated, beyond the largest it grows with the rate between the two
//     largest. The overhead of a small copy is in it, as small ones were measured.
//   - An order is what will be tried: the protocols that can copy this, by estimate;
//     those that nobody measured come after the measured ones, in an order of habit.
//   - An open protocol (see package link) is left out unless it is allowed.
//
// Where premix's own protocol comes first in every order, a get asks the peer nothing
// before: see direct.go.
//
// A copy is made in a private directory beside its destination (see package beneath), is
// compared by SHA-256 with its source, and renamed when it is right. Set-user-ID,
// set-group-ID and sticky bits are taken away before. When a protocol
// fails, the next in order goes on; one that resumes is given the part that there is.
//
// What is known of links is in premix's directory:
//
//	transfer/links/NAME.json   a [Known]
//	transfer/probes/NAME/      results of probes
//	transfer/parts/            which private directory belongs to which destination
package choose
