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
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"premix/internal/figures"
)

// service compares queries sent one by one to the service with a blastn for each.
func (b *bench) service() error {
	var open, closed, alone, openScans, closedScans []float64
	for range b.reps {
		for _, c := range []struct {
			list, scans *[]float64
			run         func() (time.Duration, int, error)
		}{
			{&open, &openScans, func() (time.Duration, int, error) { return b.through(false) }},
			{&alone, nil, b.alone},
			{&closed, &closedScans, func() (time.Duration, int, error) { return b.through(true) }},
		} {
			took, scans, err := c.run()
			if err != nil {
				return err
			}
			*c.list = append(*c.list, took.Seconds())
			if c.scans != nil {
				*c.scans = append(*c.scans, float64(scans))
			}
		}
	}
	peer := figures.Median(alone)
	sample := fmt.Sprintf("one blastn each: %d of %d, extrapolated", min(b.singles, b.queries), b.queries)
	for _, f := range []struct {
		name, title   string
		values, scans []float64
	}{
		{"service/sent-at-once", fmt.Sprintf("%d single queries, service", b.queries), open, openScans},
		{"service/closed", fmt.Sprintf("the same, of %d users who wait", b.users), closed, closedScans},
	} {
		v := figures.Median(f.values)
		note := fmt.Sprintf("in %.0f scans; %s", figures.Median(f.scans), sample)
		b.rows = append(b.rows, []string{f.title, fmt.Sprintf("%.2f s", v), fmt.Sprintf("%.1f s (of %d)", peer, min(b.singles, b.queries)), fmt.Sprintf("%.1f", figures.Lower(v, peer))})
		if err := b.results.Add(figures.Figure{Name: "blast/" + f.name, Value: v, Unit: "s", Peer: "one blastn -num_threads 2 each, in memory", Ratio: figures.Lower(v, peer), Note: note}); err != nil {
			return err
		}
	}
	return nil
}

// alone is how long it takes to search for all queries by one blastn each, in the
// database in memory.
func (b *bench) alone() (took time.Duration, searches int, err error) {
	db := filepath.Join(b.ram, "alias", "whole")
	n := min(b.singles, len(b.texts))
	began := time.Now()
	for i := range n {
		cmd := exec.Command("blastn", "-db", db, "-outfmt", "6", "-num_threads", "2")
		cmd.Stdin = strings.NewReader(b.texts[i*len(b.texts)/n])
		if _, err := cmd.Output(); err != nil {
			return 0, 0, err
		}
	}
	return time.Since(began) * time.Duration(len(b.texts)) / time.Duration(n), n, nil
}

// through is how long the service takes for all queries, and how many scans it makes.
func (b *bench) through(wait bool) (took time.Duration, scans int, err error) {
	jobs := filepath.Join(b.dir, "jobs")
	cmd := b.command("blast", "serve", "--listen", "127.0.0.1:0", "--dir", jobs, "--max-user-waiting", "10000")
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, 0, err
	}
	defer func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // where it has ended, Wait says how
		_ = cmd.Wait()
		_ = os.RemoveAll(jobs)
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return 0, 0, err
	}
	server := "http://" + strings.TrimSpace(strings.TrimPrefix(line, "listening on "))
	c := &client{address: server + "/api/v1/searches",
		http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: b.users}}}
	began := time.Now()
	ids := make([]string, len(b.texts))
	steps := []func(i int) error{
		func(i int) (err error) { ids[i], err = c.send(b.texts[i]); return err },
		func(i int) error { return c.fetch(ids[i]) },
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
			return 0, 0, err
		}
	}
	took = time.Since(began)
	scans, err = c.scans(server)
	return took, scans, err
}

// each calls a function for all queries, by as many users.
func (b *bench) each(step func(i int) error) error {
	work := make(chan int)
	errs := make(chan error, b.users)
	var all sync.WaitGroup
	for range b.users {
		all.Go(func() {
			for i := range work {
				if err := step(i); err != nil {
					errs <- err
					for range work { // let the others end
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

type client struct {
	address string
	http    *http.Client
}

func (c *client) send(text string) (id string, err error) {
	body, err := json.Marshal(map[string]string{"program": "blastn", "database": "bench", "format": "tabular", "query": text})
	if err != nil {
		return "", err
	}
	answer, err := c.http.Post(c.address, "application/json", bytes.NewReader(body))
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

func (c *client) fetch(id string) error {
	for {
		answer, err := c.http.Get(c.address + "/" + id + "/result?wait=30")
		if err != nil {
			return err
		}
		got, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		switch {
		case err != nil:
			return err
		case answer.StatusCode == http.StatusOK && len(got) > 0:
			return nil
		case answer.StatusCode != http.StatusAccepted:
			return fmt.Errorf("status %d, %d bytes", answer.StatusCode, len(got))
		}
	}
}

// scans is how many the service has made.
func (c *client) scans(server string) (int, error) {
	answer, err := c.http.Get(server + "/metrics")
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
	return 0, errors.New("the service does not tell how many scans it has made")
}
