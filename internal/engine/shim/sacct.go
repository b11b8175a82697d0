package shim

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"premix/internal/kit/hostlist"
)

const (
	sacctFormat = "jobid,jobname,partition,account,alloccpus,state,exitcode"
	sacctBrief  = "jobid,state,exitcode"
	sacctLong   = "jobid,jobidraw,jobname,partition,maxvmsize,maxvmsizenode,maxvmsizetask,avevmsize,maxrss,maxrssnode,maxrsstask,averss,maxpages,maxpagesnode,maxpagestask,avepages," +
		"mincpu,mincpunode,mincputask,avecpu,ntasks,alloccpus,elapsed,state,exitcode,avecpufreq,reqcpufreqmin,reqcpufreqmax,reqcpufreqgov,reqmem,consumedenergy," +
		"maxdiskread,maxdiskreadnode,maxdiskreadtask,avediskread,maxdiskwrite,maxdiskwritenode,maxdiskwritetask,avediskwrite,reqtres,alloctres," +
		"tresusageinave,tresusageinmax,tresusageinmaxnode,tresusageinmaxtask,tresusageinmin,tresusageinminnode,tresusageinmintask,tresusageintot," +
		"tresusageoutmax,tresusageoutmaxnode,tresusageoutmaxtask,tresusageoutave,tresusageouttot"
)

// account is a line of sacct: a job, its batch step, or a step of srun.
type account struct {
	*row
	batch bool
	step  *step
}

// isJob reports whether the line is of the job itself.
func (a *account) isJob() bool { return !a.batch && a.step == nil }

// used returns the time, CPU seconds and memory of the line, and whether the latter are known.
func (a *account) used() (took time.Duration, user, system float64, rss int64, known bool) {
	if a.step != nil {
		return a.step.took(), a.step.User, a.step.System, a.step.MaxRSS, a.step.over()
	}
	if a.rec == nil {
		return a.took(), 0, 0, 0, false
	}
	return a.took(), a.rec.User, a.rec.System, a.rec.MaxRSS, true
}

// stateName returns the state of the line.
func (a *account) stateName() string {
	switch s := a.step; {
	case s == nil && a.state == cancelled && a.isJob():
		return "CANCELLED by " + strconv.Itoa(os.Getuid())
	case s == nil:
		return a.state.name
	case !s.over():
		return running.name
	case s.Signal != 0:
		return cancelled.name
	case s.Exit != 0:
		return failed.name
	}
	return completed.name
}

// acctField is a field of sacct: its title, the width it has if none is asked for, and its
// value.
type acctField struct {
	title string
	width int
	value func(a *account) string
}

// sacctFields are by lower-case name, with the titles and widths of Slurm 22.05.
var sacctFields = sync.OnceValue(func() map[string]*acctField {
	m := make(map[string]*acctField)
	add := func(title string, width int, f func(*account) string) {
		m[strings.ToLower(title)] = &acctField{title, width, f}
	}
	job := func(title string, width int, f func(a *account) string) { // empty for a step
		add(title, width, func(a *account) string {
			if !a.isJob() {
				return ""
			}
			return f(a)
		})
	}
	stepped := func(title string, width int, f func(a *account) string) { // empty for a job
		add(title, width, func(a *account) string {
			if a.isJob() {
				return ""
			}
			return f(a)
		})
	}
	number := func(n int) string { return strconv.Itoa(n) }
	suffix := func(a *account) string {
		switch {
		case a.step != nil:
			return "." + a.step.ID
		case a.batch:
			return ".batch"
		}
		return ""
	}
	add("JobID", -12, func(a *account) string { return a.shown() + suffix(a) })
	add("JobIDRaw", -12, func(a *account) string { return number(a.id) + suffix(a) })
	add("JobName", 10, func(a *account) string {
		switch {
		case a.step != nil:
			return a.step.Name
		case a.batch:
			return "batch"
		}
		return a.Name
	})
	add("State", 10, (*account).stateName)
	add("ExitCode", 8, func(a *account) string {
		if a.step != nil {
			return fmt.Sprintf("%d:%d", a.step.Exit, a.step.Signal)
		}
		return fmt.Sprintf("%d:%d", a.exit, a.signal)
	})
	job("DerivedExitCode", 15, func(a *account) string { return "0:0" })
	cores := func(a *account) int {
		if a.step != nil {
			return a.step.Cores
		}
		return a.Cores
	}
	allocated := func(a *account) string {
		if a.started.IsZero() {
			return "0"
		}
		return number(cores(a))
	}
	seconds := func(a *account) int { took, _, _, _, _ := a.used(); return int(took.Seconds()) }
	spent := func(a *account) (user, system float64) { _, user, system, _, _ = a.used(); return user, system }
	add("Elapsed", 10, func(a *account) string { return elapsed(time.Duration(seconds(a)) * time.Second) })
	add("ElapsedRaw", 10, func(a *account) string { return number(seconds(a)) })
	add("CPUTime", 10, func(a *account) string { return elapsed(time.Duration(seconds(a)*cores(a)) * time.Second) })
	add("CPUTimeRAW", 10, func(a *account) string { return number(seconds(a) * cores(a)) })
	add("TotalCPU", 10, func(a *account) string { u, s := spent(a); return cpuTime(u + s) })
	add("UserCPU", 10, func(a *account) string { u, _ := spent(a); return cpuTime(u) })
	add("SystemCPU", 10, func(a *account) string { _, s := spent(a); return cpuTime(s) })
	mean := func(a *account) string {
		u, s := spent(a)
		return elapsed(time.Duration((u + s) * float64(time.Second)))
	}
	stepped("AveCPU", 10, mean)
	stepped("MinCPU", 10, mean)
	started := func(a *account) time.Time {
		if a.step != nil {
			return a.step.Started
		}
		return a.started
	}
	add("Start", 19, func(a *account) string { return clock(started(a)) })
	add("End", 19, func(a *account) string {
		if a.step != nil {
			return clock(a.step.Finished)
		}
		return clock(a.finished)
	})
	add("Submit", 19, func(a *account) string {
		if !a.isJob() {
			return clock(started(a))
		}
		return clock(a.Submitted)
	})
	job("Eligible", 19, func(a *account) string { return clock(a.Submitted) })
	waited := func(a *account) string { return elapsed(a.waited()) }
	job("Reserved", 10, waited)
	job("Planned", 10, waited)
	job("ResvCPU", 10, func(a *account) string { return elapsed(a.waited() * time.Duration(a.Cores)) })
	job("ResvCPURAW", 10, func(a *account) string { return number(int(a.waited().Seconds()) * a.Cores) })
	add("Suspended", 10, func(*account) string { return "00:00:00" })
	job("Partition", 10, func(a *account) string { return a.Partition })
	add("Account", 10, func(a *account) string { return a.Account })
	add("AssocID", 7, func(*account) string { return "0" })
	job("User", 9, func(*account) string { return userName() })
	job("UID", 6, func(*account) string { return number(os.Getuid()) })
	job("Group", 9, func(*account) string { return groupName() })
	job("GID", 6, func(*account) string { return number(os.Getgid()) })
	add("NCPUS", 10, allocated)
	add("AllocCPUS", 10, allocated)
	add("ReqCPUS", 8, func(a *account) string { return number(cores(a)) })
	add("NNodes", 8, func(*account) string { return "1" })
	add("AllocNodes", 10, func(*account) string { return "1" })
	job("ReqNodes", 8, func(*account) string { return "1" })
	stepped("NTasks", 8, func(a *account) string {
		if a.step != nil {
			return number(a.step.Tasks)
		}
		return "1"
	})
	add("NodeList", 15, func(a *account) string {
		if a.started.IsZero() {
			return "None assigned"
		}
		return nodeName()
	})
	size := func(a *account) string {
		_, _, _, rss, known := a.used()
		if !known {
			return ""
		}
		return fmt.Sprintf("%dK", rss>>10)
	}
	stepped("MaxRSS", 10, size)
	stepped("AveRSS", 10, size)
	disk := func(read bool) func(*account) string {
		return func(a *account) string {
			if a.rec == nil || a.step != nil {
				return ""
			}
			n := a.rec.WriteBytes
			if read {
				n = a.rec.ReadBytes
			}
			return fmt.Sprintf("%.2fM", float64(n)/(1<<20))
		}
	}
	stepped("MaxDiskRead", 12, disk(true))
	stepped("MaxDiskWrite", 12, disk(false))
	stepped("AveDiskRead", 14, disk(true))
	stepped("AveDiskWrite", 14, disk(false))
	for _, f := range []struct {
		title string
		width int
		node  bool
	}{{"MaxRSS", 10, true}, {"MaxDiskRead", 15, true}, {"MaxDiskWrite", 16, true}, {"MinCPU", 10, true}} {
		value := m[strings.ToLower(f.title)].value
		where := func(text string) func(*account) string {
			return func(a *account) string {
				if value(a) == "" {
					return ""
				}
				return text
			}
		}
		add(f.title+"Node", f.width, func(a *account) string { return where(nodeName())(a) })
		add(f.title+"Task", f.width, where("0"))
	}
	job("ReqMem", 10, func(a *account) string { return a.memory() })
	tres := func(a *account) string { return a.tres() }
	job("AllocTRES", 10, tres)
	job("ReqTRES", 10, tres)
	job("Timelimit", 10, func(a *account) string { return limitText(a.limit()) })
	job("TimelimitRaw", 10, func(a *account) string {
		if a.Limit == 0 {
			return "UNLIMITED"
		}
		return number(int(a.Limit+59) / 60)
	})
	job("WorkDir", 20, func(a *account) string { return a.Dir })
	job("Comment", 14, func(a *account) string { return a.Comment })
	add("Cluster", 10, func(*account) string { return clusterName })
	job("QOS", 10, func(a *account) string { return a.QOS })
	job("QOSRAW", 6, func(*account) string { return "1" })
	job("Reason", 22, func(a *account) string { return a.reason })
	job("Priority", 10, func(a *account) string { return number(a.job.Priority) })
	job("SubmitLine", 20, func(a *account) string { return a.line() })
	stepped("Layout", 9, func(*account) string { return "Unknown" })
	stepped("ReqCPUFreq", 10, func(*account) string { return "0" })
	// Quantities that premix does not measure are empty, as in a Slurm without the plugin.
	for name, width := range map[string]int{"AdminComment": 15, "AveCPUFreq": 10, "AvePages": 10, "AveVMSize": 10, "BlockID": 16, "Constraints": 19, "ConsumedEnergy": 14, "ConsumedEnergyRaw": 17,
		"Container": 19, "DBIndex": 10, "Flags": 19, "MaxPages": 8, "MaxPagesNode": 12, "MaxPagesTask": 14, "MaxVMSize": 10, "MaxVMSizeNode": 14, "MaxVMSizeTask": 14, "McsLabel": 12,
		"ReqCPUFreqGov": 13, "ReqCPUFreqMax": 13, "ReqCPUFreqMin": 13, "Reservation": 20, "ReservationId": 8, "SystemComment": 15,
		"TRESUsageInAve": 14, "TRESUsageInMax": 14, "TRESUsageInMaxNode": 18, "TRESUsageInMaxTask": 18, "TRESUsageInMin": 14, "TRESUsageInMinNode": 18, "TRESUsageInMinTask": 18, "TRESUsageInTot": 14,
		"TRESUsageOutAve": 15, "TRESUsageOutMax": 15, "TRESUsageOutMaxNode": 19, "TRESUsageOutMaxTask": 19, "TRESUsageOutMin": 15, "TRESUsageOutMinNode": 19, "TRESUsageOutMinTask": 19, "TRESUsageOutTot": 15,
		"WCKey": 10, "WCKeyID": 10} {
		add(name, width, func(*account) string { return "" })
	}
	return m
})

// sstatFields are the fields of sstat.
var sstatFields = strings.Split("jobid,maxvmsize,maxvmsizenode,maxvmsizetask,avevmsize,maxrss,maxrssnode,maxrsstask,averss,maxpages,maxpagesnode,maxpagestask,avepages,mincpu,mincpunode,mincputask,avecpu,ntasks,avecpufreq,reqcpufreqmin,reqcpufreqmax,reqcpufreqgov,consumedenergy,maxdiskread,maxdiskreadnode,maxdiskreadtask,avediskread,maxdiskwrite,maxdiskwritenode,maxdiskwritetask,avediskwrite,tresusageinave,tresusageinmax,tresusageinmaxnode,tresusageinmaxtask,tresusageinmin,tresusageinminnode,tresusageinmintask,tresusageintot,tresusageoutave,tresusageoutmax,tresusageoutmaxnode,tresusageoutmaxtask,tresusageoutmin,tresusageoutminnode,tresusageoutmintask,tresusageouttot", ",")

// cell is a column of a table of sacct and its relatives.
type cell struct {
	title string
	width int // negative: to the left
}

// printer writes a table as sacct, sstat, sshare and sacctmgr do.
type printer struct {
	cells     []cell
	parsable  int // 0: in columns; 1: with a delimiter behind each value; 2: between values
	delimiter string
	b         strings.Builder
}

// newPrinter returns the printer that the options ask for. It has the header, unless they
// say otherwise.
func newPrinter(a *arguments, cells []cell) *printer {
	p := &printer{cells: cells, delimiter: a.get("delimiter", "|")}
	switch {
	case a.has("parsable2"):
		p.parsable = 2
	case a.has("parsable"):
		p.parsable = 1
	}
	if a.has("noheader") {
		return p
	}
	titles, dashes := make([]string, len(cells)), make([]string, len(cells))
	for i, c := range cells {
		titles[i], dashes[i] = c.title, strings.Repeat("-", max(c.width, -c.width))
	}
	if p.parsable == 0 {
		for i, c := range cells {
			titles[i] = titles[i][:min(len(titles[i]), max(c.width, -c.width))]
		}
	}
	p.line(titles)
	if p.parsable == 0 {
		p.line(dashes)
	}
	return p
}

func (p *printer) line(values []string) {
	for i, v := range values {
		switch c := p.cells[i]; {
		case p.parsable > 0:
			p.b.WriteString(v)
			if i+1 < len(values) || p.parsable == 1 {
				p.b.WriteString(p.delimiter)
			}
		default:
			width := max(c.width, -c.width)
			if r := []rune(v); len(r) > width {
				v = string(r[:width-1]) + "+"
			}
			fmt.Fprintf(&p.b, "%*s ", c.width, v)
		}
	}
	p.b.WriteByte('\n')
}

// columnNames parses a list of fields as in jobid,jobname%30. known returns a field's title and
// width.
func columnNames(program, list string, known func(name string) (full string, c cell, ok bool)) (names []string, cells []cell, err error) {
	for text := range strings.SplitSeq(list, ",") {
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		name, width, has := strings.Cut(strings.ToLower(text), "%")
		full, c, ok := known(name)
		if !ok {
			return nil, nil, &optionError{fmt.Sprintf("Invalid field requested: %q", name), program + " --helpformat lists the fields that premix has"}
		}
		if has {
			n, err := strconv.Atoi(width)
			if err != nil || n == 0 || n > 1<<16 || n < -1<<16 {
				return nil, nil, &optionError{fmt.Sprintf("bad width in %q", text), "write it as in jobname%30"}
			}
			c.width = n
		}
		names, cells = append(names, full), append(cells, c)
	}
	return names, cells, nil
}

// helpFormat lists fields in columns, as sacct --helpformat does.
func helpFormat(names []string) string {
	var b strings.Builder
	for i, name := range names {
		fmt.Fprintf(&b, "%-19s ", name)
		if i%4 == 3 || i+1 == len(names) {
			b.WriteByte('\n')
		}
	}
	return b.String()
}

// acctCell returns the column of a field of sacct. As for Slurm, the beginning of a name stands for
// the first field that begins so.
func acctCell(name string) (full string, c cell, ok bool) {
	f := sacctFields()[name]
	if f == nil && name != "" {
		for _, full := range slices.Sorted(maps.Keys(sacctFields())) {
			if strings.HasPrefix(full, name) {
				name, f = full, sacctFields()[full]
				break
			}
		}
	}
	if f == nil {
		return "", cell{}, false
	}
	return name, cell{f.title, f.width}, true
}

// accounts picks the lines of sacct. The caller holds mu.
func (w *worker) accounts(a *arguments) ([]account, error) {
	f, err := w.filter(a)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	var from, to time.Time
	if text, ok := a.value("starttime"); ok {
		from, err = parseMoment(text, now)
	} else if f.jobs == nil {
		from = time.Date(now.Year(), now.Month(), now.Day(), 0, 0, 0, 0, now.Location())
	}
	if text, ok := a.value("endtime"); ok && err == nil {
		to, err = parseMoment(text, now)
	}
	if err != nil {
		return nil, err
	}
	only, err := w.stepsNamed(a)
	if err != nil {
		return nil, err
	}
	var list []account
	running := w.running()
	for j := range w.jobs() {
		if f.jobs != nil && !f.jobs[j.id] && only[j.id] == nil {
			continue
		}
		st := w.status(j, running)
		if !from.IsZero() && st.over() && st.finished.Before(from) || !to.IsZero() && j.Submitted.After(to) {
			continue
		}
		r := &row{job: j, status: st}
		match := f.match(j, &st)
		if match {
			list = append(list, account{row: r})
		}
		if st.started.IsZero() || !match && only[j.id] == nil || a.has("allocations") && only[j.id] == nil {
			continue
		}
		wanted := func(id string) bool { return match && !a.has("allocations") || slices.Contains(only[j.id], id) }
		if wanted("batch") && !j.Allocated {
			list = append(list, account{row: r, batch: true})
		}
		for _, s := range w.steps.of(r) {
			if wanted(s.ID) {
				list = append(list, account{row: r, step: s})
			}
		}
	}
	return list, nil
}

// stepsNamed returns the steps that --jobs names, as in 12.batch or 12.0, by job. The caller
// holds mu.
func (w *worker) stepsNamed(a *arguments) (map[int][]string, error) {
	only := make(map[int][]string)
	for _, text := range hostlist.Split(a.get("jobs", "")) {
		id, step, has := strings.Cut(text, ".")
		if !has {
			continue
		}
		jobs, err := w.selected(id)
		if err != nil {
			return nil, err
		}
		for _, j := range jobs {
			only[j.id] = append(only[j.id], step)
		}
	}
	return only, nil
}

func (w *worker) sacct(args []string) (string, error) {
	a, err := parse("sacct", sacctOptions(), args, false)
	if err == nil {
		err = a.none("jobs are named with -j")
	}
	if err != nil {
		return "", err
	}
	if u, ok := a.value("units"); ok && u != "M" && u != "K" {
		return "", &optionError{"premix shows sizes in the unit that keeps them whole", "leave --units out"}
	}
	if a.has("helpformat") {
		var names []string
		for _, f := range sacctFields() {
			names = append(names, f.title)
		}
		slices.SortFunc(names, func(a, b string) int { return strings.Compare(strings.ToLower(a), strings.ToLower(b)) })
		return helpFormat(names), nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	list, err := w.accounts(a)
	switch {
	case err != nil:
		return "", err
	case a.has("batch-script", "env-vars"):
		return w.submitted(a, list)
	case a.has("json", "yaml"):
		return document(a, "jobs", w.sacctJSON(list))
	}
	format := sacctFormat
	switch {
	case a.has("format"):
		format = a.get("format", "")
	case a.has("brief"):
		format = sacctBrief
	case a.has("long"):
		format = sacctLong
	}
	return acctTable(a, "sacct", format, list)
}

// acctTable prints lines of sacct or sstat.
func acctTable(a *arguments, program, format string, list []account) (string, error) {
	names, cells, err := columnNames(program, format, acctCell)
	if err != nil {
		return "", err
	}
	p := newPrinter(a, cells)
	values := make([]string, len(names))
	for i := range list {
		for k, name := range names {
			values[k] = sacctFields()[name].value(&list[i])
		}
		p.line(values)
	}
	return p.b.String(), nil
}

// submitted prints the scripts or the environments of jobs. The caller holds mu.
func (w *worker) submitted(a *arguments, list []account) (string, error) {
	if !a.has("jobs") {
		return "", &optionError{"Options --batch-script and --env-vars need jobs", "name them with -j"}
	}
	var b strings.Builder
	for i := range list {
		if !list[i].isJob() {
			continue
		}
		spec, err := w.q.Spec(list[i].id)
		if err != nil {
			return "", err
		}
		if a.has("batch-script") {
			fmt.Fprintf(&b, "Batch Script for %d\n%s\n%s", list[i].id, strings.Repeat("-", 80), scriptOf(spec))
		} else {
			fmt.Fprintf(&b, "Environment used for %d (must be batch to display)\n%s\n", list[i].id, strings.Repeat("-", 80))
			for _, name := range sortedKeys(spec.Env) {
				fmt.Fprintf(&b, "%s=%s\n", name, spec.Env[name])
			}
		}
		b.WriteByte('\n')
	}
	return b.String(), nil
}

// sstat shows the steps that run.
func (w *worker) sstat(args []string) (string, error) {
	a, err := parse("sstat", sstatOptions(), args, false)
	if err != nil {
		return "", err
	}
	if a.has("helpformat") {
		var names []string
		for _, name := range sstatFields {
			names = append(names, sacctFields()[name].title)
		}
		return helpFormat(names), nil
	}
	jobs := a.get("jobs", strings.Join(a.rest, ","))
	if jobs == "" {
		return "", &optionError{"You didn't give me any jobs to stat.", "name them with -j"}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	tasks := w.running()
	var list []account
	for _, text := range hostlist.Split(jobs) {
		_, name, _ := strings.Cut(text, ".")
		selected, err := w.selected(text)
		if err != nil {
			return "", err
		}
		if len(selected) == 0 {
			return "", &optionError{fmt.Sprintf("couldn't get steps for job %s", text), "squeue lists the jobs"}
		}
		for _, j := range selected {
			st := w.status(j, tasks)
			if st.state != running && st.state != suspended {
				return "", &optionError{fmt.Sprintf("couldn't get steps for job %s", text), "sstat shows jobs that run, and sacct shows jobs that have ended"}
			}
			r := &row{job: j, status: st}
			for _, s := range w.steps.of(r) {
				if !s.over() && (name == "" && !a.has("allsteps") || name == s.ID || a.has("allsteps")) {
					list = append(list, account{row: r, step: s})
				}
			}
			if name == "batch" || a.has("allsteps") || len(list) == 0 {
				list = append(list, account{row: r, batch: true})
			}
		}
	}
	return acctTable(a, "sstat", a.get("format", a.get("fields", strings.Join(sstatFields, ","))), list)
}

// withoutSteps returns a list without the entries that name steps.
func withoutSteps(list string) string {
	var all []string
	for _, text := range hostlist.Split(list) {
		if !strings.Contains(text, ".") {
			all = append(all, text)
		}
	}
	return strings.Join(all, ",")
}
