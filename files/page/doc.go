// Package page draws what a scan found: one HTML file that needs nothing else, with the
// tables of a report and histograms in SVG. It reads in light and dark, on a phone, with a
// keyboard, and on paper.
package page
