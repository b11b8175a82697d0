// Package report summarizes a run for people: as text, as JSON, and as one HTML
// page that needs no other file.
//
// Words:
//
//   - A task is described by its last record. Earlier tries are only counted.
//   - p95: the value that 95 % of the tasks stay at or below.
//   - saved: the additional time that the tasks of the run would have taken had they
//     all started cold, estimated from the median of the cold ones. Without a cold
//     task in the run nothing is estimated.
//   - active time: the time in which at least one task ran. The timeline leaves
//     out longer pauses between two invocations of premix.
//
// The page consists of page.html, page.css and page.js of this package, with
// the data as JSON inside. It follows the reader's light or dark scheme.
package report
