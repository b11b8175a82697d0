//go:build race

package main

// The binary of these tests detects races too: it exits with 66 if it finds one.
func init() { buildFlags = append(buildFlags, "-race") }
