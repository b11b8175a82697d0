package trace

import (
	"bufio"
	"bytes"
	"math"
	"strconv"
	"strings"
	"time"
)

// The trace files of Nextflow: a header line, then a task a line, columns separated by
// tabs. With trace.raw they have milliseconds and bytes, otherwise "1m 30s" and "1.5 GB".
// See https://www.nextflow.io/docs/latest/tracing.html
//
// They do not contain dependencies: the time of submission of each task is used, which
// reflects them. WfInstances contain the dependencies.

const nextflowName = "Nextflow trace"

func looksNextflow(head []byte) bool {
	line := firstLine(head)
	columns := nextflowHeader(string(line))
	_, submit := columns["submit"]
	_, start := columns["start"]
	_, status := columns["status"]
	return status && (submit || start)
}

func nextflowHeader(line string) map[string]int {
	columns := make(map[string]int)
	for i, name := range strings.Split(line, "\t") {
		columns[strings.TrimSpace(name)] = i
	}
	return columns
}

func readNextflow(r *bufio.Reader, name string) (*Trace, error) {
	b := newBuilder(name, nextflowName, 0)
	var columns map[string]int
	unzoned := false
	noCores := 0
	err := lines(r, func(n int, line []byte) {
		if line == nil {
			b.t.Read.bad(n, "longer than 4 MiB", "")
			return
		}
		if len(bytes.TrimSpace(line)) == 0 {
			return
		}
		if columns == nil {
			columns = nextflowHeader(string(line))
			return
		}
		fields := strings.Split(string(line), "\t")
		get := func(name string) string {
			if at, ok := columns[name]; ok && at < len(fields) && strings.TrimSpace(fields[at]) != "-" {
				return strings.TrimSpace(fields[at])
			}
			return ""
		}
		var e entry
		id, err := strconv.ParseInt(get("task_id"), 10, 62)
		if err != nil {
			id = int64(n)
		}
		e.number = id
		submit, ok := nextflowMoment(get("submit"))
		start, started := nextflowMoment(get("start"))
		if !ok {
			submit = start
		}
		if !ok && !started {
			b.t.Read.bad(n, "neither submit nor start is a time", shown([]byte(get("submit"))))
			return
		}
		switch get("status") {
		case "CACHED":
			b.t.Read.leave("cached: it did not run")
			return
		case "ABORTED", "NEW", "SUBMITTED", "RUNNING":
			b.t.Read.leave("had not ended")
			return
		}
		unzoned = true
		e.submit = submit
		if started && ok {
			e.waited, e.hasWaited = max(start-submit, 0), true
		}
		if e.run, ok = nextflowTime(get("realtime")); !ok {
			if e.run, ok = nextflowTime(get("duration")); !ok {
				b.t.Read.bad(n, "neither realtime nor duration is a length of time", "")
				return
			}
			e.run = max(e.run-e.waited, 0)
		}
		if e.cores, err = strconv.ParseInt(get("cpus"), 10, 64); err != nil || e.cores < 1 {
			// The next best value is its use: 350 % are 4 cores.
			used, err := strconv.ParseFloat(strings.TrimSuffix(get("%cpu"), "%"), 64)
			e.cores = 1
			if err == nil && used > 100 && used < 1e6 {
				e.cores = int64(math.Ceil(used / 100))
			}
			noCores++
		}
		if limit, ok := nextflowTime(get("time")); ok {
			e.asked = limit
		}
		for _, name := range []string{"memory", "peak_rss"} {
			if bytes, ok := nextflowBytes(get(name)); ok && bytes > 0 {
				e.memory = perCore((bytes+(1<<20)-1)>>20, e.cores)
				break
			}
		}
		e.user, e.partition = "", get("queue")
		e.account = get("process")
		if e.account == "" {
			e.account, _, _ = strings.Cut(get("name"), " (")
		}
		if why := b.add(&e); why != "" {
			b.t.Read.bad(n, why, "")
		}
	})
	if err != nil {
		return nil, err
	}
	if noCores > 0 {
		b.t.Read.note("%d tasks have no cpus: their cores are their use of processors, rounded up", noCores)
	}
	if unzoned {
		b.t.Read.note("its times have no zone: they are taken for UTC")
	}
	return b.finish(true), nil
}

func nextflowMoment(text string) (Time, bool) {
	if v, err := strconv.ParseInt(text, 10, 64); err == nil {
		return Time(v), v > 0 && Time(v) < maxTime
	}
	for _, layout := range []string{"2006-01-02 15:04:05.000", "2006-01-02 15:04:05", time.RFC3339} {
		if t, err := time.Parse(layout, text); err == nil {
			return Time(t.UnixMilli()), t.Unix() > 0
		}
	}
	return 0, false
}

// nextflowTime parses a length of time as in "1d 2h 3m 4.5s", "12ms", or milliseconds.
func nextflowTime(text string) (Time, bool) {
	if v, err := strconv.ParseInt(text, 10, 64); err == nil {
		return Time(v), v >= 0 && Time(v) < maxTime
	}
	units := map[string]float64{"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
	total, found := 0.0, false
	for part := range strings.FieldsSeq(text) {
		at := strings.IndexFunc(part, func(r rune) bool { return (r < '0' || r > '9') && r != '.' })
		if at <= 0 {
			return 0, false
		}
		v, err := strconv.ParseFloat(part[:at], 64)
		unit, ok := units[part[at:]]
		if err != nil || !ok {
			return 0, false
		}
		total += v * unit
		found = true
	}
	if !found || !(total < float64(maxTime)) {
		return 0, false
	}
	return Time(total + 0.5), true
}

// nextflowBytes parses an amount as in "1.5 GB", in powers of 1024, or bytes.
func nextflowBytes(text string) (int64, bool) {
	number, unit, _ := strings.Cut(text, " ")
	v, err := strconv.ParseFloat(number, 64)
	at := strings.Index("BKMGTP", strings.TrimSuffix(unit+"B", "BB")[:1])
	if unit == "" {
		at = 0
	}
	if err != nil || at < 0 || !(v >= 0) {
		return 0, false
	}
	if v *= math.Pow(1024, float64(at)); v > 1<<60 {
		return 0, false
	}
	return int64(v), true
}
