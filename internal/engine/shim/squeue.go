package shim

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

var squeueOptions = []option{
	{"noheader", 'h', none, used}, {"format", 'o', required, used}, {"jobs", 'j', optional, used}, {"job", 0, optional, used}, {"user", 'u', required, used}, {"users", 0, required, used},
	{"states", 't', required, used}, {"partition", 'p', required, used}, {"name", 'n', required, used}, {"account", 'A', required, used},
	{"me", 0, none, used}, {"json", 0, optional, used}, {"sort", 'S', required, used}, {"long", 'l', none, used}, {"qos", 'q', required, used},
	{"array", 'r', none, moot}, {"all", 'a', none, moot}, {"hide", 0, none, moot}, {"verbose", 'v', none, moot}, {"clusters", 'M', required, moot}, {"cluster", 0, required, moot},
	{"local", 0, none, moot}, {"federation", 0, none, moot}, {"sibling", 0, none, moot}, {"array-unique", 0, none, moot}, {"notme", 0, none, refused},
	{"Format", 'O', required, refused}, {"iterate", 'i', required, refused}, {"start", 0, none, refused}, {"steps", 's', optional, refused},
	{"nodelist", 'w', required, moot}, {"yaml", 0, none, refused}, {"licenses", 'L', required, refused}, {"reservation", 'R', required, moot},
}

const (
	squeueFormat = "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R"
	squeueLong   = "%.18i %.9P %.8j %.8u %.8T %.10M %.9l %.6D %R"
)

// filter picks jobs.
type filter struct {
	jobs                              map[int]bool // nil: any
	names, accounts, partitions, qoss []string
	states                            map[state]bool // nil: any
	nobody                            bool           // of another user
}

func (f *filter) match(j *job, st *status) bool {
	in := func(list []string, v string) bool { return len(list) == 0 || slices.Contains(list, v) }
	return !f.nobody && (f.jobs == nil || f.jobs[j.id]) && in(f.names, j.Name) && in(f.accounts, j.Account) && in(f.partitions, j.Partition) && in(f.qoss, j.QOS) &&
		(f.states == nil || f.states[st.state])
}

// users sets whose jobs are asked for: all jobs belong to one user.
func (f *filter) users(list string) {
	names := strings.Split(list, ",")
	f.nobody = !slices.Contains(names, userName()) && !slices.Contains(names, strconv.Itoa(os.Getuid()))
}

func parseStates(list string) (map[state]bool, error) {
	m := make(map[state]bool)
	for _, name := range strings.Split(list, ",") {
		s, ok := states()[strings.ToUpper(name)]
		if !ok {
			return nil, &optionError{fmt.Sprintf("Invalid job state specified: %s", name), "states are named as in PENDING or PD"}
		}
		m[s] = true
	}
	return m, nil
}

// pick notes jobs of a list.
func (w *worker) pick(f *filter, list string) error {
	if f.jobs == nil {
		f.jobs = make(map[int]bool)
	}
	for _, text := range splitJobs(list) {
		jobs, err := w.selected(text)
		if err != nil {
			return err
		}
		for _, j := range jobs {
			f.jobs[j.id] = true
		}
	}
	return nil
}

// splitJobs cuts a list at the commas that are not between brackets.
func splitJobs(list string) []string {
	var all []string
	begun, depth := 0, 0
	for i, c := range list + "," {
		switch {
		case c == '[':
			depth++
		case c == ']':
			depth--
		case (c == ',' || c == ' ') && depth == 0:
			if i > begun {
				all = append(all, list[begun:i])
			}
			begun = i + 1
		}
	}
	return all
}

// row is a job with its status.
type row struct {
	*job
	status
}

func (w *worker) squeue(args []string) (string, error) {
	list, rest, err := parseOptions(squeueOptions, args, false)
	if err != nil {
		return "", err
	}
	for i := range list {
		// squeue takes its list of jobs with and without a blank in between.
		if g := &list[i]; g.name == "jobs" && g.value == "" && len(rest) > 0 && rest[0][0] >= '0' && rest[0][0] <= '9' {
			g.value, rest = rest[0], rest[1:]
		}
	}
	if len(rest) > 0 {
		return "", &optionError{fmt.Sprintf("Unrecognized option: %s", rest[0]), ""}
	}
	var f filter
	header, format, all, asJSON := true, squeueFormat, false, false
	var order string
	w.mu.Lock()
	defer w.mu.Unlock()
	f.states = map[state]bool{pending: true, running: true, completing: true}
	for _, g := range list {
		if g.use == refused {
			return "", &optionError{fmt.Sprintf("option '--%s' is not one that premix answers", g.name), "ask with --format, or --json"}
		}
		switch g.name {
		case "noheader":
			header = false
		case "format":
			format = g.value
		case "long":
			format = squeueLong
		case "jobs", "job":
			if g.value != "" {
				err = w.pick(&f, g.value)
			}
		case "user", "users":
			f.users(g.value)
		case "states":
			if all = strings.EqualFold(g.value, "all"); all {
				f.states = nil
			} else {
				f.states, err = parseStates(g.value)
			}
		case "partition":
			f.partitions = strings.Split(g.value, ",")
		case "name":
			f.names = strings.Split(g.value, ",")
		case "account":
			f.accounts = strings.Split(g.value, ",")
		case "qos":
			f.qoss = strings.Split(g.value, ",")
		case "json":
			asJSON = true
		case "sort":
			order = g.value
		}
		if err != nil {
			return "", err
		}
	}
	if f.jobs != nil && len(f.jobs) == 0 {
		return "", &optionError{"Invalid job id specified", "sacct tells of jobs that have ended long ago"}
	}
	now := w.running()
	var rows []row
	for _, j := range w.jobs {
		if f.jobs != nil && !f.jobs[j.id] {
			continue
		}
		st := w.status(j, now)
		if st.over() && time.Since(st.ended) > minJobAge || !f.match(j, &st) {
			continue
		}
		rows = append(rows, row{j, st})
	}
	if err := sortRows(rows, order); err != nil {
		return "", err
	}
	if asJSON {
		return w.squeueJSON(rows)
	}
	columns, err := parseColumns(format, titles)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	if header {
		for _, c := range columns {
			c.write(&b, c.title())
		}
		b.WriteByte('\n')
	}
	for i := range rows {
		for _, c := range columns {
			c.write(&b, w.squeueField(&rows[i], c.letter))
		}
		b.WriteByte('\n')
	}
	return b.String(), nil
}

// sortRows sorts by keys as in -t,i. As Slurm does, jobs that wait come first if none
// is named.
func sortRows(rows []row, keys string) error {
	if keys == "" {
		slices.SortStableFunc(rows, func(a, b row) int {
			return cmp.Compare(boolInt(a.state != pending), boolInt(b.state != pending))
		})
		return nil
	}
	list := strings.Split(keys, ",")
	for _, key := range slices.Backward(list) {
		down := strings.HasPrefix(key, "-")
		by := map[string]func(a, b row) int{
			"i": func(a, b row) int { return cmp.Compare(a.id, b.id) }, "j": func(a, b row) int { return cmp.Compare(a.Name, b.Name) },
			"t": func(a, b row) int { return cmp.Compare(a.name, b.name) }, "P": func(a, b row) int { return cmp.Compare(a.Partition, b.Partition) },
			"p": func(a, b row) int { return cmp.Compare(a.Priority, b.Priority) }, "S": func(a, b row) int { return a.started.Compare(b.started) },
			"V": func(a, b row) int { return a.Submitted.Compare(b.Submitted) }, "M": func(a, b row) int { return cmp.Compare(a.took(), b.took()) },
			"e": func(a, b row) int { return a.ended.Compare(b.ended) }, "u": func(a, b row) int { return 0 },
		}[strings.TrimLeft(key, "+-")]
		if by == nil {
			return &optionError{fmt.Sprintf("premix does not sort by %q", key), "it sorts by i, j, t, P, p, S, V, M, e and u"}
		}
		slices.SortStableFunc(rows, func(a, b row) int {
			if down {
				a, b = b, a
			}
			return by(a, b)
		})
	}
	return nil
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// column is a piece of a format, for example "%.18i ".
type column struct {
	letter byte // 0: text alone
	width  int  // 0: as long as it is
	right  bool
	text   string // behind it
}

// titles are the headers of squeue's columns.
var titles = map[byte]string{
	'i': "JOBID", 'A': "JOBID", 'F': "ARRAY_JOB_ID", 'K': "ARRAY_TASK_ID", 'j': "NAME", 'u': "USER", 'U': "UID", 't': "ST", 'T': "STATE", 'M': "TIME", 'l': "TIME_LIMIT", 'L': "TIME_LEFT",
	'D': "NODES", 'C': "CPUS", 'c': "MIN_CPUS", 'm': "MIN_MEMORY", 'P': "PARTITION", 'a': "ACCOUNT", 'q': "QOS", 'k': "COMMENT", 'r': "REASON", 'R': "NODELIST(REASON)", 'N': "NODELIST", 'n': "REQ_NODES",
	'S': "START_TIME", 'e': "END_TIME", 'V': "SUBMIT_TIME", 'Q': "PRIORITY", 'p': "PRIORITY", 'Z': "WORK_DIR", 'o': "COMMAND", 'E': "DEPENDENCY", 'B': "EXEC_HOST", 'v': "RESERVATION", 'f': "FEATURES",
	'g': "GROUP", 'h': "OVER_SUBSCRIBE", 'H': "SOCKETS", 'w': "WCKEY", 'x': "EXC_NODES", 'y': "NICE", 'b': "TRES_PER_NODE", 'd': "MIN_TMP_DISK", 'z': "S:C:T", 'X': "CORE_SPEC", 'Y': "SCHEDNODES", 'I': "CORES/SOCKET", 'J': "THREADS/CORE", 'O': "CONTIGUOUS", 'W': "LICENSES",
}

func (c *column) title() string { return titles[c.letter] }

func (c *column) write(b *strings.Builder, v string) {
	if c.letter != 0 {
		if c.width > 0 {
			if r := []rune(v); len(r) > c.width {
				v = string(r[:c.width])
			}
			if c.right {
				v = fmt.Sprintf("%*s", c.width, v)
			} else {
				v = fmt.Sprintf("%-*s", c.width, v)
			}
		}
		b.WriteString(v)
	}
	b.WriteString(c.text)
}

// parseColumns reads a format of squeue or sinfo, of fields that have titles.
func parseColumns(format string, titles map[byte]string) ([]column, error) {
	var list []column
	for i := 0; i < len(format); {
		if format[i] != '%' || i+1 == len(format) {
			if len(list) == 0 {
				list = append(list, column{})
			}
			list[len(list)-1].text += format[i : i+1]
			i++
			continue
		}
		c := column{}
		i++
		if format[i] == '.' {
			c.right = true
			i++
		}
		for i < len(format) && format[i] >= '0' && format[i] <= '9' && c.width < 1<<16 {
			c.width = 10*c.width + int(format[i]-'0')
			i++
		}
		if i == len(format) {
			return nil, &optionError{fmt.Sprintf("bad format %q", format), "a field is written as in %i or %.18i"}
		}
		if c.letter = format[i]; c.letter == '%' {
			c = column{text: "%"}
		} else if _, known := titles[c.letter]; !known {
			return nil, &optionError{fmt.Sprintf("there is no field %%%c, in %q", c.letter, format), "a field is written as in %i or %.18i"}
		}
		list = append(list, c)
		i++
	}
	return list, nil
}

// display returns the id of a job as squeue shows it.
func (j *job) display() string {
	if j.Array > 0 {
		return fmt.Sprintf("%d_%d", j.array(), j.Index)
	}
	return strconv.Itoa(j.id)
}

func orNA(s string) string {
	if s == "" {
		return "N/A"
	}
	return s
}

func orNull(s string) string {
	if s == "" {
		return "(null)"
	}
	return s
}

func (w *worker) squeueField(r *row, letter byte) string {
	moment := func(t time.Time) string {
		if t.IsZero() {
			return "N/A"
		}
		return clock(t)
	}
	node := ""
	if r.state != pending {
		node = nodeName()
	}
	limit := time.Duration(r.Limit * float64(time.Second))
	switch letter {
	case 0:
		return ""
	case 'i':
		return r.display()
	case 'A':
		return strconv.Itoa(r.id)
	case 'F':
		return strconv.Itoa(r.array())
	case 'K':
		if r.Array == 0 {
			return "N/A"
		}
		return strconv.Itoa(r.Index)
	case 'j':
		return r.Name
	case 'u':
		return userName()
	case 'U':
		return strconv.Itoa(os.Getuid())
	case 'g':
		return strconv.Itoa(os.Getgid())
	case 't':
		return r.code
	case 'T':
		return r.name
	case 'M':
		return shortElapsed(r.took())
	case 'l':
		if limit == 0 {
			return "UNLIMITED"
		}
		return shortElapsed(limit)
	case 'L':
		if limit == 0 {
			return "UNLIMITED"
		}
		return shortElapsed(max(0, limit-r.took()))
	case 'D':
		return "1"
	case 'C', 'c':
		return strconv.Itoa(r.Cores)
	case 'm':
		if r.Memory == 0 {
			return "0"
		}
		return sizeText(r.Memory)
	case 'P':
		return r.Partition
	case 'a':
		return orNull(r.Account)
	case 'q':
		return r.QOS
	case 'k':
		return orNull(r.Comment)
	case 'r':
		return r.reason
	case 'R':
		if r.state == pending {
			return "(" + r.reason + ")"
		}
		return node
	case 'N':
		return node
	case 'B':
		return orNA(node)
	case 'S':
		return moment(r.started)
	case 'e':
		if r.ended.IsZero() && limit > 0 && !r.started.IsZero() {
			return moment(r.started.Add(limit))
		}
		return moment(r.ended)
	case 'V':
		return moment(r.Submitted)
	case 'p', 'Q':
		return strconv.Itoa(r.Priority)
	case 'Z':
		return r.Dir
	case 'o':
		return orNull(r.Command)
	case 'E':
		return orNull(r.Needs)
	}
	return "N/A"
}

// squeueJSON has the fields of Slurm's own JSON that describe a job.
func (w *worker) squeueJSON(rows []row) (string, error) {
	jobs := []map[string]any{}
	for i := range rows {
		r := &rows[i]
		unix := func(t time.Time) int64 {
			if t.IsZero() {
				return 0
			}
			return t.Unix()
		}
		m := map[string]any{
			"job_id": r.id, "name": r.Name, "job_state": r.name, "state_reason": r.reason, "partition": r.Partition, "account": r.Account, "qos": r.QOS, "comment": r.Comment,
			"user_name": userName(), "user_id": os.Getuid(), "group_id": os.Getgid(), "cluster": clusterName, "cpus": r.Cores, "tasks": r.Ntasks, "cpus_per_task": r.PerTask, "node_count": 1,
			"memory_per_node": r.Memory >> 20, "time_limit": int64(r.Limit / 60), "submit_time": unix(r.Submitted), "start_time": unix(r.started), "end_time": unix(r.ended),
			"exit_code": r.exit<<8 | r.signal, "current_working_directory": r.Dir, "standard_output": r.Stdout, "standard_error": r.Stderr, "command": r.Command, "dependency": r.Needs, "priority": r.Priority, "nodes": nodeName(), "array_job_id": 0,
		}
		if r.Array > 0 {
			m["array_job_id"], m["array_task_id"] = r.array(), r.Index
		}
		jobs = append(jobs, m)
	}
	text, err := json.MarshalIndent(map[string]any{"meta": map[string]any{"Slurm": map[string]any{"release": strings.TrimPrefix(slurmVersion, "slurm ")}}, "errors": []string{}, "jobs": jobs}, "", "  ")
	return string(text) + "\n", err
}
