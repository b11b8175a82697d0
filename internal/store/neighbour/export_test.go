package neighbour

import "time"

// SetSilence sets the longest time without a byte of an answer, until restore is called.
func SetSilence(d time.Duration) (restore func()) {
	old := silence
	silence = d
	return func() { silence = old }
}
