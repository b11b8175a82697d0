// Package tree defines the formats of the store, byte by byte: trees, tags and
// profiles. It encodes, decodes and validates them; it touches neither disk nor
// network.
//
// Words:
//
//   - tree: a published directory, as one EROFS image
//     (https://docs.kernel.org/filesystems/erofs.html). The image begins with the
//     metadata (superblock, inodes, directories, tiny files). The data of files
//     follows.
//   - chunk: a piece of the image, of any length up to [MaxChunk], stored as an
//     object. Chunks follow one another without gaps. A chunk whose digest is
//     zero is a hole: it reads as zeros and is stored nowhere.
//   - page: up to [PageChunks] consecutive chunks, listed in one object.
//   - manifest: the list of a tree's pages, with its sizes. The digest of the
//     manifest is the digest of the tree. The manifest names the pages, the pages name
//     the chunks, and each name is a digest. So the digest of a tree is enough to
//     verify every byte of it: a Merkle tree of three levels.
//   - reference: the text by which users name a tree, NAME[:TAG] or NAME@DIGEST.
//   - tag record: "NAME:TAG is this tree", signed. Its serial grows with every
//     change, so that a replayed old record is noticed.
//   - profile: the leaves (see package object) of chunks that a program touched
//     while it started, in order of first touch, with bundles of them. It is signed
//     too, although the digests of the chunks verify all content that it leads to: a
//     forged profile could only waste a reader's time.
//   - part: the touched part of one chunk: all of it or some of its leaves.
//   - bundle: an object whose content is a sequence of parts, so that one request
//     fetches many.
//   - bootstrap: copies of the objects and files that a mount of a tag needs first,
//     in one file.
//
// Metadata and data are one image, and not a file of metadata beside a device of data. So
// there is one list of chunks, one cache file and one mount, and the metadata of a tree
// with millions of files is fetched when it is read, as all else. The digest that names an
// object is the digest of its content, and not of its compressed form.
//
// # The store on disk and on the wire
//
// A store is a directory that any static web server can serve:
//
//	store.json                        [Info]: format, id, public keys
//	objects/ab/abcdef...              chunks, pages, manifests, profiles, bundles
//	tags/NAME/TAG.json                the current [TagRecord]
//	tags/NAME/TAG.history.jsonl       all of them, oldest first, one a line
//	profiles/<tree's digest>/P.json   [ProfileRecord] of the profile called P
//	openings/<hash of the tag>/P      [Bootstrap] of a tag, for mounts with profile P
//	next/<hash of the tag>            which tags are mounted after it: see [Ref.NextPath]
//
// Objects never change and may be cached without limit. The other files are small and
// must be revalidated.
//
// # Page
//
// The content of a page's object is binary, little-endian: the magic "premixP1",
// then an entry of 40 bytes for each chunk:
//
//	0   digest, 32 bytes; zeros for a hole
//	32  length in the image, uint64 bytes
//
// The length of the stored form is not part of the entry: it depends on the compressor,
// and the digest of a tree must not.
package tree
