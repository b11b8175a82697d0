package trace

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// This file reads the output of sacct with --parsable, --parsable2 or --delimiter, which
// has a line for each job, and with --json. See sacct(1). Times without a zone are taken as
// UTC.

const (
	sacctName     = "sacct"
	sacctJSONName = "sacct --json"
)

// xdmod are the columns for which XDMoD's shredder asks sacct, without a header line.
const xdmod = "jobid,jobidraw,cluster,partition,qos,account,group,gid,user,uid,submit,eligible,start,end,elapsed,exitcode,state,nnodes,ncpus,reqcpus,reqmem,reqtres,alloctres,timelimit,nodelist,jobname"

// delimiters are the possible delimiters, in the order in which they are tried.
const delimiters = "|\t;,"

// looksSacct reports whether a file has the header of sacct's parsable output, or is a
// table of at least 8 columns.
func looksSacct(head []byte) bool {
	line := firstLine(head)
	if len(line) == 0 || line[0] == ';' {
		return false
	}
	if _, columns := sacctHeader(line); columns != nil {
		return true
	}
	return bytes.Count(line, []byte("|")) >= 7
}

// sacctHeader returns the columns that a header line names.
func sacctHeader(line []byte) (delimiter byte, columns map[string]int) {
	for _, d := range []byte(delimiters) {
		columns := make(map[string]int)
		for i, name := range strings.Split(string(line), string(d)) {
			columns[strings.ToLower(strings.TrimSpace(name))] = i
		}
		_, raw := columns["jobidraw"]
		_, id := columns["jobid"]
		_, submit := columns["submit"]
		if (id || raw) && submit {
			return d, columns
		}
	}
	return 0, nil
}

type sacct struct {
	*builder
	columns   map[string]int
	delimiter string
	unzoned   bool
}

func readSacct(r *bufio.Reader, name string, o Options) (*Trace, error) {
	s := &sacct{builder: newBuilder(name, sacctName, 0), delimiter: "|"}
	first := true
	err := lines(r, func(n int, line []byte) {
		if line == nil {
			s.t.Read.bad(n, "longer than 4 MiB", "")
			return
		}
		if len(bytes.TrimSpace(line)) == 0 {
			return
		}
		if first {
			first = false
			d, columns := sacctHeader(line)
			if columns != nil {
				s.delimiter, s.columns = string(d), columns
				return
			}
			given := xdmod
			if o.Columns != "" {
				given = o.Columns
			} else {
				s.t.Read.note("it has no header line: the columns for which XDMoD asks sacct are assumed")
			}
			s.columns = make(map[string]int)
			for i, name := range strings.Split(given, ",") {
				// A width, as in JobID%20, is not a part of the name.
				name, _, _ = strings.Cut(strings.ToLower(strings.TrimSpace(name)), "%")
				s.columns[name] = i
			}
		}
		s.job(n, string(line))
	})
	if err != nil {
		return nil, err
	}
	if s.unzoned {
		s.t.Read.note("its times have no zone: they are taken for UTC")
	}
	t := s.finish(true)
	t.findSince()
	return t, nil
}

// findSince sets Since to the first end of a job: sacct reports the jobs that ended, or ran,
// since a moment.
func (t *Trace) findSince() {
	for job := range t.Len() {
		waited := t.WaitedOf(job)
		if waited == Unknown {
			continue
		}
		if end := t.Submit[job] + waited + t.Run[job]; t.Since == 0 || end < t.Since {
			t.Since = end
		}
	}
	given := 0
	for job := range t.Len() {
		if t.Given(job) {
			given++
		}
	}
	if given > 0 {
		t.Read.note("%d jobs had started when the first job of the log ended: they start as recorded, and the waits of the other jobs are counted", given)
	}
}

func (s *sacct) job(n int, line string) {
	fields := strings.Split(line, s.delimiter)
	last := 0
	for _, at := range s.columns {
		last = max(last, at)
	}
	// The last columns may be missing, but only if they are not needed here.
	get := func(names ...string) string {
		for _, name := range names {
			if at, ok := s.columns[name]; ok && at < len(fields) {
				if v := strings.TrimSpace(fields[at]); v != "" {
					return v
				}
			}
		}
		return ""
	}
	if len(fields) <= last {
		s.t.Read.bad(n, "too few columns", fmt.Sprintf("it has %d, %d expected", len(fields), last+1))
		return
	}
	id := get("jobid", "jobidraw")
	if strings.Contains(id, ".") {
		s.t.Read.leave("step of a job")
		return
	}
	var e entry
	if e.number, e.array, e.limit = sacctID(id, get("jobidraw")); e.number < 0 {
		s.t.Read.bad(n, "no job id", strconv.Quote(id))
		return
	}
	var ok bool
	if e.submit, ok = s.moment(get("submit")); !ok {
		s.t.Read.bad(n, "no time of submission", strconv.Quote(get("submit")))
		return
	}
	// The time until the job was eligible was not spent waiting for the scheduler.
	if eligible, ok := s.moment(get("eligible")); ok && eligible > e.submit {
		e.submit = eligible
	}
	start, started := s.moment(get("start"))
	end, finished := s.moment(get("end"))
	elapsed, told := slurmTime(get("elapsed"))
	if raw, err := strconv.ParseInt(get("elapsedraw"), 10, 40); err == nil {
		elapsed, told = Time(raw)*Second, true
	}
	state := get("state")
	switch {
	case !started:
		s.t.Read.leave("never started")
		return
	case !finished && unfinished(state):
		s.t.Read.leave("had not ended")
		return
	case finished && end >= start:
		e.run = end - start
	case told:
		e.run = elapsed
	default:
		s.t.Read.bad(n, "neither an end nor a time elapsed", "")
		return
	}
	if finished && told && elapsed < e.run {
		e.run = elapsed // it was suspended for a while
	}
	e.waited, e.hasWaited = max(start-e.submit, 0), true
	if e.hosts = get("nodelist"); e.hosts == "None assigned" {
		s.t.Read.leave("cancelled before it started") // Slurm reports the time as its start
		return
	}
	tres := get("alloctres")
	if tres == "" {
		tres = get("reqtres")
	}
	for _, name := range []string{"alloccpus", "ncpus", "reqcpus"} {
		if v, err := strconv.ParseInt(get(name), 10, 64); err == nil && v > 0 {
			e.cores = v
			break
		}
	}
	if v, err := strconv.ParseInt(get("allocnodes", "nnodes"), 10, 32); err == nil && v > 0 {
		e.nodes = v
	}
	e.resources(tres)
	if e.cores == 0 {
		if state == "" || strings.HasPrefix(state, "CANCELLED") {
			s.t.Read.leave("cancelled before it started")
			return
		}
	}
	if e.memory == 0 {
		e.asksMemory(get("reqmem"))
	}
	if limit, ok := slurmTime(get("timelimit")); ok {
		e.asked = limit
	} else if raw, err := strconv.ParseInt(get("timelimitraw"), 10, 40); err == nil {
		e.asked = Time(raw) * Minute
	}
	e.user, e.account, e.partition, e.qos = get("user", "uid"), get("account"), get("partition"), get("qos")
	if why := s.add(&e); why != "" {
		s.t.Read.bad(n, why, "")
	}
}

// moment parses a time as sacct prints it. ok is false for Unknown and None.
func (s *sacct) moment(text string) (Time, bool) {
	if text == "" {
		return 0, false
	}
	if text[0] >= '0' && text[0] <= '9' {
		if t, err := time.Parse("2006-01-02T15:04:05", text); err == nil {
			s.unzoned = true
			return Time(t.UnixMilli()), t.Unix() > 0
		}
		if t, err := time.Parse(time.RFC3339, text); err == nil {
			return Time(t.UnixMilli()), t.Unix() > 0
		}
		if v, err := strconv.ParseInt(text, 10, 40); err == nil { // SLURM_TIME_FORMAT=%s
			return Time(v) * Second, v > 0
		}
	}
	return 0, false
}

// resources parses a list as in cpu=12,mem=31000M,node=1.
func (e *entry) resources(list string) {
	for item := range strings.SplitSeq(list, ",") {
		name, value, _ := strings.Cut(item, "=")
		switch name {
		case "cpu":
			if v, err := strconv.ParseInt(value, 10, 64); err == nil && e.cores == 0 {
				e.cores = v
			}
		case "node":
			if v, err := strconv.ParseInt(value, 10, 64); err == nil && e.nodes == 0 {
				e.nodes = v
			}
		case "mem":
			if mib, ok := slurmMemory(value); ok {
				e.memory = perCore(mib, e.cores)
			}
		}
	}
}

// asksMemory parses ReqMem: an amount, until Slurm 21.08 with n for each node or c for each
// core.
func (e *entry) asksMemory(text string) {
	cut := strings.TrimRight(text, "nc")
	mib, ok := slurmMemory(cut)
	// Slurm keeps the unit in the top bits, and some versions print them.
	if !ok || mib > 1<<30 {
		return
	}
	switch {
	case strings.HasSuffix(text, "c"):
		e.memory = mib
	case strings.HasSuffix(text, "n"):
		e.memory = perCore(mib*max(e.nodes, 1), e.cores)
	default:
		e.memory = perCore(mib, e.cores)
	}
}

func perCore(mib, cores int64) int64 {
	if cores < 1 {
		return 0
	}
	return (mib + cores - 1) / cores
}

// slurmMemory parses an amount of memory. MiB is the default unit.
func slurmMemory(text string) (int64, bool) {
	if text == "" {
		return 0, false
	}
	unit := 1.0
	switch text[len(text)-1] {
	case 'K', 'k':
		unit = 1.0 / 1024
	case 'M', 'm':
	case 'G', 'g':
		unit = 1024
	case 'T', 't':
		unit = 1 << 20
	case 'P', 'p':
		unit = 1 << 30
	default:
		text += " "
	}
	v, err := strconv.ParseFloat(text[:len(text)-1], 64)
	if err != nil || !(v >= 0 && v < 1e12) {
		return 0, false
	}
	return int64(v*unit + 0.999), true
}

// slurmTime parses a length of time as in 1-02:03:04, 02:03:04, 03:04 or 03:04.567.
func slurmTime(text string) (Time, bool) {
	if text == "" || text[0] < '0' || text[0] > '9' {
		return 0, false // UNLIMITED, Partition_Limit, INVALID
	}
	days, rest, ok := strings.Cut(text, "-")
	var total Time
	if ok {
		d, err := strconv.ParseInt(days, 10, 32)
		if err != nil {
			return 0, false
		}
		total = Time(d) * Day
	} else {
		rest = text
	}
	rest, fraction, _ := strings.Cut(rest, ".")
	parts := strings.Split(rest, ":")
	if len(parts) > 3 || len(parts) < 2 && !ok {
		return 0, false
	}
	units := []Time{Hour, Minute, Second}
	if len(parts) == 2 && !ok {
		units = units[1:]
	}
	for i, part := range parts {
		v, err := strconv.ParseInt(part, 10, 32)
		if err != nil || v < 0 {
			return 0, false
		}
		total += Time(v) * units[i]
	}
	if fraction != "" {
		v, err := strconv.ParseInt((fraction + "00")[:3], 10, 32)
		if err != nil {
			return 0, false
		}
		total += Time(v)
	}
	return total, total <= maxTime
}

// sacctID parses a job id: 123, 123_4 of an array, 123+1 of a heterogeneous job, or
// 123_[5-9%2] for the rest of an array. raw is the number that every job has.
func sacctID(id, raw string) (number int64, array string, limit int) {
	if base, rest, ok := strings.Cut(id, "_"); ok {
		array = base
		if _, at, ok := strings.Cut(strings.TrimSuffix(rest, "]"), "%"); ok {
			limit, _ = strconv.Atoi(at)
		}
	}
	for _, text := range []string{raw, id} {
		digits := text
		if at := strings.IndexFunc(text, func(r rune) bool { return r < '0' || r > '9' }); at >= 0 {
			digits = text[:at]
		}
		if v, err := strconv.ParseInt(digits, 10, 62); err == nil {
			return v, array, limit
		}
	}
	return -1, "", 0
}

func unfinished(state string) bool {
	for _, s := range []string{"PENDING", "RUNNING", "SUSPENDED", "REQUEUED", "RESIZING"} {
		if strings.HasPrefix(state, s) {
			return true
		}
	}
	return false
}

// sacct's JSON. Its form differs between versions of Slurm: numbers are plain, or objects
// with a flag that they are set; a state is a word, or a list of words.

type sacctJob struct {
	Account     string      `json:"account"`
	Association association `json:"association"`
	JobID       slurmNumber `json:"job_id"`
	Array       struct {
		JobID  slurmNumber `json:"job_id"`
		Limits struct {
			Max struct {
				Running struct {
					Tasks slurmNumber `json:"tasks"`
				} `json:"running"`
			} `json:"max"`
		} `json:"limits"`
	} `json:"array"`
	Nodes     slurmNumber `json:"allocation_nodes"`
	Partition string      `json:"partition"`
	QOS       string      `json:"qos"`
	User      string      `json:"user"`
	State     struct {
		Current slurmWords `json:"current"`
	} `json:"state"`
	Required struct {
		CPUs       slurmNumber `json:"CPUs"`
		MemoryCPU  slurmNumber `json:"memory_per_cpu"`
		MemoryNode slurmNumber `json:"memory_per_node"`
	} `json:"required"`
	Time struct {
		Elapsed    slurmNumber `json:"elapsed"`
		Eligible   slurmNumber `json:"eligible"`
		End        slurmNumber `json:"end"`
		Limit      slurmNumber `json:"limit"` // minutes
		Start      slurmNumber `json:"start"`
		Submission slurmNumber `json:"submission"`
	} `json:"time"`
	TRES struct {
		Allocated []slurmTRES `json:"allocated"`
		Requested []slurmTRES `json:"requested"`
	} `json:"tres"`
}

type association struct {
	Account string `json:"account"`
	User    string `json:"user"`
}

type slurmTRES struct {
	Type  string      `json:"type"`
	Count slurmNumber `json:"count"`
}

// slurmNumber is a number, or 0 if it is not set.
type slurmNumber int64

func (n *slurmNumber) UnmarshalJSON(b []byte) error {
	var v struct {
		Set      bool    `json:"set"`
		Infinite bool    `json:"infinite"`
		Number   float64 `json:"number"`
	}
	*n = 0
	switch {
	case len(b) > 0 && b[0] == '{':
		if err := json.Unmarshal(b, &v); err != nil {
			return err
		}
		if !v.Set || v.Infinite {
			return nil
		}
	case bytes.Equal(b, []byte("null")):
		return nil
	default:
		text := strings.Trim(string(b), `"`)
		f, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return nil // as in "UNLIMITED"
		}
		v.Number = f
	}
	if v.Number > 0 && v.Number < 1e15 {
		*n = slurmNumber(v.Number)
	}
	return nil
}

// slurmWords is a word or a list of words.
type slurmWords []string

func (w *slurmWords) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '[' {
		return json.Unmarshal(b, (*[]string)(w))
	}
	var one string
	if err := json.Unmarshal(b, &one); err != nil {
		return err
	}
	*w = slurmWords{one}
	return nil
}

// noValue reports whether a number is one that older versions print for a number that is
// not set, or for infinity.
func noValue(n slurmNumber) bool { return n >= 0xfffffffd && n <= 0xffffffff }

// sacctJSON reads the jobs of a document one by one. dec is positioned after "jobs":[.
func (b *builder) sacctJSON(dec *json.Decoder) error {
	for i := 1; dec.More(); i++ {
		var raw json.RawMessage
		if err := dec.Decode(&raw); err != nil {
			return fmt.Errorf("job %d: %w", i, err)
		}
		var j sacctJob
		if err := json.Unmarshal(raw, &j); err != nil {
			b.t.Read.bad(i, "no job of sacct", err.Error())
			continue
		}
		b.sacctJob(i, &j)
	}
	_, err := dec.Token() // ]
	return err
}

func (b *builder) sacctJob(n int, j *sacctJob) {
	e := entry{number: int64(j.JobID), nodes: int64(j.Nodes), partition: j.Partition, qos: j.QOS, user: j.Association.User, account: j.Association.Account}
	if e.user == "" {
		e.user = j.User
	}
	if e.account == "" {
		e.account = j.Account
	}
	if j.Array.JobID > 0 && !noValue(j.Array.JobID) {
		e.array = strconv.FormatInt(int64(j.Array.JobID), 10)
		if limit := j.Array.Limits.Max.Running.Tasks; !noValue(limit) {
			e.limit = int(min(limit, 1<<30))
		}
	}
	state := strings.Join(j.State.Current, ",")
	t := &j.Time
	if t.Submission == 0 {
		b.t.Read.bad(n, "no time of submission", "")
		return
	}
	if t.Start == 0 {
		b.t.Read.leave("never started")
		return
	}
	if t.End == 0 && unfinished(state) {
		b.t.Read.leave("had not ended")
		return
	}
	e.submit = Time(max(t.Submission, t.Eligible)) * Second
	e.waited, e.hasWaited = max(Time(t.Start)*Second-e.submit, 0), true
	if e.run = Time(t.Elapsed) * Second; t.End >= t.Start && (e.run == 0 || Time(t.End-t.Start)*Second < e.run) {
		e.run = Time(t.End-t.Start) * Second
	}
	if !noValue(t.Limit) {
		e.asked = Time(t.Limit) * Minute
	}
	for _, list := range [][]slurmTRES{j.TRES.Allocated, j.TRES.Requested} {
		if e.cores > 0 {
			break
		}
		for _, r := range list {
			if r.Type == "cpu" {
				e.cores = int64(r.Count)
			}
		}
		for _, r := range list {
			switch {
			case r.Type == "mem" && !noValue(r.Count) && r.Count < 1<<40:
				e.memory = perCore(int64(r.Count), e.cores)
			case r.Type == "node" && e.nodes == 0:
				e.nodes = int64(r.Count)
			}
		}
	}
	if e.cores == 0 {
		e.cores = int64(j.Required.CPUs)
	}
	if e.memory == 0 && j.Required.MemoryCPU > 0 && j.Required.MemoryCPU < 1<<30 {
		e.memory = int64(j.Required.MemoryCPU)
	}
	if e.memory == 0 && j.Required.MemoryNode > 0 && j.Required.MemoryNode < 1<<30 {
		e.memory = perCore(int64(j.Required.MemoryNode)*max(e.nodes, 1), e.cores)
	}
	if e.cores == 0 && slices.Contains(j.State.Current, "CANCELLED") {
		b.t.Read.leave("cancelled before it started")
		return
	}
	if why := b.add(&e); why != "" {
		b.t.Read.bad(n, why, "")
	}
}
