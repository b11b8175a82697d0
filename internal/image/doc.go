// Package image adds OCI images to a store, and lists and removes them.
//
// # Words
//
// An image is a list of layers and a configuration (environment, command, user). The
// diff id of a layer is the SHA-256 of its uncompressed archive; the chain id
// identifies a layer together with all layers below it
// (https://github.com/opencontainers/image-spec/blob/main/config.md). The root is the
// directory tree that a container sees.
//
// # An image in a store
//
// An image is stored as trees, with ordinary tags, so that stores, mirrors, nodes and
// the gc handle images like all other trees:
//
//	NAME:TAG                    the root of the image, flat
//	images/NAME:TAG             its record, which lists the other trees
//	chains/CHAIN-ID:latest      each layer, unpacked for overlayfs, on top of those below it
//	layers/DIFF-ID:latest       the same tree, if it is the same on top of any layers
//
// Ids are written as 64 hexadecimal digits. A layer is unpacked as package internal/image/layer
// describes. It stands alone, and is tagged by its diff id too, if its archive
// describes the directories of all its entries and has no hard links to files outside
// of it; then images of other chains share the tree. Otherwise the missing directories
// get the owners and modes that they have in the layers below, and so the tree belongs
// to the chain.
//
// The record is a tree with up to three files:
//
//	image.json      a [Record]: digests of the root's tree and of the layers'
//	config.json     the image's configuration, byte for byte
//	manifest.json   its manifest, byte for byte; archives of docker save have none
//
// The record names all trees by their digests, so that it always describes one
// consistent image, even if tags have changed since. Its own digest, which its tag's
// signature covers, identifies the image as a whole. It is published last. A root that
// was added as a directory has a record without layers and with a generated
// configuration.
//
// # Adding and removing
//
// When an image is removed, layers and chains that no record names lose their tags; the
// next gc removes their objects. An add holds a store.Writer while it runs, so that a
// gc keeps the objects that it relies on, and writes all tags of its layers again
// before it writes the record. This last step and removing exclude each other by the
// store's lock own-images.
package image
