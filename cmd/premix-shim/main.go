package main

import (
	"fmt"
	"os"
	"path/filepath"

	"premix/internal/hotstart/calls"
)

func main() {
	if err := calls.Shim(); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", filepath.Base(os.Args[0]), err)
		os.Exit(127)
	}
}
