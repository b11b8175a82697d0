// Package mirror copies trees from one store to another: pull from any origin
// into a directory, push from a directory into another one or into an OCI
// registry.
//
// A mirror holds trees and records as a store has signed them: it has the store's id
// and public keys, and its records are the same bytes. So nodes that trust the store
// trust its mirrors, a mirror needs no private key, and a mirror that lags behind or is
// hostile is detected like any other origin. It follows that a mirror holds trees of
// one store only, that trees are published only in the store, and that a mirror's
// records may be older than the store's but never different.
//
// # Order
//
// Chunks are copied first, then pages, the manifest, the profiles, and the tag at the
// end: while a mirror is being filled, its readers find the old tag with all of its
// tree, or the new one with all of its tree. Objects are verified before they are
// written. Existing objects are not fetched again, so that an interrupted copy can be
// resumed.
package mirror
