// Package report sums up a run for people: as text, as JSON, and as one HTML
// page that needs nothing but itself.
//
// Words:
//
//   - A task is told by its last record. Earlier tries only count.
//   - p95: the value that 95 % of the tasks stay at or below.
//   - saved: what tasks of the run would have taken longer had they all started
//     cold, estimated from the median of those that did. Without a cold task in
//     the run nothing is estimated.
//   - active time: the time in which at least one task ran. The timeline leaves
//     out longer pauses between two invocations of premix.
//
// The page is page.html, page.css and page.js of this package put together, with
// the data as JSON inside. It follows the reader's light or dark scheme.
package report
