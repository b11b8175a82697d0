package calls

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"premix/internal/hotstart/procstate"
	"premix/internal/kit/lock"
	"premix/internal/kit/owner"
	"premix/internal/kit/proc"
)

// Progress is the state of a preparation, which its process notes for calls that may wait.
type Progress struct {
	Key  string        `json:"key"`  // of the form
	Tool int           `json:"tool"` // id of the process of the tool that loads
	Load time.Duration `json:"load"` // time in which the tool comes to its input; 0: not known yet
	Rest time.Duration `json:"rest"` // expected time of the rest of the preparation, from Time on
	Time time.Time     `json:"time"`
}

const progressName = "progress.json"

// RecordProgress notes the state of the preparation of this process, which has the lock.
func RecordProgress(p Progress) error {
	dir, err := openDir()
	if err != nil {
		return err
	}
	p.Time = time.Now()
	return save(filepath.Join(dir, progressName), p)
}

// Bounds of the time for which a call waits.
const (
	longestWait = 8                // loads of the tool; a preparation takes six to eight of them
	unknownWait = 10 * time.Second // while the load is not known
)

// worthWaiting reports whether a call that has waited for some time continues to wait.
//
// A call that waits no longer than it would load gains by it. A longer wait delays the call. But
// where the processors are all busy, it delays no other work: the preparation, or a call beside
// it, gets the processor that this call would have used. An idle processor ends such a wait.
func (p *Progress) worthWaiting(now time.Time, waited time.Duration, idle bool) bool {
	rest := p.Rest - now.Sub(p.Time)
	switch {
	case p.Load <= 0:
		return !idle && waited < unknownWait
	case waited >= longestWait*p.Load || rest < -p.Load: // it takes longer than expected
		return false
	case rest <= p.Load:
		return true
	}
	return !idle
}

const (
	waitStep  = 20 * time.Millisecond // between two looks, on average
	idleLooks = 10                    // least number of looks at an idle processor, one after the other, that end a wait
)

// pace is the processor time of the tool of a preparation at some time.
type pace struct {
	tool int
	at   time.Time
	used time.Duration
}

// A tool starves that is ready to run, and gets less than the paceShare-th part of a processor.
const (
	paceTime  = time.Second
	paceShare = 16
)

// starves reports, once every paceTime, whether a tool has starved since then. Other processes
// keep it from a processor, also where calls of its own pipeline wait.
func (p *pace) starves(tool int, now time.Time, state byte, used time.Duration) bool {
	took, got := now.Sub(p.at), used-p.used
	if tool == p.tool && took < paceTime {
		return false
	}
	starved := tool == p.tool && state == 'R' && got*paceShare < took
	*p = pace{tool, now, used}
	return starved
}

// await waits while a snapshot for the form of a call is prepared and this is worth it. It
// returns the plan of the call after that.
func await(c Call, p Plan) Plan {
	dir, err := openDir()
	if err != nil {
		return p
	}
	l, err := owner.OpenFile(filepath.Join(dir, lockName), os.O_RDWR, 0)
	if err != nil {
		return p
	}
	defer l.Close()
	var waited time.Duration
	ended := false
	// A signal has the effect that it would have on the tool while it loads.
	procstate.WithActions(c.Inherited, func() {
		var pace pace
		begun, idle := time.Now(), 0
		enough := idleLooks + rand.N(2*idleLooks) // so that not all calls use the same idle processor
		for {
			if err := lock.Try(l, lock.Shared); !errors.Is(err, lock.ErrHeld) {
				ended = err == nil && lock.Release(l) == nil && waited > 0
				return
			}
			var now Progress
			if load(filepath.Join(dir, progressName), &now) != nil || now.Key != p.Key {
				return
			}
			if idle++; busy() {
				idle = 0
			}
			starves := pace.starves(now.Tool, time.Now(), proc.State(now.Tool), proc.Used(now.Tool))
			if starves || !now.worthWaiting(time.Now(), waited, idle >= enough || idle > 0 && waited == 0) {
				p.Reason = "a snapshot is being prepared, and waiting for it would take longer than loading"
				return
			}
			time.Sleep(waitStep/2 + rand.N(waitStep))
			waited = time.Since(begun)
		}
	})
	if now, err := Preview(c); ended && err == nil {
		if now.Prepare || now.Await {
			now.Prepare, now.Reason = false, "a snapshot was being prepared, and the preparation has failed"
		}
		p = now
	}
	p.Waited = waited
	return p
}

// busy reports whether other processes use all processors of the machine. It returns false if
// this process may use some of them only: others may then be idle, or out of reach.
func busy() bool {
	online, err := os.ReadFile("/sys/devices/system/cpu/online")
	if err != nil || count(string(online)) > runtime.NumCPU() {
		return false
	}
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return false
	}
	return running(string(text))-1 >= runtime.NumCPU() // this process is one of them
}

// running returns the number of running processes and threads in a text of /proc/loadavg
// (proc_loadavg(5)), or 0.
func running(text string) int {
	fields := strings.Fields(text)
	if len(fields) < 4 {
		return 0
	}
	before, _, _ := strings.Cut(fields[3], "/")
	n, _ := strconv.Atoi(before)
	return n
}

// count returns the number of processors in a list as the kernel writes it, for example 4 for
// 0-2,5.
func count(list string) int {
	n := 0
	for part := range strings.SplitSeq(strings.TrimSpace(list), ",") {
		first, last, found := strings.Cut(part, "-")
		if !found {
			last = first
		}
		a, err := strconv.Atoi(first)
		b, err2 := strconv.Atoi(last)
		if err == nil && err2 == nil {
			n += b - a + 1
		}
	}
	return n
}
