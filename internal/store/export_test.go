package store

// LittleMemory lets a publish keep little in memory, until restore is called.
func LittleMemory() (restore func()) {
	old := limits
	limits = workLimits{keys: 50, bytes: 2000, list: 20, subs: 3}
	return func() { limits = old }
}
