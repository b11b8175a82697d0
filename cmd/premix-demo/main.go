package main

import (
	"fmt"
	"os"

	"premix/internal/demo/aligner"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: premix-demo REFERENCE READS >SAM")
		os.Exit(2)
	}
	if err := aligner.Align(os.Stdout, os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "premix-demo:", err)
		os.Exit(1)
	}
}
