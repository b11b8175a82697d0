package erofs

// LittleMemory lets a Write keep little in memory, until restore is called.
func LittleMemory() (restore func()) {
	bytes, keys := sortMemory, mapRecent
	sortMemory, mapRecent = 500, 10
	return func() { sortMemory, mapRecent = bytes, keys }
}
