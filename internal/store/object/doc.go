// Package object defines the smallest unit of the store: an immutable piece of content,
// named by its digest.
//
// Words:
//
//   - content: the bytes that a user of an object wants.
//   - digest: BLAKE3-256 of the content
//     (https://github.com/BLAKE3-team/BLAKE3-specs), the object's only name.
//   - stored form: one zstd frame (RFC 8878) that holds the content. Disks, HTTP
//     caches and registries hold this form, and it is the form that is transferred.
//
// The digest is computed over the content, not over the stored form. Two machines with
// different compressors therefore give an object the same name, and a tree that is
// published twice is the same tree. It follows that a stored form can only be verified
// once it has been decompressed. [Decode] does so within bounds: it never writes more
// than the content's expected size, whatever the frame claims.
//
// A slice of an object holds some of its leaves, the pieces of 1 KiB over which BLAKE3
// builds a tree of hashes, with as many of the hashes as are needed to verify these
// leaves by the object's digest: see slice.go. Two modules implement BLAKE3 here: one
// hashes objects, and the other gives access to the hashes within the tree, which the
// first does not.
//
// Where an object lies, below the root of a store:
//
//	objects/ab/abcdef...   two hexadecimal digits, then all 64
package object
