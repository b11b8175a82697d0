package shim

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

var sacctOptions = []option{
	{"jobs", 'j', required, used}, {"noheader", 'n', none, used}, {"allocations", 'X', none, used}, {"parsable2", 'P', none, used}, {"parsable", 'p', none, used},
	{"format", 'o', required, used}, {"name", 0, required, used}, {"user", 'u', required, used}, {"uid", 0, required, used}, {"state", 's', required, used},
	{"starttime", 'S', required, used}, {"endtime", 'E', required, used}, {"delimiter", 0, required, used}, {"partition", 'r', required, used}, {"accounts", 'A', required, used}, {"account", 0, required, used},
	{"qos", 'q', required, used}, {"brief", 'b', none, used}, {"long", 'l', none, used}, {"helpformat", 'e', none, used}, {"noconvert", 0, none, used},
	{"clusters", 'M', required, moot}, {"cluster", 0, required, moot}, {"allclusters", 'L', none, moot}, {"allusers", 'a', none, moot}, {"duplicates", 'D', none, moot}, {"local", 0, none, moot}, {"federation", 0, none, moot},
	{"truncate", 'T', none, moot}, {"verbose", 'v', none, moot}, {"array", 0, none, moot},
	{"units", 0, required, used}, {"json", 0, optional, refused}, {"yaml", 0, none, refused}, {"batch-script", 'B', none, refused}, {"env-vars", 0, none, refused}, {"completion", 'c', none, refused}, {"file", 'f', required, refused},
}

const (
	sacctFormat = "jobid,jobname,partition,account,alloccpus,state,exitcode"
	sacctBrief  = "jobid,state,exitcode"
	sacctLong   = "jobid,jobidraw,jobname,partition,maxrss,reqcpus,alloccpus,elapsed,state,exitcode,reqmem,totalcpu,comment"
)

// field is a column of sacct: its header, the width it has if none is asked for, and
// its value. batch is of the job's batch step.
type field struct {
	title string
	width int
	value func(r *row, batch bool) string
}

// sacctFields are by lower-case name.
var sacctFields = sync.OnceValue(func() map[string]*field {
	m := make(map[string]*field)
	text := func(f func(r *row) string) func(*row, bool) string {
		return func(r *row, _ bool) string { return f(r) }
	}
	job := func(f func(r *row) string) func(*row, bool) string { // empty for a step
		return func(r *row, batch bool) string {
			if batch {
				return ""
			}
			return f(r)
		}
	}
	add := func(title string, width int, f func(*row, bool) string) {
		m[strings.ToLower(title)] = &field{title, width, f}
	}
	id := func(raw bool) func(*row, bool) string {
		return func(r *row, batch bool) string {
			v := r.display()
			if raw {
				v = strconv.Itoa(r.id)
			}
			if batch {
				v += ".batch"
			}
			return v
		}
	}
	cores := text(func(r *row) string { return strconv.Itoa(r.Cores) })
	allocated := func(r *row, _ bool) string {
		if r.started.IsZero() {
			return "0"
		}
		return strconv.Itoa(r.Cores)
	}
	node := text(func(r *row) string {
		if r.started.IsZero() {
			return "None assigned"
		}
		return nodeName()
	})
	cpu := func(r *row) (user, system float64) {
		if r.rec == nil {
			return 0, 0
		}
		return r.rec.User, r.rec.System
	}
	rss := func(r *row, batch bool) string {
		if !batch || r.rec == nil {
			return ""
		}
		return fmt.Sprintf("%dK", r.rec.MaxRSS>>10)
	}
	disk := func(read bool) func(*row, bool) string {
		return func(r *row, batch bool) string {
			if !batch || r.rec == nil {
				return ""
			}
			n := r.rec.WriteBytes
			if read {
				n = r.rec.ReadBytes
			}
			return fmt.Sprintf("%.2fM", float64(n)/(1<<20))
		}
	}
	memory := func(r *row, batch bool) string {
		if batch {
			return ""
		}
		if r.Memory == 0 {
			return "0"
		}
		return sizeText(r.Memory)
	}
	tres := job(func(r *row) string {
		v := fmt.Sprintf("billing=%d,cpu=%d,node=1", r.Cores, r.Cores)
		if r.Memory > 0 {
			v = fmt.Sprintf("billing=%d,cpu=%d,mem=%s,node=1", r.Cores, r.Cores, sizeText(r.Memory))
		}
		return v
	})
	exit := text(func(r *row) string { return fmt.Sprintf("%d:%d", r.exit, r.signal) })
	add("JobID", 12, id(false))
	add("JobIDRaw", 12, id(true))
	add("JobName", 10, func(r *row, batch bool) string {
		if batch {
			return "batch"
		}
		return r.Name
	})
	add("State", 10, func(r *row, batch bool) string {
		if r.state == cancelled && !batch {
			return "CANCELLED by " + strconv.Itoa(os.Getuid())
		}
		return r.name
	})
	add("ExitCode", 8, exit)
	add("DerivedExitCode", 15, job(func(r *row) string { return "0:0" }))
	add("Elapsed", 10, text(func(r *row) string { return elapsed(r.took()) }))
	add("ElapsedRaw", 10, text(func(r *row) string { return strconv.Itoa(int(r.took().Seconds())) }))
	add("Start", 19, text(func(r *row) string { return clock(r.started) }))
	add("End", 19, text(func(r *row) string { return clock(r.ended) }))
	add("Submit", 19, text(func(r *row) string { return clock(r.Submitted) }))
	add("Eligible", 19, text(func(r *row) string { return clock(r.Submitted) }))
	add("Partition", 10, job(func(r *row) string { return r.Partition }))
	add("Account", 10, text(func(r *row) string { return r.Account }))
	add("Associd", 10, text(func(r *row) string { return "0" }))
	add("User", 9, job(func(r *row) string { return userName() }))
	add("UID", 6, job(func(r *row) string { return strconv.Itoa(os.Getuid()) }))
	add("Group", 9, job(func(r *row) string { return strconv.Itoa(os.Getgid()) }))
	add("GID", 6, job(func(r *row) string { return strconv.Itoa(os.Getgid()) }))
	add("NCPUS", 10, allocated)
	add("AllocCPUS", 10, allocated)
	add("ReqCPUS", 8, cores)
	add("NNodes", 8, text(func(r *row) string { return "1" }))
	add("AllocNodes", 10, text(func(r *row) string { return "1" }))
	add("ReqNodes", 8, text(func(r *row) string { return "1" }))
	add("NTasks", 8, func(r *row, batch bool) string {
		if batch {
			return "1"
		}
		return ""
	})
	add("NodeList", 15, node)
	add("MaxRSS", 10, rss)
	add("AveRSS", 10, rss)
	add("MaxVMSize", 10, func(*row, bool) string { return "" })
	add("MaxDiskRead", 12, disk(true))
	add("MaxDiskWrite", 12, disk(false))
	add("AveDiskRead", 14, disk(true))
	add("AveDiskWrite", 14, disk(false))
	add("ReqMem", 10, memory)
	add("TotalCPU", 10, text(func(r *row) string { u, s := cpu(r); return cpuTime(u + s) }))
	add("UserCPU", 10, text(func(r *row) string { u, _ := cpu(r); return cpuTime(u) }))
	add("SystemCPU", 10, text(func(r *row) string { _, s := cpu(r); return cpuTime(s) }))
	add("CPUTime", 10, text(func(r *row) string { return elapsed(r.took() * time.Duration(r.Cores)) }))
	add("CPUTimeRAW", 10, text(func(r *row) string { return strconv.Itoa(int(r.took().Seconds()) * r.Cores) }))
	add("AveCPU", 10, text(func(r *row) string { u, s := cpu(r); return elapsed(time.Duration((u + s) * float64(time.Second))) }))
	add("Timelimit", 10, job(func(r *row) string { return limitText(time.Duration(r.Limit * float64(time.Second))) }))
	add("TimelimitRaw", 12, job(func(r *row) string {
		if r.Limit == 0 {
			return "UNLIMITED"
		}
		return strconv.Itoa(int(r.Limit+59) / 60)
	}))
	add("WorkDir", 20, job(func(r *row) string { return r.Dir }))
	add("Comment", 14, job(func(r *row) string { return r.Comment }))
	add("Cluster", 10, text(func(r *row) string { return clusterName }))
	add("QOS", 10, job(func(r *row) string { return r.QOS }))
	add("Reason", 22, job(func(r *row) string { return r.reason }))
	add("Priority", 10, job(func(r *row) string { return strconv.Itoa(r.Priority) }))
	add("AllocTRES", 10, tres)
	add("ReqTRES", 10, tres)
	add("Reserved", 10, job(func(r *row) string { return elapsed(max(0, r.started.Sub(r.Submitted))) }))
	add("Planned", 10, m["reserved"].value)
	add("Suspended", 10, text(func(r *row) string { return "00:00:00" }))
	add("SubmitLine", 20, job(func(r *row) string { return "sbatch " + r.Command }))
	return m
})

// chosen is a column of an answer.
type chosen struct {
	*field
	width int // negative: to the left
}

func parseFields(list string) ([]chosen, error) {
	var all []chosen
	for _, text := range strings.Split(list, ",") {
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		name, width, has := strings.Cut(text, "%")
		f := sacctFields()[strings.ToLower(name)]
		if f == nil {
			return nil, &optionError{fmt.Sprintf("Invalid field requested: %q", name), "sacct --helpformat lists those that premix has"}
		}
		c := chosen{f, f.width}
		if has {
			n, err := strconv.Atoi(width)
			if err != nil || n == 0 {
				return nil, &optionError{fmt.Sprintf("bad width in %q", text), "write it as in jobname%30"}
			}
			c.width = n
		}
		all = append(all, c)
	}
	return all, nil
}

func (w *worker) sacct(args []string) (string, error) {
	list, rest, err := parseOptions(sacctOptions, args, false)
	if err != nil {
		return "", err
	}
	if len(rest) > 0 {
		return "", &optionError{fmt.Sprintf("unexpected argument %q", rest[0]), "jobs are named with -j"}
	}
	var f filter
	var from, to time.Time
	header, steps, parsable, format, delimiter := true, true, 0, sacctFormat, "|"
	batchOnly := make(map[int]bool)
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, g := range list {
		if g.use == refused {
			return "", &optionError{fmt.Sprintf("option '--%s' is not one that premix answers", g.name), "ask with --format and --parsable2"}
		}
		switch g.name {
		case "jobs":
			for _, text := range splitJobs(g.value) {
				if id, step, has := strings.Cut(text, "."); has {
					if step != "batch" {
						continue // no other steps exist
					}
					jobs, err := w.selected(id)
					if err != nil {
						return "", err
					}
					for _, j := range jobs {
						batchOnly[j.id] = true
					}
				}
			}
			err = w.pick(&f, withoutSteps(g.value))
		case "noheader":
			header = false
		case "allocations":
			steps = false
		case "parsable2":
			parsable = 2
		case "parsable":
			parsable = 1
		case "delimiter":
			delimiter = g.value
		case "format":
			format = g.value
		case "brief":
			format = sacctBrief
		case "long":
			format = sacctLong
		case "name":
			f.names = strings.Split(g.value, ",")
		case "user", "uid":
			f.users(g.value)
		case "state":
			f.states, err = parseStates(g.value)
		case "starttime":
			from, err = parseMoment(g.value, now)
		case "endtime":
			to, err = parseMoment(g.value, now)
		case "partition":
			f.partitions = strings.Split(g.value, ",")
		case "accounts", "account":
			f.accounts = strings.Split(g.value, ",")
		case "qos":
			f.qoss = strings.Split(g.value, ",")
		case "units":
			if g.value != "M" && g.value != "K" {
				return "", &optionError{"premix tells sizes in the unit that keeps them whole", "leave --units out"}
			}
		case "helpformat":
			var names []string
			for _, f := range sacctFields() {
				names = append(names, f.title)
			}
			return strings.Join(sorted(names), "\n") + "\n", nil
		}
		if err != nil {
			return "", err
		}
	}
	if f.jobs == nil && from.IsZero() {
		from = time.Date(now.Year(), now.Month(), now.Day(), 0, 0, 0, 0, now.Location())
	}
	columns, err := parseFields(format)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	line := func(value func(c *chosen) string) {
		for i := range columns {
			c := &columns[i]
			v := value(c)
			switch {
			case parsable > 0:
				b.WriteString(v)
				if i+1 < len(columns) || parsable == 1 {
					b.WriteString(delimiter)
				}
			default:
				width := max(c.width, -c.width)
				if r := []rune(v); len(r) > width {
					v = string(r[:width-1]) + "+"
				}
				fmt.Fprintf(&b, "%*s ", c.width, v)
			}
		}
		b.WriteByte('\n')
	}
	if header {
		line(func(c *chosen) string { return c.title })
		if parsable == 0 {
			line(func(c *chosen) string { return strings.Repeat("-", max(c.width, -c.width)) })
		}
	}
	running := w.running()
	for _, j := range w.jobs {
		if f.jobs != nil && !f.jobs[j.id] && !batchOnly[j.id] {
			continue
		}
		st := w.status(j, running)
		if !from.IsZero() && st.over() && st.ended.Before(from) || !to.IsZero() && j.Submitted.After(to) {
			continue
		}
		r := row{j, st}
		if f.match(j, &st) && (f.jobs == nil || f.jobs[j.id]) {
			line(func(c *chosen) string { return c.value(&r, false) })
		}
		if !st.started.IsZero() && (batchOnly[j.id] || steps && f.match(j, &st)) {
			line(func(c *chosen) string { return c.value(&r, true) })
		}
	}
	return b.String(), nil
}

// withoutSteps returns a list without the entries that name steps.
func withoutSteps(list string) string {
	var all []string
	for _, text := range splitJobs(list) {
		if !strings.Contains(text, ".") {
			all = append(all, text)
		}
	}
	return strings.Join(all, ",")
}
