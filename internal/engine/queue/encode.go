package queue

import (
	"strconv"
	"time"
	"unicode/utf8"

	"premix/internal/record"
)

// appendRecord appends the line of a record. It omits zero fields that record.Writer would
// write, and takes a tenth of the time.
func appendRecord(b []byte, r *record.Task) ([]byte, error) {
	for _, s := range []string{r.Sample, r.Reason, r.Error, r.Hint, r.Group, r.Log} {
		if !utf8.ValidString(s) {
			return b, strconv.ErrSyntax
		}
	}
	b = append(b, `{"task":`...)
	b = strconv.AppendInt(b, int64(r.Task), 10)
	integer := func(name string, v int64) {
		if v != 0 {
			b = append(append(append(b, `,"`...), name...), `":`...)
			b = strconv.AppendInt(b, v, 10)
		}
	}
	text := func(name, v string) {
		if v != "" {
			b = append(append(append(b, `,"`...), name...), `":`...)
			b = appendString(b, v)
		}
	}
	seconds := func(name string, v float64) {
		if v != 0 {
			b = append(append(append(b, `,"`...), name...), `":`...)
			b = strconv.AppendFloat(b, v, 'g', -1, 64)
		}
	}
	at := func(name string, v time.Time) {
		if !v.IsZero() {
			b = append(append(append(b, `,"`...), name...), `":"`...)
			b = v.AppendFormat(b, time.RFC3339Nano)
			b = append(b, '"')
		}
	}
	text("sample", r.Sample)
	integer("try", int64(r.Try))
	integer("slot", int64(r.Slot))
	text("start", r.Start)
	text("reason", r.Reason)
	at("queued", r.Queued)
	at("started", r.Started)
	at("ended", r.Finished)
	seconds("wait", r.Wait)
	seconds("latency", r.Latency)
	seconds("seconds", r.Seconds)
	seconds("user", r.User)
	seconds("system", r.System)
	integer("max_rss", r.MaxRSS)
	integer("read_bytes", r.ReadBytes)
	integer("write_bytes", r.WriteBytes)
	integer("exit", int64(r.Exit))
	integer("signal", int64(r.Signal))
	text("cause", r.Cause)
	text("error", r.Error)
	text("hint", r.Hint)
	integer("stderr_offset", r.StderrOffset)
	integer("stderr_length", r.StderrLength)
	text("group", r.Group)
	integer("cores", int64(r.Cores))
	integer("memory", r.Memory)
	text("log", r.Log)
	integer("stdout_offset", r.StdoutOffset)
	integer("stdout_length", r.StdoutLength)
	return append(b, "}\n"...), nil
}
