// Package summary summarizes measured transfers as text, as files for other programs, and as
// one self-contained HTML page.
//
// Words:
//
//   - A group is all usable copies of one protocol with the same data in the same
//     direction over one link. Copies that failed or were disturbed are counted, and
//     otherwise left out.
//   - For each data, the best group has the highest median speed. Every
//     other one is compared with it by Welch's t-test and by ranks; P values are
//     corrected by Holm's method over all comparisons of the report.
//   - Periods (peak, off-peak) are compared within each group, by the same tests,
//     corrected among themselves.
//   - A fingerprint shows every packet of one copy: time and size, down above the
//     axis, up below. If there are many packets, only every n-th is drawn.
//
// The report writes into the directory of results:
//
//	report.html         the page
//	transfers.parquet   all rows
//	transfers.csv       one line a group
//	report.json         groups and comparisons
//	figures/*.svg       the figures of the page
package summary
