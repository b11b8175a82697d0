package main

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"premix/internal/figures"
	"premix/transfer"
)

// chosen times premix transfer get with the files of the grid, against the best
// protocol that was measured for each.
func (c *cell) chosen() error {
	copies, err := transfer.Read(c.results)
	if err != nil {
		return err
	}
	rows := [][]string{{"get", "protocol", "time", "the best, measured", "its time", "ratio"}}
	for _, text := range strings.Split(c.sizes, ",") {
		best, of, size := bestTime(copies, text)
		if of == "" {
			continue
		}
		source := filepath.Join(c.dir, "there", "get-"+text)
		if err := random(source, size); err != nil {
			return err
		}
		var times []float64
		protocol := ""
		for i := range c.reps {
			cmd := c.ssh.Command(c.ctx, c.premix, "transfer", "get", "--json", "--allow-open", c.name+":"+source, filepath.Join(c.dir, "here", "get-"+strconv.Itoa(i)))
			cmd.Env = append(os.Environ(), "PREMIX_HOME="+filepath.Join(c.dir, "home"))
			var out bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, os.Stderr
			if err := c.link.A.Run(cmd); err != nil {
				return fmt.Errorf("get: %w", err)
			}
			var done struct {
				Protocol string
				Seconds  float64
			}
			if err := json.Unmarshal(out.Bytes(), &done); err != nil {
				return err
			}
			times, protocol = append(times, done.Seconds), done.Protocol
			if err := os.Remove(filepath.Join(c.dir, "here", "get-"+strconv.Itoa(i))); err != nil {
				return err
			}
		}
		if err := os.Remove(source); err != nil {
			return err
		}
		median := figures.Median(times)
		f := figures.Figure{Name: c.name + "/chosen/" + text, Value: median, Unit: "s", Peer: of, Ratio: figures.Lower(median, best), Note: "with verification; by " + protocol}
		if err := c.benchmark.results.Add(f); err != nil {
			return err
		}
		rows = append(rows, []string{text, protocol, figures.Seconds(median), of, figures.Seconds(best), figures.Times(f.Ratio)})
	}
	c.benchmark.results.Table(c.name+": premix transfer get, with verification", rows)
	return nil
}

// bestTime is the lowest median time of single files of a size.
func bestTime(copies []transfer.Copy, text string) (seconds float64, protocol string, size int64) {
	times := map[string][]float64{}
	for _, x := range copies {
		if x.OK && x.Files == 1 && x.Direction == transfer.Get && x.Data() == text {
			times[x.Protocol] = append(times[x.Protocol], x.Seconds)
			size = x.Size
		}
	}
	for p, v := range times {
		if m := figures.Median(v); protocol == "" || m < seconds {
			seconds, protocol = m, p
		}
	}
	return seconds, protocol, size
}

// random makes a file that nothing can compress.
func random(path string, size int64) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if _, err := io.CopyN(f, rand.Reader, size); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

// captureCost compares copies by curl with and without a capture, in turns.
func (c *cell) captureCost() error {
	times := map[string][]float64{}
	var drops int64
	for i := range c.reps {
		for _, how := range []string{"packet", "none"} {
			out := filepath.Join(c.dir, fmt.Sprintf("cost-%s-%d", how, i))
			if err := c.run([]int{1}, "transfer", "bench", c.file, "--out", out, "--repeat", "1", "--only", "curl", "--capture", how); err != nil {
				return err
			}
			copies, err := transfer.Read(out)
			if err != nil {
				return err
			}
			var largest transfer.Copy
			for _, x := range copies {
				if x.OK && x.Size > largest.Size {
					largest = x
				}
				drops += x.Drops
			}
			if largest.OK {
				times[how] = append(times[how], largest.Seconds)
			}
		}
	}
	if len(times["packet"]) == 0 || len(times["none"]) == 0 {
		return nil // curl could not be measured, which the grid has told
	}
	with, without := figures.Median(times["packet"]), figures.Median(times["none"])
	if err := c.benchmark.results.Add(figures.Figure{Name: c.name + "/capture", Value: with, Unit: "s", Peer: "none", Ratio: figures.Lower(with, without), Note: fmt.Sprintf("%d packets dropped", drops)}); err != nil {
		return err
	}
	c.benchmark.results.Table(c.name+": the largest file by curl", [][]string{{"with a capture", "without", "cost", "dropped"},
		{figures.Seconds(with), figures.Seconds(without), fmt.Sprintf("%.1f %%", 100*(with/without-1)), fmt.Sprint(drops)}})
	return nil
}
