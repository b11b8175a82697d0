package shim

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"premix/internal/kit/hostlist"
)

const (
	squeueFormat = "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R"
	squeueLong   = "%.18i %.9P %.8j %.8u %.8T %.10M %.9l %.6D %R"
	squeueStart  = "%.18i %.9P %.8j %.8u %.2t %.19S %.6D %20Y %R"
	squeueSteps  = "%.15i %.8j %.9P %.8u %.9M %N"
)

// filter picks jobs.
type filter struct {
	jobs                              map[int]bool // nil: any
	names, accounts, partitions, qoss []string
	states                            map[state]bool // nil: any
	nodes                             []string       // nil: any
	none                              bool           // jobs of another user
}

func (f *filter) match(j *job, st *status) bool {
	in := func(list []string, v string) bool { return len(list) == 0 || slices.Contains(list, v) }
	return !f.none && (f.jobs == nil || f.jobs[j.id]) && in(f.names, j.Name) && in(f.accounts, j.Account) && in(f.partitions, j.Partition) && in(f.qoss, j.QOS) &&
		(f.states == nil || f.states[st.state]) && (f.nodes == nil || st.state != pending && slices.Contains(f.nodes, nodeName()))
}

// filter reads the options that pick jobs, which squeue, sacct and scancel have in common.
// The caller holds mu.
func (w *worker) filter(a *arguments) (*filter, error) {
	f := &filter{}
	for _, g := range a.list {
		var err error
		list := strings.Split(g.value, ",")
		switch g.name {
		case "jobs", "job":
			if g.value != "" {
				err = w.pick(f, withoutSteps(g.value))
			}
		case "user", "users", "uid":
			f.none = !slices.Contains(list, userName()) && !slices.Contains(list, strconv.Itoa(os.Getuid()))
		case "notme":
			f.none = true // all jobs are of this user
		case "states", "state":
			f.states, err = parseStates(g.value)
		case "partition":
			f.partitions = list
		case "name", "jobname":
			f.names = list
		case "account", "accounts":
			f.accounts = list
		case "qos":
			f.qoss = list
		case "nodelist":
			f.nodes, err = hostnames(g.value)
		}
		if err != nil {
			return nil, err
		}
	}
	return f, nil
}

// parseStates parses names of states; nil is all of them.
func parseStates(list string) (map[state]bool, error) {
	if strings.EqualFold(list, "all") {
		return nil, nil
	}
	m := make(map[state]bool)
	for name := range strings.SplitSeq(list, ",") {
		s, ok := states()[strings.ToUpper(name)]
		if !ok {
			return nil, &optionError{fmt.Sprintf("Invalid job state specified: %s", name), "states are named as in PENDING or PD"}
		}
		m[s] = true
	}
	return m, nil
}

// pick adds the jobs of a list to those that a filter picks.
func (w *worker) pick(f *filter, list string) error {
	if f.jobs == nil {
		f.jobs = make(map[int]bool)
	}
	for _, text := range hostlist.Split(list) {
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

// jobList takes the list of --jobs or --steps from behind a blank, as squeue and sprio do, and
// refuses other words.
func (a *arguments) jobList() error {
	for i := range a.list {
		if g := &a.list[i]; (g.name == "jobs" || g.name == "steps") && g.value == "" && len(a.rest) > 0 && a.rest[0] != "" && a.rest[0][0] >= '0' && a.rest[0][0] <= '9' {
			g.value, a.rest = a.rest[0], a.rest[1:]
		}
	}
	if len(a.rest) > 0 {
		return &optionError{fmt.Sprintf("Unrecognized option: %s", a.rest[0]), "name jobs with --jobs=12,13"}
	}
	return nil
}

func (w *worker) squeue(args []string) (string, error) {
	a, err := parse("squeue", squeueOptions(), args, false)
	if err != nil {
		return "", err
	}
	if err := a.jobList(); err != nil {
		return "", err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	f, err := w.filter(a)
	if err != nil {
		return "", err
	}
	if f.jobs != nil && len(f.jobs) == 0 {
		return "", &optionError{"Invalid job id specified", "sacct shows jobs that ended long ago"}
	}
	if a.has("steps") {
		return w.squeueStepList(a, f)
	}
	if !a.has("states") {
		f.states = map[state]bool{pending: true, running: true, suspended: true, completing: true}
		if a.has("start") {
			f.states = map[state]bool{pending: true}
		}
	}
	rows := w.rows(f, a.has("array", "array-unique") || a.has("json", "yaml"))
	if err := sortRows(rows, a.get("sort", "")); err != nil {
		return "", err
	}
	if a.has("json", "yaml") {
		return document(a, "jobs", w.squeueJSON(rows))
	}
	format := squeueFormat
	switch {
	case a.has("start"):
		format = squeueStart
	case a.has("long"):
		format = squeueLong
	}
	return show(a, jobFields(), format, rows)
}

// rows returns the jobs that a filter picks, without those that ended long ago. The waiting
// elements of an array are one row, unless each is asked for. The caller holds mu.
func (w *worker) rows(f *filter, each bool) []row {
	now := w.running()
	var rows []row
	for j := range w.jobs() {
		if f.jobs != nil && !f.jobs[j.id] {
			continue
		}
		st := w.status(j, now)
		if st.over() && time.Since(st.finished) > minJobAge || !f.match(j, &st) {
			continue
		}
		if n := len(rows); !each && j.Array > 0 && st.state == pending {
			if n > 0 && rows[n-1].indices != nil && rows[n-1].array() == j.array() && rows[n-1].reason == st.reason {
				rows[n-1].indices = append(rows[n-1].indices, j.Index)
				continue
			}
			rows = append(rows, row{job: j, status: st, indices: []int{j.Index}})
			continue
		}
		rows = append(rows, row{job: j, status: st})
	}
	return rows
}

// squeueStepList answers squeue --steps. The caller holds mu.
func (w *worker) squeueStepList(a *arguments, f *filter) (string, error) {
	if a.has("json", "yaml") {
		return "", &optionError{"squeue --steps has no --json and no --yaml", "sacct --json has the steps of each job"}
	}
	list := a.get("steps", "")
	if list != "" {
		if err := w.pick(f, list); err != nil {
			return "", err
		}
	}
	var rows []row
	f.states = map[state]bool{running: true, suspended: true}
	for _, r := range w.rows(f, true) {
		for _, s := range w.steps.of(&r) {
			if s.over() || list != "" && strings.Contains(list, ".") && !slices.Contains(hostlist.Split(list), r.display()+"."+s.ID) {
				continue
			}
			r.step = s
			rows = append(rows, r)
		}
	}
	return show(a, stepFields(), squeueSteps, rows)
}

// show writes rows as --format or --Format ask for, or in a format.
func show[R any](a *arguments, fields []field[R], format string, rows []R) (string, error) {
	byLetter, byName := lookup(fields)
	var columns []column[field[R]]
	var err error
	switch {
	case a.has("Format"):
		columns, err = parseLong(a.get("Format", ""), byName)
	case a.get("format", "") == "%all":
		for i := range fields {
			if fields[i].letter != 0 {
				columns = append(columns, column[field[R]]{field: &fields[i], text: "|"})
			}
		}
		columns[len(columns)-1].text = ""
	default:
		columns, err = parseFormat(a.get("format", format), byLetter)
	}
	if err != nil {
		return "", err
	}
	var b strings.Builder
	if a.has("long") && !a.has("noheader", "iterate") { // iterate prints the time
		fmt.Fprintln(&b, time.Now().Format(time.ANSIC))
	}
	line := func(value func(*field[R]) string) {
		for i := range columns {
			v := ""
			if columns[i].field != nil {
				v = value(columns[i].field)
			}
			columns[i].write(&b, v)
		}
		b.WriteByte('\n')
	}
	if !a.has("noheader") {
		line(func(f *field[R]) string { return f.title })
	}
	for i := range rows {
		line(func(f *field[R]) string { return f.value(&rows[i]) })
	}
	return b.String(), nil
}

// sortRows sorts by keys as in -t,i. As Slurm does, jobs that wait come first if no key
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
			"t": func(a, b row) int { return cmp.Compare(a.state.name, b.state.name) }, "P": func(a, b row) int { return cmp.Compare(a.Partition, b.Partition) },
			"p": func(a, b row) int { return cmp.Compare(a.Priority, b.Priority) }, "S": func(a, b row) int { return a.started.Compare(b.started) },
			"V": func(a, b row) int { return a.Submitted.Compare(b.Submitted) }, "M": func(a, b row) int { return cmp.Compare(a.took(), b.took()) },
			"e": func(a, b row) int { return a.finished.Compare(b.finished) }, "u": func(a, b row) int { return 0 },
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
