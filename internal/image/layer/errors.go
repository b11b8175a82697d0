package layer

import (
	"fmt"
	"strconv"
)

// Error reports that an archive cannot be unpacked: it is not an archive, or an entry
// is invalid.
type Error struct {
	Entry  string // as in the archive; "" for the archive as a whole
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

// LimitError reports that an archive exceeds a limit.
type LimitError struct {
	What  string // "bytes", "entries"
	Limit int64
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("it has more than %d %s", e.Limit, e.What)
}

// Hint returns the hint for the user.
func (e *LimitError) Hint() string {
	return "if the image can be trusted, permit more: --max-" + e.What
}
