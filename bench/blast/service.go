package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"premix/internal/kit/quantile"
	"premix/internal/testkit/figures"
)

// round is one measurement of a search for all queries.
type round struct {
	took  time.Duration
	cpu   time.Duration // of the service, or of blastn, with all their child processes
	scans int           // number of scans by the service
}

// service compares queries sent one by one to the service with one blastn for each query.
func (b *bench) service() error {
	var open, closed, alone, whole, shares []round
	for range b.reps {
		for _, c := range []struct {
			list *[]round
			run  func() (round, error)
		}{
			{&open, func() (round, error) { return b.through(false) }},
			{&alone, b.alone},
			{&closed, func() (round, error) { return b.through(true) }},
			{&whole, func() (round, error) { return b.inOne(len(b.texts)) }},
			{&shares, func() (round, error) { return b.inOne(b.users) }},
		} {
			r, err := c.run()
			if err != nil {
				return err
			}
			*c.list = append(*c.list, r)
		}
	}
	sample := fmt.Sprintf("one blastn each: %d of %d, extrapolated", min(b.singles, b.queries), b.queries)
	for _, f := range []struct {
		name, title string
		rounds      []round
	}{
		{"service/sent-at-once", fmt.Sprintf("%d single queries, service", b.queries), open},
		{"service/closed", fmt.Sprintf("the same, of %d users who wait", b.users), closed},
		{"service/one-blastn", fmt.Sprintf("all %d in one blastn", b.queries), whole},
		{fmt.Sprintf("service/blastn-of-%d", b.users), fmt.Sprintf("blastn with %d queries each", b.users), shares},
	} {
		scans := median(f.rounds, func(r round) float64 { return float64(r.scans) })
		for _, of := range []struct {
			name, title string
			value       func(round) float64
		}{
			{"", "", func(r round) float64 { return r.took.Seconds() }},
			{"/cpu", ", CPU time", func(r round) float64 { return r.cpu.Seconds() }},
		} {
			v, peer := median(f.rounds, of.value), median(alone, of.value)
			ratio := figures.Lower(v, peer)
			b.rows = append(b.rows, []string{f.title + of.title, fmt.Sprintf("%.2f s", v), fmt.Sprintf("%.1f s (of %d)", peer, min(b.singles, b.queries)), fmt.Sprintf("%.1f", ratio)})
			if err := b.results.Add(figures.Figure{Name: "blast/" + f.name + of.name, Value: v, Unit: "s", Peer: "one blastn -num_threads 2 each, in memory", Ratio: ratio, Note: fmt.Sprintf("%.0f scans; %s", scans, sample)}); err != nil {
				return err
			}
		}
	}
	return nil
}

func median(rounds []round, value func(round) float64) float64 {
	var list []float64
	for _, r := range rounds {
		list = append(list, value(r))
	}
	return quantile.Median(list)
}

// cpu returns the CPU time of an ended process and of the children that it waited for.
func cpu(p *os.ProcessState) time.Duration { return p.UserTime() + p.SystemTime() }

// alone measures the search for all queries with one blastn each, in the database in
// memory. It runs a sample of them and extrapolates.
func (b *bench) alone() (r round, err error) {
	db := filepath.Join(b.ram, "alias", "whole")
	n := min(b.singles, len(b.texts))
	began := time.Now()
	for i := range n {
		cmd := exec.Command("blastn", "-db", db, "-outfmt", "6", "-num_threads", "2")
		cmd.Stdin = strings.NewReader(b.texts[i*len(b.texts)/n])
		if _, err := cmd.Output(); err != nil {
			return r, err
		}
		r.cpu += cpu(cmd.ProcessState)
	}
	all := time.Duration(len(b.texts))
	return round{took: time.Since(began) * all / time.Duration(n), cpu: r.cpu * all / time.Duration(n)}, nil
}

// inOne measures the search for all queries with many of them in each blastn, which is
// the best that the service could reach.
func (b *bench) inOne(many int) (r round, err error) {
	began := time.Now()
	for texts := range slices.Chunk(b.texts, many) {
		cmd := exec.Command("blastn", "-db", filepath.Join(b.ram, "alias", "whole"), "-outfmt", "6", "-num_threads", "2")
		cmd.Stdin = strings.NewReader(strings.Join(texts, ""))
		if _, err := cmd.Output(); err != nil {
			return r, err
		}
		r.cpu += cpu(cmd.ProcessState)
		r.scans++
	}
	r.took = time.Since(began)
	return r, nil
}

// through measures the search for all queries by the service.
func (b *bench) through(wait bool) (r round, err error) {
	s, err := b.serve()
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, s.end()) }()
	began := time.Now()
	ids := make([]string, len(b.texts))
	steps := []func(i int) error{
		func(i int) (err error) { ids[i], err = s.send(b.texts[i]); return err },
		func(i int) error { _, err := s.fetch(ids[i]); return err },
	}
	if wait {
		send, fetch := steps[0], steps[1]
		steps = []func(i int) error{func(i int) error {
			if err := send(i); err != nil {
				return err
			}
			return fetch(i)
		}}
	}
	for _, step := range steps {
		if err := b.each(step); err != nil {
			return r, err
		}
	}
	r.took = time.Since(began)
	if r.scans, err = s.scans(); err != nil {
		return r, err
	}
	err = s.end()
	r.cpu = cpu(s.cmd.ProcessState)
	return r, err
}

// server is a running premix blast serve.
type server struct {
	cmd      *exec.Cmd
	jobs     string // its directory
	address  string
	http     *http.Client
	finished bool
}

// serve starts a service without jobs.
func (b *bench) serve() (*server, error) {
	s := &server{jobs: filepath.Join(b.dir, "jobs"), http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: b.users}}}
	if err := os.RemoveAll(s.jobs); err != nil {
		return nil, err
	}
	s.cmd = b.command("blast", "serve", "--listen", "127.0.0.1:0", "--dir", s.jobs, "--max-user-waiting", "10000")
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return nil, errors.Join(err, s.end())
	}
	s.address = "http://" + strings.TrimSpace(strings.TrimPrefix(line, "listening on "))
	return s, nil
}

// end stops the service, if it still runs, and removes its jobs.
func (s *server) end() error {
	if s.finished {
		return nil
	}
	s.finished = true
	s.http.CloseIdleConnections()
	_ = s.cmd.Process.Signal(syscall.SIGTERM) // if it has ended, Wait returns its status
	err := s.cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 128+int(syscall.SIGTERM) {
		err = nil
	}
	return errors.Join(err, os.RemoveAll(s.jobs))
}

// each calls step for every query, divided among concurrent users.
func (b *bench) each(step func(i int) error) error {
	work := make(chan int)
	errs := make(chan error, b.users)
	var all sync.WaitGroup
	for range b.users {
		all.Go(func() {
			for i := range work {
				if err := step(i); err != nil {
					errs <- err
					for range work { // drain the channel, so that the other users end
					}
					return
				}
			}
		})
	}
	for i := range b.texts {
		work <- i
	}
	close(work)
	all.Wait()
	select {
	case err := <-errs:
		return err
	default:
		return nil
	}
}

// send submits one query and returns the id of its job.
func (s *server) send(text string) (id string, err error) {
	body, err := json.Marshal(map[string]string{"program": "blastn", "database": "bench", "format": "tabular", "query": text})
	if err != nil {
		return "", err
	}
	answer, err := s.http.Post(s.address+"/api/v1/searches", "application/json", bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	said, err := io.ReadAll(answer.Body)
	if err != nil {
		return "", err
	}
	var job struct{ ID string }
	if err := json.Unmarshal(said, &job); err != nil || answer.StatusCode != http.StatusAccepted {
		return "", fmt.Errorf("status %d: %s", answer.StatusCode, said)
	}
	return job.ID, nil
}

// fetch waits for the result of a job.
func (s *server) fetch(id string) (text []byte, err error) {
	for {
		answer, err := s.http.Get(s.address + "/api/v1/searches/" + id + "/result?wait=30")
		if err != nil {
			return nil, err
		}
		got, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		switch {
		case err != nil:
			return nil, err
		case answer.StatusCode == http.StatusOK && len(got) > 0:
			return got, nil
		case answer.StatusCode != http.StatusAccepted:
			return nil, fmt.Errorf("status %d, %d bytes", answer.StatusCode, len(got))
		}
	}
}

// scans returns the number of scans that the service has made.
func (s *server) scans() (int, error) {
	answer, err := s.http.Get(s.address + "/metrics")
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if n, ok := strings.CutPrefix(line, "premix_blast_scan_jobs_count "); ok {
			return strconv.Atoi(strings.TrimSpace(n))
		}
	}
	return 0, errors.New("the service does not report the number of its scans")
}
