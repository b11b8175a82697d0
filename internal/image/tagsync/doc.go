// Package tagsync keeps the images of a store up to date with a list of tags in
// registries.
//
// # Words
//
// A watch list is a YAML file; [Load] reads it and images.schema.json describes it.
// Each of its entries names images of a registry, possibly with wildcards. To expand an
// entry is to ask the registry for the names and tags that match it. An image belongs
// to a list from the moment the list is about to add it until it is removed. A round
// expands all entries, compares each image with its registry, adds new images, and
// removes those that should not exist any more.
//
// # Steps of a round
//
//  1. Entries are expanded. If that fails, the entry's images stay as they are: nothing
//     is ever removed because a registry did not answer.
//  2. The registry is asked for the digest of each image's tag, with HEAD. If it is the
//     digest that was added, and the store still has the image, the image is done.
//     Otherwise the image is added by that digest, so that a tag that changes in the
//     meantime cannot mix two images: the next round finds the change.
//  3. Images of the list that are not wanted are removed. Images that no entry matches,
//     or that are not among the newest that an entry keeps, are removed at once. Images
//     that their registry no longer has are removed when their entry says so.
//  4. If the list asks for it, and an image was replaced or removed, a gc of the store
//     follows.
//
// Failures are retried after a time that doubles with each failure. A registry that
// cannot be reached, or asks for a delay (429, 503, with Retry-After), is not asked
// at all until then.
//
// # State
//
// One file for each list, in the store's own work directory, which is never served:
//
//	work/own/watch/NAME.json    a [State]
//
// It is replaced by rename(2), and synced before an image is added: so it is known
// which images the list has claimed, whenever the process dies. The rest of the file
// can be recomputed. An image that is in the store before it is claimed, because a user
// has added it or a process died, belongs to the list from then on; images that another
// list has claimed are left to that list.
//
// # Locks
//
// A process that runs rounds of a list holds the store's lock own-watch-NAME, so that
// rounds never overlap. It comes before the locks for adding and removing images. The
// mutex of a round guards its state and is never held during a wait for a registry or
// the store.
package tagsync
