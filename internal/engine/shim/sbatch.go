package shim

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"premix/internal/engine/queue"
)

// sbatchVariables are the variables that set options; the command line overrides
// them, and they override the script.
var sbatchVariables = [][2]string{
	{"SBATCH_ACCOUNT", "account"}, {"SBATCH_ARRAY_INX", "array"}, {"SBATCH_CLUSTERS", "clusters"}, {"SBATCH_CONSTRAINT", "constraint"},
	{"SBATCH_EXPORT", "export"}, {"SBATCH_GRES", "gres"}, {"SBATCH_GPUS", "gpus"}, {"SBATCH_JOB_NAME", "job-name"},
	{"SBATCH_MEM_PER_CPU", "mem-per-cpu"}, {"SBATCH_MEM_PER_NODE", "mem"}, {"SBATCH_NO_REQUEUE", "no-requeue"},
	{"SBATCH_OPEN_MODE", "open-mode"}, {"SBATCH_PARTITION", "partition"}, {"SBATCH_QOS", "qos"}, {"SBATCH_REQUEUE", "requeue"},
	{"SBATCH_RESERVATION", "reservation"}, {"SBATCH_SIGNAL", "signal"}, {"SBATCH_TIMELIMIT", "time"}, {"SBATCH_WAIT", "wait"},
	{"SBATCH_ERROR", "error"}, {"SBATCH_OUTPUT", "output"}, {"SBATCH_GPUS_PER_NODE", "gpus-per-node"}, {"SBATCH_GPUS_PER_TASK", "gpus-per-task"},
	{"SBATCH_CPUS_PER_GPU", "cpus-per-gpu"}, {"SBATCH_MEM_PER_GPU", "mem-per-gpu"}, {"SBATCH_TRES_PER_TASK", tresPerTask},
}

// jobMeta is the properties of a job that are kept with its task, as JSON.
type jobMeta struct {
	Request   string    `json:"request"` // that submitted it
	Name      string    `json:"name"`
	Command   string    `json:"command,omitempty"` // path of the script
	Dir       string    `json:"dir"`
	Comment   string    `json:"comment,omitempty"`
	Partition string    `json:"partition"`
	Account   string    `json:"account,omitempty"`
	QOS       string    `json:"qos,omitempty"`
	Submitted time.Time `json:"submitted"`
	Begin     time.Time `json:"begin,omitzero"`
	Ntasks    int       `json:"ntasks"`
	PerTask   int       `json:"cpus_per_task"`
	Cores     int       `json:"cores"`
	Memory    int64     `json:"memory,omitempty"`
	PerCPU    bool      `json:"memory_per_cpu,omitempty"`
	Gres      string    `json:"gres,omitempty"`  // generic resources, as in gpu:2,tmpspace:10G
	Limit     float64   `json:"limit,omitempty"` // seconds; 0: none
	Warn      int       `json:"warn,omitempty"`  // signal to send before the limit
	WarnAt    float64   `json:"warn_at,omitempty"`
	WarnSteps bool      `json:"warn_steps,omitempty"` // and not the script
	Again     bool      `json:"again,omitempty"`      // scontrol requeue: it runs again when it has ended
	Line      string    `json:"line,omitempty"`       // the arguments of sbatch
	Allocated bool      `json:"allocated,omitempty"`  // the job of srun or salloc: it has no script
	NoRequeue bool      `json:"no_requeue,omitempty"`
	Priority  int       `json:"priority,omitempty"`
	UserHeld  bool      `json:"user_held,omitempty"`
	Needs     string    `json:"needs,omitempty"` // --dependency
	KillDep   bool      `json:"kill_on_invalid_dep,omitempty"`
	Array     int       `json:"array,omitempty"` // elements; 0: no array
	At        int       `json:"at,omitempty"`    // which of them, from 0
	Index     int       `json:"index,omitempty"`
	Width     int       `json:"width,omitempty"` // elements that run at a time; 0: all
	Stdout    string    `json:"stdout"`
	Stderr    string    `json:"stderr"`
	Script    string    `json:"script,omitempty"` // file that is removed when the job has ended
}

// machine is the resources that jobs may take together.
type machine struct {
	cores  int
	memory int64
	gres   *gres
}

// submission is the request in the arguments of sbatch, and in the script.
type submission struct {
	jobMeta
	set      map[string]string // options that were given
	wrap     string
	script   string   // name of the script; "" without one
	args     []string // of the script
	export   string
	indices  []int
	output   string
	stderr   string
	appended bool
	all      bool // of the machine's cores
	quiet    bool
	parsable bool
	wait     bool
	held     bool
	testOnly bool
	ask      string // see queue.Spec

	gpuCount     int
	resourceText string // of the queue
	coresOfGPUs  int    // --cpus-per-gpu; 0: none
	memoryOfGPUs int64  // --mem-per-gpu
}

// parseSbatch parses the command line alone. needsScript reports whether a script must be
// read: from the file s.script, or standard input if it is "".
func parseSbatch(args []string) (s *submission, needsScript bool, err error) {
	s = &submission{set: make(map[string]string)}
	list, rest, err := parseOptions(sbatchOptions(), args, true)
	if err != nil {
		return nil, false, err
	}
	for _, g := range list {
		s.set[g.name] = g.value
	}
	_, wrapped := s.set["wrap"]
	if wrapped && len(rest) > 0 {
		return nil, false, &optionError{"script arguments are not permitted with --wrap", "put them into the wrapped command"}
	}
	if len(rest) > 0 {
		s.script, s.args = rest[0], rest[1:]
	}
	return s, !wrapped, nil
}

// directives adds options from the environment and the script that the command line does not
// set.
func (s *submission) directives(environ map[string]string, script []byte) error {
	for _, v := range sbatchVariables {
		if value, ok := environ[v[0]]; ok {
			if _, has := s.set[v[1]]; !has {
				s.set[v[1]] = value
			}
		}
	}
	fromScript := make(map[string]string)
	for line := range bytes.Lines(script) {
		line = bytes.TrimRight(line, "\r\n")
		rest, ok := bytes.CutPrefix(line, []byte("#SBATCH"))
		if !ok {
			if text := bytes.TrimSpace(line); len(text) > 0 && text[0] != '#' {
				break // directives end at the first command
			}
			continue
		}
		args, err := words(string(rest))
		if err != nil {
			return err
		}
		list, more, err := parseOptions(sbatchOptions(), args, false)
		if err != nil {
			return fmt.Errorf("in the script's line %q: %w", line, err)
		}
		if len(more) > 0 {
			return &optionError{fmt.Sprintf("in the script's line %q: unexpected argument %q", line, more[0]), "options begin with -"}
		}
		for _, g := range list {
			fromScript[g.name] = g.value
		}
	}
	for name, value := range fromScript {
		if _, has := s.set[name]; !has {
			s.set[name] = value
		}
	}
	return nil
}

// interpret reads the values of the options into the submission, and refuses options that
// would have no effect.
func (s *submission) interpret(environ map[string]string, dir string, there machine, now time.Time) (err error) {
	for _, o := range sbatchOptions() {
		if value, ok := s.set[o.name]; ok && o.use == refused && value != "none" && value != "/dev/null" {
			return refusal("sbatch", o.name)
		}
	}
	get := func(name, otherwise string) string {
		if v, ok := s.set[name]; ok {
			return v
		}
		return otherwise
	}
	has := func(name string) bool { _, ok := s.set[name]; return ok }
	switch {
	case has("job-name"):
		s.Name = s.set["job-name"]
	case has("wrap"):
		s.Name = "wrap"
	case s.script != "":
		s.Name = filepath.Base(s.script)
	default:
		s.Name = "sbatch"
	}
	s.Comment, s.Partition, s.Account, s.QOS = get("comment", ""), get("partition", defaultPartition), get("account", ""), get("qos", "normal")
	s.wrap, s.quiet, s.parsable, s.wait, s.testOnly = get("wrap", ""), has("quiet"), has("parsable"), has("wait"), has("test-only")
	if s.Dir = get("chdir", dir); !filepath.IsAbs(s.Dir) {
		s.Dir = filepath.Join(dir, s.Dir)
	}
	if s.script != "" {
		if s.Command = s.script; !filepath.IsAbs(s.script) {
			s.Command = filepath.Join(dir, s.script)
		}
	}
	if n, _, _ := strings.Cut(get("nodes", "1"), "-"); n != "1" {
		return &optionError{fmt.Sprintf("--nodes=%s: there is one machine", s.set["nodes"]), "ask for one node, or submit to a real Slurm"}
	}
	if err := s.generic(there.gres); err != nil {
		return err
	}
	if err := s.resources(there.cores, there.memory); err != nil {
		return err
	}
	limit, err := parseTime(get("time", "0"))
	if err != nil {
		return err
	}
	s.Limit = limit.Seconds()
	if err := s.signal(get("signal", "")); err != nil {
		return err
	}
	if text := get("begin", ""); text != "" {
		if s.Begin, err = parseMoment(text, now); err != nil {
			return err
		}
	}
	switch mode := get("open-mode", "truncate"); mode {
	case "append", "a":
		s.appended = true
	case "truncate", "t":
	default:
		return &optionError{fmt.Sprintf("--open-mode=%s is neither append nor truncate", mode), ""}
	}
	s.NoRequeue = has("no-requeue") && !has("requeue")
	if s.UserHeld = has("hold") || get("priority", "") == "0"; s.UserHeld {
		s.held = true
	}
	if err := s.priority(); err != nil {
		return err
	}
	if text := get("array", ""); text != "" {
		if s.indices, s.Width, err = parseArray(text); err != nil {
			return err
		}
		s.Array = len(s.indices)
	}
	s.Needs = get("dependency", "")
	s.KillDep = get("kill-on-invalid-dep", "no") == "yes"
	s.export = get("export", "ALL")
	s.output, s.stderr = get("output", ""), get("error", "")
	if s.output == "" {
		s.output = "slurm-%j.out"
		if s.Array > 0 {
			s.output = "slurm-%A_%a.out"
		}
	}
	for name, text := range map[string]string{"job-name": s.Name, "comment": s.Comment, "output": s.output, "error": s.stderr, "chdir": s.Dir} {
		if !utf8.ValidString(text) {
			return &optionError{fmt.Sprintf("--%s is not UTF-8: %q", name, text), "give it another name"}
		}
	}
	if !s.Begin.IsZero() || s.Needs != "" || s.Width > 0 {
		s.held = true // until its time has come
	}
	return nil
}

// resources interprets the options for cores and memory, of a machine that has so many.
func (s *submission) resources(cores int, memory int64) (err error) {
	has := func(name string) bool { _, ok := s.set[name]; return ok }
	count := func(name string, otherwise int) int {
		v, ok := s.set[name]
		if !ok || err != nil {
			return otherwise
		}
		n := 0
		n, err = parseCount(name, v)
		return n
	}
	s.PerTask = count("cpus-per-task", 1)
	s.Ntasks = count("ntasks", count("ntasks-per-node", 1))
	if err != nil {
		return err
	}
	if s.coresOfGPUs > 0 {
		s.PerTask = (s.coresOfGPUs + s.Ntasks - 1) / s.Ntasks
	}
	s.Cores = max(s.PerTask*s.Ntasks, s.coresOfGPUs)
	if s.all = has("exclusive"); s.all {
		s.Cores = max(s.Cores, cores)
	}
	switch {
	case has("mem"):
		if s.Memory, err = parseMemory(s.set["mem"]); err == nil && s.Memory == 0 {
			s.Memory = memory // all there is
		}
	case has("mem-per-gpu"):
		s.Memory = s.memoryOfGPUs
	case has("mem-per-cpu"):
		s.PerCPU = true
		s.Memory, err = parseMemory(s.set["mem-per-cpu"])
		s.Memory *= int64(s.Cores)
	}
	if err != nil {
		return err
	}
	if s.Cores > cores {
		return &optionError{"Batch job submission failed: Requested node configuration is not available", fmt.Sprintf("the job asks for %d cores and there are %d; premix slurm-shim --cores says how many may be used", s.Cores, cores)}
	}
	if s.Memory > memory {
		return &optionError{"Batch job submission failed: Memory specification can not be satisfied", fmt.Sprintf("the job asks for %s of memory and there are %s; premix slurm-shim --memory says how much may be used", sizeText(s.Memory), sizeText(memory>>20<<20))}
	}
	return nil
}

// priority interprets --nice and --priority.
func (s *submission) priority() (err error) {
	if nice, ok := s.set["nice"]; ok {
		n := 100
		if nice != "" {
			if n, err = strconv.Atoi(nice); err != nil {
				return &optionError{fmt.Sprintf("invalid --nice %q", nice), ""}
			}
		}
		s.Priority = -min(max(n, -1<<20), 1<<20)
	}
	if text := s.set["priority"]; text != "" && !s.UserHeld {
		n, err := strconv.Atoi(text)
		if err != nil {
			return &optionError{fmt.Sprintf("invalid --priority %q", text), ""}
		}
		s.Priority = min(n, 1<<20)
	}
	return nil
}

// signal parses --signal: [B:]NAME[@SECONDS]. With B: the script gets the signal, else the
// steps that it runs then.
func (s *submission) signal(text string) error {
	if text == "" {
		return nil
	}
	name, script := strings.CutPrefix(strings.TrimPrefix(text, "R:"), "B:")
	name, at, has := strings.Cut(name, "@")
	s.WarnAt, s.WarnSteps = 60, !script
	if has {
		n, err := strconv.Atoi(at)
		if err != nil || n < 0 {
			return &optionError{fmt.Sprintf("invalid --signal=%s", text), "write it as in USR1@60 or B:USR1@60"}
		}
		s.WarnAt = float64(n)
	}
	sig, err := parseSignal(name)
	s.Warn = int(sig)
	return err
}

// parseSignal reads the number or the name of a signal.
func parseSignal(text string) (syscall.Signal, error) {
	if n, err := strconv.Atoi(text); err == nil && n > 0 && n < 65 {
		return syscall.Signal(n), nil
	}
	name := strings.ToUpper(text)
	if !strings.HasPrefix(name, "SIG") {
		name = "SIG" + name
	}
	if sig := unix.SignalNum(name); sig != 0 {
		return sig, nil
	}
	return 0, &optionError{fmt.Sprintf("unknown signal %q", text), "name it as in TERM, or give its number"}
}

// place is the text for a letter of a pattern of file names: a number that a width may pad
// with zeros, or a text.
type place struct {
	number int
	padded bool
	text   string
	array  *queue.Array // each element has its own; nil: all have the same
	of     byte         // number of the element
}

// fill fills in the places of a pattern, as in %j or %5j.
func fill(pattern string, places map[byte]place) string {
	if strings.Contains(pattern, `\`) {
		return strings.ReplaceAll(pattern, `\`, "") // Slurm then replaces nothing
	}
	var b strings.Builder
	for i := 0; i < len(pattern); i++ {
		if pattern[i] != '%' || i+1 == len(pattern) {
			b.WriteByte(pattern[i])
			continue
		}
		i++
		digits := i
		for i < len(pattern)-1 && pattern[i] >= '0' && pattern[i] <= '9' {
			i++
		}
		width, _ := strconv.Atoi(pattern[digits:i])
		switch p, ok := places[pattern[i]]; {
		case pattern[i] == '%':
			b.WriteByte('%')
		case !ok:
			b.WriteString(pattern[digits-1 : i+1])
		case p.array != nil:
			b.WriteString(p.array.Place(p.of, min(width, 10)))
		case p.padded:
			fmt.Fprintf(&b, "%0*d", min(width, 10), p.number)
		default:
			b.WriteString(p.text)
		}
	}
	return b.String()
}

// expand fills in the places of a file name of a job, or of the elements of an array, whose
// first job it is.
func (s *submission) expand(pattern string, first int, array *queue.Array, user string) string {
	number := func(n int) place { return place{number: n, padded: true} }
	zero := number(0)
	places := map[byte]place{'j': number(first), 'J': number(first), 'A': number(first), 'a': {text: "4294967294"}, // Slurm writes this number
		'x': {text: s.Name}, 'u': {text: user}, 'N': {text: nodeName()}, 'n': zero, 't': zero, 's': zero}
	if array != nil {
		id := place{array: array, of: queue.ElementTask}
		places['j'], places['J'], places['a'] = id, id, place{array: array, of: queue.ElementIndex}
	}
	path := fill(pattern, places)
	if !filepath.IsAbs(path) {
		path = filepath.Join(s.Dir, path)
	}
	return path
}

// environment returns the variables that --export lets through, and those without which a
// script finds no programs.
func (s *submission) environment(environ map[string]string) map[string]string {
	env := exported(s.export, environ)
	names := []string{"HOME", "USER", "PATH"}
	if s.export == "NONE" || s.export == "NIL" {
		names = []string{"HOME", "USER", "LOGNAME", "SHELL"}
		env["PATH"] = "/usr/local/bin:/usr/bin:/bin"
	}
	for _, name := range names {
		if v, ok := environ[name]; ok && env[name] == "" {
			env[name] = v
		}
	}
	return env
}

// exported returns the variables that an option --export names.
func exported(export string, environ map[string]string) map[string]string {
	env := make(map[string]string)
	if export == "NONE" || export == "NIL" {
		return env
	}
	all := false
	for word := range strings.SplitSeq(export, ",") {
		name, value, has := strings.Cut(word, "=")
		switch {
		case word == "ALL":
			all = true
		case has:
			env[name] = value
		case name != "":
			if v, ok := environ[name]; ok {
				env[name] = v
			}
		}
	}
	if all {
		for k, v := range environ {
			if _, own := env[k]; !own {
				env[k] = v
			}
		}
	}
	return env
}

// ofNode are variables that describe the node of a job.
var ofNode = []string{"SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURMD_NODENAME", "SLURM_CLUSTER_NAME", "SLURM_NODEID", "SLURM_JOB_PARTITION"}

// tell adds the variables that Slurm gives a job, or the elements of an array, whose first job
// it is.
func (s *submission) tell(env map[string]string, first int, array *queue.Array, shim, dir, user string, uid int) {
	delete(env, heldVariable)
	for k := range env {
		if strings.HasPrefix(k, "SLURM_") && !slices.Contains([]string{"SLURM_CONF"}, k) {
			delete(env, k) // of the job that submitted this one
		}
	}
	node, number := nodeName(), strconv.Itoa
	id := number(first)
	if array != nil {
		id = array.Place(queue.ElementTask, 0)
	}
	for k, v := range map[string]string{
		"SLURM_JOB_ID": id, "SLURM_JOBID": id, "SLURM_JOB_NAME": s.Name, "SLURM_JOB_PARTITION": s.Partition,
		"SLURM_JOB_USER": user, "SLURM_JOB_UID": number(uid), "SLURM_JOB_NODELIST": node, "SLURM_NODELIST": node, "SLURMD_NODENAME": node,
		"SLURM_JOB_NUM_NODES": "1", "SLURM_NNODES": "1", "SLURM_JOB_CPUS_PER_NODE": number(s.Cores), "SLURM_CPUS_ON_NODE": number(s.Cores),
		"SLURM_NTASKS": number(s.Ntasks), "SLURM_NPROCS": number(s.Ntasks), "SLURM_TASKS_PER_NODE": number(s.Ntasks), "SLURM_NODEID": "0", "SLURM_PROCID": "0",
		"SLURM_LOCALID": "0", "SLURM_GTIDS": "0", "SLURM_CLUSTER_NAME": clusterName, "SLURM_SUBMIT_DIR": dir, "SLURM_SUBMIT_HOST": node,
		"SLURM_JOB_QOS": s.QOS, "SLURM_JOB_GID": number(os.Getgid()), "ENVIRONMENT": "BATCH", shimVariable: shim,
	} {
		env[k] = v
	}
	maps.Copy(env, s.gpuVariables())
	if s.Account != "" {
		env["SLURM_JOB_ACCOUNT"] = s.Account
	}
	if _, ok := s.set["cpus-per-task"]; ok {
		env["SLURM_CPUS_PER_TASK"] = number(s.PerTask)
	}
	if s.Memory > 0 {
		if s.PerCPU {
			env["SLURM_MEM_PER_CPU"] = strconv.FormatInt(s.Memory/int64(s.Cores)>>20, 10)
		} else {
			env["SLURM_MEM_PER_NODE"] = strconv.FormatInt(s.Memory>>20, 10)
		}
	}
	if array != nil {
		env["SLURM_ARRAY_JOB_ID"], env["SLURM_ARRAY_TASK_ID"] = number(first), array.Place(queue.ElementIndex, 0)
		env["SLURM_ARRAY_TASK_COUNT"], env["SLURM_ARRAY_TASK_MIN"], env["SLURM_ARRAY_TASK_MAX"] = number(s.Array), number(s.indices[0]), number(s.indices[len(s.indices)-1])
		step := 1
		if len(s.indices) > 1 {
			step = s.indices[1] - s.indices[0]
		}
		env["SLURM_ARRAY_TASK_STEP"] = number(step)
	}
}

// shells are interpreters that take a script after -c.
var shells = []string{"sh", "bash", "dash", "zsh", "ksh", "mksh", "ash"}

// maxScript is the longest script that is given as an argument.
const maxScript = 120 << 10

// interpreter parses the first line of a script. shell reports that the script may
// be an argument of -c.
func interpreter(script []byte) (argv []string, shell bool, err error) {
	line, _, _ := bytes.Cut(script, []byte("\n"))
	text, ok := bytes.CutPrefix(bytes.TrimRight(line, "\r"), []byte("#!"))
	if !ok {
		return nil, false, &optionError{"this does not look like a batch script: its first line does not begin with #!", "begin it with the path of an interpreter, as in #!/bin/sh"}
	}
	if bytes.IndexByte(script, 0) >= 0 {
		return nil, false, &optionError{"a batch script cannot hold a byte of value 0", "submit a script of text"}
	}
	if bytes.HasSuffix(line, []byte("\r")) {
		return nil, false, &optionError{"batch script contains DOS line breaks (\\r\\n) instead of expected UNIX line breaks (\\n)", "convert it with dos2unix"}
	}
	// As the kernel does: the program, and all the rest as one argument.
	program, rest, has := strings.Cut(strings.TrimSpace(string(text)), " ")
	if program == "" {
		return nil, false, &optionError{"the script's first line names no interpreter", "begin it as in #!/bin/sh"}
	}
	argv = []string{program}
	if rest = strings.TrimSpace(rest); has && rest != "" {
		argv = append(argv, rest)
	}
	name := filepath.Base(program)
	if name == "env" && len(argv) == 2 {
		name = argv[1]
	} else if len(argv) == 2 && !strings.HasPrefix(argv[1], "-") {
		return argv, false, nil
	}
	return argv, slices.Contains(shells, name) && len(script) <= maxScript, nil
}

// step returns the part of the name that jobs of one rule or process have in common.
func (s *submission) step() string {
	name := s.Name
	if rule, ok := strings.CutPrefix(s.Comment, "rule_"); ok { // Snakemake; the name is the same for all jobs of a run
		name, _, _ = strings.Cut(rule, "_wildcards_")
	} else {
		name = strings.TrimPrefix(name, "nf-") // Nextflow: nf-PROCESS_(TAG)
		if i := strings.Index(name, "_("); i > 0 {
			name = name[:i]
		}
		if cut := strings.TrimRight(name, "0123456789_-. "); cut != "" {
			name = cut
		}
	}
	name = strings.Map(func(r rune) rune {
		if r < ' ' || r == ',' {
			return '_'
		}
		return r
	}, name)
	if name == "" {
		return queue.DefaultGroup
	}
	return strings.ToValidUTF8(name[:min(len(name), 100)], "")
}
