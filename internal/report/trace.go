package report

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"premix/internal/engine/queue"
	"premix/internal/kit/beneath"
	"premix/internal/kit/outputs"
	"premix/internal/kit/owner"
	"premix/internal/record"
)

// traceColumns are the columns of a trace file, with the names of Nextflow's; the last one is
// premix's own. https://www.nextflow.io/docs/latest/reports.html
var traceColumns = []string{"task_id", "hash", "native_id", "process", "tag", "name", "status", "exit", "attempt", "submit", "start", "complete",
	"duration", "realtime", "cpus", "memory", "%cpu", "peak_rss", "peak_vmem", "rchar", "wchar", "read_bytes", "write_bytes", outputs.TraceColumn}

// WriteTrace writes the tries of the tasks in dir to the file path, whole or not at all, in
// the form of Nextflow's trace files with trace.raw: a row for each try, moments and lengths
// of time in milliseconds, sizes in bytes, "-" for values that are not known.
func WriteTrace(dir, path string) error {
	var b bytes.Buffer
	if err := trace(dir, &b); err != nil {
		return err
	}
	if err := owner.CheckPlanted(path); err != nil {
		return err
	}
	return beneath.Replace(path, 0o666, beneath.Volatile, b.Bytes())
}

func trace(dir string, to io.Writer) error {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	var of common
	if !queue.IsDir(dir) {
		plan, err := readPlan(dir)
		if err != nil {
			return err
		}
		of = common{plan.Header.Recipe, plan.Header.Threads, plan.Header.Memory}
	}
	w := bufio.NewWriter(to)
	fmt.Fprintln(w, strings.Join(traceColumns, "\t"))
	for rec, err := range queue.Records(abs) {
		if err != nil {
			return err
		}
		of.fill(rec)
		fmt.Fprintln(w, strings.Join(traceRow(abs, rec), "\t"))
	}
	return w.Flush()
}

// traceRow returns the fields of a try, in the order of traceColumns.
func traceRow(dir string, rec *record.Task) []string {
	const none = "-"
	positive := func(n int64) string {
		if n <= 0 {
			return none
		}
		return strconv.FormatInt(n, 10)
	}
	moment := func(t time.Time) string {
		if t.IsZero() {
			return none
		}
		return strconv.FormatInt(t.UnixMilli(), 10)
	}
	milliseconds := func(s float64) string { return strconv.FormatInt(int64(s*1000+0.5), 10) }
	// A name has neither tabs nor newlines.
	plain := func(s string) string {
		return strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r < ' ' }), " ")
	}

	tag := plain(rec.Sample)
	if tag == "" {
		tag = strconv.Itoa(rec.Task)
	}
	hash := fmt.Sprintf("%x", sha256.Sum256(fmt.Appendf(nil, "%s %d %d", dir, rec.Task, rec.Try)))
	status, exit := "COMPLETED", strconv.Itoa(rec.Exit)
	switch {
	case rec.Cause == record.CauseInterrupted:
		status = "ABORTED"
	case !rec.OK():
		status = "FAILED"
	}
	switch {
	case rec.Signal > 0:
		exit = strconv.Itoa(128 + rec.Signal) // as the shell of a Nextflow task has it
	case rec.Exit < 0:
		exit = none
	}
	cpu, started, realtime := none, none, none
	if rec.Start != "" {
		started, realtime = moment(rec.Started), milliseconds(rec.Seconds)
		if rec.Seconds > 0 {
			cpu = strconv.FormatFloat(100*(rec.User+rec.System)/rec.Seconds, 'f', 1, 64)
		}
	}
	start := rec.Start
	if start == "" {
		start = none
	}
	return []string{strconv.Itoa(rec.Task), hash[:2] + "/" + hash[2:8], none, plain(rec.Group), tag, plain(rec.Group) + " (" + tag + ")", status, exit, strconv.Itoa(rec.Try),
		moment(rec.Queued), started, moment(rec.Finished), milliseconds(rec.Finished.Sub(rec.Queued).Seconds()), realtime, strconv.Itoa(rec.Cores), positive(rec.Memory),
		cpu, positive(rec.MaxRSS), none, none, none, strconv.FormatInt(rec.ReadBytes, 10), strconv.FormatInt(rec.WriteBytes, 10), start}
}
