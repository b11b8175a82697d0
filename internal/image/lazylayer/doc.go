// Package lazylayer shows layers of images in registries before they are fetched: layers
// with an index, which were built for that, and that no store has.
//
// # Words
//
//   - blob: the layer as the registry has it, compressed.
//   - index: the list of the layer's files, and the places of their contents in the
//     blob: the TOC of an eStargz layer
//     (https://github.com/containerd/stargz-snapshotter/blob/main/docs/estargz.md).
//   - piece: a part of the blob that is fetched, verified and cached as a whole.
//   - stretch: a part of a file's content, which lies in one piece.
//
// # How a layer becomes a mount
//
// [Open] reads the index, verifies its digest, which the image's manifest has in an
// annotation, and makes EROFS metadata of it in memory, followed by a data area in which
// each file begins at a block. [Layer] is an image as package lazyfs mounts it. A read of
// the data area fetches the pieces of the file, each once, into the objects of the node's
// cache; the compressed bytes are not kept.
//
// # Never a wrong byte
//
// Each stretch is compared with its digest in the index before its piece is kept, and the
// cache compares what it returns with sums. A registry that returns other bytes, now or
// later, causes EIO. The index itself is as trustworthy as the manifest: whoever builds an
// image decides on names, attributes and contents.
//
// A layer is refused, so that it is pulled instead, if its files are not described by its
// index alone: if a parent directory is missing, a name leads through a symbolic link, or a
// hard link leads out of the layer; and so is a registry that does not return parts of
// blobs. The tree is the same as that of package internal/image/layer, except that times
// of an eStargz layer are rounded to seconds, as they are in its TOC.
package lazylayer
