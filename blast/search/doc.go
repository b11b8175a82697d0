// Package search searches BLAST databases.
package search
