package shim

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/engine/queue"
)

var scancelOptions = []option{
	{"user", 'u', required, used}, {"name", 'n', required, used}, {"jobname", 0, required, used}, {"state", 't', required, used}, {"partition", 'p', required, used}, {"account", 'A', required, used},
	{"qos", 'q', required, used}, {"me", 0, none, used}, {"signal", 's', required, used}, {"batch", 'b', none, used}, {"full", 'f', none, used}, {"quiet", 'Q', none, used}, {"hurry", 'H', none, moot},
	{"verbose", 'v', none, moot}, {"ctld", 0, none, moot}, {"cron", 'c', none, moot}, {"clusters", 'M', required, moot}, {"cluster", 0, required, moot}, {"sibling", 0, required, moot},
	{"interactive", 'i', none, refused}, {"nodelist", 'w', required, moot}, {"reservation", 'R', required, moot}, {"wckey", 0, required, refused},
}

// scancel ends jobs, or signals running jobs.
func (w *worker) scancel(args []string) response {
	list, rest, err := parseOptions(scancelOptions, args, false)
	if err != nil {
		return fail("scancel", 1, err)
	}
	var f filter
	var sig syscall.Signal
	batch, quiet, filtered := false, false, false
	for _, g := range list {
		if g.use == refused {
			return fail("scancel", 1, &optionError{fmt.Sprintf("option '--%s' is not one that premix has", g.name), ""})
		}
		filtered = filtered || slices.Contains([]string{"user", "name", "jobname", "state", "partition", "account", "qos", "me"}, g.name)
		switch g.name {
		case "user":
			f.users(g.value)
		case "name", "jobname":
			f.names = strings.Split(g.value, ",")
		case "state":
			f.states, err = parseStates(g.value)
		case "partition":
			f.partitions = strings.Split(g.value, ",")
		case "account":
			f.accounts = strings.Split(g.value, ",")
		case "qos":
			f.qoss = strings.Split(g.value, ",")
		case "signal":
			sig, err = parseSignal(g.value)
		case "batch":
			batch = true
		case "quiet":
			quiet = true
		}
		if err != nil {
			return fail("scancel", 1, err)
		}
	}
	if len(rest) == 0 && !filtered {
		return fail("scancel", 1, &optionError{"No job identification provided", "name jobs, or pick them with --user, --name or --state"})
	}
	a := response{Format: wireFormat}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(rest) > 0 {
		f.jobs = make(map[int]bool)
		for _, word := range rest {
			for _, text := range splitJobs(word) {
				jobs, err := w.selected(text)
				if err == nil && len(jobs) == 0 {
					err = &optionError{fmt.Sprintf("Kill job error on job id %s: Invalid job id specified", text), ""}
				}
				if err != nil {
					a.Exit = 1
					if !quiet {
						a.Stderr = append(a.Stderr, fail("scancel", 1, err).Stderr...)
					}
					continue
				}
				for _, j := range jobs {
					f.jobs[j.id] = true
				}
			}
		}
	}
	running := w.running()
	var which [][2]int
	for _, j := range w.jobs {
		st := w.status(j, running)
		if st.over() || !f.match(j, &st) {
			continue
		}
		if sig != 0 && sig != syscall.SIGKILL {
			if w.behind != nil {
				return fail("scancel", 1, &optionError{"jobs on nodes are not signalled", "scancel without --signal ends them"})
			}
			if st.pid > 0 {
				pid := -st.pid
				if batch {
					pid = st.pid
				}
				_ = unix.Kill(pid, sig) // it may have ended
			}
			continue
		}
		if n := len(which); n > 0 && which[n-1][1] == j.id-1 {
			which[n-1][1] = j.id
		} else {
			which = append(which, [2]int{j.id, j.id})
		}
		if sig == syscall.SIGKILL && st.pid > 0 {
			_ = unix.Kill(-st.pid, sig)
		}
	}
	if len(which) > 0 {
		if _, err := w.q.Cancel(&queue.Selection{Tasks: which}); err != nil {
			return fail("scancel", 1, err)
		}
		w.stir()
	}
	return a
}

var scontrolOptions = []option{
	{"oneliner", 'o', none, used}, {"details", 'd', none, moot}, {"all", 'a', none, moot}, {"hide", 0, none, moot}, {"quiet", 'Q', none, moot}, {"verbose", 'v', none, moot},
	{"clusters", 'M', required, moot}, {"cluster", 0, required, moot}, {"local", 0, none, moot}, {"future", 'F', none, moot}, {"uid", 'u', required, moot}, {"json", 0, optional, refused}, {"yaml", 0, none, refused},
}

func (w *worker) scontrol(args []string) (string, error) {
	list, rest, err := parseOptions(scontrolOptions, args, false)
	if err != nil {
		return "", err
	}
	one := false
	for _, g := range list {
		if g.use == refused {
			return "", &optionError{fmt.Sprintf("option '--%s' is not one that premix answers", g.name), "squeue --json tells of jobs"}
		}
		one = one || g.name == "oneliner"
	}
	if len(rest) == 0 {
		return "", &optionError{"no command is given", "premix has show, hold, release, ping and version"}
	}
	verb, rest := strings.ToLower(rest[0]), rest[1:]
	w.mu.Lock()
	defer w.mu.Unlock()
	switch verb {
	case "ping":
		return fmt.Sprintf("Slurmctld(primary) at %s is UP\n", nodeName()), nil
	case "version":
		return slurmVersion + "\n", nil
	case "hold", "uhold", "release":
		return "", w.holdOrRelease(verb, rest)
	case "show":
	default:
		return "", &optionError{fmt.Sprintf("premix has no scontrol %s", verb), "it has show, hold, release, ping and version"}
	}
	if len(rest) == 0 {
		return "", &optionError{"nothing to show is named", "show job, partition, node, config or hostnames"}
	}
	what, name, _ := strings.Cut(strings.ToLower(rest[0]), "=")
	if name == "" && len(rest) > 1 {
		name = rest[1]
	}
	switch {
	case strings.HasPrefix("jobs", what) && what != "":
		return w.showJobs(name, one)
	case strings.HasPrefix("partitions", what):
		return w.showPartition(one), nil
	case strings.HasPrefix("nodes", what):
		return w.showNode(one), nil
	case strings.HasPrefix("configuration", what):
		return w.showConfig(), nil
	case strings.HasPrefix("hostnames", what):
		if name == "" {
			name = nodeName()
		}
		if strings.ContainsAny(name, "[]") {
			return "", &optionError{"premix has one node, and no lists of them", ""}
		}
		return strings.ReplaceAll(name, ",", "\n") + "\n", nil
	}
	return "", &optionError{fmt.Sprintf("premix does not show %q", rest[0]), "it shows job, partition, node, config and hostnames"}
}

// holdOrRelease holds or releases waiting jobs. The caller holds mu.
func (w *worker) holdOrRelease(verb string, names []string) error {
	var which [][2]int
	var jobs []*job
	for _, word := range names {
		for _, text := range splitJobs(strings.TrimPrefix(word, "jobid=")) {
			list, err := w.selected(text)
			if err == nil && len(list) == 0 {
				err = &optionError{fmt.Sprintf("Invalid job id specified for job %s", text), ""}
			}
			if err != nil {
				return err
			}
			jobs = append(jobs, list...)
			for _, j := range list {
				which = append(which, [2]int{j.id, j.id})
			}
		}
	}
	if len(which) == 0 {
		return &optionError{"no job is named", "scontrol hold JOB"}
	}
	if verb == "release" {
		for _, j := range jobs {
			j.userHeld = false // release does the rest, if nothing else blocks it
		}
		w.release(w.running())
		return nil
	}
	if _, err := w.q.Hold(&queue.Selection{Tasks: which}); err != nil {
		return err
	}
	for _, j := range jobs {
		if !w.q.Held(j.id) {
			continue
		}
		j.userHeld = true
		if !slices.Contains(w.blocked, j) {
			w.blocked = append(w.blocked, j)
		}
	}
	slices.SortFunc(w.blocked, func(a, b *job) int { return a.id - b.id })
	return nil
}

// pairs joins lines of NAME=VALUE, into one line if one is true.
func pairs(one bool, lines ...string) string {
	if one {
		return strings.Join(lines, " ") + " \n"
	}
	return strings.Join(lines, "\n   ") + "\n\n"
}

func (w *worker) showJobs(name string, one bool) (string, error) {
	jobs := w.jobs
	if name != "" {
		jobs = nil
		for _, text := range splitJobs(name) {
			list, err := w.selected(text)
			if err != nil {
				return "", err
			}
			jobs = append(jobs, list...)
		}
		if len(jobs) == 0 {
			return "", &optionError{"slurm_load_jobs error: Invalid job id specified", ""}
		}
	}
	running := w.running()
	var b strings.Builder
	for _, j := range jobs {
		st := w.status(j, running)
		if name == "" && st.over() && time.Since(st.ended) > minJobAge {
			continue
		}
		node := ""
		if st.state != pending {
			node = nodeName()
		}
		id := fmt.Sprintf("JobId=%d", j.id)
		if j.Array > 0 {
			id += fmt.Sprintf(" ArrayJobId=%d ArrayTaskId=%d", j.array(), j.Index)
		}
		requeue := 1
		if j.NoRequeue {
			requeue = 0
		}
		end := st.ended
		if end.IsZero() && j.Limit > 0 && !st.started.IsZero() {
			end = st.started.Add(time.Duration(j.Limit * float64(time.Second)))
		}
		b.WriteString(pairs(one,
			fmt.Sprintf("%s JobName=%s", id, j.Name),
			fmt.Sprintf("UserId=%s(%d) GroupId=%d MCS_label=N/A", userName(), os.Getuid(), os.Getgid()),
			fmt.Sprintf("Priority=%d Nice=0 Account=%s QOS=%s", j.Priority, orNull(j.Account), j.QOS),
			fmt.Sprintf("JobState=%s Reason=%s Dependency=%s", st.name, st.reason, orNull(j.Needs)),
			fmt.Sprintf("Requeue=%d Restarts=0 BatchFlag=1 Reboot=0 ExitCode=%d:%d", requeue, st.exit, st.signal),
			fmt.Sprintf("RunTime=%s TimeLimit=%s TimeMin=N/A", elapsed(st.took()), limitText(time.Duration(j.Limit*float64(time.Second)))),
			fmt.Sprintf("SubmitTime=%s EligibleTime=%s", clock(j.Submitted), clock(j.Submitted)),
			fmt.Sprintf("StartTime=%s EndTime=%s Deadline=N/A", clock(st.started), clock(end)),
			fmt.Sprintf("Partition=%s AllocNode:Sid=%s:0", j.Partition, nodeName()),
			fmt.Sprintf("NodeList=%s BatchHost=%s", orNull(node), node),
			fmt.Sprintf("NumNodes=1 NumCPUs=%d NumTasks=%d CPUs/Task=%d", j.Cores, j.Ntasks, j.PerTask),
			fmt.Sprintf("TRES=cpu=%d,mem=%dM,node=1", j.Cores, j.Memory>>20),
			fmt.Sprintf("MinCPUsNode=%d MinMemoryNode=%s MinTmpDiskNode=0", j.Cores, sizeText(j.Memory)),
			fmt.Sprintf("Command=%s", orNull(j.Command)),
			fmt.Sprintf("WorkDir=%s", j.Dir),
			fmt.Sprintf("Comment=%s", j.Comment),
			fmt.Sprintf("StdErr=%s", j.Stderr),
			"StdIn=/dev/null",
			fmt.Sprintf("StdOut=%s", j.Stdout)))
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
	return pairs(one, fmt.Sprintf("NodeName=%s Arch=x86_64 CoresPerSocket=%d", nodeName(), w.cores), fmt.Sprintf("CPUAlloc=%d CPUTot=%d CPULoad=N/A", used, w.cores),
		fmt.Sprintf("RealMemory=%d AllocMem=%d FreeMem=N/A Sockets=1 Boards=1", w.memory>>20, memory>>20), fmt.Sprintf("State=%s ThreadsPerCore=1 Weight=1", strings.ToUpper(w.nodeState())), "Partitions="+defaultPartition)
}

// used returns the cores and the memory of jobs that run.
func (w *worker) used() (cores int, memory int64) {
	for id := range w.running() {
		cores += w.jobs[id-1].Cores
		memory += w.jobs[id-1].Memory
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

var sinfoOptions = []option{
	{"noheader", 'h', none, used}, {"format", 'o', required, used}, {"partition", 'p', required, used}, {"Node", 'N', none, used}, {"long", 'l', none, moot}, {"all", 'a', none, moot}, {"exact", 'e', none, moot},
	{"nodes", 'n', required, moot}, {"states", 't', required, moot}, {"verbose", 'v', none, moot}, {"responding", 'r', none, moot}, {"clusters", 'M', required, moot}, {"cluster", 0, required, moot}, {"summarize", 's', none, used},
	{"Format", 'O', required, refused}, {"json", 0, optional, refused}, {"yaml", 0, none, refused}, {"iterate", 'i', required, refused}, {"reservation", 'T', none, refused}, {"list-reasons", 'R', none, refused}, {"dead", 'd', none, refused}, {"sort", 'S', required, moot}, {"hide", 0, none, moot}, {"local", 0, none, moot}, {"federation", 0, none, moot},
}

var sinfoTitles = map[byte]string{'P': "PARTITION", 'R': "PARTITION", 'a': "AVAIL", 'l': "TIMELIMIT", 'L': "DEFAULTTIME", 'D': "NODES", 'F': "NODES(A/I/O/T)", 'A': "NODES(A/I)", 't': "STATE", 'T': "STATE", 'N': "NODELIST", 'n': "HOSTNAMES", 'c': "CPUS", 'm': "MEMORY",
	'C': "CPUS(A/I/O/T)", 'G': "GRES", 'f': "AVAIL_FEATURES", 'b': "ACTIVE_FEATURES", 'e': "FREE_MEM", 'O': "CPU_LOAD", 'd': "TMP_DISK", 'w': "WEIGHT", 'g': "GROUPS", 's': "JOB_SIZE", 'z': "S:C:T", 'X': "SOCKETS", 'Y': "CORES", 'Z': "THREADS", 'E': "REASON", 'v': "VERSION", 'V': "CLUSTER", 'r': "ROOT", 'S': "ALLOCNODES", 'h': "OVERSUBSCRIBE", 'p': "PRIO_TIER"}

func (w *worker) sinfo(args []string) (string, error) {
	list, rest, err := parseOptions(sinfoOptions, args, false)
	if err != nil {
		return "", err
	}
	if len(rest) > 0 {
		return "", &optionError{fmt.Sprintf("unexpected argument %q", rest[0]), ""}
	}
	header, shown, format := true, true, "%.9P %.5a %.10l %.6D %.6t %N"
	for _, g := range list {
		if g.use == refused {
			return "", &optionError{fmt.Sprintf("option '--%s' is not one that premix answers", g.name), "ask with --format"}
		}
		switch g.name {
		case "noheader":
			header = false
		case "format":
			format = g.value
		case "Node":
			format = "%N %.6D %.9P %.6t"
		case "summarize":
			format = "%.9P %.5a %.10l %.16F %N"
		case "partition":
			shown = slices.Contains(strings.Split(g.value, ","), defaultPartition)
		}
	}
	columns, err := parseColumns(format, sinfoTitles)
	if err != nil {
		return "", err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	used, _ := w.used()
	value := func(letter byte) string {
		switch letter {
		case 0:
			return ""
		case 'P':
			return defaultPartition + "*"
		case 'R':
			return defaultPartition
		case 'a':
			return "up"
		case 'l':
			return "infinite"
		case 'D':
			return "1"
		case 'A':
			return fmt.Sprintf("%d/%d", boolInt(used > 0), boolInt(used == 0))
		case 'F':
			return fmt.Sprintf("%d/%d/0/1", boolInt(used > 0), boolInt(used == 0))
		case 't':
			return map[string]string{"idle": "idle", "mixed": "mix", "allocated": "alloc"}[w.nodeState()]
		case 'T':
			return w.nodeState()
		case 'N', 'n':
			return nodeName()
		case 'c':
			return strconv.Itoa(w.cores)
		case 'm':
			return strconv.FormatInt(w.memory>>20, 10)
		case 'C':
			return fmt.Sprintf("%d/%d/0/%d", used, max(0, w.cores-used), w.cores)
		case 'G', 'f', 'b':
			return "(null)"
		case 'V':
			return clusterName
		case 'v':
			return strings.TrimPrefix(slurmVersion, "slurm ")
		}
		return "N/A"
	}
	var b strings.Builder
	if header {
		for _, c := range columns {
			c.write(&b, sinfoTitles[c.letter])
		}
		b.WriteByte('\n')
	}
	if shown {
		for _, c := range columns {
			c.write(&b, value(c.letter))
		}
		b.WriteByte('\n')
	}
	return b.String(), nil
}

func sorted(list []string) []string {
	slices.Sort(list)
	return list
}
