// Tools starts programs of Debian hot that nobody has prepared for it, as an ordinary
// user without privileges, and compares their outputs with those of cold starts.
//
// Words used here:
//
//   - A tool is a program with an index, or with libraries, that it loads before it
//     opens its sample. Its recipe has a command, inputs, outputs and data, and no
//     other key, but for tools that print a date: they have varies.
//   - data is the number of bytes that the tool reads or maps, over the first sample, of
//     the files of its index; of all files of 1 MiB or more, its libraries too, where it
//     has no index. strace(1) counts them.
//   - share is the part of the data that it has read or mapped when it is stopped: what a
//     hot start has in memory. Tools that read their sample before they load their index
//     have a small one.
//
// Each tool runs over two samples at once, cold and hot, as user 65534 with
// no_new_privs. All outputs are compared, byte by byte.
//
// PREMIX_TESTDATA (docs/install.md) has the sequences. Indexes are made once and kept in
// the work directory. A tool that is not installed is left out, and the table says so.
package main
