package shim

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// row is a job with its status. A pending array may be one row: then indices are its
// elements, and the job is the first of them.
type row struct {
	*job
	status
	indices []int
	step    *step // of squeue --steps
}

// id returns the id of a job as Slurm's programs show it: 12, 12_3 or 12_[3-9%2].
func (r *row) shown() string {
	if r.indices != nil {
		return fmt.Sprintf("%d_[%s]", r.array(), r.elements())
	}
	return r.display()
}

// elements returns the indices of a row of an array.
func (r *row) elements() string {
	switch {
	case r.Array == 0:
		return "N/A"
	case r.indices == nil:
		return strconv.Itoa(r.Index)
	}
	text := ranges(r.indices)
	if r.Width > 0 {
		text += "%" + strconv.Itoa(r.Width)
	}
	return text
}

// display returns the id of a job, or of an element of an array.
func (j *job) display() string {
	if j.Array > 0 {
		return fmt.Sprintf("%d_%d", j.array(), j.Index)
	}
	return strconv.Itoa(j.id)
}

// limit returns the time limit of a job; 0 is none.
func (j *job) limit() time.Duration { return time.Duration(j.Limit * float64(time.Second)) }

// node returns the node of a row; "" while the job waits.
func (r *row) node() string {
	if r.state == pending {
		return ""
	}
	return nodeName()
}

// end returns the time at which the job ended, or will end at the latest.
func (r *row) end() time.Time {
	if r.finished.IsZero() && r.Limit > 0 && !r.started.IsZero() {
		return r.started.Add(r.limit())
	}
	return r.finished
}

// tres returns the resources of a job as Slurm lists them.
func (j *job) tres() string {
	text := fmt.Sprintf("cpu=%d", j.Cores)
	if j.Memory > 0 {
		text += ",mem=" + sizeText(j.Memory)
	}
	text += fmt.Sprintf(",node=1,billing=%d", j.Cores)
	if j.Gres != "" {
		text += "," + j.gresTexts("gres/", "=")
	}
	return text
}

// memory returns the memory of a job.
func (j *job) memory() string {
	if j.Memory == 0 {
		return "0"
	}
	return sizeText(j.Memory)
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

// field is a field of squeue or sinfo, of rows R: a letter of --format, a name of --Format,
// or both.
type field[R any] struct {
	letter byte
	name   string
	title  string
	value  func(r *R) string
}

type (
	jobField  = field[row]
	nodeField = field[nodeState]
)

// constant returns a function for a field that is the same for all jobs.
func constant(v string) func(*row) string { return func(*row) string { return v } }

// jobFields are the fields of squeue, with the titles of Slurm 22.05.
var jobFields = sync.OnceValue(func() []jobField {
	moment := func(t time.Time) string {
		if t.IsZero() {
			return "N/A"
		}
		return clock(t)
	}
	number := func(f func(r *row) int) func(*row) string {
		return func(r *row) string { return strconv.Itoa(f(r)) }
	}
	cores := number(func(r *row) int { return r.Cores })
	id := number(func(r *row) int { return r.id })
	node := func(r *row) string { return r.node() }
	submitted := func(r *row) string { return moment(r.Submitted) }
	priority := number(func(r *row) int { return r.Priority })
	limit := func(r *row) string {
		if r.Limit == 0 {
			return "UNLIMITED"
		}
		return shortElapsed(r.limit())
	}
	left := func(r *row) string {
		if r.Limit == 0 {
			return "UNLIMITED"
		}
		return shortElapsed(max(0, r.limit()-r.took()))
	}
	list := []jobField{
		{'i', "jobarrayid", "JOBID", (*row).shown},
		{'A', "jobid", "JOBID", id},
		{'F', "arrayjobid", "ARRAY_JOB_ID", number(func(r *row) int { return r.array() })},
		{'K', "arraytaskid", "ARRAY_TASK_ID", (*row).elements},
		{'j', "name", "NAME", func(r *row) string { return r.Name }},
		{'u', "username", "USER", func(*row) string { return userName() }},
		{'U', "userid", "UID", number(func(*row) int { return os.Getuid() })},
		{'g', "groupname", "GROUP", func(*row) string { return groupName() }},
		{'G', "groupid", "GROUP", number(func(*row) int { return os.Getgid() })},
		{'t', "statecompact", "ST", func(r *row) string { return r.code }},
		{'T', "state", "STATE", func(r *row) string { return r.state.name }},
		{'M', "timeused", "TIME", func(r *row) string { return shortElapsed(r.took()) }},
		{'l', "timelimit", "TIME_LIMIT", limit},
		{'L', "timeleft", "TIME_LEFT", left},
		{'D', "numnodes", "NODES", constant("1")},
		{'C', "numcpus", "CPUS", cores},
		{'c', "mincpus", "MIN_CPUS", number(func(r *row) int { return r.PerTask })},
		{'m', "minmemory", "MIN_MEMORY", func(r *row) string { return r.memory() }},
		{'P', "partition", "PARTITION", func(r *row) string { return r.Partition }},
		{'a', "account", "ACCOUNT", func(r *row) string { return orNull(r.Account) }},
		{'q', "qos", "QOS", func(r *row) string { return r.QOS }},
		{'k', "comment", "COMMENT", func(r *row) string { return orNull(r.Comment) }},
		{'r', "reason", "REASON", func(r *row) string { return r.reason }},
		{'R', "reasonlist", "NODELIST(REASON)", func(r *row) string {
			if r.state == pending {
				return "(" + r.reason + ")"
			}
			return r.node()
		}},
		{'N', "nodelist", "NODELIST", node},
		{'B', "batchhost", "EXEC_HOST", func(r *row) string { return orNA(r.node()) }},
		{'S', "starttime", "START_TIME", func(r *row) string { return moment(r.started) }},
		{'e', "endtime", "END_TIME", func(r *row) string { return moment(r.end()) }},
		{'V', "submittime", "SUBMIT_TIME", submitted},
		{'p', "priority", "PRIORITY", priority},
		{'Q', "prioritylong", "PRIORITY", priority},
		{'Z', "workdir", "WORK_DIR", func(r *row) string { return r.Dir }},
		{'o', "command", "COMMAND", func(r *row) string { return orNull(r.Command) }},
		{'E', "dependency", "DEPENDENCY", func(r *row) string { return orNull(r.Needs) }},
		{'y', "nice", "NICE", number(func(r *row) int { return max(0, -r.Priority) })},
		{'b', "tres-per-node", "TRES_PER_NODE", func(r *row) string { return orNA(r.gresTexts("gres:", ":")) }},
		{0, "stdout", "STDOUT", func(r *row) string { return r.stdout() }},
		{0, "stderr", "STDERR", func(r *row) string { return r.stderr() }},
		{0, "cpus-per-task", "CPUS_PER_TASK", number(func(r *row) int { return r.PerTask })},
		{0, "numtasks", "TASKS", number(func(r *row) int { return r.Ntasks })},
		{0, "maxcpus", "MAX_CPUS", cores},
		{0, "eligibletime", "ELIGIBLE_TIME", submitted},
		{0, "accruetime", "ACCRUE_TIME", submitted},
		{0, "pendingtime", "PENDING_TIME", number(func(r *row) int { return int(r.waited().Seconds()) })},
		{0, "requeue", "REQUEUE", number(func(r *row) int { return boolInt(!r.NoRequeue) })},
		{0, "tres-alloc", "TRES_ALLOC", func(r *row) string { return r.tres() }},
		{0, "cluster", "CLUSTER", constant(clusterName)},
		{0, "batchflag", "BATCH_FLAG", constant("1")},
		{0, "allocnodes", "ALLOC_NODES", func(*row) string { return nodeName() }},
		{0, "derivedec", "DERIVED_EC", constant("0")},
		{0, "exit_code", "EXIT_CODE", func(r *row) string { return fmt.Sprintf("%d:%d", r.exit, r.signal) }},
	}
	// Fields of which a job of premix has nothing. They have the words that Slurm has for it.
	for _, text := range []string{
		"v reservation RESERVATION (null)", "f feature FEATURES (null)", "h oversubscribe OVER_SUBSCRIBE OK", "H sockets SOCKETS_PER_NODE *", "I cores CORES_PER_SOCKET *",
		"J threads THREADS_PER_CORE *", "n reqnodes REQ_NODES ", "w wckey WCKEY (null)", "x exc_nodes EXC_NODES ", "d mintmpdisk MIN_TMP_DISK 0",
		"z sct S:C:T *:*:*", "X corespec CORE_SPEC N/A", "Y schednodes SCHEDNODES (null)", "O contiguous CONTIGUOUS 0", "W licenses LICENSES (null)",
		". admin_comment ADMIN_COMMENT (null)", ". allocsid ALLOC_SID 0", ". associd ASSOC_ID 0", ". boardspernode BOARDS_PER_NODE 0", ". burstbuffer BURST_BUFFER (null)",
		". burstbufferstate BURST_BUFFER_STATE (null)", ". clusterfeature CLUSTER_FEATURES (null)", ". container CONTAINER (null)", ". cpus-per-tres CPUS_PER_TRES N/A",
		". deadline DEADLINE N/A", ". delayboot DELAY_BOOT 0:00", ". hetjobid HET_JOB_ID N/A", ". hetjobidset HET_JOB_ID_SET N/A", ". hetjoboffset HET_JOB_OFFSET N/A",
		". lastschedeval LAST_SCHED_EVAL N/A", ". maxnodes MAX_NODES 1", ". mcslabel MCSLABEL (null)", ". mem-per-tres MEM_PER_TRES N/A", ". mintime TIME_MIN 0:00",
		". network NETWORK (null)", ". ntperboard NTASKS_PER_BOARD 0", ". ntpercore NTASKS_PER_CORE N/A", ". ntpernode NTASKS_PER_NODE 0", ". ntpersocket NTASKS_PER_SOCKET N/A",
		". origin ORIGIN NA", ". originraw ORIGIN_RAW 0", ". siblingsactive ACTIVE_SIBLINGS NA", ". siblingsactiveraw ACTIVE_SIBLINGS_RAW NA", ". siblingsviable VIABLE_SIBLINGS NA",
		". siblingsviableraw VIABLE_SIBLINGS_RAW NA", ". wait4switch WAIT4SWITCH 0", ". preempttime PREEMPT_TIME N/A", ". prefer PREFER (null)", ". profile PROFILE NotSet", ". reboot REBOOT 0", ". reqswitch REQ_SWITCH 0",
		". resizetime RESIZE_TIME N/A", ". restartcnt RESTART_COUNT 0", ". sperboard SOCKETS_PER_BOARD 0", ". stdin STDIN /dev/null", ". tres-bind TRES_BIND N/A", ". tres-freq TRES_FREQ N/A",
		". tres-per-job TRES_PER_JOB N/A", ". tres-per-socket TRES_PER_SOCKET N/A", ". tres-per-task TRES_PER_TASK N/A",
	} {
		f := strings.SplitN(text, " ", 4)
		letter := f[0][0]
		if letter == '.' {
			letter = 0
		}
		list = append(list, jobField{letter, f[1], f[2], constant(f[3])})
	}
	return list
})

// stepFields are the fields of squeue --steps.
var stepFields = sync.OnceValue(func() []jobField {
	return []jobField{
		{'i', "stepid", "STEPID", func(r *row) string { return r.display() + "." + r.step.ID }},
		{'j', "stepname", "NAME", func(r *row) string { return r.step.Name }},
		{'P', "partition", "PARTITION", func(r *row) string { return r.Partition }},
		{'u', "username", "USER", func(*row) string { return userName() }},
		{'U', "userid", "UID", func(*row) string { return strconv.Itoa(os.Getuid()) }},
		{'M', "timeused", "TIME", func(r *row) string { return shortElapsed(r.step.took()) }},
		{'S', "starttime", "START_TIME", func(r *row) string { return clock(r.step.Started) }},
		{'N', "nodelist", "NODELIST", func(*row) string { return nodeName() }},
		{'A', "jobid", "JOBID", func(r *row) string { return strconv.Itoa(r.job.id) }},
		{'F', "arrayjobid", "ARRAY_JOB_ID", func(r *row) string { return strconv.Itoa(r.array()) }},
		{'K', "arraytaskid", "ARRAY_TASK_ID", (*row).elements},
		{'T', "stepstate", "STATE", func(r *row) string { return r.state.name }},
		{'t', "statecompact", "ST", func(r *row) string { return r.code }},
	}
})

// column is a piece of an answer: a field, its width, and the text behind it.
type column[F any] struct {
	field *F     // nil: text alone
	width int    // 0: as long as the value
	right bool   // to the right
	text  string // behind it
}

func (c *column[F]) write(b *strings.Builder, v string) {
	if c.field != nil {
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

// parseFormat parses a format of squeue or sinfo: fields as in %i or %.18i, and text. find
// returns the field of a letter.
func parseFormat[F any](format string, find func(letter byte) *F) ([]column[F], error) {
	var list []column[F]
	for i := 0; i < len(format); {
		if format[i] != '%' || i+1 == len(format) {
			if len(list) == 0 {
				list = append(list, column[F]{})
			}
			list[len(list)-1].text += format[i : i+1]
			i++
			continue
		}
		c := column[F]{}
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
		if format[i] == '%' {
			c = column[F]{text: "%"}
		} else if c.field = find(format[i]); c.field == nil {
			return nil, &optionError{fmt.Sprintf("there is no field %%%c, in %q", format[i], format), "a field is written as in %i or %.18i"}
		}
		list = append(list, c)
		i++
	}
	return list, nil
}

// parseLong parses a format of squeue --Format or sinfo --Format: names with commas between
// them, each as NAME[:[.][WIDTH][TEXT]]. The width is 20 if none is given.
func parseLong[F any](format string, find func(name string) *F) ([]column[F], error) {
	var list []column[F]
	for part := range strings.SplitSeq(format, ",") {
		name, layout, has := strings.Cut(part, ":")
		c := column[F]{width: 20}
		if c.field = find(strings.ToLower(strings.TrimSpace(name))); c.field == nil {
			return nil, &optionError{fmt.Sprintf("Invalid job format specification: %s", name), "fields are named as in jobid,name:30,state: see premix help slurm-shim"}
		}
		if has {
			layout, c.right = strings.CutPrefix(layout, ".")
			digits := len(layout) - len(strings.TrimLeft(layout, "0123456789"))
			if digits > 0 {
				n, err := strconv.Atoi(layout[:digits])
				if err != nil || n > 1<<16 {
					return nil, &optionError{fmt.Sprintf("bad width in %q", part), "write it as in name:30"}
				}
				c.width = n
			}
			c.text = layout[digits:]
		}
		list = append(list, c)
	}
	return list, nil
}

// lookup returns functions that find a field by letter and by name.
func lookup[R any](fields []field[R]) (byLetter func(byte) *field[R], byName func(string) *field[R]) {
	other := map[string]string{"user": "username", "uid": "userid", "shared": "oversubscribe", "share": "oversubscribe", "cpuspertask": "cpus-per-task", "gres": "tres-per-node", "packjobid": "hetjobid", "packjobidset": "hetjobidset", "packjoboffset": "hetjoboffset"}
	find := func(match func(f *field[R]) bool) *field[R] {
		for i := range fields {
			if match(&fields[i]) {
				return &fields[i]
			}
		}
		return nil
	}
	byLetter = func(letter byte) *field[R] {
		return find(func(f *field[R]) bool { return f.letter == letter })
	}
	byName = func(name string) *field[R] {
		f := find(func(f *field[R]) bool { return f.name == name })
		if f == nil && other[name] != "" {
			f = find(func(f *field[R]) bool { return f.name == other[name] })
		}
		return f
	}
	return byLetter, byName
}
