// Package origin fetches the objects and files of a store from a directory, a web
// server, an OCI registry, or several of these.
//
// Words:
//
//   - origin: one place that serves a store (see package tree for its paths).
//   - object: immutable, named by its digest. An origin may give wrong bytes; a
//     [Group], or the caller, verifies them.
//   - file: small and mutable (store.json, tags, profile records), fetched again
//     for each use. Package trust decides whether a file is trusted.
//   - route: a way to reach a web server: through one of the proxies, or directly.
//   - group: the origins of one store in order of preference, with their health.
//
// # Guarantees
//
// No wrong byte: [Group.Verified] returns content with the requested digest, or an
// error. No endless wait: connecting, the first byte of an answer, and the progress of
// its body each have a limit, redirects are counted, and sizes are bounded before
// memory is allocated. One fetch: however many callers ask a group for an object at the
// same time, it is fetched once. A caller that gives up does not cancel the fetch of
// the others.
//
// # Health
//
// An origin that cannot be reached, stalls, sends truncated answers or reports that it
// is broken is not used for some time. This time doubles with every further failure and
// has a random part, so that a thousand nodes do not return at the same moment. After
// it, one request probes the origin. If the group has another origin, the probe is a
// separate request that no reader waits for. An origin that gave a wrong object is used
// last for a minute.
//
//	healthy --failure--> resting --time--> probed --success--> healthy
//	                        ^                 |
//	                        +-----failure-----+
//
// A wrong object that came through a proxy is fetched again with "Cache-Control:
// no-cache", which also replaces a poisoned copy in that proxy, and then without the
// proxy if that is allowed.
//
// # Credentials
//
// They are read from a file (see [ParseCredentials]) and sent only to the host that
// they are for, never to the target of a redirect, and never over plain HTTP unless the
// file says so. They never appear in messages. A URL that contains a user is refused.
//
// # A store in an OCI registry
//
// A repository holds a whole store. Objects lie in packs: blobs of concatenated stored
// forms, up to 32 MiB each. An index maps each object to its pack and offset, so that
// one object is read by a range request. The manifests, by their tag in the registry:
//
//	store              store.json
//	ref-READABLE-HASH  the record of one tag, and its history
//	tree-DIGEST        index and packs of a tree
//	profiles-DIGEST    the records of a tree's profiles, and index and packs of
//	                   their objects
//
// HASH is the first 16 hexadecimal digits of the BLAKE3 digest of NAME:TAG, since a tag
// in a registry cannot contain '/' or have 200 characters; READABLE is for readers. A
// manifest names every pack that its index refers to, including packs that were pushed
// with another tree, so that a registry's garbage collection keeps them. Files are
// layers whose title (org.opencontainers.image.title) is their name in the store.
//
// The index is binary, little-endian: the magic "premixI1", the number of packs
// (uint32) and of objects (uint32); for each pack its SHA-256 (32 bytes) and its
// size (uint64); for each object, in order of digests, its digest (32 bytes),
// the number of its pack (uint32), its offset in the pack (uint64), and the
// length of its stored form (uint32).
package origin
