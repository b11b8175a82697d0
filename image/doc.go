// Package image brings OCI images into a store and tells what is there.
//
// # Words
//
// An image is a list of layers and a configuration (environment, command, user).
// The diff id of a layer is the SHA-256 of its uncompressed archive, the chain id
// that of a layer together with all below it
// (https://github.com/opencontainers/image-spec/blob/main/config.md). The root is
// what a container sees of all layers.
//
// # What an image is in a store
//
// Trees, with tags like those of any other tree, so that all that stores, mirrors,
// nodes and the gc know of trees holds for images:
//
//	NAME:TAG                    the root of the image, flat
//	images/NAME:TAG             its record: what else belongs to the image
//	chains/CHAIN-ID:latest      each layer, unpacked for overlayfs, on top of those below it
//	layers/DIFF-ID:latest       the same tree, where it is the same on top of any layers
//
// Ids are written as 64 hexadecimal digits. A layer is unpacked as package
// image/layer describes it. It stands alone, and is tagged by its diff id too, if
// its archive describes all directories in which it has something and links to no
// file but its own; then images of other chains use the tree. Otherwise the
// directories that it lacks have the owners and modes that they have below, and so
// the tree belongs to the chain.
//
// The record is a tree with up to three files:
//
//	image.json      a [Record]: digests of the root's tree and of the layers'
//	config.json     the image's configuration, byte for byte
//	manifest.json   its manifest, byte for byte; archives of docker save have none
//
// It names all trees by their digests, so that whoever has the record has one
// image and no mixture, whatever the tags are by then. Its own digest, which its
// tag's signature covers, stands for the image as a whole. It is published last.
// A root that was a directory has a record without layers and with a configuration
// that was made up for it.
//
// # Adding beside removing
//
// Layers and chains that no record names lose their tags when an image is removed;
// their objects go with the next gc. An add holds a store.Writer while it works, so
// that a gc leaves what it counts on, and gives all tags of its layers again before
// it writes the record. That last part, and removing, take turns by the store's lock
// own-images.
package image
