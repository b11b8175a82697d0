package trace

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// The Standard Workload Format, version 2.2: comment lines that begin with a semicolon,
// some of which are headers, then 18 numbers a job. See
// https://www.cs.huji.ac.il/labs/parallel/workload/swf.html
//
// Files in archives also have more than 18 columns, which are skipped and noted; fractions
// in place of whole numbers; -1 for any unknown value; and lines for the parts of an
// interrupted job (status 2, 3 and 4), in addition to one for the whole job (0 or 1).
const (
	swfNumber = iota
	swfSubmit
	swfWait
	swfRun
	swfProcs
	swfCPU
	swfMemory
	swfAskedProcs
	swfAskedTime
	swfAskedMemory // KiB a processor
	swfStatus
	swfUser
	swfGroup
	swfProgram
	swfQueue
	swfPartition
	swfAfter
	swfThink
	swfFields
)

const swfName = "Standard Workload Format"

// swf reads one file.
type swf struct {
	*builder
	names      [4]map[int64]int32 // indexes of users, groups, queues, partitions
	partitions map[int64]string   // names from the header
	queues     map[int64]string
	extra      int // lines with more than 18 fields
	began      bool
	zone       int64
}

func readSWF(r *bufio.Reader, name string, size int64) (*Trace, error) {
	s := &swf{partitions: make(map[int64]string), queues: make(map[int64]string)}
	for i := range s.names {
		s.names[i] = make(map[int64]int32)
	}
	s.builder = newBuilder(name, swfName, 0)
	err := lines(r, s.line)
	if err != nil {
		return nil, err
	}
	if s.extra > 0 {
		s.t.Read.note("%d lines have more than %d fields: the further ones were skipped", s.extra, swfFields)
	}
	s.t.Zone = Time(s.zone) * Second
	t := s.finish(false)
	t.believe()
	return t, nil
}

func (s *swf) line(n int, line []byte) {
	if line == nil {
		s.t.Read.bad(n, "longer than 4 MiB", "")
		return
	}
	line = bytes.TrimSpace(line)
	switch {
	case len(line) == 0:
	case line[0] == ';' || line[0] == '#':
		s.header(string(line[1:]))
	default:
		s.job(n, line)
	}
}

func (s *swf) header(line string) {
	key, value, ok := strings.Cut(line, ":")
	if !ok {
		return
	}
	value = strings.TrimSpace(value)
	number, err := strconv.ParseInt(value, 10, 64)
	numbered := func(names map[int64]string) {
		id, name, _ := strings.Cut(value, " ")
		if n, err := strconv.ParseInt(id, 10, 64); err == nil && strings.TrimSpace(name) != "" {
			names[n] = strings.TrimSpace(name)
		}
	}
	switch strings.TrimSpace(key) {
	case "MaxJobs":
		if err == nil && !s.began && number > 0 && number <= 1<<24 {
			report := s.t.Read
			t := s.t
			s.builder = newBuilder(t.Name, t.Format, int(number))
			s.t.Begin, s.t.Procs, s.t.Nodes, s.t.Read = t.Begin, t.Procs, t.Nodes, report
		}
	case "MaxProcs":
		if err == nil && number > 0 && number < 1<<30 {
			s.t.Procs = int(number)
		}
	case "MaxNodes":
		if err == nil && number > 0 && number < 1<<30 {
			s.t.Nodes = int(number)
		}
	case "UnixStartTime":
		if err == nil && number > 0 && number < 1<<40 {
			s.t.Begin = number * 1000
		}
	case "TimeZone":
		if err == nil && number > -86400 && number < 86400 {
			s.zone = number
		}
	case "Partition":
		numbered(s.partitions)
	case "Queue":
		numbered(s.queues)
	}
}

func (s *swf) job(n int, line []byte) {
	s.began = true
	var f [swfFields]int64 // times in milliseconds, the rest rounded down
	fields := 0
	for at := 0; at < len(line); {
		for at < len(line) && (line[at] == ' ' || line[at] == '\t') {
			at++
		}
		end := at
		for end < len(line) && line[end] != ' ' && line[end] != '\t' {
			end++
		}
		if end == at {
			break
		}
		if fields < swfFields {
			v, ok := milli(line[at:end])
			if !ok {
				s.t.Read.bad(n, fmt.Sprintf("field %d is not a number", fields+1), shown(line[at:end]))
				return
			}
			f[fields] = v
		}
		fields++
		at = end
	}
	if fields < swfFields {
		s.t.Read.bad(n, fmt.Sprintf("fewer than %d fields", swfFields), fmt.Sprintf("it has %d", fields))
		return
	}
	if fields > swfFields {
		s.extra++
	}
	for _, i := range []int{swfNumber, swfProcs, swfMemory, swfAskedProcs, swfAskedMemory, swfStatus, swfUser, swfGroup, swfQueue, swfPartition, swfAfter} {
		f[i] = whole(f[i])
	}
	if f[swfStatus] >= 2 && f[swfStatus] <= 4 {
		s.t.Read.leave("part of a job that was interrupted")
		return
	}
	if f[swfRun] < 0 {
		if f[swfStatus] == 5 {
			s.t.Read.leave("cancelled before it started")
		} else {
			s.t.Read.leave("no run time is known")
		}
		return
	}
	e := entry{number: f[swfNumber], submit: Time(f[swfSubmit]), run: Time(f[swfRun]), asked: Time(f[swfAskedTime]),
		waited: Time(f[swfWait]), hasWaited: f[swfWait] >= 0, cores: f[swfProcs]}
	if e.cores <= 0 {
		e.cores = f[swfAskedProcs]
	}
	if f[swfAskedMemory] > 0 {
		e.memory = (f[swfAskedMemory] + 1023) / 1024
	}
	if e.cores == 0 && f[swfStatus] == 5 {
		s.t.Read.leave("cancelled before it started")
		return
	}
	if why := e.wrong(); why != "" {
		s.t.Read.bad(n, why, "")
		return
	}
	t := s.t
	s.put(&e, s.name(0, f[swfUser], &t.Users, nil), s.name(1, f[swfGroup], &t.Accounts, nil),
		s.name(3, f[swfPartition], &t.Partitions, s.partitions), s.name(2, f[swfQueue], &t.QOSs, s.queues))
	if f[swfAfter] > 0 {
		s.after = append(s.after, [2]int64{f[swfNumber], f[swfAfter]})
		think := max(Time(f[swfThink]), 0)
		put(&t.Think, t.Len()-1, cap(t.Submit), min(think, maxTime), 0)
	} else {
		put(&t.Think, t.Len()-1, cap(t.Submit), 0, 0)
	}
}

// name returns the index of a numbered user, group, queue or partition.
func (s *swf) name(which int, number int64, names *Names, known map[int64]string) int32 {
	if at, ok := s.names[which][number]; ok {
		return at
	}
	name := known[number]
	if name == "" {
		name = strconv.FormatInt(number, 10)
	}
	if number < 0 {
		name = ""
	}
	at := names.Index(name)
	s.names[which][number] = at
	return at
}

// milli parses a number and returns a thousand times its value.
func milli(b []byte) (int64, bool) {
	minus := len(b) > 0 && b[0] == '-'
	digits := b
	if minus || len(b) > 0 && b[0] == '+' {
		digits = b[1:]
	}
	var v int64
	i := 0
	for ; i < len(digits) && digits[i] >= '0' && digits[i] <= '9'; i++ {
		if v > 1<<50 {
			return 0, false
		}
		v = v*10 + int64(digits[i]-'0')
	}
	if i == len(digits) && i > 0 {
		if v > 1<<52 {
			return 0, false
		}
		if v *= 1000; minus {
			v = -v
		}
		return v, true
	}
	// A fraction or an exponent, which is rare.
	f, err := strconv.ParseFloat(string(b), 64)
	if err != nil || f < -1e15 || f > 1e15 || f != f {
		return 0, false
	}
	if f < 0 {
		return int64(f*1000 - 0.5), true
	}
	return int64(f*1000 + 0.5), true
}

// whole rounds a result of milli down to a whole number, so that -0.5 does not become 0.
func whole(v int64) int64 {
	if v < 0 {
		return -((-v + 999) / 1000)
	}
	return v / 1000
}

func shown(b []byte) string {
	if len(b) > 40 {
		return strconv.Quote(string(b[:40])) + "..."
	}
	return strconv.Quote(string(b))
}

// WriteSWF writes a trace in the Standard Workload Format. It rounds times to whole
// seconds, which the format requires, and drops arrays, which it does not have.
func (t *Trace) WriteSWF(w io.Writer, notes ...string) error {
	b := bufio.NewWriterSize(w, 1<<20)
	fmt.Fprintf(b, "; Version: 2.2\n; Computer: %s\n; Conversion: premix\n; MaxJobs: %d\n; MaxRecords: %d\n", oneLine(t.Name), t.Len(), t.Len())
	if t.Begin > 0 {
		fmt.Fprintf(b, "; UnixStartTime: %d\n", t.Begin/1000)
	}
	if t.Zone != 0 {
		fmt.Fprintf(b, "; TimeZone: %d\n", t.Zone/Second)
	}
	if t.Nodes > 0 {
		fmt.Fprintf(b, "; MaxNodes: %d\n", t.Nodes)
	}
	if t.Procs > 0 {
		fmt.Fprintf(b, "; MaxProcs: %d\n", t.Procs)
	}
	for i, name := range t.QOSs.Names {
		fmt.Fprintf(b, "; Queue: %d %s\n", i, oneLine(name))
	}
	for i, name := range t.Partitions.Names {
		fmt.Fprintf(b, "; Partition: %d %s\n", i+1, oneLine(name))
	}
	for _, note := range notes {
		fmt.Fprintf(b, "; Note: %s\n", oneLine(note))
	}
	var line []byte
	for i := range t.Len() {
		line = line[:0]
		number := func(v int64) { line = append(strconv.AppendInt(line, v, 10), ' ') }
		second := func(v Time) {
			if v < 0 {
				number(-1)
				return
			}
			number(int64((v + Second/2) / Second))
		}
		number(t.Number[i])
		second(t.Submit[i])
		second(t.WaitedOf(i))
		second(t.Run[i])
		number(int64(t.Cores[i]))
		line = append(line, "-1 -1 "...)
		number(int64(t.Cores[i]))
		second(t.Asked[i])
		if m := t.MemoryOf(i); m > 0 {
			number(int64(m) * 1024)
		} else {
			number(-1)
		}
		line = append(line, "1 "...)
		number(int64(t.User[i]) + 1)
		number(int64(t.Account[i]) + 1)
		line = append(line, "-1 "...)
		number(int64(t.QOSOf(i)))
		number(int64(t.Partition[i]) + 1)
		// The format can store only one preceding job: write the last one.
		if before := t.Before(i); len(before) > 0 {
			number(t.Number[before[len(before)-1]])
			number(int64((t.ThinkTime(i) + Second/2) / Second))
		} else {
			line = append(line, "-1 -1 "...)
		}
		line[len(line)-1] = '\n'
		if _, err := b.Write(line); err != nil {
			return err
		}
	}
	return b.Flush()
}

func oneLine(s string) string {
	return strings.Join(strings.Fields(s), " ")
}
