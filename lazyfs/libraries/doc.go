// Package libraries foresees which shared libraries a program will be linked with, so
// that they are on their way before its dynamic loader asks for one after the other.
//
// A program says by name what it needs (DT_NEEDED, elf(5)), and so does each library.
// The loader opens one, maps it, reads the next name: over a link each step costs
// a round trip, and common programs need forty libraries. Here the names are read as
// soon as a program's head has passed, and everything that they lead to is asked for
// together. What is wrong in that costs time and nothing else: contents come, verified,
// from the image that is mounted, and the loader decides for itself what it opens.
//
// Words:
//
//   - image: a tree as one EROFS image, of which any part may still be missing.
//   - head: the beginning of a program or library, by which it is known when somebody
//     reads it. Files begin at blocks of the image.
//
// # What is followed
//
// 64-bit little-endian ELF files. A name is looked for where the loader of a common
// system does (ld.so(8)): in absolute directories of DT_RUNPATH or DT_RPATH, then in the
// directories of [Dirs]. What ld.so.cache, LD_LIBRARY_PATH or $ORIGIN would add is not
// looked at. The program interpreter (PT_INTERP) is a library like others.
//
// A layer of a container image has programs whose libraries are in lower layers. Which
// layers belong together an image does not know: its owner says where else to look.
//
// Trees come from elsewhere: sizes and counts that a file claims are bounded before
// anything is read or made by them.
package libraries
