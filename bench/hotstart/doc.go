// Hotstart measures what the kinds of start of package hotstart cost, side by
// side: a tool executed afresh (cold), CRIU's plain restore (copy, the peer),
// the mapped restore (hot) and the fork of a template (fork; of a template that
// was loaded cold, and of one that was restored hot).
//
// Words used here:
//
//   - A case is one tool with one reference, as a recipe and a sample sheet,
//     or the process synth with so many megabytes.
//   - A sample, where statistics are meant, is called a repetition. Those of
//     the kinds that are compared alternate (A B A B), so that whatever else
//     the machine does meets all of them, and the figure is their median. Where
//     memory is too small for all of them at a time, copy is measured before the
//     others.
//   - opened is the time from the call of Start until the tool opened its
//     input (for `ready: read`: until it read from it); whole is the time until
//     its end was known.
//   - PSS is proportional set size (proc_pid_smaps(5)): a page that n processes
//     share counts for 1/n in each. The figure is the highest sum seen over all
//     tools of the moment, a template counted in; stages are counted apart.
//
// Figures are printed as a table, and written as JSON Lines, one object a
// figure, to results.jsonl in the work directory:
//
//	{"name":"bwa-yeast/whole/hot","value":0.09,"unit":"s","peer":"cold","ratio":2.9}
//
// ratio says how many times better than the peer the figure is: above 1 is
// better, whatever the unit.
//
// Data is prepared once and kept in the work directory. With PREMIX_TESTDATA
// (docs/install.md) references and reads are real where they can be; without,
// they are generated with fixed seeds.
package main
