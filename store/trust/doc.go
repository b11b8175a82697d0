// Package trust decides which tree a reference stands for: whom to believe, and
// what not to believe even of them.
//
// Words:
//
//   - pin: the id and the keys of a store, kept from the first time that an
//     origin was used, or given by the user.
//   - seen: the newest record of a tag that was ever verified here.
//   - replay: an older record than the one that was seen, from an origin that
//     lags behind or lies.
//   - fork: another record with the same serial.
//   - opening: what an origin sent together with a tag's record, see package tree.
//     Nothing in it is believed more than what it repeats.
//   - offline: no origin answered, and the record that was seen is used.
//
// # What is believed
//
// store.json is not signed. On the first use of an origin its id and keys are
// pinned, as ssh does with hosts. From then on only pinned keys are believed,
// whatever store.json says: an origin whose store has another id, or none of the
// pinned keys, is refused. Where the id is known already, from another origin of
// the same store, the keys pinned for it count, and nothing is taken on trust.
// Keys that the user gives count instead of all that, and are pinned.
//
// An origin that is a directory of this machine is believed as far as the pin
// goes, since whoever can write there has been trusted with it; its tags are
// checked like all others.
//
// A tag's record must be signed by a believed key, be of this store, name and tag
// (see tree.OpenTag), and have no lower serial than the one that was seen. A
// reference with a digest needs nobody's word.
//
// # On disk
//
//	DIR/known_stores          a JSON object a line: origin, store, keys, since
//	DIR/seen/ID/HASH.json     the signed record; ID is the store's, HASH the first
//	                          32 digits of the BLAKE3 digest of NAME:TAG
//	DIR/lock                  held, by flock(2), from reading to writing either
//
// Files are replaced whole by rename(2). What an opening said is written while it is
// used already: [Resolved.Kept]. A line of known_stores that is removed
// is forgotten.
package trust
