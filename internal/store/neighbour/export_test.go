package neighbour

import "time"

// SetSilence sets the longest time without a byte of an answer, until restore is called.
func SetSilence(d time.Duration) (restore func()) {
	old := silence
	silence = d
	return func() { silence = old }
}

// LeaveOut leaves a neighbour out for a time.
func (s *Site) LeaveOut(address string, d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.peers[address].until = time.Now().Add(d)
}
