package policy

import "time"

// comes waits until is returns true and reports whether it did.
func comes(is func() bool) bool {
	for deadline := time.Now().Add(2 * time.Minute); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}
