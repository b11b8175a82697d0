// Package libraries predicts which shared libraries a program will load, so that they
// are fetched before its dynamic loader opens one after the other.
//
// A program lists the libraries that it needs by name (DT_NEEDED, elf(5)), and so does
// each library. The loader opens one, maps it, and reads the next name: over a network
// each step costs a round trip, and common programs need forty libraries. This package
// reads the names as soon as the head of a program has been read, and requests all
// libraries that they lead to at once. A wrong prediction costs only time: the contents
// come, verified, from the mounted image, and the loader decides for itself which files
// it opens.
//
// Words:
//
//   - image: a tree as one EROFS image, of which any part may not be cached yet.
//   - head: the beginning of a program or library, by which it is recognised when
//     it is read. Files begin at blocks of the image.
//
// # Which files are followed
//
// 64-bit little-endian ELF files. A name is looked up in the directories that the
// loader of a common system uses (ld.so(8)): absolute directories of DT_RUNPATH or
// DT_RPATH, then the directories of [Dirs]. ld.so.cache, LD_LIBRARY_PATH and $ORIGIN
// are ignored. The program interpreter (PT_INTERP) is treated like a library.
//
// A layer of a container image has programs whose libraries are in lower layers. An
// image does not know which layers belong together: its owner provides a function that
// searches the others.
//
// Trees may come from untrusted sources: sizes and counts in a file are bounded before
// they are used to read or allocate anything.
package libraries
