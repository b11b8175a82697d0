// Package inplace starts a command hot in place: in the directory, with the streams,
// arguments and environment that its caller gave it, as if the caller had executed it.
//
// Package hotstart starts tasks of a recipe, and every task sees the same file names. This
// package does not rename files. The command line names the sample, and the frozen process
// has these words in its memory. So the command is prepared twice, with different words,
// and the two memories are compared. At each place where only the word differs, a start
// writes the word of its own call.
//
// Words used here:
//
//   - A Call is one command as a caller would execute it.
//   - A late word is a part of an argument that changes from call to call: the name of
//     an input or an output, or a label (for example a read group). A late variable is an
//     environment variable whose value changes from call to call.
//   - The shape of a late word is its length, the places of '/' and '.' in it, and its
//     extension. Calls whose words have equal shapes can share one snapshot. Late
//     variables may have any value of up to PadSize bytes, unless the tool has copied
//     them: they are exact variables then, and have shapes, too.
//   - A place is a part of the frozen state that holds a late word.
//   - A preparation is one execution of the command up to its input, in a scratch
//     directory, with placeholders for its inputs. There are two: A has the words of
//     the call, and B has other words of the same shape.
//   - A call is cold if the command is executed unchanged.
//
// # Exact, or cold
//
// A snapshot serves a call if the program, its libraries and its data are unchanged, the
// arguments are equal apart from late words, the environment is equal apart from late
// variables, the streams have the same kinds, and the user is the same. Prepare refuses a
// command whose frozen states differ in a way that no rule of frozen.Compare explains, or
// whose output for a probe differs from the output of a cold start. The store then keeps
// the reason in place of the snapshot.
//
// Run is the tracer and the parent of the tool. The tool is in the caller's process
// group and session, and inherits the caller's streams. An error of Run that is not an
// *Interrupted comes before the first effect of the tool, so the caller can still execute
// the command unchanged.
package inplace
