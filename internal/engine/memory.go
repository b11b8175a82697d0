package engine

// Growth is the default factor by which the memory of a task grows for a further try after a
// try that ran out of it.
const Growth = 2

// most is a limit for Grown, against an overflow.
const most = 1 << 50

// Grown returns the memory of a task after ooms tries that ran out of it. Tasks with a
// recipe and tasks without one use it, here and in an engine job.
func Grown(memory int64, growth float64, ooms int) int64 {
	for range ooms {
		if memory > most {
			break
		}
		memory = int64(float64(memory) * growth)
	}
	return memory
}
