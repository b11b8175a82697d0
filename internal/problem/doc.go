// Package problem says what is wrong with a file that somebody wrote: a recipe, a sample
// sheet, a list of images, rules. Whoever checks such a file tells all mistakes at once,
// each with its place and the way out. What such files have in common as YAML is read
// here, too.
package problem
