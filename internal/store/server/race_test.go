//go:build race

package server_test

// raceMemory is the factor by which the race detector increases the memory of a program
// (https://go.dev/doc/articles/race_detector#Runtime_Overheads).
const raceMemory = 10
