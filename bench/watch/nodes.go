package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/testkit/figures"
	"premix/internal/watch"
	"premix/internal/watch/relay"
	"premix/internal/watch/series"
)

// The simulated cluster: each machine sends all of its series once a second, in as many
// frames as there are collectors.
const (
	simNodes      = 200
	simSeries     = 500
	simCollectors = 10
	jobNodes      = 200
	jobSeries     = 8 // of each step of the job on a machine
)

// measureNodes starts premix watch, and lets 200 simulated machines send to it: the
// processor time of the receiver, and the time of the page of a job on all of them, of the
// last minutes and of a week. The week has the job's series alone, at a sample in ten
// seconds: of all series it would have 60,000 million samples.
func measureNodes(ctx context.Context, b *bench) (err error) {
	premix, err := filepath.Abs("bin/premix")
	if err != nil {
		return err
	}
	if _, err := os.Stat(premix); err != nil {
		return errors.New("bin/premix is missing: make")
	}
	dir := filepath.Join(b.dir, "nodes")
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	data, tokens := filepath.Join(dir, "data"), filepath.Join(dir, "tokens")
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	const token = "0123456789abcdef"
	if err := os.WriteFile(tokens, []byte(token+"\n"), 0o600); err != nil {
		return err
	}
	end := time.Now().Truncate(time.Second)
	if err := weekOfJob(ctx, data, end); err != nil {
		return err
	}
	cmd := exec.Command(premix, "watch", "--listen", "127.0.0.1:0", "--data", data, "--receive", tokens)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return err
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return err
	}
	go func() { _, _ = io.Copy(io.Discard, out) }()
	_, address, _ := strings.Cut(strings.TrimSpace(line), ": ")
	address = strings.TrimSuffix(address, "/")

	ask := func(what string, q url.Values) (seconds float64, size int, err error) {
		best := -1.0
		for range 3 {
			began := time.Now()
			resp, err := http.Get(address + "/api/v1/" + what + "?" + q.Encode())
			if err != nil {
				return 0, 0, err
			}
			body, err := io.ReadAll(resp.Body)
			if err := errors.Join(err, resp.Body.Close()); err != nil || resp.StatusCode != http.StatusOK {
				return 0, 0, fmt.Errorf("%s: %s %s, %v", what, resp.Status, body, err)
			}
			if took := time.Since(began).Seconds(); best < 0 || took < best {
				best, size = took, len(body)
			}
		}
		return best, size, nil
	}
	week := url.Values{"id": {"4711"}, "start": {end.Add(-7 * 24 * time.Hour).UTC().Format(time.RFC3339)}, "end": {end.UTC().Format(time.RFC3339)}}

	// Senders: each has a spool and sends once a second, as premix watch does.
	var all sync.WaitGroup
	sending, stop := context.WithCancel(ctx)
	defer func() { stop(); all.Wait() }()
	var senders []*relay.Sender
	for n := range simNodes {
		spool, err := relay.OpenSpool(filepath.Join(dir, "spools", fmt.Sprint(n)), 64<<20)
		if err != nil {
			return err
		}
		defer spool.Close()
		node := fmt.Sprintf("sim%03d", n)
		s, err := relay.NewSender(spool, relay.SendOptions{URL: address, Token: token, Node: node})
		if err != nil {
			return err
		}
		senders = append(senders, s)
		samples := simulated(node)
		all.Go(func() { s.Run(sending) })
		all.Go(func() {
			r := rand.New(rand.NewPCG(uint64(n), 7))
			for tick := time.NewTicker(time.Second); sending.Err() == nil; {
				select {
				case <-sending.Done():
					tick.Stop()
					return
				case now := <-tick.C:
					at := now.Truncate(time.Second)
					for part := range simCollectors {
						list := samples[part*simSeries/simCollectors : (part+1)*simSeries/simCollectors]
						for i := range list {
							list[i].Time = at
							if r.IntN(3) == 0 { // most values of a machine rarely change
								list[i].Value = float64(float32(list[i].Value + r.NormFloat64()))
							}
						}
						spool.Samples(list)
					}
				}
			}
		})
	}
	time.Sleep(10 * time.Second) // the first requests define all series
	before, err := cpuOf(cmd.Process.Pid)
	if err != nil {
		return err
	}
	var ownBefore unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &ownBefore); err != nil {
		return err
	}
	began := time.Now()
	select {
	case <-time.After(time.Duration(b.seconds) * time.Second):
	case <-ctx.Done():
		return ctx.Err()
	}
	after, err := cpuOf(cmd.Process.Pid)
	if err != nil {
		return err
	}
	var own unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &own); err != nil {
		return err
	}
	took := time.Since(began).Seconds()
	var waiting uint64
	for _, s := range senders {
		state := s.State()
		if state.Lost > 0 || state.Trouble != "" {
			return fmt.Errorf("a sender is in trouble: %+v", state)
		}
		waiting += state.Waiting
	}
	rate := float64(simNodes * simSeries)
	add := func(name string, value float64, unit string) error {
		return b.results.Add(figures.Figure{Name: "nodes/" + name, Value: value, Unit: unit})
	}
	sendCPU := seconds(own.Utime) + seconds(own.Stime) - seconds(ownBefore.Utime) - seconds(ownBefore.Stime)
	for _, f := range []struct {
		name  string
		value float64
		unit  string
	}{
		{"receiver", (after - before) / took, "cores"}, {"receiver of a million samples", (after - before) / took / rate * 1e6, "s"},
		{"all senders and values", sendCPU / took, "cores"}, {"frames that wait", float64(waiting), ""},
	} {
		if err := add(f.name, f.value, f.unit); err != nil {
			return err
		}
	}
	for _, q := range []struct {
		name   string
		values url.Values
	}{
		{"job, last 10 minutes", url.Values{"id": {"4712"}, "start": {time.Now().Add(-10 * time.Minute).UTC().Format(time.RFC3339)}}},
		{"job, a week", week},
	} {
		t, size, err := ask("job", q.values)
		if err != nil {
			return err
		}
		if size < 10_000 {
			return fmt.Errorf("%s: the answer has %d bytes", q.name, size)
		}
		if err := errors.Join(add(q.name, t, "s"), add(q.name+", answer", float64(size), "B")); err != nil {
			return err
		}
	}
	return nil
}

func seconds(t unix.Timeval) float64 { return float64(t.Sec) + float64(t.Usec)/1e6 }

// cpuOf returns the processor time of a process in seconds.
func cpuOf(pid int) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	var user, system float64
	f := strings.Fields(rest)
	if len(f) < 13 {
		return 0, fmt.Errorf("%s", text)
	}
	if _, err := fmt.Sscan(f[11]+" "+f[12], &user, &system); err != nil {
		return 0, err
	}
	return (user + system) / 100, nil
}

// simulated returns the series of a machine; some belong to job 4712, which runs on all.
func simulated(node string) []watch.Sample {
	var list []watch.Sample
	for i := range jobSeries {
		list = append(list, watch.Sample{ID: watch.NewID(jobName(i), "manager", "slurm", "node", node, "task", "4712.0"), Unit: watch.Count, Value: float64(i)})
	}
	for i := len(list); i < simSeries; i++ {
		list = append(list, watch.Sample{ID: watch.NewID(fmt.Sprintf("disk.quantity_%02d", i%25), "device", fmt.Sprintf("nvme%dn1", i/25), "node", node), Unit: watch.PerSecond, Value: float64(i)})
	}
	return list
}

func jobName(i int) string {
	return "task." + []string{"cpu", "memory", "processes", "read_bytes", "written_bytes", "gpu_busy", "gpu_memory", "throttled"}[i]
}

// weekOfJob records job 4711 for a week on all machines.
func weekOfJob(ctx context.Context, dir string, end time.Time) error {
	db, err := series.Open(dir, series.Options{})
	if err != nil {
		return err
	}
	var list []watch.Sample
	for n := range jobNodes {
		for i := range jobSeries {
			list = append(list, watch.Sample{ID: watch.NewID(jobName(i), "manager", "slurm", "node", fmt.Sprintf("sim%03d", n), "task", "4711.0"), Unit: watch.Count, Value: float64(i)})
		}
	}
	r := rand.New(rand.NewPCG(7, 7))
	for at := end.Add(-7 * 24 * time.Hour); at.Before(end) && ctx.Err() == nil; at = at.Add(10 * time.Second) {
		for i := range list {
			list[i].Time = at
			if r.IntN(3) == 0 {
				list[i].Value = float64(float32(list[i].Value + r.NormFloat64()))
			}
		}
		db.Samples(list)
		if err := db.Throttle(ctx); err != nil {
			return errors.Join(err, db.Close())
		}
	}
	return errors.Join(ctx.Err(), db.Flush(ctx), db.Compact(ctx), db.Close())
}
