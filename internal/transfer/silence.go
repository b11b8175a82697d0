package transfer

import (
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

var silence = sync.OnceValues(func() (time.Duration, error) {
	text := os.Getenv(SilenceVariable)
	if text == "" {
		return silenceUsual, nil
	}
	d, err := units.ParseDuration(text)
	if err != nil || d < silenceLeast || d > silenceMost {
		return silenceUsual, exit.Errorf(exit.Usage, "write it as in 40s or 2m, or unset it", "%s=%q is not a time from %s to %s", SilenceVariable, text, silenceLeast, silenceMost)
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

// CheckSilence returns an error if the environment has an invalid value.
func CheckSilence() error {
	_, err := silence()
	return err
}
