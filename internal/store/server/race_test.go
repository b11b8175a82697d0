//go:build race

package server_test

// raceMemory is how many times as much memory a program takes
// (https://go.dev/doc/articles/race_detector#Runtime_Overheads).
const raceMemory = 10
