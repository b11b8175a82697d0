// Package inplace starts a command hot where it stands: in the directory, with the
// streams, arguments and environment that its caller gave it, as if the caller had
// executed it.
//
// Package hotstart starts tasks of a recipe: every task sees the same names. Here
// nothing is renamed. The command line names the sample, and the frozen process has
// these words in its memory. So a snapshot is made twice, with different words, and the
// two memories are compared. Where they differ by the word alone, a start writes the
// word of its own call.
//
// Words used here:
//
//   - A Call is one command as a caller would execute it.
//   - A late word is a part of an argument that changes from call to call: the name of
//     an input or an output, or a label such as a read group. A late variable is an
//     environment variable whose value changes from call to call.
//   - The shape of a late word is its length, the places of '/' and '.' in it, and its
//     extension. Calls whose words have equal shapes can share one snapshot. Late
//     variables may have any value of up to PadSize bytes.
//   - A place is a part of the frozen state that holds a late word.
//   - A preparation is one execution of the command up to its input, in a scratch
//     directory, with placeholders for its inputs. There are two: A with the words of
//     the call, and B with others of the same shape.
//   - A call is cold where it is executed as it is.
//
// # Exact, or cold
//
// A snapshot serves a call if program, libraries and data are unchanged, the arguments
// are equal but for late words, the environment is equal but for late variables, the
// streams are of the same kinds, and the user is the same. Prepare refuses a command
// whose frozen states differ in a way that no rule of frozen.Compare explains, or whose
// output for a probe differs from the output of a cold start. The reason is kept in the
// store in place of the snapshot.
//
// Run is the tracer of the tool and its parent. The tool is in the caller's process
// group and session, and inherits the caller's streams. An error of Run that is not an
// *Interrupted comes before the first effect of the tool: the caller then executes the
// command plain.
package inplace
