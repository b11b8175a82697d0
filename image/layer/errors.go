package layer

import (
	"fmt"
	"strconv"
)

// Error tells that an archive cannot be unpacked: it is no archive, or an entry
// is not possible.
type Error struct {
	Entry  string // as the archive has it; "" where none is meant
	Reason string
	Err    error // may be nil
}

func (e *Error) Error() string {
	if e.Entry == "" {
		return e.Reason
	}
	return fmt.Sprintf("entry %s: %s", strconv.Quote(e.Entry), e.Reason)
}

func (e *Error) Unwrap() error { return e.Err }

// LimitError tells that there is more in an archive than is permitted.
type LimitError struct {
	What  string // "bytes", "entries"
	Limit int64
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("it holds more than %d %s", e.Limit, e.What)
}

// Hint names the way out.
func (e *LimitError) Hint() string {
	return "if the image can be trusted, permit more: --max-" + e.What
}
