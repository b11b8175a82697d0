//go:build !race

package serve_test

const raceMemory = 1
