// Package object is the smallest thing the store knows: an immutable piece of
// content with a name made from that content.
//
// Words:
//
//   - content: the bytes that a user of an object wants.
//   - digest: BLAKE3-256 of the content
//     (https://github.com/BLAKE3-team/BLAKE3-specs), the object's only name.
//   - stored form: one zstd frame (RFC 8878) that holds the content. It is what
//     lies on disks, in HTTP caches and registries, and what travels.
//
// The digest is that of the content, not of the stored form: two machines whose
// compressors differ give an object the same name, and a tree that was published
// twice is the same tree. It follows that a stored form can only be judged once
// it has been decompressed, which [Decode] does within bounds: it never writes
// more than the content's expected size, whatever the frame claims.
//
// A slice of an object is some of its leaves, the pieces of 1 KiB over which BLAKE3 is
// a tree of hashes, with as many of the hashes as it takes to verify them by the
// object's own digest: see slice.go. One module hashes objects, the other gives the
// hashes within the tree, which the first does not.
//
// Where an object lies, below the root of a store:
//
//	objects/ab/abcdef...   two hexadecimal digits, then all 64
package object
