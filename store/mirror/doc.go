// Package mirror copies trees from one store to another: pull from any origin
// into a directory, push from a directory into another one or into an OCI
// registry.
//
// A mirror holds what a store has signed, as it was signed: it has the store's id
// and its public keys, and its records are the same bytes. So nodes that trust
// the store trust its mirrors, nobody who runs one needs the private key, and a
// mirror that lags behind or lies is noticed like any other origin that does.
// It follows that a mirror holds trees of one store only, that trees are
// published in the store and nowhere else, and that a mirror's records may be
// older than the store's but never different.
//
// # Order
//
// Chunks first, then pages, then the manifest, the profiles, and the tag at the
// end: whoever reads a mirror while it is filled finds the old tag with all it
// needs, or the new one with all it needs. Objects are verified before they are
// written. What is there is not fetched again, so that a copy that was cut off
// goes on where it was.
package mirror
