// Package trust decides which tree a reference stands for: which keys to trust, and
// which of their records to refuse.
//
// Words:
//
//   - pin: the id and the keys of a store, kept from the first use of an origin, or
//     given by the user.
//   - seen: the newest record of a tag that was ever verified here.
//   - replay: a record older than the seen one, from an origin that lags behind or
//     is hostile.
//   - fork: another record with the same serial.
//   - bootstrap: copies that an origin sends together with a tag's record, see
//     package tree. They are verified like the files and objects that they repeat.
//   - offline: no origin answered, and the seen record is used.
//
// # Which keys are trusted
//
// store.json is not signed. On the first use of an origin its id and keys are pinned,
// as ssh pins hosts. From then on only pinned keys are trusted, whatever store.json
// says: an origin whose store has another id, or none of the pinned keys, is refused.
// If the id is already known from another origin of the same store, the keys pinned for
// it apply, and nothing is trusted on first use. Keys that the user gives replace all
// of these, and are pinned.
//
// The pin of an origin that is a local directory is not compared, since its writers
// are trusted with it already; a pin of the same store by another origin still
// applies. Its tags are checked like all others.
//
// A tag's record must be signed by a trusted key, name this store, name and tag (see
// tree.OpenTag), and have no lower serial than the seen record. A reference with a
// digest needs no signature.
//
// # On disk
//
//	DIR/known_stores          a JSON object a line: origin, store, keys, since
//	DIR/seen/ID/HASH.json     the signed record; ID is the store's, HASH the first
//	                          32 digits of the BLAKE3 digest of NAME:TAG
//	DIR/lock                  held, by flock(2), from reading to writing either
//
// Files are replaced whole by rename(2). Pins and records that came with a bootstrap are
// written while the bootstrap is already in use: [Resolved.Kept]. A line that is removed
// from known_stores is forgotten.
package trust
