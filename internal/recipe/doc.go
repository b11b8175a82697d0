// Package recipe reads a recipe and a sample sheet, checks both, and returns the
// command, the inputs and the outputs of each sample.
//
// Words:
//
//   - recipe: a YAML file that describes how to run one tool over one sample. A
//     hot start freezes the command, so it is the same for every sample.
//   - sample sheet: a CSV file with one row for each sample. The column "sample"
//     has its name; one further column for each input has the path of its file.
//   - fixed name: the path, relative to a task's directory, under which the
//     tool finds an input or leaves an output. It never depends on the sample.
//   - pattern: the path of an output in the run directory. It contains ${sample}.
//   - placeholder: ${sample}, ${threads}, ${memory}, ${data.NAME}, or ${NAME} of
//     an input or an output. "$$" means one dollar sign.
//   - pipe: a shell command that is started for each sample and reads the tool's
//     standard output. It may contain ${sample}.
//   - problem: one mistake in a recipe or a sheet, with its place and a hint.
//
// Load and Sheet read a file to its end, and return all its problems at once, as
// Problems, sorted by line.
//
// docs/recipe.md describes the format for users, recipe.schema.json (JSON Schema,
// draft 2020-12) for editors. A test compares the schema with the parser.
package recipe
