// Hotstart measures the starts of package hotstart side by side: a tool that is
// executed (cold), and one that is started from a snapshot (hot).
//
// The synthetic process is started by peers too: by CRIU, where it is installed and the
// caller is root, and as a fork of a process that is kept at its input.
//
// The part auto makes whole runs (premix run) with premix's own choice of starts and with cold
// starts alone, of the cases and of a tool that cannot start hot.
//
// Words used here:
//
//   - A case is one tool with one reference, as a recipe and a sample sheet,
//     or the process synth with a given number of megabytes.
//   - A sample, in the sense of statistics, is called a repetition. Repetitions of the
//     compared kinds alternate (A B A B), so that other load on the machine affects all
//     of them alike, and the figure is their median.
//   - opened is the time from the call of Start until the tool opened its
//     input (for `ready: read`: until it read from it); whole is the time until
//     the benchmark noticed its end.
//   - PSS is proportional set size (proc_pid_smaps(5)): a page that n processes
//     share counts for 1/n in each. The figure is the highest observed sum over all
//     simultaneous tools; supervisors are counted separately.
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
// (docs/install.md) references and reads are real where possible; without it,
// they are generated with fixed seeds.
package main
