// Package tools finds the words of a tool's command line that change from sample to sample.
//
// A file of the catalogue, NAME.yaml, describes the program NAME: its options, its
// arguments, and the role of each. The catalogue of premix is embedded. A user adds
// files in a directory, where NAME.yaml replaces the embedded one.
//
//	style: getopt          # how options are written, see below
//	flags: -a -C --MD      # options without a value
//	values: -t -k --seed   # options with a value that belongs to the command
//	options:               # options with a value of another role
//	  -o: output
//	  -R: read-group
//	arguments: [data, input...]
//	rates: ['Speed: .*']   # regular expressions of parts of output files with times and rates
//	unfit:                 # options for which a command starts plainly, with the reason
//	  -d: it writes an index
//	  --genomeLoad LoadAndKeep: the genome lies in shared memory
//
// A program with subcommands has them under commands, each with these keys. A
// subcommand that is not listed starts plainly. The role of a word is one of:
//
//	value       it belongs to the command: with another value, the tool is prepared again
//	data        a file, or the beginning of file names, that the tool loads
//	input       a file of the sample
//	output      a file, a directory, or the beginning of file names, that the tool writes
//	label       a text that changes from sample to sample
//	read-group  a text whose values after ID:, SM: and so on are labels
//
// With a comma at its end (input,) a role is for each element of a list with commas. With
// three dots at its end (input...) it is for all words up to the next option, or, among
// arguments, for all arguments that follow.
//
// The styles of options are:
//
//	getopt  one letter or --word: -t4, -t 4, -at4, --threads 4, --threads=4
//	words   any word, its value in the next one: -query FILE, --readFilesIn FILE FILE; where all
//	        options begin with two dashes, a word with one dash is a value: --readFilesCommand gzip -dc
//
// A command with a word that the file does not describe starts plainly. So a file that is
// older than the tool may cost a hot start, but never makes a result wrong.
package tools
