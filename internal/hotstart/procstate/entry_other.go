//go:build !amd64

package procstate

func inherited() uint64 { return 0 }

const filesAtEntry, closedAtEntry = 0, 0
