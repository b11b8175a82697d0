// Package units reads and prints sizes and times as people write them.
//
// A size is a number and a unit, with or without a space between them: 500M, 1.5 G,
// 16GiB, 500 GB. As in GNU coreutils, K, M, G, T, P and E and KiB, MiB and so on are
// powers of 1024, and KB, MB and so on are powers of 1000. Upper and lower case mean the
// same. A number without a unit counts bytes.
//
// A time is a Go duration that may begin with days: 90s, 2h, 1d12h.
//
// Formats of other programs, such as Slurm's sizes in MiB, have readers of their own.
package units
