// Package watch keeps images of a store as a list says that they should be: tags
// of registries, which move, come and go.
//
// # Words
//
// A watch list is a YAML file; [Load] reads it and images.schema.json describes it.
// Each of its entries names images of a registry, with wildcards where it likes. An
// entry is expanded when the registry is asked which names and tags fit it. An image
// belongs to a list from the moment at which the list is about to add it until it is
// removed. A round expands all entries, compares each image with its registry, adds
// what is new, and removes what should not be there any more.
//
// # What a round does
//
//  1. Entries are expanded. Where this fails, what belongs to the entry stays as
//     it is: nothing is ever removed because a registry did not answer.
//  2. Each image's tag is asked for its digest, with HEAD. An image whose digest is
//     the one that was added, and which the store still has, costs nothing more.
//     Others are added by that digest, so that a tag that moves meanwhile makes no
//     mixture: the next round sees that it has moved.
//  3. Images of the list that are not wanted are removed: at once those that no
//     entry fits, or that an entry keeps only the newest of; and those that their
//     registry has no more when their entry says so.
//  4. Where the list asks for it and something was replaced or removed, the store's
//     garbage is collected.
//
// What fails is tried again after a time that doubles with each failure. A registry
// that cannot be reached, or asks for patience (429, 503, with Retry-After), is left
// alone as a whole until then.
//
// # What is kept
//
// One file a list, in the store's own work directory, which no web server serves:
//
//	work/own/watch/NAME.json    a [State]
//
// It is replaced by rename(2) and on the disk before an image is added: an image that
// the list has claimed is known to be the list's, whenever the process dies. All else
// in it can be found out again. An image that is in the store already when it is
// claimed, because somebody has added it by hand or a process died, belongs to the
// list from then on; what another list has claimed is left to that list.
//
// # Locks
//
// Whoever runs rounds of a list holds the store's lock own-watch-NAME, so that two
// never run at once. It comes before the locks that adding and removing images take.
// The mutex of a round guards its state and is never held while a registry or the
// store is waited for.
package watch
