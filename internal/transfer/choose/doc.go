// Package choose copies data by the protocol that is fastest for a link according to
// measurements.
//
// Words:
//
//   - Measurements are the usable copies of a link from all directories of results:
//     premix transfer bench adds its directory of results to the list of
//     the link, probe measures into premix's own directory.
//   - An estimate is the expected time of a protocol: between two measured sizes
//     it is interpolated, beyond the largest it grows with the rate between the two
//     largest. It includes the overhead of small copies, if these were measured.
//   - An order is the list of protocols to try: those that can make the copy, by estimate;
//     protocols without measurements come after the measured ones, in a default order.
//   - An open protocol (see package link) is left out unless it is permitted.
//
// If premix's own protocol would come first for every size, a get begins without asking the
// peer for the size: see direct.go.
//
// A copy is written to a private directory beside its destination (see package beneath),
// compared by SHA-256 with its source, and then renamed. Before that, set-user-ID,
// set-group-ID and sticky bits are cleared. If a protocol fails, the next one in the order
// is tried; if it can resume, it gets the part that has arrived.
//
// premix's directory has these files about links:
//
//	transfer/links/NAME.json   a [Known]
//	transfer/probes/NAME/      results of probes
//	transfer/parts/            which private directory belongs to which destination
package choose
