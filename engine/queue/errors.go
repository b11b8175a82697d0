package queue

// InputError tells what is wrong with tasks that were to be submitted, where no line of a
// file is meant, or with a selection of tasks.
type InputError struct {
	Reason string
	Way    string
}

func (e *InputError) Error() string { return e.Reason }

// Hint names the way out.
func (e *InputError) Hint() string { return e.Way }
