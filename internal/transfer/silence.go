package transfer

import (
	"fmt"
	"os"
	"premix/internal/kit/exit"
	"premix/internal/kit/units"
	"sync"
	"time"
)

const (
	// SilenceVariable is the variable of the environment that sets [Silence].
	SilenceVariable = "PREMIX_TRANSFER_SILENCE"

	silenceUsual = 40 * time.Second
	silenceLeast = time.Second
	silenceMost  = 10 * time.Minute
)

// SilenceError is returned for a value of [SilenceVariable] that is not valid.
type SilenceError struct{ Value string }

func (e *SilenceError) Error() string {
	return fmt.Sprintf("%s=%q is not a time from %s to %s", SilenceVariable, e.Value, silenceLeast, silenceMost)
}

// ExitCode implements exit.Coded.
func (*SilenceError) ExitCode() exit.Code { return exit.Usage }

// Hint shows a valid value.
func (e *SilenceError) Hint() string { return "write it as in 40s or 2m, or unset it" }

var silence = sync.OnceValues(func() (time.Duration, error) {
	text := os.Getenv(SilenceVariable)
	if text == "" {
		return silenceUsual, nil
	}
	d, err := units.ParseDuration(text)
	if err != nil || d < silenceLeast || d > silenceMost {
		return silenceUsual, &SilenceError{text}
	}
	return d, nil
})

// Silence returns the time without a sign of the other end after which a copy ends: 40
// seconds, or the value of the environment variable. A working end sends a sign four times
// in this time.
func Silence() time.Duration {
	d, _ := silence() // CheckSilence returns the error
	return d
}

// SilenceOf returns the time of silence that the other end asks for, limited to the bounds
// of [SilenceVariable], or [Silence] if it asks for none.
func SilenceOf(asked time.Duration) time.Duration {
	if asked == 0 {
		return Silence()
	}
	return min(max(asked, silenceLeast), silenceMost)
}

// CheckSilence returns a [*SilenceError] if the environment has an invalid value.
func CheckSilence() error {
	_, err := silence()
	return err
}
