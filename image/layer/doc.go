// Package layer unpacks the layers of OCI images: tar archives of what a layer
// adds to, changes in, or takes away from those below it
// (https://github.com/opencontainers/image-spec/blob/main/layer.md).
//
// # Two ways to unpack
//
// A layer is unpacked as containerd does it, either into a directory of its own
// that becomes one of the lower directories of an overlay mount (Overlay), or on
// top of a directory in which the layers below are unpacked already, which makes a
// flat root of them all. They differ in how something is taken away:
//
//	tar entry               overlay                            flat
//	dir/.wh.NAME            character device 0:0 at dir/NAME   dir/NAME is removed
//	dir/.wh..wh..opq        trusted.overlay.opaque=y on dir    what lower layers have in dir is removed
//
// # What is as in containerd
//
//   - Names are taken from the root, whatever "/" or ".." they begin with, and
//     symbolic links in them are followed within the root.
//   - The entry of the root itself is not applied: the root has mode 0755 and
//     belongs to root. Its time, however, is that of the entry.
//   - A directory that no entry describes gets the owner, mode, attributes and time
//     that it has in the layers below, else root, 0755 and time 0.
//   - An entry for a name that is there replaces it, but for a directory on a
//     directory, which only gets the entry's metadata.
//   - Times before 1970 are 0.
//
// # What differs
//
// Equal layers become equal directories. So whiteouts have the time of their
// entries, and a directory that is changed only through what lies in it keeps its
// time: an overlay mount shows it like that too.
//
// What a layer adds beside a whiteout of the same name stays, since whiteouts are
// about lower layers; a directory added so is opaque.
//
// A hard link to a file of a lower layer copies that file up, as overlayfs does it.
//
// Attributes trusted.overlay.* and user.overlay.* of an archive are left out: in a
// lower directory they would redirect an overlay mount to where the archive wants.
// Character devices 0:0 are whiteouts to overlayfs, and are treated as such.
//
// # Hostile archives
//
// All that is written is written to names of one part in a directory that was
// opened below the root, with no symbolic link on its way (openat2(2)). Nobody else
// may write to the directory meanwhile. Device nodes are made as such; who may open
// them is a matter of the mounts in which they appear. Bytes and entries are limited,
// also those that a sparse file only claims to have.
//
// Owners, devices and capabilities need root.
package layer
