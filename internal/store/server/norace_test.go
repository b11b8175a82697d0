//go:build !race

package server_test

const raceMemory = 1
