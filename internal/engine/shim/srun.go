package shim

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// shimVariable is set in jobs, to the directory of their shim. srun there runs a step.
	shimVariable = "PREMIX_SLURM_SHIM"
	// heldVariable is set in steps that the holder of an allocation has started.
	heldVariable = "PREMIX_SLURM_STEP"
)

// stepRun is a step that is to run in this job.
type stepRun struct {
	dir     string // of the shim
	command []string
	tasks   int
	perTask int
	exact   bool // holds the cores of its tasks, and not all of the job
	overlap bool // holds none
	chdir   string
	label   bool
	kill    bool          // all tasks if one fails
	wait    time.Duration // for the others after the first has ended; 0: without end
	limit   time.Duration
	appends bool
	streams [3]string // patterns of names of files; "": the stream of srun
	export  string
	name    string
	step    string // id
	job     int
	cores   int // of the job

	gpus        int      // that the step asks for; 0: it sees all of the job
	gpusPerTask int      // each task sees its own; 0: all of the step
	devices     []string // the GPUs of the step
}

// srun runs a step: in a job beside its other steps, and outside of one in a job of its own.
func srun(dir string, args []string) response {
	a, err := parse("srun", srunOptions(), args, true)
	if err != nil {
		return fail("srun", 1, err)
	}
	if len(a.rest) == 0 {
		return fail("srun", 1, &optionError{"No command given to execute.", ""})
	}
	inJob := os.Getenv(shimVariable) == dir
	switch config, err := readConfig(dir); {
	case err != nil:
		return fail("srun", 1, err)
	case !inJob && config.Engine != "":
		return config.real("srun", args)
	case !inJob:
		return allocate("srun", dir, a)
	case os.Getenv(heldVariable) == "" && config.Engine == "":
		if r, ok := throughHolder(dir, args); ok {
			return r
		}
		return inThisJob(dir, a, true)
	default:
		return inThisJob(dir, a, config.Engine == "")
	}
}

// inThisJob runs a step here. registered steps are listed by sacct and squeue --steps.
func inThisJob(dir string, a *arguments, registered bool) response {
	l, err := newStepRun(dir, a)
	if err != nil {
		return fail("srun", 1, err)
	}
	l.step = "0"
	if registered {
		if err := l.register(); err != nil {
			return fail("srun", 1, err)
		}
	}
	end := step{Job: l.job, ID: l.step}
	exit, err := l.run(&end)
	if registered {
		if end.Exit = exit; end.Signal != 0 {
			end.Exit = 0
		}
		// Without the report the worker lists the step as killed. Its job is not affected.
		_, _ = ask(l.dir, &request{Format: wireFormat, Program: stepEnd, Step: &end})
	}
	if err != nil {
		return fail("srun", exit, err)
	}
	return response{Exit: exit}
}

// newStepRun interprets the arguments of srun in a job.
func newStepRun(dir string, a *arguments) (_ *stepRun, err error) {
	if a, err = a.perTask(); err != nil {
		return nil, err
	}
	l := &stepRun{dir: dir, command: a.rest, label: a.has("label"), overlap: a.has("overlap", "overcommit"), chdir: a.get("chdir", ""), export: a.get("export", "ALL"),
		streams: [3]string{a.get("input", ""), a.get("output", ""), a.get("error", "")}, exact: a.has("exact", "exclusive", "cpus-per-task")}
	count := func(name, otherwise string) int {
		text := a.get(name, otherwise)
		if err != nil || text == "" {
			return 1
		}
		n := 0
		n, err = parseCount(name, text)
		return n
	}
	l.tasks, l.perTask = count("ntasks", a.get("ntasks-per-node", os.Getenv("SLURM_NTASKS"))), count("cpus-per-task", "")
	// Without the variable, for example where a client has removed it, the worker alone checks.
	if l.cores = l.tasks * l.perTask; os.Getenv("SLURM_CPUS_ON_NODE") != "" {
		l.cores = count("cores of the job", os.Getenv("SLURM_CPUS_ON_NODE"))
	}
	if err != nil {
		return nil, err
	}
	if n, _, _ := strings.Cut(a.get("nodes", "1"), "-"); n != "1" {
		return nil, &optionError{fmt.Sprintf("--nodes=%s: there is one machine", a.get("nodes", "")), "ask for one node"}
	}
	if m := a.get("mpi", "none"); m != "none" {
		return nil, &optionError{fmt.Sprintf("--mpi=%s is not supported by premix", m), "start MPI programs with mpirun"}
	}
	if l.job, err = strconv.Atoi(os.Getenv("SLURM_JOB_ID")); err != nil {
		return nil, &optionError{"SLURM_JOB_ID is not the number of a job", "keep the variables of the job"}
	}
	if id := a.get("jobid", strconv.Itoa(l.job)); id != strconv.Itoa(l.job) {
		return nil, &optionError{fmt.Sprintf("--jobid=%s is another job", id), "start steps within their job"}
	}
	if !a.has("overcommit") && l.tasks*l.perTask > l.cores {
		return nil, &optionError{fmt.Sprintf("Unable to create step for job %d: More processors requested than permitted", l.job),
			fmt.Sprintf("the step asks for %d tasks of %d cores and the job has %d cores; -O shares them", l.tasks, l.perTask, l.cores)}
	}
	if err := l.generic(a); err != nil {
		return nil, err
	}
	if l.name = a.get("job-name", filepath.Base(l.command[0])); a.has("kill-on-bad-exit") {
		l.kill = a.get("kill-on-bad-exit", "1") != "0"
	}
	if text, ok := a.value("wait"); ok {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			return nil, &optionError{fmt.Sprintf("invalid --wait %q", text), "give a number of seconds"}
		}
		l.wait = time.Duration(n) * time.Second
	}
	if l.limit, err = parseTime(a.get("time", "0")); err != nil {
		return nil, err
	}
	l.appends = strings.HasPrefix(a.get("open-mode", "t"), "a")
	return l, nil
}

// register tells the worker that the step begins, and waits until the job has cores for it.
func (l *stepRun) register() error {
	s := &step{Job: l.job, Name: l.name, Tasks: l.tasks, Cores: l.cores, PID: os.Getpid(), Overlap: l.overlap, GPUs: l.gpus}
	if l.gpus > 0 {
		s.Devices = devices()
	}
	if l.exact {
		s.Cores = l.tasks * l.perTask
	}
	if l.overlap {
		s.Cores = min(l.tasks*l.perTask, l.cores)
	}
	answer, err := ask(l.dir, &request{Format: wireFormat, Program: stepBegin, Step: s})
	if err != nil {
		return err
	}
	if answer.Exit != 0 {
		return errors.New(strings.TrimSpace(string(answer.Stderr)))
	}
	id, ids, ok := strings.Cut(string(answer.Stdout), " ")
	if l.step = id; ok {
		l.devices = strings.Split(ids, ",")
	}
	return nil
}

// task is one process of a step.
type task struct {
	*exec.Cmd
	rank     int
	copies   []func() // of labelled output, which end with the task
	finished chan struct{}
	files    []io.Closer
}

// run runs the tasks, adds what they used to sum, and returns the highest of their exit codes.
func (l *stepRun) run(sum *step) (int, error) {
	if l.chdir != "" {
		if err := os.Chdir(l.chdir); err != nil {
			return 1, err
		}
	}
	path, err := exec.LookPath(l.command[0])
	if err != nil && !errors.Is(err, exec.ErrDot) {
		return 2, fmt.Errorf("execve(): %s: No such file or directory", l.command[0])
	}
	// Signals for the job reach the tasks, which are in its process group. A signal for srun
	// alone is passed on after a second.
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT, unix.SIGHUP)
	// Tasks would inherit a signal that srun ignores, but not one that it receives.
	signal.Notify(make(chan os.Signal, 1), unix.SIGUSR1, unix.SIGUSR2)

	in := l.input()
	var out sync.Mutex // of labelled lines
	var tasks []*task
	results := make(chan *task, l.tasks)
	end := func(sig unix.Signal) {
		for _, t := range tasks {
			_ = t.Process.Signal(sig) // it may have ended
		}
	}
	for rank := range l.tasks {
		t, err := l.start(path, rank, in, &out)
		if err != nil {
			end(unix.SIGKILL)
			return 2, fmt.Errorf("execve(): %s: %w", l.command[0], err)
		}
		tasks = append(tasks, t)
		go func() {
			<-t.finished
			results <- t
		}()
	}
	in.feed()
	highest := 0
	var deadline, limit <-chan time.Time
	if l.limit > 0 {
		limit = time.After(l.limit)
	}
	for left := l.tasks; left > 0; {
		select {
		case sig := <-signals:
			time.AfterFunc(time.Second, func() { end(sig.(syscall.Signal)) })
		case <-limit:
			fmt.Fprintf(os.Stderr, "srun: error: step %d.%s: time limit reached\n", l.job, l.step)
			end(unix.SIGTERM)
			limit, deadline = nil, time.After(Grace)
		case <-deadline:
			end(unix.SIGKILL)
			deadline = nil
		case t := <-results:
			left--
			code := l.report(t, sum)
			highest = max(highest, code)
			if code != 0 && l.kill && left > 0 {
				end(unix.SIGTERM)
				deadline = time.After(Grace)
			}
			if l.wait > 0 && deadline == nil {
				deadline = time.After(l.wait)
			}
		}
	}
	return highest, nil
}

// report prints how a task has ended unless it has succeeded, adds what it used, and returns its
// exit code.
func (l *stepRun) report(t *task, sum *step) int {
	state := t.ProcessState
	sum.User += state.UserTime().Seconds()
	sum.System += state.SystemTime().Seconds()
	if usage, ok := state.SysUsage().(*syscall.Rusage); ok {
		sum.MaxRSS = max(sum.MaxRSS, usage.Maxrss<<10)
	}
	status := state.Sys().(syscall.WaitStatus)
	switch {
	case status.Signaled():
		sum.Signal = int(status.Signal())
		fmt.Fprintf(os.Stderr, "srun: error: %s: task %d: %s\n", nodeName(), t.rank, capital(status.Signal().String()))
		return 128 + int(status.Signal())
	case status.ExitStatus() != 0:
		fmt.Fprintf(os.Stderr, "srun: error: %s: task %d: Exited with exit code %d\n", nodeName(), t.rank, status.ExitStatus())
	}
	return status.ExitStatus()
}

func capital(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}

// start starts a task.
func (l *stepRun) start(path string, rank int, in *input, mu *sync.Mutex) (*task, error) {
	t := &task{Cmd: &exec.Cmd{Path: path, Args: l.command, Env: l.environ(rank)}, rank: rank, finished: make(chan struct{})}
	t.SysProcAttr = &syscall.SysProcAttr{}
	stdin, err := in.of(rank)
	if err != nil {
		return nil, err
	}
	t.Stdin = stdin
	defer stdin.Close()
	for i, own := range []*os.File{os.Stdout, os.Stderr} {
		f, err := l.stream(i+1, own, t, mu)
		if err != nil {
			return nil, err
		}
		if i == 0 {
			t.Stdout = f
		} else {
			t.Stderr = f
		}
	}
	if err = t.Start(); err == nil {
		go func() {
			_ = t.Wait() // ProcessState has the result
			for _, wait := range t.copies {
				wait()
			}
			close(t.finished)
		}()
	}
	for _, f := range t.files {
		f.Close()
	}
	return t, err
}

// stream returns the file of standard output (1) or standard error (2) of a task.
func (l *stepRun) stream(number int, own *os.File, t *task, mu *sync.Mutex) (*os.File, error) {
	pattern := l.streams[number]
	if number == 2 && pattern == "" && l.streams[1] != "" && l.streams[1] != "all" {
		if _, err := strconv.Atoi(l.streams[1]); err != nil {
			return t.Stdout.(*os.File), nil // as Slurm does
		}
	}
	flags := os.O_WRONLY | os.O_CREATE | os.O_TRUNC
	if l.appends {
		flags = os.O_WRONLY | os.O_CREATE | os.O_APPEND
	}
	open := func(path string, flags int) (*os.File, error) {
		f, err := os.OpenFile(path, flags, 0o666)
		if err == nil {
			t.files = append(t.files, f)
		}
		return f, err
	}
	only, err := strconv.Atoi(pattern)
	switch {
	case pattern == "" || pattern == "all" || err == nil && only == t.rank:
	case pattern == "none" || err == nil:
		return open(os.DevNull, os.O_WRONLY)
	default:
		path := l.expand(pattern, t.rank)
		if t.rank > 0 && path == l.expand(pattern, 0) {
			flags = os.O_WRONLY | os.O_CREATE | os.O_APPEND // one file for all tasks
		} else if l.tasks > 1 {
			flags |= os.O_APPEND
		}
		return open(path, flags)
	}
	if !l.label {
		return own, nil
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	t.files = append(t.files, w)
	done := make(chan struct{})
	t.copies = append(t.copies, func() { <-done })
	prefix := fmt.Sprintf("%*d: ", len(strconv.Itoa(l.tasks-1)), t.rank)
	go func() {
		defer close(done)
		defer r.Close()
		label(own, r, prefix, mu)
	}()
	return w, nil
}

// label copies lines, each with a prefix. A line without an end gets one.
func label(w io.Writer, r io.Reader, prefix string, mu *sync.Mutex) {
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			mu.Lock()
			_, werr := io.WriteString(w, prefix+strings.TrimSuffix(line, "\n")+"\n")
			mu.Unlock()
			if werr != nil {
				_, _ = io.Copy(io.Discard, lines) // the task must not wait for a reader that is gone
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// expand fills in the places of a name of a file of a step.
func (l *stepRun) expand(pattern string, rank int) string {
	if strings.Contains(pattern, `\`) {
		return strings.ReplaceAll(pattern, `\`, "")
	}
	array, index := l.job, "4294967294"
	if id, err := strconv.Atoi(os.Getenv("SLURM_ARRAY_JOB_ID")); err == nil {
		array, index = id, os.Getenv("SLURM_ARRAY_TASK_ID")
	}
	element, err := strconv.Atoi(index)
	padded := func(n int) place { return place{number: n, padded: true} }
	places := map[byte]place{
		'j': padded(l.job), 'A': padded(array), 'a': padded(element), 't': padded(rank), 'n': padded(0), 's': {text: l.step}, 'J': {text: fmt.Sprintf("%d.%s", l.job, l.step)},
		'N': {text: nodeName()}, 'u': {text: userName()}, 'x': {text: os.Getenv("SLURM_JOB_NAME")},
	}
	if err != nil {
		places['a'] = place{text: index}
	}
	return fill(pattern, places)
}

// environ returns the environment of a task.
func (l *stepRun) environ(rank int) []string {
	environ := os.Environ()
	if l.export != "ALL" {
		all := make(map[string]string)
		kept := make(map[string]string)
		for _, kv := range environ {
			k, v, _ := strings.Cut(kv, "=")
			all[k] = v
			if ofJob(k) || k == heldVariable {
				kept[k] = v
			}
		}
		chosen := exported(l.export, all)
		environ = environ[:0]
		for k, v := range chosen {
			environ = append(environ, k+"="+v)
		}
		for k, v := range kept {
			environ = append(environ, k+"="+v)
		}
	}
	number := strconv.Itoa
	ranks := make([]string, l.tasks)
	for i := range ranks {
		ranks[i] = number(i)
	}
	set := []string{
		"SLURM_PROCID=" + number(rank), "SLURM_LOCALID=" + number(rank), "SLURM_NODEID=0", "SLURM_NTASKS=" + number(l.tasks), "SLURM_NPROCS=" + number(l.tasks), "SLURM_GTIDS=" + strings.Join(ranks, ","),
		"SLURM_STEP_ID=" + l.step, "SLURM_STEPID=" + l.step, "SLURM_STEP_NUM_TASKS=" + number(l.tasks), "SLURM_STEP_NUM_NODES=1", "SLURM_STEP_TASKS_PER_NODE=" + number(l.tasks), "SLURM_STEP_NODELIST=" + nodeName(),
		"SLURM_TASKS_PER_NODE=" + number(l.tasks), "SLURM_SRUN_COMM_HOST=127.0.0.1", "SLURM_LAUNCH_NODE_IPADDR=127.0.0.1",
	}
	if l.exact {
		set = append(set, "SLURM_CPUS_PER_TASK="+number(l.perTask))
	}
	set = append(set, l.gpuEnviron(rank)...)
	return append(environ, set...)
}

// input is the standard input of a step.
type input struct {
	l       *stepRun
	to      int // the only task that gets srun's standard input; -1: all
	pattern string
	pipes   []*os.File // of tasks that share srun's standard input
}

func (l *stepRun) input() *input {
	in := &input{l: l, to: -1, pattern: l.streams[0]}
	if n, err := strconv.Atoi(in.pattern); err == nil {
		in.to, in.pattern = n, ""
	}
	if in.pattern == "all" {
		in.pattern = ""
	}
	if l.tasks == 1 {
		in.to = 0
	}
	return in
}

// of returns the standard input of a task. The caller closes it.
func (in *input) of(rank int) (*os.File, error) {
	switch {
	case in.pattern == "none" || in.pattern == "" && in.to >= 0 && in.to != rank:
		return os.Open(os.DevNull)
	case in.pattern != "":
		return os.Open(in.l.expand(in.pattern, rank))
	case in.to == rank:
		fd, err := unix.FcntlInt(os.Stdin.Fd(), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			return nil, os.NewSyscallError("fcntl", err)
		}
		return os.NewFile(uintptr(fd), "stdin"), nil
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	in.pipes = append(in.pipes, w)
	return r, nil
}

// feed copies standard input to the tasks that share it.
func (in *input) feed() {
	if len(in.pipes) == 0 {
		return
	}
	go func() {
		buffer := make([]byte, 64<<10)
		open := in.pipes
		for len(open) > 0 {
			n, err := os.Stdin.Read(buffer)
			var still []*os.File
			for _, w := range open {
				if _, werr := w.Write(buffer[:n]); werr == nil {
					still = append(still, w)
				} else {
					w.Close() // the task does not read any more
				}
			}
			if open = still; err != nil {
				break
			}
		}
		for _, w := range open {
			w.Close()
		}
	}()
}
