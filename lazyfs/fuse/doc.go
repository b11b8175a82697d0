// Package fuse is a small read-only FUSE server, written for what it serves: an
// image of a tree whose bytes may have to be fetched first.
//
// Words:
//
//   - device: an open /dev/fuse. One open file is one connection to the kernel,
//     which belongs to one mount.
//   - request: a message that the kernel sends and mostly waits for: fuse(4) and
//     include/uapi/linux/fuse.h of Linux say which there are.
//   - node: the number by which the kernel names a file of ours.
//   - reader: a goroutine that takes requests and answers them.
//   - to resume: to go on with the connection of a server that has died.
//
// There are two file systems. [MountImage] shows the image as one file, for the
// kernel's EROFS to be mounted from. [MountTree] shows the tree in the image, for
// where there is no EROFS, or no privilege to mount it.
package fuse
