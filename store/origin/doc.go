// Package origin fetches what a store holds, from wherever it is: a directory, a
// web server, an OCI registry, or several of them.
//
// Words:
//
//   - origin: one place that serves a store (see package tree for what is where).
//   - object: immutable, named by its digest; what an origin gives may be wrong
//     and is verified here, by a [Group], or by the caller.
//   - file: small and mutable (store.json, tags, profile records), asked for
//     afresh each time. Package trust decides whether one is believed.
//   - route: how a web server is reached: through one of the proxies, or directly.
//   - group: the origins of one store in order of preference, with their health.
//
// # What a reader can rely on
//
// No wrong byte: [Group.Verified] returns content that has the digest it was
// asked for, or an error. No endless wait: connecting, the first byte of an
// answer, and the progress of its body each have a limit, redirects are counted,
// and sizes are bounded before memory is allocated. One fetch: however many
// callers ask a group for an object at the same time, it is fetched once, and a
// caller that gives up does not take it away from the others.
//
// # Health
//
// An origin that cannot be reached, stalls, cuts answers short or says that it is
// broken, is left alone for a while that doubles with every further failure, with
// a random part, so that a thousand nodes do not come back at the same moment.
// When the while is over, one request probes it: with another origin to rely on
// the probe is a request of its own that no reader waits for. An origin that gave
// a wrong object is asked last for a minute.
//
//	healthy --failure--> resting --time--> probed --success--> healthy
//	                        ^                 |
//	                        +-----failure-----+
//
// A wrong object that came through a proxy is asked for again with
// "Cache-Control: no-cache", which also replaces a poisoned copy in that proxy,
// and then directly where that is allowed.
//
// # Credentials
//
// They are read from a file (see [ParseCredentials]), sent to the host that they
// are for and nowhere a redirect leads, never over plain HTTP unless the file
// says so, and never appear in messages. A URL with a user in it is refused.
//
// # A store in an OCI registry
//
// A repository holds a whole store. Objects lie in packs: blobs that are their
// stored forms one after another, up to 32 MiB each. An index says which pack
// holds an object and where, so that one object is read by a range request. The
// manifests, by their tag in the registry:
//
//	store              store.json
//	ref-READABLE-HASH  the record of one tag, and its history
//	tree-DIGEST        index and packs of a tree
//	profiles-DIGEST    the records of a tree's profiles, and index and packs of
//	                   their objects
//
// HASH is the first 16 hexadecimal digits of the BLAKE3 digest of NAME:TAG, since
// a tag in a registry can hold neither '/' nor 200 characters; READABLE is for
// people. A manifest names every pack that its index speaks of, also those that
// were pushed with another tree, so that a registry's garbage collection keeps
// them. Files are layers whose title (org.opencontainers.image.title) is their
// name in the store.
//
// The index is binary, little-endian: the magic "premixI1", the number of packs
// (uint32) and of objects (uint32); for each pack its SHA-256 (32 bytes) and its
// size (uint64); for each object, in order of digests, its digest (32 bytes),
// the number of its pack (uint32), its offset in the pack (uint64), and the
// length of its stored form (uint32).
package origin
