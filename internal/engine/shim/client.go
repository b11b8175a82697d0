package shim

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"premix/internal/engine"
	"premix/internal/kit/cgroup"
	"premix/internal/kit/owner"
	"premix/internal/kit/unixpeer"
)

// ClientArg is the first argument of a client: premix ClientArg DIR PROGRAM ARGUMENT...
const ClientArg = "slurm-front"

// WorkerArg is the first argument of a worker: premix WorkerArg DIR.
const WorkerArg = "slurm-worker"

// slurmVersion is the release whose output the clients have.
const slurmVersion = "slurm 22.05.8"

// startTime is how long a client waits for a worker that it has started. Reading a
// million jobs takes some seconds.
const startTime = 2 * time.Minute

// ClientMain is the main function of a client. args follow ClientArg.
func ClientMain(args []string) int {
	if len(args) < 2 {
		fmt.Fprintln(os.Stderr, "error: this is for the programs that premix slurm-shim makes")
		return 2
	}
	dir, program, args := args[0], args[1], args[2:]
	r := runClient(dir, program, args)
	// An error of this write cannot be reported anywhere.
	_, _ = os.Stderr.Write(r.Stderr)
	if _, err := os.Stdout.Write(r.Stdout); err != nil && r.Exit == 0 {
		return 1
	}
	return r.Exit
}

func runClient(dir, program string, args []string) response {
	for _, a := range args {
		if a == "--version" || a == "-V" {
			return response{Stdout: []byte(slurmVersion + "\n")}
		}
		if _, ok := programs[program]; ok && (a == "--help" || a == "--usage") {
			return response{Stdout: []byte(help(program))}
		}
		if a == "--" || !strings.HasPrefix(a, "-") {
			break
		}
	}
	switch program {
	case "srun":
		return srun(dir, args)
	case "salloc":
		return salloc(dir, args)
	}
	if slices.Contains(ofCluster, program) || program == "scontrol" && !ofJobs(args) {
		// What there is of nodes and partitions Slurm itself knows.
		c, err := readConfig(dir)
		if err != nil {
			return fail(program, 1, err)
		}
		if c.Engine != "" {
			return c.real(program, args)
		}
	}
	r := request{Format: wireFormat, Program: program, Args: toBytes(args)}
	var id [16]byte
	_, _ = rand.Read(id[:]) // it never fails
	r.ID = hex.EncodeToString(id[:])
	cwd, err := os.Getwd()
	if err != nil {
		return fail(program, 1, err)
	}
	r.Dir = []byte(cwd)
	if program == "sbatch" {
		r.Env = toBytes(os.Environ())
		s, needs, err := parseSbatch(args)
		if err == nil && needs {
			r.Script, err = readScript(s.script)
		}
		if err != nil {
			return fail(program, 1, err)
		}
	}
	if every, ok, err := iterates(program, args); err != nil {
		return fail(program, 1, err)
	} else if ok {
		return iterate(dir, &r, every)
	}
	answer, err := ask(dir, &r)
	if err != nil {
		return fail(program, 1, err)
	}
	return *answer
}

// iterates returns the time between the answers that squeue and sinfo give with --iterate.
func iterates(program string, args []string) (every time.Duration, ok bool, err error) {
	if program != "squeue" && program != "sinfo" {
		return 0, false, nil
	}
	list, _, err := parseOptions(programs[program](), args, false)
	if err != nil {
		return 0, false, nil // the worker reports the mistake
	}
	a := &arguments{list: list}
	text, ok := a.value("iterate")
	if !ok {
		return 0, false, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return 0, false, &optionError{fmt.Sprintf("--iterate=%s", text), "give a number of seconds from 1"}
	}
	return time.Duration(n) * time.Second, true, nil
}

// iterate asks again and again, and prints each answer with its time.
func iterate(dir string, r *request, every time.Duration) response {
	for {
		answer, err := ask(dir, r)
		if err != nil {
			return fail(r.Program, 1, err)
		}
		if _, err := fmt.Printf("%s\n%s\n", time.Now().Format(time.ANSIC), answer.Stdout); err != nil || answer.Exit != 0 {
			return response{Exit: max(1, answer.Exit), Stderr: answer.Stderr}
		}
		time.Sleep(every)
	}
}

// ofCluster are programs that show a cluster and not its jobs: a Slurm behind the clients
// answers them itself.
var ofCluster = []string{"sinfo", "sshare", "sacctmgr"}

// ofJobs reports whether a call of scontrol is about jobs.
func ofJobs(args []string) bool {
	list, rest, err := parseOptions(scontrolOptions(), args, false)
	if err != nil || len(list) == 0 && len(rest) == 0 {
		return true // the worker reports the mistake
	}
	if len(rest) > 1 && strings.EqualFold(rest[0], "show") {
		entity, _, _ := strings.Cut(strings.ToLower(rest[1]), "=")
		return entity != "" && (strings.HasPrefix("jobs", entity) || strings.HasPrefix("steps", entity))
	}
	return len(rest) > 0 && slices.Contains([]string{"hold", "uhold", "holdu", "release", "suspend", "resume", "requeue", "requeuehold", "update", "write"}, strings.ToLower(rest[0]))
}

// readScript reads a batch script as sbatch does: a file, else standard input.
func readScript(name string) ([]byte, error) {
	if name == "" {
		return io.ReadAll(os.Stdin)
	}
	text, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) && !strings.Contains(name, "/") {
		// sbatch looks along PATH, too.
		if path, lerr := exec.LookPath(name); lerr == nil {
			return os.ReadFile(path)
		}
	}
	if err != nil {
		return nil, &optionError{fmt.Sprintf("Unable to open file %s", name), "name a script, or give a command with --wrap"}
	}
	return text, nil
}

// ask sends a request to the worker. It starts a worker if none is running, and again if
// the worker ends before it answers.
func ask(dir string, r *request) (*response, error) {
	const tries = 20
	var last error
	for range tries {
		conn, err := connect(dir)
		if err != nil {
			return nil, err
		}
		answer := &response{}
		err = send(conn, r)
		if err == nil {
			err = receive(conn, answer)
		}
		conn.Close()
		if err == nil && answer.Format > wireFormat {
			return nil, errors.New("the worker is of a newer premix: premix slurm-shim --dir makes the clients anew")
		}
		if err == nil {
			return answer, nil
		}
		last = err
		time.Sleep(10 * time.Millisecond)
	}
	return nil, fmt.Errorf("the worker ends without an answer: %w", last)
}

// connect connects to the worker.
func connect(dir string) (net.Conn, error) {
	if err := belongs(dir); err != nil {
		return nil, engine.DirectoryError(dir, err)
	}
	folder, err := os.Open(statePath(dir, ""))
	if err != nil {
		return nil, err
	}
	defer folder.Close()
	var started *started
	for since := time.Now(); ; {
		conn, err := net.Dial("unix", socketIn(folder))
		if err == nil {
			// A request holds the environment of this process.
			if err := unixpeer.Check(conn); err != nil {
				conn.Close()
				return nil, err
			}
			return conn, nil
		}
		if !errors.Is(err, syscall.ENOENT) && !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, syscall.EAGAIN) {
			return nil, err
		}
		if started == nil {
			if started, err = startWorker(dir); err != nil {
				return nil, fmt.Errorf("start the worker: %w", err)
			}
		}
		select {
		case <-started.finished:
			if text := started.said(); text != "" {
				return nil, fmt.Errorf("the worker does not start: %s", text)
			}
			// Another one was there, or it has done its work.
			started = nil
		default:
		}
		if time.Since(since) > startTime {
			return nil, fmt.Errorf("no worker answers in %v; see %s", startTime, statePath(dir, "worker.log"))
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// socketIn returns a path of the worker's socket that is short enough wherever the
// directory is.
func socketIn(folder *os.File) string {
	return "/proc/self/fd/" + strconv.Itoa(int(folder.Fd())) + "/socket"
}

// started is a worker that this process has started.
type started struct {
	finished chan struct{}
	log      string
	started  int64 // size of the log before
}

// said returns the output of the worker.
func (s *started) said() string {
	text, err := os.ReadFile(s.log)
	if err != nil || int64(len(text)) <= s.started {
		return ""
	}
	return string(bytes.TrimSpace(text[s.started:]))
}

// startWorker starts a worker that outlives this process. It gets an almost empty
// environment: jobs would inherit its variables without having asked for them.
func startWorker(dir string) (*started, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	s := &started{finished: make(chan struct{}), log: statePath(dir, "worker.log")}
	log, err := owner.OpenFile(s.log, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o664)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	if info, err := log.Stat(); err == nil {
		s.started = info.Size()
	}
	cmd := exec.Command(exe, WorkerArg, dir)
	cmd.Dir, cmd.Stdout, cmd.Stderr = "/", log, log
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME")}
	if c, err := readConfig(dir); err == nil && c.Engine != "" {
		cmd.Env = c.Env
	} else if err == nil && c.Devices != "" {
		cmd.Env = append(cmd.Env, gpuVariable+"="+c.Devices)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	_ = cgroup.Leave(cmd.Process.Pid) // where it cannot leave a task, it ends with it
	go func() {
		_ = cmd.Wait() // its log has the error
		close(s.finished)
	}()
	return s, nil
}
