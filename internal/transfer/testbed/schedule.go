package testbed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"premix/internal/kit/beneath"
	"premix/internal/kit/owner"
)

// Schedule defines when rounds begin: at times of the day, local time, for a number of
// days.
type Schedule struct {
	At  []time.Duration // since midnight
	For time.Duration
}

// ParseTimes parses HH:MM,HH:MM,...
func ParseTimes(text string) ([]time.Duration, error) {
	var list []time.Duration
	for _, t := range strings.Split(text, ",") {
		h, m, ok := strings.Cut(strings.TrimSpace(t), ":")
		hour, err1 := strconv.Atoi(h)
		minute, err2 := strconv.Atoi(m)
		if !ok || len(m) != 2 || errors.Join(err1, err2) != nil || hour < 0 || hour > 23 || minute < 0 || minute > 59 {
			return nil, fmt.Errorf("%q is not a time of day", t)
		}
		list = append(list, time.Duration(hour)*time.Hour+time.Duration(minute)*time.Minute)
	}
	slices.Sort(list)
	return slices.Compact(list), nil
}

// Next returns the first time of the schedule after now. Times are local times, even on
// days of 23 or 25 hours.
func (s Schedule) Next(now time.Time) time.Time {
	y, m, d := now.Date()
	for day := d; ; day++ {
		for _, at := range s.At {
			t := time.Date(y, m, day, int(at/time.Hour), int(at%time.Hour/time.Minute), 0, 0, now.Location())
			if t.After(now) {
				return t
			}
		}
	}
}

// scheduleFile, in the directory of results, stores when a schedule began, so that it ends
// on time even if premix is started again.
//
//	{"begun":"2026-01-02T03:04:05Z"}
const scheduleFile = "schedule.json"

// ScheduleStart returns when the schedule of a directory of results began. If it has none, it
// begins now.
func ScheduleStart(dir string, now time.Time) (time.Time, error) {
	var v struct {
		Started time.Time `json:"begun"`
	}
	path := filepath.Join(dir, scheduleFile)
	text, err := os.ReadFile(path)
	if err == nil && json.Unmarshal(text, &v) == nil && !v.Started.IsZero() {
		return v.Started, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return now, err
	}
	v.Started = now.UTC()
	if text, err = json.Marshal(v); err != nil {
		return now, err
	}
	if err := owner.MkdirAll(dir, 0o755); err != nil {
		return now, err
	}
	return now, beneath.Replace(path, 0o644, beneath.Durable, append(text, '\n'))
}

// Wait returns at a time by the wall clock. It checks the clock at least once a minute,
// because the machine may sleep and the clock may be set.
func Wait(ctx context.Context, until time.Time) error {
	for {
		left := time.Until(until.Round(0)) // without the monotonic clock
		if left <= 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(min(left, time.Minute)):
		}
	}
}

// Timer returns the unit files of systemd for a schedule, which execute command at each
// time. See systemd.timer(5).
func (s Schedule) Timer(name string, command []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# /etc/systemd/system/premix-transfer-%s.service\n[Unit]\nDescription=premix transfer bench of %s\nWants=network-online.target\nAfter=network-online.target\n\n[Service]\nType=oneshot\nExecStart=%s\n", name, name, quoteUnit(command))
	fmt.Fprintf(&b, "\n# /etc/systemd/system/premix-transfer-%s.timer\n[Timer]\n", name)
	for _, at := range s.At {
		fmt.Fprintf(&b, "OnCalendar=*-*-* %02d:%02d:00\n", at/time.Hour, at%time.Hour/time.Minute)
	}
	fmt.Fprintf(&b, "\n[Install]\nWantedBy=timers.target\n\n# systemctl enable --now premix-transfer-%s.timer\n", name)
	b.WriteString("\n# or, for cron(8):\n")
	for _, at := range s.At {
		words := make([]string, len(command))
		for i, w := range command {
			// In a crontab, an unescaped % ends the command.
			words[i] = strings.ReplaceAll(shellWord(w), "%", `\%`)
		}
		fmt.Fprintf(&b, "# %d %d * * *  %s\n", at%time.Hour/time.Minute, at/time.Hour, strings.Join(words, " "))
	}
	return b.String()
}

func shellWord(w string) string {
	if w != "" && strings.Trim(w, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./=:,@+-%") == "" {
		return w
	}
	return "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
}

// quoteUnit returns a command in the form of ExecStart=, see systemd.service(5).
func quoteUnit(command []string) string {
	words := make([]string, len(command))
	for i, w := range command {
		words[i] = `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "%", "%%", "$", "$$").Replace(w) + `"`
	}
	return strings.Join(words, " ")
}
