package transfer

import (
	"fmt"
	"os"
	"premix/internal/exit"
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

// Hint says what to write.
func (e *SilenceError) Hint() string { return "write it as in 40s or 2m, or unset it" }

var silence = sync.OnceValues(func() (time.Duration, error) {
	text := os.Getenv(SilenceVariable)
	if text == "" {
		return silenceUsual, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < silenceLeast || d > silenceMost {
		return silenceUsual, &SilenceError{text}
	}
	return d, nil
})

// Silence is how long the other end of a copy may say nothing until the copy ends: 40
// seconds, unless the environment says otherwise. Ends that are alive say something four
// times as often.
func Silence() time.Duration {
	d, _ := silence() // CheckSilence returns the error
	return d
}

// SilenceOf is the time of silence that the other end of a copy asks for, within the
// bounds of [SilenceVariable], or [Silence] where it asks for none.
func SilenceOf(asked time.Duration) time.Duration {
	if asked == 0 {
		return Silence()
	}
	return min(max(asked, silenceLeast), silenceMost)
}

// CheckSilence returns a [*SilenceError] where the environment has a value that is not
// valid.
func CheckSilence() error {
	_, err := silence()
	return err
}
