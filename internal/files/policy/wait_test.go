package policy

import "time"

// comes waits until something is so, and tells whether it was.
func comes(is func() bool) bool {
	for deadline := time.Now().Add(2 * time.Minute); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}
