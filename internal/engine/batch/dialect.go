package batch

import (
	"encoding/xml"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"premix/internal/engine/pilot"
	"premix/internal/engine/programs"
	"premix/internal/kit/hostlist"
)

// dialect is the command line of a system.
type dialect struct {
	name   string // for --engine
	submit string
	cancel string
	query  []string // lists the jobs of the user whose name follows
	none   *regexp.Regexp
	lag    time.Duration // for which a new job may be missing from a listing

	own     []string // options of submit that premix sets itself
	knobs   []string // options of the engine, beside those of all dialects
	options func(e *Engine, s *pilot.Share, name string, jobs int) []string
	index   string         // of an element in its script, from 0
	first   int            // index of the first element of an array
	number  *regexp.Regexp // finds the number of a job in the output of submit
	element func(number string, index int) string
	parse   func(out string) (listing, error)

	variables []string // select a cluster
	example   string   // of options
}

// bracketed returns an element as LSF and PBS write it.
func bracketed(number string, index int) string { return fmt.Sprintf("%s[%d]", number, index) }

// megabytes returns the memory that the tasks of a share and premix need.
func megabytes(s *pilot.Share) int64 { return (s.Memory + overhead + 1<<20 - 1) >> 20 }

var dialects = []dialect{
	{
		name: "lsf", submit: "bsub", cancel: "bkill",
		query: []string{"bjobs", "-a", "-noheader", "-o", "jobid jobindex stat job_name exec_host exit_reason pend_reason delimiter='|'", "-u"},
		none:  regexp.MustCompile(`^No .*\bjobs? found`), // a message, and not success, of some versions
		lag:   10 * time.Second,                          // mbatchd answers queries from a copy
		own:   []string{"J", "n", "o", "e", "oo", "eo", "cwd", "I", "Is", "Ip", "K"},
		options: func(e *Engine, s *pilot.Share, name string, jobs int) []string {
			if jobs > 1 {
				name += fmt.Sprintf("[1-%d]", jobs)
			}
			args := []string{"-J", name, "-o", "/dev/null", "-n", strconv.Itoa(s.Cores), "-R", "span[hosts=1]"}
			if s.Memory > 0 {
				args = append(args, "-R", fmt.Sprintf("rusage[mem=%dMB]", megabytes(s)))
			}
			return args
		},
		index: `"$((LSB_JOBINDEX - 1))"`, first: 1,
		number:    regexp.MustCompile(`^Job <([0-9]+)>`),
		element:   bracketed,
		parse:     parseLSF,
		variables: []string{"LSF_ENVDIR", "LSB_CLUSTER"},
		example:   "q=QUEUE, P=PROJECT, W=MINUTES",
	},
	{
		name: "pbs", submit: "qsub", cancel: "qdel",
		query: []string{"qstat", "-t", "-w", "-n", "-1", "-u"},
		own:   []string{"N", "J", "o", "e", "j", "S", "V", "h", "I"},
		options: func(e *Engine, s *pilot.Share, name string, jobs int) []string {
			selected := fmt.Sprintf("select=1:ncpus=%d", s.Cores)
			if s.Memory > 0 {
				selected += fmt.Sprintf(":mem=%dmb", megabytes(s))
			}
			args := []string{"-N", name, "-o", "/dev/null", "-j", "oe", "-S", "/bin/sh", "-V", "-l", selected}
			if jobs > 1 {
				args = append(args, "-J", fmt.Sprintf("0-%d", jobs-1))
			}
			return args
		},
		index:     `"$PBS_ARRAY_INDEX"`,
		number:    regexp.MustCompile(`^([0-9]+)(?:\[\])?(?:\.|$)`),
		element:   bracketed,
		parse:     parsePBS,
		variables: []string{"PBS_SERVER", "PBS_CONF_FILE"},
		example:   "q=QUEUE, A=ACCOUNT, l=walltime=TIME",
	},
	{
		name: "sge", submit: "qsub", cancel: "qdel",
		query: []string{"qstat", "-xml", "-u"},
		own:   []string{"N", "t", "o", "e", "j", "S", "V", "b", "terse", "sync", "now", "cwd", "wd", "h", "pe", "verify"},
		knobs: []string{"pe", "memory-resource"},
		options: func(e *Engine, s *pilot.Share, name string, jobs int) []string {
			args := []string{"-terse", "-N", name, "-o", "/dev/null", "-j", "y", "-S", "/bin/sh", "-V"}
			if s.Cores > 1 {
				args = append(args, "-pe", e.knob("pe", "smp"), strconv.Itoa(s.Cores))
			}
			if s.Memory > 0 { // of each core
				cores := int64(max(1, s.Cores))
				args = append(args, "-l", fmt.Sprintf("%s=%dM", e.knob("memory-resource", "mem_free"), (megabytes(s)+cores-1)/cores))
			}
			if jobs > 1 {
				args = append(args, "-t", fmt.Sprintf("1-%d", jobs))
			}
			return args
		},
		index: `"$((SGE_TASK_ID - 1))"`, first: 1,
		number:    regexp.MustCompile(`^([0-9]+)(?:\.|$)`),
		element:   func(number string, index int) string { return fmt.Sprintf("%s.%d", number, index) },
		parse:     parseSGE,
		variables: []string{"SGE_ROOT", "SGE_CELL", "SGE_QMASTER_PORT"},
		example:   "q=QUEUE, P=PROJECT, l=h_rt=TIME",
	},
}

// status returns the phase of a job by its state, in plain words too.
type status struct {
	phase  pilot.Phase
	reason string
}

var lsfStates = map[string]status{
	"PEND": {phase: pilot.Pending}, "WAIT": {phase: pilot.Pending}, "FWD_PEND": {phase: pilot.Pending},
	"PSUSP": {phase: pilot.Pending, reason: "its user or an administrator has suspended it (bresume)"},
	"RUN":   {phase: pilot.Running}, "USUSP": {phase: pilot.Running}, "SSUSP": {phase: pilot.Running}, "PROV": {phase: pilot.Running},
	"UNKWN": {phase: pilot.Running}, "ZOMBI": {phase: pilot.Running},
	"DONE": {phase: pilot.Ended, reason: "it ended"}, "EXIT": {phase: pilot.Ended, reason: "it failed"},
}

// lsfBlameless are the causes of a job's end for which its tasks are not to blame.
var lsfBlameless = []string{"TERM_ADMIN", "TERM_BUCKET_KILL", "TERM_FORCE_ADMIN", "TERM_FORCE_OWNER", "TERM_LOAD", "TERM_OWNER", "TERM_PREEMPT", "TERM_REMOVE_HUNG_JOB", "TERM_REQUEUE_ADMIN", "TERM_REQUEUE_OWNER", "TERM_RMS", "TERM_WINDOW", "TERM_ZOMBIE"}

// parseLSF parses the output of bjobs.
func parseLSF(out string) (listing, error) {
	var list listing
	for line := range strings.Lines(out) {
		f := strings.SplitN(strings.TrimRight(line, "\n"), "|", 7)
		if len(f) != 7 {
			return nil, fmt.Errorf("bjobs prints a line that is not of the format it was asked for: %q", line)
		}
		name, _, _ := strings.Cut(f[3], "[")
		if !strings.HasPrefix(name, programs.NamePrefix) {
			continue
		}
		st, ok := lsfStates[f[2]]
		if !ok {
			return nil, fmt.Errorf("bjobs prints the state %q, which premix does not know", f[2])
		}
		j := job{Number: f[0], Index: none, Name: name, Phase: st.phase, Word: f[2], Reason: st.reason}
		if i, err := strconv.Atoi(f[1]); err == nil && i > 0 {
			j.Index = i
		}
		if f[4] != "-" {
			j.Node = f[4]
		}
		switch {
		case st.phase == pilot.Pending && st.reason == "" && f[6] != "-" && f[6] != "":
			j.Reason = "LSF says " + strings.TrimSuffix(f[6], ";")
		case f[2] == "EXIT" && f[5] != "-" && f[5] != "":
			j.Reason = f[5]
			word, _, _ := strings.Cut(f[5], ":")
			for _, b := range lsfBlameless {
				j.Blameless = j.Blameless || word == b
			}
		}
		list = append(list, j)
	}
	return list, nil
}

var pbsStates = map[string]status{
	"Q": {phase: pilot.Pending, reason: "it is queued"}, "W": {phase: pilot.Pending, reason: "it is not to start before a time that was set"},
	"H": {phase: pilot.Pending, reason: "it is held (qrls)"}, "T": {phase: pilot.Pending, reason: "it is being moved to another queue"},
	"R": {phase: pilot.Running}, "B": {phase: pilot.Running}, "S": {phase: pilot.Running}, "U": {phase: pilot.Running}, "E": {phase: pilot.Running},
	"X": {phase: pilot.Ended, reason: "it ended"}, "F": {phase: pilot.Ended, reason: "it ended"}, "M": {phase: pilot.Ended, reason: "it was moved to another server"},
}

// pbsID is the identifier of a job, an array or an element, and the name of its server.
var pbsID = regexp.MustCompile(`^([0-9]+)(\[([0-9]*)\])?(?:\.|\*|$)`)

// parsePBS parses the output of qstat: columns with blanks between them, below lines of
// headings. A job has 11 columns, and its node.
func parsePBS(out string) (listing, error) {
	var list listing
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if len(f) < 4 || !strings.HasPrefix(f[3], programs.NamePrefix) {
			continue
		}
		id := pbsID.FindStringSubmatch(f[0])
		if id == nil || len(f) < 11 {
			return nil, fmt.Errorf("qstat prints a line that is not of the format it was asked for: %q", line)
		}
		st, ok := pbsStates[f[9]]
		if !ok {
			return nil, fmt.Errorf("qstat prints the state %q, which premix does not know", f[9])
		}
		j := job{Number: id[1], Index: none, Name: f[3], Phase: st.phase, Word: f[9], Reason: st.reason}
		if id[2] != "" {
			if id[3] == "" {
				continue // the array; its elements follow
			}
			var err error
			if j.Index, err = strconv.Atoi(id[3]); err != nil {
				return nil, err
			}
		}
		if len(f) > 11 && f[11] != "--" {
			j.Node, _, _ = strings.Cut(f[11], "/")
		}
		list = append(list, j)
	}
	return list, nil
}

// parseSGE parses the output of qstat. A line may stand for many waiting elements.
func parseSGE(out string) (listing, error) {
	type line struct {
		Number string `xml:"JB_job_number"`
		Name   string `xml:"JB_name"`
		State  string `xml:"state"`
		Queue  string `xml:"queue_name"`
		Tasks  string `xml:"tasks"`
	}
	var answer struct {
		Running []line `xml:"queue_info>job_list"`
		Waiting []line `xml:"job_info>job_list"`
	}
	if err := xml.Unmarshal([]byte(out), &answer); err != nil {
		return nil, fmt.Errorf("qstat prints no XML: %w", err)
	}
	var list listing
	for _, l := range append(answer.Running, answer.Waiting...) {
		if !strings.HasPrefix(l.Name, programs.NamePrefix) {
			continue
		}
		j := job{Number: l.Number, Index: none, Name: l.Name, Phase: pilot.Running, Word: l.State}
		switch {
		case strings.Contains(l.State, "E"):
			j.Phase, j.Stuck, j.Reason = pilot.Pending, true, "it could not be started (qstat -j "+l.Number+")"
		case strings.Contains(l.State, "h"):
			j.Phase, j.Reason = pilot.Pending, "it is held (qrls)"
		case strings.ContainsAny(l.State, "qw"):
			j.Phase, j.Reason = pilot.Pending, "it is queued"
		}
		_, j.Node, _ = strings.Cut(l.Queue, "@")
		if l.Tasks == "" {
			list = append(list, j)
			continue
		}
		indices, err := parseTasks(l.Tasks)
		if err != nil {
			return nil, err
		}
		for _, i := range indices {
			j.Index = i
			list = append(list, j)
		}
	}
	return list, nil
}

// mostElements bounds the elements of one line: premix submits far fewer.
const mostElements = 1 << 20

// parseTasks parses the tasks of a line of SGE, as in 3, 1-5:1 or 2,4-8:2.
func parseTasks(text string) ([]int, error) {
	var list []int
	for _, part := range strings.Split(text, ",") {
		a, b, step, ok := hostlist.Range(part)
		if !ok || b-a > mostElements {
			return nil, fmt.Errorf("qstat prints the tasks %q", text)
		}
		for i := a; i <= b; i += step {
			list = append(list, i)
		}
	}
	return list, nil
}
