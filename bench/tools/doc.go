// Tools starts Debian's programs hot, without any adaptation of the programs, as an
// ordinary user without privileges, and compares their outputs with the outputs of cold
// starts.
//
// Words used here:
//
//   - A tool is a program with an index, or with libraries, that it loads before it
//     opens its sample. Its recipe has a command, inputs, outputs and data, and no
//     other key, except that tools that print a date have varies.
//   - data is the number of bytes that the tool reads or maps, over the first sample, of
//     the files of its index; if it has no index, of all files of 1 MiB or more, its
//     libraries too. strace(1) counts them.
//   - share is the part of the data that the tool has read or mapped when it is stopped,
//     which a hot start has in memory. It is small for tools that read their sample before
//     they load their index.
//
// Each tool runs over two samples at once, cold and hot, as user 65534 with
// no_new_privs. All outputs are compared, byte by byte.
//
// PREMIX_TESTDATA (docs/install.md) has the sequences. Indexes are made once and kept in
// the work directory. A tool that is not installed is left out, and the table says so.
package main
