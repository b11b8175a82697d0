package slurmtest

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"premix/internal/testkit/ports"
)

// Options describe a box.
type Options struct {
	Nodes      int    // 0: 4
	CPUs       int    // of a node; 0: 2
	Memory     int    // of a node, MB; 0: 4000
	GPUs       int    // of a node: /dev/null stands for the devices
	Space      string // the resource tmpspace of a node, as in 100G
	Accounting bool   // with MariaDB and slurmdbd
	Config     string // more lines for slurm.conf
	Scheduler  string // SchedulerParameters; "": parameters with which jobs start at once
}

// Box is a running Slurm.
type Box struct {
	Dir string
	o   Options

	mu      sync.Mutex // guards the rest
	daemons map[string]*daemon
	ports   map[string]int
}

type daemon struct {
	cmd      *exec.Cmd
	finished chan struct{}
}

// patience is the time to wait for a daemon on a slow machine.
const patience = 2 * time.Minute

// sbin are directories of daemons that an ordinary PATH may lack.
const sbin = "/usr/local/sbin:/usr/sbin:/sbin"

// Missing returns the names of the programs that a box needs and that are not installed.
func Missing(accounting bool) []string {
	var list []string
	names := []string{"munged", "slurmctld", "slurmd", "sbatch", "squeue"}
	if accounting {
		names = append(names, "slurmdbd", "mariadbd", "mariadb-install-db", "sacctmgr")
	}
	for _, name := range names {
		if find(name) == "" {
			list = append(list, name)
		}
	}
	return list
}

func find(name string) string {
	for _, dir := range filepath.SplitList(os.Getenv("PATH") + ":" + sbin) {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path
		}
	}
	return ""
}

// Start starts a box in a new or empty directory. Its path must be short, since it is part
// of the paths of sockets.
func Start(dir string, o Options) (_ *Box, err error) {
	if o.Nodes == 0 {
		o.Nodes = 4
	}
	if o.CPUs == 0 {
		o.CPUs = 2
	}
	if o.Memory == 0 {
		o.Memory = 4000
	}
	if list := Missing(o.Accounting); len(list) > 0 {
		return nil, fmt.Errorf("slurm is not installed: there is no %s (scripts/setup.sh test)", strings.Join(list, ", "))
	}
	b := &Box{Dir: dir, o: o, daemons: make(map[string]*daemon), ports: make(map[string]int)}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.Stop())
		}
	}()
	for _, sub := range []string{"etc", "state", "log", "spool", "run", "munge"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return nil, err
		}
	}
	key := make([]byte, 1024)
	_, _ = rand.Read(key) // it never fails
	if err := os.WriteFile(b.path("munge/key"), key, 0o400); err != nil {
		return nil, err
	}
	if err := b.StartDaemon("munged"); err != nil {
		return nil, err
	}
	if err := b.await("munged", func() error { _, err := os.Stat(b.path("munge/sock")); return err }); err != nil {
		return nil, err
	}
	// Another process may take a free port before a daemon listens on it.
	for try := 0; ; try++ {
		if err = b.startSlurm(); err == nil || try == 2 {
			return b, err
		}
		b.stopAll("munged")
	}
}

// startSlurm chooses ports, writes the configuration and starts all daemons but munged.
func (b *Box) startSlurm() error {
	names := []string{"slurmctld", "slurmdbd", "mariadbd"}
	names = append(names, b.Nodes()...)
	if err := b.takePorts(names); err != nil {
		return err
	}
	if err := b.configure(); err != nil {
		return err
	}
	if b.o.Accounting {
		if err := b.startAccounting(); err != nil {
			return err
		}
	}
	for _, name := range append([]string{"slurmctld"}, b.Nodes()...) {
		if err := b.StartDaemon(name); err != nil {
			return err
		}
	}
	return b.AwaitIdle()
}

// Nodes returns the names of the nodes.
func (b *Box) Nodes() []string {
	var list []string
	for i := range b.o.Nodes {
		list = append(list, fmt.Sprintf("n%d", i+1))
	}
	return list
}

func (b *Box) path(name string) string { return filepath.Join(b.Dir, name) }

// Conf returns the path of the box's slurm.conf.
func (b *Box) Conf() string { return b.path("etc/slurm.conf") }

// Env returns the environment of this process with SLURM_CONF of the box.
func (b *Box) Env() []string { return append(os.Environ(), "SLURM_CONF="+b.Conf()) }

// Command returns a command with the environment Env.
func (b *Box) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	path := find(name)
	if path == "" {
		path = name
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = b.Env()
	return cmd
}

// Run runs a command with the environment Env and returns its standard output.
func (b *Box) Run(name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var errs bytes.Buffer
	cmd := b.Command(ctx, name, args...)
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return string(out), fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, &errs)
	}
	return string(out), nil
}

func (b *Box) takePorts(names []string) error {
	list, err := ports.Free(len(names))
	for i, port := range list {
		b.ports[names[i]] = port
	}
	return err
}

// configure writes slurm.conf and slurmdbd.conf.
func (b *Box) configure() error {
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	host, _, _ = strings.Cut(host, ".")
	me, err := user.Current()
	if err != nil {
		return err
	}
	var c strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&c, format+"\n", args...) }
	line("ClusterName=box")
	line("SlurmctldHost=%s(127.0.0.1)", host)
	line("SlurmUser=%s", me.Username)
	line("SlurmdUser=%s", me.Username)
	line("SlurmctldPort=%d", b.ports["slurmctld"])
	line("AuthType=auth/munge")
	// Slurm starts a requeued job again only after its old credential has expired.
	line("AuthInfo=socket=%s,cred_expire=5", b.path("munge/sock"))
	line("CredType=cred/munge")
	line("StateSaveLocation=%s", b.path("state"))
	line("SlurmdSpoolDir=%s/%%n", b.path("spool"))
	line("SlurmctldPidFile=%s", b.path("run/slurmctld.pid"))
	line("SlurmdPidFile=%s/%%n.pid", b.path("run"))
	line("SlurmctldLogFile=%s", b.path("log/slurmctld.log"))
	line("SlurmdLogFile=%s/%%n.log", b.path("log"))
	line("ProctrackType=proctrack/linuxproc")
	line("TaskPlugin=task/none")
	line("JobAcctGatherType=jobacct_gather/none")
	line("SelectType=select/cons_tres")
	line("SelectTypeParameters=CR_Core_Memory")
	line("SlurmdParameters=config_overrides")
	line("SchedulerType=sched/backfill")
	if b.o.Scheduler == "" {
		b.o.Scheduler = "batch_sched_delay=0,sched_min_interval=1000,default_queue_depth=1000,bf_interval=5,bf_max_job_test=1000,max_array_tasks=100001"
	}
	line("SchedulerParameters=%s", b.o.Scheduler)
	line("MaxArraySize=100002")
	line("MaxJobCount=200000")
	line("ReturnToService=2")
	line("SwitchType=switch/none")
	line("MpiDefault=none")
	line("KillWait=5")
	if b.o.Accounting {
		line("AccountingStorageType=accounting_storage/slurmdbd")
		line("AccountingStorageHost=127.0.0.1")
		line("AccountingStoragePort=%d", b.ports["slurmdbd"])
		line("AccountingStoragePass=%s", b.path("munge/sock"))
	} else {
		line("AccountingStorageType=accounting_storage/none")
	}
	if !strings.Contains(b.o.Config, "SlurmdTimeout=") {
		line("SlurmdTimeout=60")
	}
	gres, err := b.gres()
	if err != nil {
		return err
	}
	if gres != "" {
		line("GresTypes=gpu,tmpspace")
	}
	line("%s", b.o.Config)
	for _, n := range b.Nodes() {
		line("NodeName=%s NodeHostname=%s NodeAddr=127.0.0.1 Port=%d CPUs=%d Sockets=1 CoresPerSocket=%[4]d ThreadsPerCore=1 RealMemory=%d%s State=UNKNOWN",
			n, host, b.ports[n], b.o.CPUs, b.o.Memory, gres)
	}
	line("PartitionName=main Nodes=%s Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO DefMemPerCPU=100", strings.Join(b.Nodes(), ","))
	if err := os.WriteFile(b.Conf(), []byte(c.String()), 0o644); err != nil {
		return err
	}
	c.Reset()
	line("AuthType=auth/munge")
	line("AuthInfo=socket=%s", b.path("munge/sock"))
	line("DbdHost=%s", host)
	line("DbdAddr=127.0.0.1")
	line("DbdPort=%d", b.ports["slurmdbd"])
	line("SlurmUser=%s", me.Username)
	line("StorageType=accounting_storage/mysql")
	line("StorageHost=127.0.0.1")
	line("StoragePort=%d", b.ports["mariadbd"])
	line("StorageUser=slurm")
	line("StoragePass=x")
	line("StorageLoc=slurm_acct")
	line("PidFile=%s", b.path("run/slurmdbd.pid"))
	line("LogFile=%s", b.path("log/slurmdbd.log"))
	return os.WriteFile(b.path("etc/slurmdbd.conf"), []byte(c.String()), 0o600)
}

// gres writes gres.conf, and returns the resources of a node in its line of slurm.conf.
func (b *Box) gres() (string, error) {
	var conf, list []string
	if b.o.GPUs > 0 {
		for i := range b.o.GPUs {
			if err := os.Symlink(os.DevNull, b.path(fmt.Sprintf("etc/gpu%d", i))); err != nil && !errors.Is(err, os.ErrExist) {
				return "", err
			}
		}
		conf = append(conf, fmt.Sprintf("Name=gpu Type=a100 File=%s[0-%d]\n", b.path("etc/gpu"), b.o.GPUs-1))
		list = append(list, fmt.Sprintf("gpu:a100:%d", b.o.GPUs))
	}
	if b.o.Space != "" {
		conf = append(conf, fmt.Sprintf("Name=tmpspace Count=%s Flags=CountOnly\n", b.o.Space))
		list = append(list, "tmpspace:"+b.o.Space)
	}
	if len(list) == 0 {
		return "", nil
	}
	return " Gres=" + strings.Join(list, ","), os.WriteFile(b.path("etc/gres.conf"), []byte(strings.Join(conf, "")), 0o644)
}

// startAccounting starts MariaDB and slurmdbd, and makes a cluster and an account.
func (b *Box) startAccounting() error {
	me, err := user.Current()
	if err != nil {
		return err
	}
	if _, err := os.Stat(b.path("db/mysql")); err != nil {
		if _, err := b.Run("mariadb-install-db", "--no-defaults", "--user="+me.Username, "--datadir="+b.path("db"), "--auth-root-authentication-method=normal", "--skip-test-db"); err != nil {
			return err
		}
	}
	if err := b.StartDaemon("mariadbd"); err != nil {
		return err
	}
	var grants strings.Builder
	for _, host := range []string{"127.0.0.1", "localhost"} {
		fmt.Fprintf(&grants, "create user if not exists slurm@'%s' identified by 'x'; grant all on *.* to slurm@'%[1]s';", host)
	}
	err = b.await("mariadbd", func() error {
		_, err := b.Run("mariadb", "--no-defaults", "-uroot", "-S", b.path("run/my.sock"), "-e", grants.String())
		return err
	})
	if err != nil {
		return err
	}
	if err := b.StartDaemon("slurmdbd"); err != nil {
		return err
	}
	err = b.await("slurmdbd", func() error { _, err := b.Run("sacctmgr", "-n", "show", "cluster"); return err })
	if err != nil {
		return err
	}
	for _, args := range [][]string{{"cluster", "box"}, {"account", "lab", "Cluster=box"}, {"user", me.Username, "Account=lab"}} {
		if _, err := b.Run("sacctmgr", append([]string{"-i", "add"}, args...)...); err != nil {
			return err
		}
	}
	return nil
}

// arguments returns the command line of a daemon that stays in the foreground.
func (b *Box) arguments(name string) []string {
	switch name {
	case "munged":
		return []string{"munged", "--foreground", "--key-file=" + b.path("munge/key"), "--socket=" + b.path("munge/sock"), "--pid-file=" + b.path("run/munged.pid"),
			"--log-file=" + b.path("munge/log"), "--seed-file=" + b.path("munge/seed"), "--force", "--num-threads=4"}
	case "mariadbd":
		return []string{"mariadbd", "--no-defaults", "--user=" + os.Getenv("USER"), "--datadir=" + b.path("db"), "--socket=" + b.path("run/my.sock"), "--pid-file=" + b.path("run/mysqld.pid"),
			"--bind-address=127.0.0.1", "--port=" + strconv.Itoa(b.ports["mariadbd"]), "--innodb-buffer-pool-size=64M", "--innodb-flush-log-at-trx-commit=2",
			"--innodb-lock-wait-timeout=900", "--log-error=" + b.path("log/mysqld.log")}
	case "slurmdbd":
		return []string{"slurmdbd", "-D"}
	case "slurmctld":
		return []string{"slurmctld", "-D", "-f", b.Conf()}
	}
	return []string{"slurmd", "-D", "-N", name, "-f", b.Conf()}
}

// StartDaemon starts a daemon that does not run.
func (b *Box) StartDaemon(name string) error {
	args := b.arguments(name)
	if args[0] == "mariadbd" {
		me, err := user.Current()
		if err != nil {
			return err
		}
		args[2] = "--user=" + me.Username
	}
	if args[0] == "slurmd" {
		if err := os.MkdirAll(b.path("spool/"+name), 0o755); err != nil {
			return err
		}
	}
	out, err := os.OpenFile(b.path("log/"+name+".out"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer out.Close()
	cmd := b.Command(context.Background(), args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Dir = b.Dir
	// It has a process group of its own, so that an interrupt of the test does not reach
	// it. It ends with the test.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	if err := cmd.Start(); err != nil {
		return err
	}
	d := &daemon{cmd: cmd, finished: make(chan struct{})}
	go func() {
		_ = cmd.Wait() // the status does not matter
		close(d.finished)
	}()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.daemons[name] = d
	return nil
}

// PID returns the process ID of a daemon; 0 if it does not run.
func (b *Box) PID(name string) int {
	d := b.daemon(name)
	if d == nil {
		return 0
	}
	select {
	case <-d.finished:
		return 0
	default:
		return d.cmd.Process.Pid
	}
}

func (b *Box) daemon(name string) *daemon {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.daemons[name]
}

// Kill kills a daemon with SIGKILL, and waits until it has ended. The jobs of a node
// continue.
func (b *Box) Kill(name string) {
	if d := b.daemon(name); d != nil {
		_ = d.cmd.Process.Kill() // it may be gone
		<-d.finished
	}
}

// await calls is until it returns nil, as long as the daemon runs.
func (b *Box) await(name string, is func() error) error {
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		err := is()
		if err == nil {
			return nil
		}
		if b.PID(name) == 0 || time.Now().After(deadline) {
			out, _ := os.ReadFile(b.path("log/" + name + ".out"))
			return fmt.Errorf("%s did not come up: %w\n%s", name, err, out)
		}
	}
}

// AwaitIdle waits until all nodes are up and idle.
func (b *Box) AwaitIdle() error {
	return b.await("slurmctld", func() error {
		out, err := b.Run("sinfo", "-h", "-N", "-o", "%N %t")
		if err != nil {
			return err
		}
		idle := make(map[string]bool) // a node in several partitions has several lines
		for line := range strings.Lines(out) {
			if strings.HasSuffix(line, " idle\n") {
				idle[line] = true
			}
		}
		if n := len(idle); n != b.o.Nodes {
			return fmt.Errorf("%d of %d nodes are idle:\n%s", n, b.o.Nodes, out)
		}
		return nil
	})
}

// Stop ends all daemons and all processes that jobs have left.
func (b *Box) Stop() error {
	b.stopAll("")
	mark := []byte("SLURM_CONF=" + b.Conf() + "\x00")
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		left := marked(mark)
		if len(left) == 0 {
			return nil
		}
		for _, pid := range left {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may be gone
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("processes %v of the box do not end", left)
		}
	}
}

// stopAll stops all daemons but one, in the order in which they need each other.
func (b *Box) stopAll(but string) {
	for _, name := range append(b.Nodes(), "slurmctld", "slurmdbd", "mariadbd", "munged") {
		d := b.daemon(name)
		if d == nil || name == but {
			continue
		}
		_ = d.cmd.Process.Signal(syscall.SIGTERM) // it may be gone
		select {
		case <-d.finished:
		case <-time.After(5 * time.Second):
			_ = d.cmd.Process.Kill()
			<-d.finished
		}
	}
}

// marked returns the processes, except this one, with an entry in their environment.
func marked(mark []byte) []int {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil
	}
	var list []int
	for _, dir := range dirs {
		environ, err := os.ReadFile(filepath.Join(dir, "environ"))
		if err != nil || !bytes.Contains(environ, mark) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(dir)); err == nil && pid != os.Getpid() {
			list = append(list, pid)
		}
	}
	slices.Sort(list)
	return list
}
