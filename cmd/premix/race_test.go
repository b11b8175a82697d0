//go:build race

package main

// buildFlags make premix itself look for races where its tests do.
var buildFlags = []string{"-race"}
