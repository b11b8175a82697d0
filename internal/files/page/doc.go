// Package page writes the summary of a scan as one self-contained HTML file, with the
// tables of a report and histograms in SVG. The page works in light and dark, on a phone,
// with a keyboard, and on paper.
package page
