package shim

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/engine/queue"
	"premix/internal/kit/hostlist"
)

// longest is the longest time that an option may have. Sums of a few are durations, too.
const longest = 100 * 365 * 24 * time.Hour

// times returns n units, and whether that is not too long.
func times(n int, unit time.Duration) (time.Duration, bool) {
	if n < 0 || time.Duration(n) > longest/unit {
		return 0, false
	}
	return time.Duration(n) * unit, true
}

// parseTime reads a time limit as Slurm writes it: minutes, minutes:seconds,
// hours:minutes:seconds, days-hours, days-hours:minutes, days-hours:minutes:seconds. 0
// means no limit.
func parseTime(text string) (time.Duration, error) {
	bad := &optionError{fmt.Sprintf("invalid time limit %q", text), "write it as in 90, 1:30:00 or 2-12"}
	switch strings.ToLower(text) {
	case "unlimited", "infinite", "-1", "0":
		return 0, nil
	}
	days, clock, hasDays := strings.Cut(text, "-")
	if !hasDays {
		clock = days
		days = "0"
	}
	var parts []int
	for _, p := range append([]string{days}, strings.Split(clock, ":")...) {
		n, err := strconv.Atoi(p)
		if err != nil || n < 0 || n > math.MaxInt32 {
			return 0, bad
		}
		parts = append(parts, n)
	}
	d, ok := times(parts[0], 24*time.Hour)
	units := []time.Duration{time.Hour, time.Minute, time.Second}
	if !hasDays {
		switch len(parts) {
		case 2:
			units = []time.Duration{time.Minute}
		case 3:
			units = []time.Duration{time.Minute, time.Second}
		}
	}
	if len(parts)-1 > len(units) {
		return 0, bad
	}
	for i, p := range parts[1:] {
		part, fits := times(p, units[i])
		ok = ok && fits
		d += part
	}
	if !ok || d > longest {
		return 0, bad
	}
	return d, nil
}

// parseMemory reads a size of which the unit is MiB if none is named.
func parseMemory(text string) (int64, error) {
	if n := len(text); n > 2 && text[n-1]&^0x20 == 'B' {
		text = text[:n-1] // as in 1GB
	}
	number, shift := text, 20
	if text != "" {
		if i := strings.IndexByte("KMGT", text[len(text)-1]&^0x20); i >= 0 {
			number, shift = text[:len(text)-1], 10*(i+1)
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 0 || n > math.MaxInt64>>shift {
		return 0, &optionError{fmt.Sprintf("invalid memory specification %q", text), "write a number of megabytes, or as in 4G"}
	}
	return n << shift, nil
}

func parseCount(name, text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > 1<<20 {
		return 0, &optionError{fmt.Sprintf("invalid number %q for --%s", text, name), "give a whole number from 1"}
	}
	return n, nil
}

// maxArray is how many elements an array may have.
const maxArray = queue.MaxElements

// parseArray reads the indices of an array as in 0-9, 1,3,5-7, 0-15:4, 1-10%2. limit is how
// many of them may run at a time; 0: all.
func parseArray(text string) (indices []int, limit int, err error) {
	bad := &optionError{fmt.Sprintf("invalid job array specification %q", text), "write it as in 1-10, 1,3,5-7:2 or 1-10%2"}
	list, most, has := strings.Cut(text, "%")
	if has {
		if limit, err = strconv.Atoi(most); err != nil || limit < 1 {
			return nil, 0, bad
		}
	}
	for _, part := range strings.Split(list, ",") {
		a, b, step, ok := hostlist.Range(part)
		if !ok || (b-a)/step >= maxArray-len(indices) {
			return nil, 0, bad
		}
		for i := a; i <= b; i += step {
			indices = append(indices, i)
		}
	}
	slices.Sort(indices)
	return slices.Compact(indices), limit, nil
}

// clock formats a time like Slurm, in the zone of this machine.
func clock(t time.Time) string {
	if t.IsZero() {
		return "Unknown"
	}
	return t.Local().Format("2006-01-02T15:04:05")
}

// elapsed returns a stretch of time as [days-]hours:minutes:seconds.
func elapsed(d time.Duration) string {
	s := int64(d / time.Second)
	text := fmt.Sprintf("%02d:%02d:%02d", s/3600%24, s/60%60, s%60)
	if s >= 24*3600 {
		text = fmt.Sprintf("%d-%s", s/(24*3600), text)
	}
	return text
}

// shortElapsed formats a stretch of time like squeue, without leading zeros.
func shortElapsed(d time.Duration) string {
	s := int64(d / time.Second)
	if s < 3600 {
		return fmt.Sprintf("%d:%02d", s/60, s%60)
	}
	if s < 24*3600 {
		return fmt.Sprintf("%d:%02d:%02d", s/3600, s/60%60, s%60)
	}
	return elapsed(d)
}

// cpuTime formats CPU time like sacct.
func cpuTime(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
	if d < time.Hour {
		return fmt.Sprintf("%02d:%06.3f", int(d/time.Minute), (d % time.Minute).Seconds())
	}
	return elapsed(d)
}

// limitText returns a time limit.
func limitText(d time.Duration) string {
	if d == 0 {
		return "UNLIMITED"
	}
	return elapsed(d)
}

// sizeText returns a size in the unit that keeps it whole, as in 4G or 1500M.
func sizeText(n int64) string {
	units := "KMGT"
	i := 0
	for n >>= 10; n != 0 && n%1024 == 0 && i+1 < len(units); i++ {
		n >>= 10
	}
	return strconv.FormatInt(n, 10) + units[i:i+1]
}

// parseMoment reads a moment as sacct and sbatch take it.
func parseMoment(text string, now time.Time) (time.Time, error) {
	bad := &optionError{fmt.Sprintf("invalid time %q", text), "write it as in 2025-01-31T08:00:00, now-2days or now+1hour"}
	lower := strings.ToLower(text)
	day := time.Date(now.Year(), now.Month(), now.Day(), 0, 0, 0, 0, now.Location())
	base := map[string]time.Time{"now": now, "today": day, "midnight": day, "noon": day.Add(12 * time.Hour), "tomorrow": day.AddDate(0, 0, 1)}
	for name, at := range base {
		rest, ok := strings.CutPrefix(lower, name)
		if !ok {
			continue
		}
		if rest == "" {
			return at, nil
		}
		sign := time.Duration(1)
		if rest[0] == '-' {
			sign = -1
		} else if rest[0] != '+' {
			return now, bad
		}
		i := 1
		for i < len(rest) && rest[i] >= '0' && rest[i] <= '9' {
			i++
		}
		n, err := strconv.Atoi(rest[1:i])
		units := map[string]time.Duration{"": time.Second, "second": time.Second, "minute": time.Minute, "hour": time.Hour, "day": 24 * time.Hour, "week": 7 * 24 * time.Hour}
		unit, ok := units[strings.TrimSuffix(rest[i:], "s")]
		if err != nil || !ok {
			return now, bad
		}
		d, ok := times(n, unit)
		if !ok {
			return now, bad
		}
		return at.Add(sign * d), nil
	}
	for _, layout := range []string{"2006-01-02T15:04:05", "2006-01-02T15:04", "2006-01-02t15:04:05", "2006-01-02T15:00", "2006-01-02", "01/02/06", "01/02/06-15:04:05", "01/02/06-15:04"} {
		if t, err := time.ParseInLocation(layout, text, now.Location()); err == nil {
			return t, nil
		}
	}
	for _, layout := range []string{"15:04:05", "15:04"} {
		if t, err := time.ParseInLocation(layout, text, now.Location()); err == nil {
			return day.Add(time.Duration(t.Hour())*time.Hour + time.Duration(t.Minute())*time.Minute + time.Duration(t.Second())*time.Second), nil
		}
	}
	return now, bad
}

// signalName returns the name of a signal, as in SIGTERM.
func signalName(n int) string {
	if name := unix.SignalName(syscall.Signal(n)); name != "" {
		return name
	}
	return "SIG" + strconv.Itoa(n)
}
