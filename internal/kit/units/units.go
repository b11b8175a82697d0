package units

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"premix/internal/kit/regex"
)

// SizeHint is the hint for a size that cannot be read.
const SizeHint = "write a number and a unit, as in 500M, 1.5G (powers of 1024) or 500 GB (powers of 1000)"

// TimeHint is the hint for a time that cannot be read.
const TimeHint = "write it as in 90s, 2h or 1d12h"

var sizeForm = regex.Lazy(`^([0-9]+(?:\.[0-9]+)?) *([A-Za-z]*)$`)

// Unit returns the number of bytes in a unit such as "G", "GiB" or "GB"; "" and "B" are
// one byte.
func Unit(name string) (int64, bool) {
	name = strings.ToLower(name)
	if name == "" || name == "b" {
		return 1, true
	}
	power := strings.IndexByte("kmgtpe", name[0]) + 1
	if power == 0 {
		return 0, false
	}
	switch name[1:] {
	case "", "ib":
		return 1 << (10 * power), true
	case "b":
		n := int64(1)
		for range power {
			n *= 1000
		}
		return n, true
	}
	return 0, false
}

// ParseSize reads a size, in bytes. A fraction of a byte is dropped.
func ParseSize(s string) (int64, error) {
	m := sizeForm().FindStringSubmatch(s)
	if m == nil {
		return 0, fmt.Errorf("%q is not a size", s)
	}
	unit, ok := Unit(m[2])
	if !ok {
		return 0, fmt.Errorf("%q is not a size: %q is not a unit", s, m[2])
	}
	if n, err := strconv.ParseInt(m[1], 10, 64); err == nil && n <= math.MaxInt64/unit {
		return n * unit, nil
	}
	v, err := strconv.ParseFloat(m[1], 64)
	if v *= float64(unit); err != nil || v >= math.MaxInt64 {
		return 0, fmt.Errorf("%q is too large for a size", s)
	}
	return int64(v), nil
}

// Size prints a size with a unit of a power of 1024: "4 GiB" where that is exact, else
// with two or more digits, as in "4.0 GiB" or "1.5 GiB". [ParseSize] reads the result.
func Size(n int64) string {
	sign, v := "", float64(n)
	if n < 0 {
		sign, v = "-", -v
	}
	if v < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	names := "KMGTPE"
	v /= 1024
	for v >= 999.5 && len(names) > 1 {
		v, names = v/1024, names[1:]
	}
	if v < 99.95 && v != math.Trunc(v) {
		return fmt.Sprintf("%s%.1f %ciB", sign, v, names[0])
	}
	return fmt.Sprintf("%s%.0f %ciB", sign, v, names[0])
}

// daysForm matches a time that begins with days.
var daysForm = regex.Lazy(`^([0-9]+)d(.*)$`)

// ParseDuration reads a time, which must be more than 0.
func ParseDuration(s string) (time.Duration, error) {
	d, err := ParseDelay(s)
	if err == nil && d == 0 {
		err = errors.New("a time must be more than 0")
	}
	return d, err
}

// ParseDelay reads a time, which may be 0.
func ParseDelay(s string) (time.Duration, error) {
	var d time.Duration
	rest := s
	if m := daysForm().FindStringSubmatch(s); m != nil {
		days, err := strconv.Atoi(m[1])
		if err != nil || days > math.MaxInt64/int(24*time.Hour)-1 {
			return 0, fmt.Errorf("%q is out of range", s)
		}
		d = time.Duration(days) * 24 * time.Hour
		if rest = m[2]; rest == "" {
			return d, nil
		}
	}
	more, err := time.ParseDuration(rest)
	if err != nil {
		return 0, fmt.Errorf("%q is not a time", s)
	}
	if more < 0 || d > math.MaxInt64-more {
		return 0, fmt.Errorf("%q is out of range", s)
	}
	return d + more, nil
}

// ParseMemory reads an amount of memory, in bytes. It must be at least one byte, and must
// have a unit: users who write a plain number often mean gigabytes.
func ParseMemory(s string) (int64, error) {
	n, err := ParseSize(s)
	switch {
	case err != nil:
		return 0, err
	case s[len(s)-1] >= '0' && s[len(s)-1] <= '9':
		return 0, fmt.Errorf("%q has no unit", s)
	case n < 1:
		return 0, fmt.Errorf("%q is less than one byte", s)
	}
	return n, nil
}

// Seconds prints a number of seconds with the unit that reads best.
func Seconds(s float64) string {
	switch {
	case s < 0:
		return "-" + Seconds(-s)
	case s < 0.00995:
		return fmt.Sprintf("%.1f ms", s*1000)
	case s < 0.9995:
		return fmt.Sprintf("%.0f ms", s*1000)
	case s < 9.995:
		return fmt.Sprintf("%.2f s", s)
	case s < 119.95:
		return fmt.Sprintf("%.1f s", s)
	case s < 7170:
		return fmt.Sprintf("%.0f min", s/60)
	}
	return fmt.Sprintf("%.1f h", s/3600)
}

// Rate prints a number of bytes per second in the unit that is usual for links.
func Rate(v float64) string {
	v *= 8
	switch {
	case v >= 1e9:
		return fmt.Sprintf("%.3g Gbit/s", v/1e9)
	case v >= 1e6:
		return fmt.Sprintf("%.3g Mbit/s", v/1e6)
	}
	return fmt.Sprintf("%.3g kbit/s", v/1e3)
}
