package shim

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/engine/queue"
	"premix/internal/kit/hostlist"
)

// scancel ends jobs, or signals running jobs.
func (w *worker) scancel(args []string) response {
	a, err := parse("scancel", scancelOptions(), args, false)
	if err != nil {
		return fail("scancel", 1, err)
	}
	if len(a.rest) == 0 && !a.has("user", "name", "jobname", "state", "partition", "account", "qos", "nodelist", "me") {
		return fail("scancel", 1, &optionError{"No job identification provided", "name jobs, or pick them with --user, --name or --state"})
	}
	var sig syscall.Signal
	if text, ok := a.value("signal"); ok {
		if sig, err = parseSignal(text); err != nil {
			return fail("scancel", 1, err)
		}
	}
	answer := response{Format: wireFormat}
	w.mu.Lock()
	defer w.mu.Unlock()
	f, err := w.filter(a)
	if err != nil {
		return fail("scancel", 1, err)
	}
	if len(a.rest) > 0 {
		f.jobs = w.toCancel(a, &answer)
	}
	running := w.running()
	var list []*job
	for j := range w.jobs() {
		st := w.status(j, running)
		if st.over() || !f.match(j, &st) {
			continue
		}
		if sig != 0 && sig != syscall.SIGKILL {
			if err := w.signalJob(j, &st, sig, a.has("batch"), a.has("full")); err != nil {
				return fail("scancel", 1, err)
			}
			continue
		}
		list = append(list, j)
		if sig == syscall.SIGKILL && st.pid > 0 {
			_ = unix.Kill(-st.pid, sig)
		}
		if st.state == suspended && st.pid > 0 {
			_ = unix.Kill(-st.pid, unix.SIGCONT)
		}
	}
	if len(list) > 0 {
		if _, err := w.q.Cancel(selection(list)); err != nil {
			return fail("scancel", 1, err)
		}
		w.stir()
	}
	return answer
}

// toCancel returns the jobs that scancel names. The answer says which do not exist.
func (w *worker) toCancel(a *arguments, answer *response) map[int]bool {
	named := make(map[int]bool)
	for _, text := range hostlist.Split(strings.Join(a.rest, ",")) {
		jobs, err := w.selected(text)
		if err == nil && len(jobs) == 0 {
			err = &optionError{fmt.Sprintf("Kill job error on job id %s: Invalid job id specified", text), ""}
		}
		if err != nil {
			answer.Exit = 1
			if !a.has("quiet") {
				answer.Stderr = append(answer.Stderr, fail("scancel", 1, err).Stderr...)
			}
			continue
		}
		for _, j := range jobs {
			named[j.id] = true
		}
	}
	return named
}

// selection returns the tasks of jobs.
func selection(jobs []*job) *queue.Selection {
	var s queue.Selection
	if len(jobs) == 0 {
		s.Tasks = [][2]int{{1, 0}} // none, where no range is all tasks
	}
	for _, j := range jobs {
		if n := len(s.Tasks); n > 0 && s.Tasks[n-1][1] == j.id-1 {
			s.Tasks[n-1][1] = j.id
		} else {
			s.Tasks = append(s.Tasks, [2]int{j.id, j.id})
		}
	}
	return &s
}

// signalJob sends a signal to a running job: to its steps if it has some that run, as Slurm
// does, else to all its processes; batch means its script alone, and full both.
func (w *worker) signalJob(j *job, st *status, sig syscall.Signal, batch, full bool) error {
	switch {
	case w.behind != nil:
		return &optionError{"jobs on nodes are not signalled", "scancel without --signal ends them"}
	case st.pid <= 0:
		return nil
	case batch:
		_ = unix.Kill(st.pid, sig) // it may have ended, here and below
	case full || !w.steps.signal(j.id, sig):
		_ = unix.Kill(-st.pid, sig)
	}
	return nil
}

func (w *worker) scontrol(args []string) (string, error) {
	a, err := parse("scontrol", scontrolOptions(), args, false)
	if err != nil {
		return "", err
	}
	const verbs = "premix has show, hold, release, update, suspend, resume, requeue, requeuehold, write batch_script, ping and version"
	if len(a.rest) == 0 {
		return "", &optionError{"no command is given", verbs}
	}
	verb, rest := strings.ToLower(a.rest[0]), a.rest[1:]
	w.mu.Lock()
	defer w.mu.Unlock()
	switch verb {
	case "ping":
		return fmt.Sprintf("Slurmctld(primary) at %s is UP\n", nodeName()), nil
	case "version":
		return slurmVersion + "\n", nil
	case "hold", "uhold", "holdu", "release":
		return "", w.holdOrRelease(verb == "release", rest)
	case "suspend", "resume":
		return "", w.suspend(verb == "suspend", rest)
	case "requeue", "requeuehold":
		return "", w.requeue(verb == "requeuehold", rest)
	case "update":
		return "", w.update(rest)
	case "write":
		return w.writeScript(rest)
	case "show":
		return w.show(a, rest)
	}
	return "", &optionError{fmt.Sprintf("premix has no scontrol %s", verb), verbs}
}

// named returns the jobs of a command of scontrol: ids, and names of jobs. The caller holds mu.
func (w *worker) named(words []string) ([]*job, error) {
	var jobs []*job
	for _, word := range words {
		for _, text := range hostlist.Split(word) {
			if k, v, ok := strings.Cut(text, "="); ok && (strings.EqualFold(k, "jobid") || strings.EqualFold(k, "job") || strings.EqualFold(k, "name")) {
				text = v
			}
			list, err := w.selected(text)
			if err != nil {
				list = slices.DeleteFunc(slices.Collect(w.jobs()), func(j *job) bool { return j.Name != text || w.q.State(j.id) != queue.Waiting })
			}
			if len(list) == 0 {
				return nil, &optionError{fmt.Sprintf("Invalid job id specified for job %s", text), "squeue lists the jobs"}
			}
			jobs = append(jobs, list...)
		}
	}
	if len(jobs) == 0 {
		return nil, &optionError{"no job is named", "name jobs by their ids"}
	}
	slices.SortFunc(jobs, func(a, b *job) int { return a.id - b.id })
	return slices.Compact(jobs), nil
}

// holdOrRelease holds or releases waiting jobs. The caller holds mu.
func (w *worker) holdOrRelease(release bool, names []string) error {
	jobs, err := w.named(names)
	if err != nil {
		return err
	}
	tasks := w.running()
	if len(jobs) > 0 && !slices.ContainsFunc(jobs, func(j *job) bool {
		st := w.status(j, tasks)
		return !st.over()
	}) {
		return &optionError{fmt.Sprintf("Job %d: Job has already finished", jobs[0].id), "squeue lists the jobs that wait or run"}
	}
	if release {
		w.setHeld(jobs, false) // release does the rest, if nothing else blocks them
		w.release(w.running(), true)
		return nil
	}
	return w.hold(jobs)
}

// hold holds the jobs that wait. The caller holds mu.
func (w *worker) hold(jobs []*job) error {
	if _, err := w.q.Hold(selection(jobs)); err != nil {
		return err
	}
	w.setHeld(slices.DeleteFunc(jobs, func(j *job) bool { return !w.q.Held(j.id) }), true)
	return nil
}

// setHeld notes that a user has held jobs, or released them. The caller holds mu.
func (w *worker) setHeld(jobs []*job, held bool) {
	count := make(map[*batch]int)
	for _, j := range jobs {
		count[w.batch(j.id)]++
	}
	for _, j := range jobs {
		b := w.batch(j.id)
		if j.userHeld = held; b.array != nil && count[b] < b.n || b.apart[j.id] {
			w.apart(j)
		}
	}
	for b, n := range count {
		if n == b.n {
			b.proto.userHeld = held
		}
		w.block(b)
	}
}

// suspend stops the processes of running jobs, or has them continue. The caller holds mu.
func (w *worker) suspend(stop bool, names []string) error {
	if w.behind != nil {
		return &optionError{"jobs on nodes are not suspended", "hold jobs that wait"}
	}
	jobs, err := w.named(names)
	if err != nil {
		return err
	}
	tasks := w.running()
	for _, j := range jobs {
		st := w.status(j, tasks)
		if st.pid <= 0 || st.state != running && st.state != suspended {
			return &optionError{fmt.Sprintf("Job %d: Requested operation is presently disabled", j.id), "a job that runs can be suspended, and a suspended job resumed"}
		}
		sig := unix.SIGCONT
		if stop {
			sig = unix.SIGSTOP
		}
		if err := unix.Kill(-st.pid, sig); err != nil && !errors.Is(err, unix.ESRCH) {
			return os.NewSyscallError("kill", err)
		}
		j.suspended = stop
	}
	return nil
}

// requeue ends running jobs and has them run again, and runs ended ones again. The caller
// holds mu.
func (w *worker) requeue(hold bool, names []string) error {
	if w.behind != nil {
		return &optionError{"jobs on nodes are not requeued", "scancel the job and submit it again"}
	}
	jobs, err := w.named(names)
	if err != nil {
		return err
	}
	tasks := w.running()
	for _, j := range jobs {
		if st := w.status(j, tasks); st.state == pending {
			return &optionError{fmt.Sprintf("Job %d: Job is pending execution", j.id), "it has not started yet"}
		}
		if w.q.State(j.id) == queue.Succeeded {
			return &optionError{fmt.Sprintf("Job %d: Job has already finished", j.id), "submit it again"}
		}
		if j.NoRequeue {
			return &optionError{fmt.Sprintf("Job %d: Requested operation is presently disabled", j.id), "the job was submitted with --no-requeue"}
		}
	}
	if _, err := w.q.Cancel(selection(jobs)); err != nil {
		return err
	}
	if hold { // now: they may start as soon as they are retried
		if _, err := w.q.HoldRetry(selection(jobs)); err != nil {
			return err
		}
	}
	for _, j := range jobs {
		// A worker that is killed before they run again leaves this to the next one.
		w.ownNote(j)
		j.Again, j.userHeld, j.suspended = true, hold, false
		if err := w.changes.put(j.id, j.jobMeta); err != nil {
			return err
		}
	}
	w.again = append(w.again, jobs...)
	w.stir()
	return nil
}

// ownNote gives a job properties that it shares with no other. The caller holds mu.
func (w *worker) ownNote(j *job) {
	n := *j.jobMeta
	j.jobMeta = &n
	w.apart(j)
}

// runAgain has requeued jobs run again as soon as their processes have ended. The caller holds
// mu.
func (w *worker) runAgain(tasks func(id int) bool) {
	var ready []*job
	w.again = slices.DeleteFunc(w.again, func(j *job) bool {
		if tasks(j.id) || w.q.State(j.id) == queue.Waiting {
			return false
		}
		ready = append(ready, j)
		return true
	})
	if len(ready) == 0 {
		return
	}
	// On an error, for example a full disk, the jobs stay cancelled.
	if _, err := w.q.Retry(selection(ready)); err != nil {
		return
	}
	for _, j := range ready {
		j.Again, j.last, j.running, j.noted = false, nil, time.Time{}, false
		_ = w.changes.put(j.id, j.jobMeta) // else it runs once more after the next start of a worker
	}
	w.setHeld(slices.DeleteFunc(ready, func(j *job) bool { return !w.q.Held(j.id) }), true)
	w.stir()
}

// update changes jobs: scontrol update JobId=12 Name=Value... The caller holds mu.
func (w *worker) update(words []string) error {
	var ids []string
	changes := make(map[string]string)
	for _, word := range words {
		name, value, ok := strings.Cut(word, "=")
		if !ok {
			return &optionError{fmt.Sprintf("Invalid input: %s", word), "write it as in JobId=12 Comment=text"}
		}
		switch name = strings.ToLower(name); name {
		case "jobid", "job", "jobname" /* as the first word */ :
			if len(ids) == 0 {
				ids = append(ids, value)
				continue
			}
			changes["name"] = value
		default:
			changes[name] = value
		}
	}
	jobs, err := w.named(ids)
	if err != nil {
		return err
	}
	notes := make(map[int]*jobMeta)
	for _, j := range jobs {
		n := *j.jobMeta
		if err := w.change(j, &n, changes); err != nil {
			return err
		}
		notes[j.id] = &n
	}
	if err := w.changes.putAll(notes); err != nil {
		return err
	}
	w.limits.Set(limitsOf(notes))
	for _, j := range jobs {
		j.jobMeta = notes[j.id]
		w.apart(j)
		if j.needs != nil {
			j.needs, _ = parseDependency(j.Needs) // it was when the change was checked
		}
		if b := w.batch(j.id); b.blocked {
			w.wakes.add(b, j)
		}
	}
	w.release(w.running(), true)
	return nil
}

// newLimit returns the time limit of a job that scontrol sets, or makes longer or shorter.
func (w *worker) newLimit(j *job, name, value string) (float64, error) {
	switch {
	case w.behind != nil:
		return 0, &optionError{fmt.Sprintf("Job %d: TimeLimit of a job that is packed is not changed", j.id), "cancel the job and submit it again with another -t"}
	case w.q.State(j.id) != queue.Waiting:
		return 0, &optionError{fmt.Sprintf("Job %d: Job has already finished", j.id), "TimeLimit is of a job that waits or runs"}
	}
	limit, err := parseTime(value)
	if err != nil || name == "timelimit" {
		return limit.Seconds(), err
	}
	if j.Limit == 0 {
		return 0, &optionError{fmt.Sprintf("Job %d has no time limit", j.id), "set one as in TimeLimit=60"}
	}
	sum := j.Limit + limit.Seconds()
	if name == "timelimit-" {
		sum = j.Limit - limit.Seconds()
	}
	if sum <= 0 || sum > longest.Seconds() {
		return 0, &optionError{fmt.Sprintf("Job %d: Requested time limit is invalid (missing or exceeds some limit)", j.id), "set one as in TimeLimit=60"}
	}
	return sum, nil
}

// change applies changes to the properties of a job.
func (w *worker) change(j *job, n *jobMeta, changes map[string]string) error {
	waits := w.q.State(j.id) == queue.Waiting && w.q.Held(j.id)
	for name, value := range changes {
		var err error
		switch name {
		case "name":
			n.Name = value
		case "comment":
			n.Comment = value
		case "account":
			n.Account = value
		case "partition":
			n.Partition = value
		case "qos":
			n.QOS = value
		case "timelimit", "timelimit+", "timelimit-":
			n.Limit, err = w.newLimit(j, name, value)
		case "arraytaskthrottle":
			if n.Width == 0 {
				return &optionError{fmt.Sprintf("Job %d: ArrayTaskThrottle is of an array that was submitted with a limit", j.id), "submit it as in -a 1-100%10"}
			}
			n.Width, err = strconv.Atoi(value)
			if err == nil && n.Width < 1 {
				n.Width = 1 << 30 // 0 is no limit
			}
		case "starttime":
			if !waits {
				return &optionError{fmt.Sprintf("Job %d: Requested operation is presently disabled", j.id), "StartTime is of a job that was submitted with --begin and waits"}
			}
			n.Begin, err = parseMoment(value, time.Now())
		case "dependency":
			if !waits || n.Needs == "" {
				return &optionError{fmt.Sprintf("Job %d: Requested operation is presently disabled", j.id), "Dependency is of a job that was submitted with one and waits"}
			}
			var d *dependency
			if d, err = parseDependency(value); err == nil {
				err = w.exist(d)
			}
			n.Needs = value
		default:
			return &optionError{fmt.Sprintf("premix does not change %s of a job", name), "it changes Name, Comment, Account, Partition, QOS, TimeLimit, ArrayTaskThrottle, StartTime and Dependency; cancel the job and submit it again"}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// writeScript answers scontrol write batch_script JOB [FILE]; - is standard output. The client
// writes the file.
func (w *worker) writeScript(words []string) (string, error) {
	if len(words) < 2 || !strings.EqualFold(words[0], "batch_script") {
		return "", &optionError{"premix writes batch_script alone", "scontrol write batch_script JOB -"}
	}
	jobs, err := w.named(words[1:2])
	if err != nil {
		return "", err
	}
	spec, err := w.q.Spec(jobs[0].id)
	if err != nil {
		return "", err
	}
	return scriptOf(spec), nil
}

// show answers scontrol show. The caller holds mu.
func (w *worker) show(a *arguments, rest []string) (string, error) {
	const entities = "it shows job, step, partition, node, config, hostnames and hostlist"
	if len(rest) == 0 {
		return "", &optionError{"no entity is named", entities}
	}
	entity, name, _ := strings.Cut(rest[0], "=")
	entity = strings.ToLower(entity)
	if name == "" && len(rest) > 1 {
		name = rest[1]
	}
	one := a.has("oneliner")
	if a.has("json", "yaml") {
		return w.showDocument(a, entity, name)
	}
	switch {
	case entity == "":
	case strings.HasPrefix("jobs", entity):
		return w.showJobs(a, name, one)
	case strings.HasPrefix("steps", entity):
		return w.showSteps(name, one)
	case strings.HasPrefix("partitions", entity):
		return w.showPartition(one), nil
	case strings.HasPrefix("nodes", entity):
		return w.showNode(one), nil
	case strings.HasPrefix("configuration", entity):
		return w.showConfig(), nil
	case strings.HasPrefix("hostnames", entity), strings.HasPrefix("hostlistsorted", entity):
		return showHosts(entity, name)
	}
	return "", &optionError{fmt.Sprintf("premix does not show %q", rest[0]), entities}
}

// showDocument answers scontrol show with --json or --yaml. The caller holds mu.
func (w *worker) showDocument(a *arguments, entity, name string) (string, error) {
	switch {
	case entity == "":
	case strings.HasPrefix("jobs", entity):
		return w.showJobs(a, name, false)
	case strings.HasPrefix("nodes", entity):
		return document(a, "nodes", only(w.node().json()))
	case strings.HasPrefix("partitions", entity):
		return document(a, "partitions", only(w.partitionJSON()))
	}
	return "", &optionError{fmt.Sprintf("scontrol show %s has no --json and no --yaml", entity), "jobs, nodes and partitions have them; sacct --json has the steps of each job"}
}

// showHosts answers scontrol show hostnames, hostlist and hostlistsorted.
func showHosts(entity, list string) (string, error) {
	if list == "" {
		list = nodeName()
	}
	names, err := hostsIn(list)
	if err != nil {
		return "", err
	}
	if strings.HasPrefix("hostnames", entity) {
		return strings.Join(names, "\n") + "\n", nil
	}
	return joined(names, entity == "hostlistsorted") + "\n", nil
}

// pairs joins lines of NAME=VALUE, into one line if one is true.
func pairs(one bool, lines ...string) string {
	if one {
		return strings.Join(lines, " ") + " \n"
	}
	return strings.Join(lines, "\n   ") + "\n\n"
}

func (w *worker) showJobs(a *arguments, name string, one bool) (string, error) {
	f := &filter{}
	if name != "" {
		if err := w.pick(f, name); err != nil {
			return "", err
		}
		if len(f.jobs) == 0 {
			return "", &optionError{"slurm_load_jobs error: Invalid job id specified", "sacct shows jobs that ended long ago"}
		}
	}
	if a.has("json", "yaml") {
		return document(a, "jobs", w.squeueJSON(w.rows(f, true)))
	}
	var b strings.Builder
	tasks := w.running()
	for j := range w.jobs() {
		st := w.status(j, tasks)
		if f.jobs != nil && !f.jobs[j.id] || f.jobs == nil && st.over() && time.Since(st.finished) > minJobAge {
			continue
		}
		b.WriteString(pairs(one, jobLines(&row{job: j, status: st})...))
	}
	return b.String(), nil
}

// jobLines are the lines of scontrol show job.
func jobLines(r *row) []string {
	id := fmt.Sprintf("JobId=%d", r.id)
	if r.Array > 0 {
		id += fmt.Sprintf(" ArrayJobId=%d ArrayTaskId=%d", r.array(), r.Index)
		if r.Width > 0 {
			id += fmt.Sprintf(" ArrayTaskThrottle=%d", r.Width)
		}
	}
	node := r.node()
	return []string{
		fmt.Sprintf("%s JobName=%s", id, r.Name),
		fmt.Sprintf("UserId=%s(%d) GroupId=%s(%d) MCS_label=N/A", userName(), os.Getuid(), groupName(), os.Getgid()),
		fmt.Sprintf("Priority=%d Nice=%d Account=%s QOS=%s", r.Priority, max(0, -r.Priority), orNull(r.Account), r.QOS),
		fmt.Sprintf("JobState=%s Reason=%s Dependency=%s", r.state.name, r.reason, orNull(r.Needs)),
		fmt.Sprintf("Requeue=%d Restarts=0 BatchFlag=%d Reboot=0 ExitCode=%d:%d", boolInt(!r.NoRequeue), boolInt(!r.Allocated), r.exit, r.signal),
		fmt.Sprintf("RunTime=%s TimeLimit=%s TimeMin=N/A", elapsed(r.took()), limitText(r.limit())),
		fmt.Sprintf("SubmitTime=%s EligibleTime=%s", clock(r.Submitted), clock(r.Submitted)),
		"AccrueTime=" + clock(r.Submitted),
		fmt.Sprintf("StartTime=%s EndTime=%s Deadline=N/A", clock(r.started), clock(r.end())),
		"SuspendTime=None SecsPreSuspend=0",
		fmt.Sprintf("Partition=%s AllocNode:Sid=%s:0", r.Partition, nodeName()),
		"ReqNodeList=(null) ExcNodeList=(null)",
		fmt.Sprintf("NodeList=%s", orNull(node)),
		fmt.Sprintf("BatchHost=%s", node),
		fmt.Sprintf("NumNodes=1 NumCPUs=%d NumTasks=%d CPUs/Task=%d ReqB:S:C:T=0:0:*:*", r.Cores, r.Ntasks, r.PerTask),
		"TRES=" + r.tres(),
		"TresPerNode=" + orNull(r.gresTexts("gres:", ":")),
		"Socks/Node=* NtasksPerN:B:S:C=0:0:*:* CoreSpec=*",
		fmt.Sprintf("MinCPUsNode=%d MinMemoryNode=%s MinTmpDiskNode=0", r.PerTask, r.memory()),
		"Features=(null) DelayBoot=00:00:00",
		"OverSubscribe=OK Contiguous=0 Licenses=(null) Network=(null)",
		"Command=" + orNull(r.Command),
		"WorkDir=" + r.Dir,
		"Comment=" + r.Comment,
		"StdErr=" + r.stderr(),
		"StdIn=/dev/null",
		"StdOut=" + r.stdout(),
	}
}

func (w *worker) showSteps(name string, one bool) (string, error) {
	f := &filter{states: map[state]bool{running: true, suspended: true}}
	if name != "" {
		if err := w.pick(f, name); err != nil {
			return "", err
		}
	}
	var b strings.Builder
	for _, r := range w.rows(f, true) {
		line := func(id, name string, started time.Time, cores, tasks int) {
			b.WriteString(pairs(one,
				fmt.Sprintf("StepId=%s.%s UserId=%d StartTime=%s TimeLimit=%s", r.display(), id, os.Getuid(), clock(started), limitText(r.limit())),
				fmt.Sprintf("State=RUNNING Partition=%s NodeList=%s", r.Partition, nodeName()),
				fmt.Sprintf("Nodes=1 CPUs=%d Tasks=%d Name=%s Network=(null)", cores, tasks, name)))
		}
		if !r.Allocated {
			line("batch", "batch", r.started, r.Cores, 1)
		}
		for _, s := range w.steps.of(&r) {
			if !s.over() {
				line(s.ID, s.Name, s.Started, s.Cores, s.Tasks)
			}
		}
	}
	return b.String(), nil
}

func (w *worker) showPartition(one bool) string {
	return pairs(one, "PartitionName="+defaultPartition, "AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL", "AllocNodes=ALL Default=YES QoS=N/A",
		"DefaultTime=NONE DisableRootJobs=NO ExclusiveUser=NO GraceTime=0 Hidden=NO", fmt.Sprintf("MaxNodes=1 MaxTime=UNLIMITED MinNodes=0 LLN=NO MaxCPUsPerNode=%d", w.cores), "Nodes="+nodeName(),
		"PriorityJobFactor=1 PriorityTier=1 RootOnly=NO ReqResv=NO OverSubscribe=NO", "OverTimeLimit=NONE PreemptMode=OFF", fmt.Sprintf("State=UP TotalCPUs=%d TotalNodes=1 SelectTypeParameters=NONE", w.cores),
		fmt.Sprintf("JobDefaults=(null) DefMemPerNode=UNLIMITED MaxMemPerNode=%d", w.memory>>20))
}

func (w *worker) showNode(one bool) string {
	used, memory := w.used()
	n := w.node()
	return pairs(one, fmt.Sprintf("NodeName=%s Arch=x86_64 CoresPerSocket=%d", nodeName(), w.cores), fmt.Sprintf("CPUAlloc=%d CPUTot=%d CPULoad=N/A", used, w.cores),
		fmt.Sprintf("RealMemory=%d AllocMem=%d FreeMem=N/A Sockets=1 Boards=1", w.memory>>20, memory>>20), fmt.Sprintf("State=%s ThreadsPerCore=1 Weight=1", strings.ToUpper(n.state)), fmt.Sprintf("Gres=%s GresUsed=%s", orNull(n.gres), orNull(n.usedGres)), "Partitions="+defaultPartition)
}

// node returns the load of the node. The caller holds mu.
func (w *worker) node() *nodeState {
	used, memory := w.used()
	held := make(queue.Resources)
	for id := range w.running() {
		for part := range strings.SplitSeq(w.job(id).Gres, ",") {
			if r, err := w.gres.parse("gres", part, ""); err == nil && part != "" {
				for name, n := range r {
					held[name] += n
				}
			}
		}
	}
	return &nodeState{used: used, cores: w.cores, usedMemory: memory, memory: w.memory, state: w.nodeState(), gres: w.gres.text(w.gres.total), usedGres: w.gres.text(held)}
}

// used returns the cores and the memory of jobs that run.
func (w *worker) used() (cores int, memory int64) {
	for id := range w.running() {
		j := w.job(id)
		cores += j.Cores
		memory += j.Memory
	}
	return cores, memory
}

func (w *worker) nodeState() string {
	switch cores, _ := w.used(); {
	case cores == 0:
		return "idle"
	case cores < w.cores:
		return "mixed"
	}
	return "allocated"
}

func (w *worker) showConfig() string {
	return fmt.Sprintf("Configuration data as of %s\nAccountingStorageType   = accounting_storage/premix\nClusterName             = %s\nJobRequeue              = 1\nKillWait                = %d sec\nMaxArraySize            = %d\nMaxJobCount             = 1000000\nMinJobAge               = %d sec\nSLURM_VERSION           = %s\nSlurmctldHost[0]        = %s\n\n",
		clock(time.Now()), clusterName, int(Grace.Seconds()), maxArray, int(minJobAge.Seconds()), strings.TrimPrefix(slurmVersion, "slurm "), nodeName())
}
