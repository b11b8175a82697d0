package collect

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"premix/internal/kit/exit"
	"premix/internal/watch"
)

// processes records the processes of this machine that do not belong to premix when they
// end. The kernel sends the resources that each used (taskstats, Documentation/accounting
// in its sources), so that no process is too short to be recorded. If a process has ended
// before its message is read, only its ids and the first 15 characters of its name are
// known.
//
// The kernel reports threads. The threads of one process are added up until the last one
// has ended.
type processes struct {
	*machine
	b      batch
	family uint16
	socket *os.File
	users  map[uint32]string
	open   map[uint32]*process // of which a thread has ended, by process id

	mu       sync.Mutex // guards the rest
	finished float64
	lost     bool                // the kernel's buffer was full and messages were dropped
	failed   error               // why no more messages are read
	kin      map[int]bool        // whether a process belongs to premix, as found since the last turn
	gone     [2]map[int]ancestor // processes that have ended, in this turn and the one before
	wait     [2][]orphan         // whose parents ended before they could be checked, of this turn and the one before
	rate     *counter
}

// ancestor is a process that has ended.
type ancestor struct {
	name   string
	parent int
}

// orphan is a process for which it is unknown whether it belongs to premix: its parent
// ended right after it, and the kernel has not reported that yet.
type orphan struct {
	task   watch.Task
	parent int
}

// process is a process of which a thread has ended.
type process struct {
	cpu           float64 // seconds
	rss           int64   // bytes
	read, written int64
	status        uint32 // as wait(2) has it; of the first thread
}

// processesHint has the conditions under which processes can be recorded.
const processesHint = "it needs root outside of containers and Linux 5.19 with CONFIG_TASKSTATS; leave out --processes: tasks of premix are recorded without it"

// leastTaskstats is the version of struct taskstats that has process and age.
const leastTaskstats = 12

// flagLast is in Ac_flag of a process' last thread: AGROUP of linux/acct.h.
const flagLast = 0x20

// socketRoom is the buffer for messages of the kernel that wait to be read, in bytes: some
// ten thousand threads.
const socketRoom = 16 << 20

func newProcesses(m *machine) *processes {
	return &processes{machine: m, users: make(map[uint32]string), open: make(map[uint32]*process), kin: make(map[int]bool),
		gone: [2]map[int]ancestor{make(map[int]ancestor), make(map[int]ancestor)}, rate: m.counter("node.exits")}
}

// openProcesses asks the kernel to report processes that end, on all processors.
func openProcesses(m *machine) (_ *processes, err error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_GENERIC)
	if err != nil {
		return nil, exit.Errorf(exit.Unavailable, processesHint, "processes cannot be recorded: no netlink: %w", err)
	}
	c := newProcesses(m)
	c.socket = os.NewFile(uintptr(fd), "taskstats")
	defer func() {
		if err != nil {
			c.socket.Close()
		}
	}()
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, socketRoom) // needs root; with a smaller buffer messages may be lost, which an event reports
	reply, err := c.ask(unix.GENL_ID_CTRL, unix.CTRL_CMD_GETFAMILY, unix.CTRL_ATTR_FAMILY_NAME, unix.TASKSTATS_GENL_NAME)
	if err != nil {
		return nil, exit.Errorf(exit.Unavailable, processesHint, "processes cannot be recorded: the kernel has no taskstats: %w", err)
	}
	attributes(reply, func(kind uint16, value []byte) {
		if kind == unix.CTRL_ATTR_FAMILY_ID && len(value) >= 2 {
			c.family = binary.NativeEndian.Uint16(value)
		}
	})
	possible, err := os.ReadFile("/sys/devices/system/cpu/possible")
	if err != nil {
		return nil, exit.Errorf(exit.Unavailable, processesHint, "processes cannot be recorded: the processors are not known: %w", err)
	}
	if _, err := c.ask(c.family, unix.TASKSTATS_CMD_GET, unix.TASKSTATS_CMD_ATTR_REGISTER_CPUMASK, strings.TrimSpace(string(possible))); err != nil {
		return nil, exit.Errorf(exit.Unavailable, processesHint, "processes cannot be recorded: the kernel refuses to report them: %w", err)
	}
	return c, nil
}

// ask sends a command with one text attribute. It returns the attributes of the answer, or
// none if the answer is only an acknowledgement.
func (c *processes) ask(family uint16, command uint8, attribute uint16, text string) ([]byte, error) {
	if err := c.socket.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return nil, err
	}
	defer c.socket.SetReadDeadline(time.Time{})
	value := append([]byte(text), 0)
	b := make([]byte, unix.NLMSG_HDRLEN+unix.GENL_HDRLEN+unix.NLA_HDRLEN, 256)
	b = append(b, value...)
	binary.NativeEndian.PutUint16(b[20:], uint16(unix.NLA_HDRLEN+len(value)))
	binary.NativeEndian.PutUint16(b[22:], attribute)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	binary.NativeEndian.PutUint32(b, uint32(len(b)))
	binary.NativeEndian.PutUint16(b[4:], family)
	binary.NativeEndian.PutUint16(b[6:], unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	b[16], b[17] = command, 1 // version
	if _, err := c.socket.Write(b); err != nil {
		return nil, err
	}
	var reply []byte
	buf := make([]byte, 64<<10)
	for {
		n, err := c.socket.Read(buf)
		if err != nil {
			return nil, err
		}
		acknowledged := false
		messages(buf[:n], func(kind uint16, body []byte) {
			switch {
			case kind == unix.NLMSG_ERROR && len(body) >= 4:
				acknowledged = true
				if code := int32(binary.NativeEndian.Uint32(body)); code < 0 {
					err = unix.Errno(-code)
				}
			case kind == family && reply == nil && len(body) >= unix.GENL_HDRLEN:
				reply = append([]byte{}, body[unix.GENL_HDRLEN:]...)
			}
		})
		if err != nil || acknowledged {
			return reply, err
		}
	}
}

// messages calls f for each netlink message with its type and the bytes after its header.
func messages(b []byte, f func(kind uint16, body []byte)) {
	for len(b) >= unix.NLMSG_HDRLEN {
		n := int(binary.NativeEndian.Uint32(b))
		if n < unix.NLMSG_HDRLEN || n > len(b) {
			return
		}
		f(binary.NativeEndian.Uint16(b[4:]), b[unix.NLMSG_HDRLEN:n])
		b = b[min((n+3)&^3, len(b)):]
	}
}

// attributes calls f for each attribute of a message.
func attributes(b []byte, f func(kind uint16, value []byte)) {
	for len(b) >= unix.NLA_HDRLEN {
		n := int(binary.NativeEndian.Uint16(b))
		if n < unix.NLA_HDRLEN || n > len(b) {
			return
		}
		f(binary.NativeEndian.Uint16(b[2:])&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER), b[unix.NLA_HDRLEN:n])
		b = b[min((n+3)&^3, len(b)):]
	}
}

// Name returns "process".
func (c *processes) Name() string { return "process" }

// Collect reports how many processes ended. Follow has reported the processes themselves.
func (c *processes) Collect(_ context.Context, now time.Time, to watch.Sink) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, o := range c.judge(c.wait[1], to) {
		c.record(o.task, to) // no more will be known of it
	}
	c.wait = [2][]orphan{nil, c.wait[0]}
	clear(c.kin) // process ids are used again
	c.gone = [2]map[int]ancestor{make(map[int]ancestor), c.gone[0]}
	c.b.begin(now, c.now())
	c.b.rate(c.rate, c.finished, 1)
	to.Samples(c.b.samples)
	if c.lost {
		c.lost = false
		to.Event(watch.Event{Time: now, Node: c.node, Layer: watch.LayerTask, Kind: "processes_lost", Text: "More processes ended than could be recorded: some are missing."})
	}
	return c.failed
}

// Follow records the processes that the kernel reports until the context ends.
func (c *processes) Follow(ctx context.Context, to watch.Sink) {
	stop := context.AfterFunc(ctx, func() { c.socket.Close() })
	defer stop()
	buf := make([]byte, 64<<10)
	for ctx.Err() == nil {
		n, err := c.socket.Read(buf)
		switch {
		case errors.Is(err, unix.ENOBUFS):
			c.forget()
			c.mu.Lock()
			c.lost = true
			c.mu.Unlock()
			continue
		case err != nil && ctx.Err() == nil:
			c.fail(err)
			return
		}
		now := c.wall()
		messages(buf[:max(n, 0)], func(kind uint16, body []byte) {
			if kind != c.family || len(body) < unix.GENL_HDRLEN {
				return
			}
			s, err := parseTaskstats(body[unix.GENL_HDRLEN:])
			if err != nil {
				c.fail(err)
				return
			}
			if o, ok := c.thread(s, now); ok {
				c.mu.Lock()
				c.wait[0] = append(c.wait[0], o)
				c.mu.Unlock()
			}
		})
		c.mu.Lock()
		for i := range c.wait {
			c.wait[i] = c.judge(c.wait[i], to)
		}
		c.mu.Unlock()
	}
}

func (c *processes) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failed = err
}

// forget removes processes that are gone and that the kernel did not report as ended.
func (c *processes) forget() {
	for tgid := range c.open {
		if _, err := os.Stat(filepath.Join("/proc", strconv.Itoa(int(tgid)))); err != nil {
			delete(c.open, tgid)
		}
	}
}

// parseTaskstats parses the message about one thread.
func parseTaskstats(b []byte) (s *unix.Taskstats, err error) {
	err = errors.New("a message of the kernel has no statistics of a thread")
	attributes(b, func(kind uint16, value []byte) {
		if kind != unix.TASKSTATS_TYPE_AGGR_PID {
			return
		}
		pid := uint32(0)
		attributes(value, func(kind uint16, value []byte) {
			switch {
			case kind == unix.TASKSTATS_TYPE_PID && len(value) == 4:
				pid = binary.NativeEndian.Uint32(value)
			case kind == unix.TASKSTATS_TYPE_STATS:
				s = &unix.Taskstats{}
				copy(unsafe.Slice((*byte)(unsafe.Pointer(s)), unsafe.Sizeof(*s)), value)
			}
		})
		switch {
		case s == nil:
		case s.Version < leastTaskstats:
			err = exit.Errorf(exit.Unavailable, processesHint, "processes cannot be recorded: taskstats of the kernel have version %d, and %d is needed", s.Version, leastTaskstats)
		case s.Ac_pid != pid:
			// Version 15 had other offsets of its fields (Linux 6.14, 6.15).
			err = exit.Errorf(exit.Unavailable, processesHint, "processes cannot be recorded: taskstats of the kernel, version %d, have another layout", s.Version)
		default:
			err = nil
		}
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// kthreadd is the parent of the kernel's own threads.
const kthreadd = 2

// processorTime returns the processor time of a thread in seconds. Its user and system
// times are counted in ticks of the clock, which may miss a short thread; the time measured
// by the scheduler is exact, if the kernel keeps it.
func processorTime(s *unix.Taskstats) float64 {
	if s.Cpu_run_virtual_total > 0 {
		return float64(s.Cpu_run_virtual_total) / 1e9
	}
	return float64(s.Ac_utime+s.Ac_stime) / 1e6
}

// thread adds the statistics of a thread. ok is true if it was the last of a process that
// is to be recorded, unless the process belongs to premix.
func (c *processes) thread(s *unix.Taskstats, now time.Time) (o orphan, ok bool) {
	p := c.open[s.Ac_tgid]
	if p == nil {
		p = &process{}
		c.open[s.Ac_tgid] = p
	}
	p.cpu += processorTime(s)
	p.rss = max(p.rss, int64(s.Hiwater_rss)<<10)
	p.read += int64(s.Read_bytes)
	p.written += int64(s.Write_bytes)
	if s.Ac_pid == s.Ac_tgid {
		p.status = s.Ac_exitcode
	}
	if s.Ac_flag&flagLast == 0 {
		return o, false
	}
	delete(c.open, s.Ac_tgid)
	name := unix.ByteSliceToString(unsafe.Slice((*byte)(unsafe.Pointer(&s.Ac_comm)), len(s.Ac_comm)))
	c.mu.Lock()
	c.gone[0][int(s.Ac_tgid)] = ancestor{name, int(s.Ac_ppid)}
	c.mu.Unlock()
	if s.Ac_ppid == kthreadd || name == premixName {
		return o, false
	}
	began := now.Add(-time.Duration(s.Ac_tgetime) * time.Microsecond).UTC()
	t := watch.Task{Key: fmt.Sprintf("%s:%d@%d", c.node, s.Ac_tgid, began.UnixMicro()), Name: name, Step: name, User: c.user(s.Ac_uid), Node: c.node, Engine: watch.ProcessEngine,
		Began: began, End: now.UTC(), CPU: p.cpu, MaxRSS: p.rss, Read: p.read, Written: p.written}
	status := unix.WaitStatus(p.status)
	switch {
	case status.Signaled():
		t.Exit, t.Reason = 128+int(status.Signal()), "killed by signal "+strconv.Itoa(int(status.Signal()))
	default:
		t.Exit = status.ExitStatus()
		t.OK = t.Exit == 0
	}
	return orphan{t, int(s.Ac_ppid)}, true
}

// judge records the processes that do not belong to premix, and returns those for which it
// is still unknown. The caller holds mu.
func (c *processes) judge(list []orphan, to watch.Sink) (rest []orphan) {
	for _, o := range list {
		switch of, known := c.ofPremix(o.parent); {
		case !known:
			rest = append(rest, o)
		case !of:
			c.record(o.task, to)
		}
	}
	return rest
}

// record reports a process to the sink. The caller holds mu.
func (c *processes) record(t watch.Task, to watch.Sink) {
	c.finished++
	to.Task(t)
}

func (c *processes) user(uid uint32) string {
	name, ok := c.users[uid]
	if !ok {
		name = userName(int(uid))
		c.users[uid] = name
	}
	return name
}

// premixName is the name of premix processes in the kernel.
const premixName = "premix"

// ofPremix reports whether a process is premix or a descendant of it. These processes belong
// to tasks, which are recorded from their journals. known is false if one of its ancestors
// has ended and the kernel has not reported that yet. The caller holds mu.
func (c *processes) ofPremix(pid int) (is, known bool) {
	var way []int
	for pid > 1 && len(way) < 64 {
		var cached bool
		if is, cached = c.kin[pid]; cached {
			break
		}
		way = append(way, pid)
		name, parent, err := parentOf(pid)
		if err != nil {
			a, told := c.gone[0][pid]
			if !told {
				a, told = c.gone[1][pid]
			}
			if !told {
				return false, false
			}
			name, parent = a.name, a.parent
		}
		if is = name == premixName; is {
			break
		}
		pid = parent
	}
	for _, pid := range way {
		c.kin[pid] = is
	}
	return is, true
}

// parentOf reads the name and the parent of a process (proc_pid_stat(5)).
func parentOf(pid int) (name string, parent int, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", 0, err
	}
	_, rest, _ := strings.Cut(string(text), "(")
	end := strings.LastIndex(rest, ") ")
	if end < 0 {
		return "", 0, fmt.Errorf("/proc/%d/stat has no name", pid)
	}
	var state string
	_, err = fmt.Sscan(rest[end+2:], &state, &parent)
	return rest[:end], parent, err
}
