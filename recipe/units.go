package recipe

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"premix/internal/regex"
)

// memoryForm is also in the schema.
var memoryForm = regex.Lazy(`^([0-9]+(?:\.[0-9]+)?) ?([KMGTkmgt])(?:iB)?$`)

// ParseMemory reads an amount of memory, such as 512M, 1.5G or 4GiB, in bytes.
// The units are binary: 1K is 1024 bytes. A unit must be given.
func ParseMemory(s string) (int64, error) {
	m := memoryForm().FindStringSubmatch(s)
	if m == nil {
		return 0, fmt.Errorf("%q is no amount of memory", s)
	}
	n, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		return 0, fmt.Errorf("%q is no amount of memory: %w", s, err)
	}
	shift := map[byte]int{'K': 10, 'M': 20, 'G': 30, 'T': 40}[m[2][0]&^0x20]
	n = math.Floor(math.Ldexp(n, shift))
	if n < 1 || n >= math.MaxInt64 {
		return 0, fmt.Errorf("%q is out of range", s)
	}
	return int64(n), nil
}

// durationDays is what may stand before a Go duration, or alone.
var durationDays = regex.Lazy(`^([0-9]+)d(.*)$`)

// ParseDuration reads a Go duration that may begin with days: 90s, 2h, 1d12h.
// It must be more than nothing.
func ParseDuration(s string) (time.Duration, error) {
	var d time.Duration
	rest := s
	if m := durationDays().FindStringSubmatch(s); m != nil {
		days, err := strconv.Atoi(m[1])
		if err != nil || days > math.MaxInt64/int(24*time.Hour)-1 {
			return 0, fmt.Errorf("%q is out of range", s)
		}
		d = time.Duration(days) * 24 * time.Hour
		rest = m[2]
	}
	if rest != "" {
		more, err := time.ParseDuration(rest)
		if err != nil {
			return 0, fmt.Errorf("%q is no duration: %w", s, err)
		}
		if more < 0 || d > math.MaxInt64-more {
			return 0, fmt.Errorf("%q is out of range", s)
		}
		d += more
	}
	if d <= 0 {
		return 0, errors.New("a duration must be more than 0")
	}
	return d, nil
}
