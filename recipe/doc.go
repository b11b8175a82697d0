// Package recipe reads a recipe and a sample sheet, checks both, and says what
// has to be started for each sample.
//
// Words:
//
//   - recipe: a YAML file that says how to run one tool over one sample. What
//     it puts into its command is frozen by a hot start, and so is the same for
//     every sample.
//   - sample sheet: a CSV file, one row a sample. The column "sample" names it,
//     one further column an input says where its file is.
//   - fixed name: the path, relative to a task's directory, under which the
//     tool finds an input or leaves an output. It never depends on the sample.
//   - pattern: where an output is put in the run directory. It holds ${sample}.
//   - placeholder: ${sample}, ${threads}, ${memory}, ${data.NAME}, or ${NAME} of
//     an input or an output. "$$" stands for one dollar sign.
//   - pipe: shell text that is started afresh for each sample and reads what the
//     tool writes to its standard output. Here the sample's name may stand.
//   - problem: one mistake in a recipe or a sheet, with its place and the way out.
//
// A file is read to its end before anything is reported: Load and Sheet return
// every problem of a file at once, as Problems, sorted by line.
//
// The format is written down twice: for people in docs/recipe.md, for editors in
// recipe.schema.json (JSON Schema, draft 2020-12). A test keeps the schema in
// step with the parser.
package recipe
