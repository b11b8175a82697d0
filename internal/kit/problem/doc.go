// Package problem reports the mistakes in a file that a user wrote: a recipe, a sample
// sheet, a list of images, rules. All mistakes are reported at once, each with its place
// and a hint. The package also has functions to read such files as YAML.
package problem
