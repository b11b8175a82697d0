package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/kit/quantile"
	"premix/internal/testkit/figures"
	"premix/internal/transfer"
)

// standingProtocol is compared with the protocols whose servers already run.
const standingProtocol = "premix-server"

// getMost is the size of the largest file by which choosing is judged: its cost is the
// same for all sizes, and most of the time of small files.
const getMost = 128 << 20

// getReps is the minimum number of copies by get and by each of its peers.
const getReps = 3

// open are the protocols without access control or without encryption: get takes them
// only with --allow-open.
var open = []string{"rsyncd", "curl", "curl-h2", "aria2", "rclone-http", "xrootd", "gridftp-ssh", "gridftp-ssh-p4"}

// standingPort is the port of the premix server from which get-server copies.
const standingPort = 8471

// stand starts a standing server of premix at the peer, and returns get's entry for it.
func (c *cell) stand() (entry string, stop func(), err error) {
	key := filepath.Join(c.dir, "standing.key")
	server := exec.Command(c.premix, "transfer", "serve", c.dir, "--listen", fmt.Sprintf("%s:%d", c.ssh.Host, standingPort), "--key", key)
	if err := c.between.B.Start(server); err != nil {
		return "", nil, err
	}
	stop = func() { _ = server.Process.Signal(unix.SIGTERM); _ = server.Wait() } // the signal ended it
	for range 200 {
		if _, err = os.Stat(key + ".client"); err == nil {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	if err != nil {
		stop()
		return "", nil, fmt.Errorf("premix transfer serve: %w", err)
	}
	return fmt.Sprintf(`{name: get-server, verifies: true, get: 'r="${remote}"; %s transfer get --json "premix://%s:%d${r#%s}" "${local}" --key %s.client >>%s.get-server'}`,
		c.premix, c.ssh.Host, standingPort, c.dir, key, filepath.Join(c.dir, "get.json")), stop, nil
}

// chosen compares premix transfer get, as a protocol among others of a link, with the
// best protocol of the grid: among the protocols that get may choose, and with
// --allow-open among all. Their servers already run, while get has to start its own.
func (c *cell) chosen() error {
	copies, err := transfer.Read(c.results)
	if err != nil {
		return err
	}
	asks := filepath.Join(c.dir, "get.json")
	entry := func(name, options string) string {
		return fmt.Sprintf(`{name: %s, verifies: true, get: 'PREMIX_HOME=%s %s transfer get --json %s %s:"${remote}" "${local}" >>%s.%s'}`,
			name, filepath.Join(c.dir, "home"), c.premix, options, c.name, asks, name)
	}
	standing, stop, err := c.stand()
	if err != nil {
		return err
	}
	defer stop()
	rows := [][]string{{"copy", "get", "by", "the best without it", "its time", "ratio"}}
	for _, text := range strings.Split(c.sizes, ",") {
		closed, any := bestTime(copies, text, false), bestTime(copies, text, true)
		if closed.protocol == "" || closed.size > getMost {
			continue
		}
		peers := []string{closed.protocol}
		if any.protocol != closed.protocol {
			peers = append(peers, any.protocol)
		}
		entries := append(c.entries(peers), entry("get", ""), entry("get-open", "--allow-open"), standing)
		file, err := c.describe(c.name+"-get-"+strings.ToLower(text), "get", text, "", entries)
		if err != nil {
			return err
		}
		out := filepath.Join(c.lab.Dir, "results", c.name+"-get-"+text)
		if err := os.RemoveAll(out); err != nil {
			return err
		}
		if err := c.run([]int{1}, "transfer", "bench", file, "--out", out, "--repeat", strconv.Itoa(max(c.reps, getReps))); err != nil {
			return err
		}
		measured, err := transfer.Read(out)
		if err != nil {
			return err
		}
		times := map[string][]float64{}
		for _, x := range measured {
			if x.OK {
				times[x.Protocol] = append(times[x.Protocol], x.Seconds)
			}
		}
		for _, how := range []struct{ name, peer string }{{"get", closed.protocol}, {"get-open", any.protocol}, {"get-server", any.protocol}} {
			mine, theirs := times[how.name], times[how.peer]
			if len(mine) == 0 || len(theirs) == 0 {
				rows = append(rows, []string{text, how.name + " failed", "", how.peer, "", ""})
				continue
			}
			by, err := protocolsOf(asks + "." + how.name)
			if err != nil {
				return err
			}
			f := figures.Figure{Name: c.name + "/" + how.name + "/" + text, Value: quantile.Median(mine), Unit: "s", Peer: how.peer,
				Ratio: figures.Lower(quantile.Median(mine), quantile.Median(theirs)), Note: "with verification; by " + by}
			if err := c.benchmark.results.Add(f); err != nil {
				return err
			}
			rows = append(rows, []string{text, how.name + " " + figures.Seconds(f.Value), by, how.peer, figures.Seconds(quantile.Median(theirs)), figures.Times(f.Ratio)})
		}
	}
	c.benchmark.results.Table(c.name+": premix transfer get, with verification, and the fastest protocol", rows)
	return nil
}

// protocolsOf returns the protocols that get has chosen, and removes the file.
func protocolsOf(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer os.Remove(file)
	defer f.Close()
	var names []string
	for d := json.NewDecoder(f); ; {
		var done struct{ Protocol string }
		if err := d.Decode(&done); errors.Is(err, io.EOF) {
			return strings.Join(slices.Compact(names), ", "), nil
		} else if err != nil {
			return "", err
		}
		names = append(names, done.Protocol)
	}
}

// best is the fastest protocol for a file.
type best struct {
	protocol string
	seconds  float64
	size     int64
}

// bestTime returns the protocol with the lowest median time for single files of a size.
// If all is set, it includes open protocols. premix-system is excluded, because get's
// list does not have it.
func bestTime(copies []transfer.Copy, text string, all bool) (b best) {
	times := map[string][]float64{}
	for _, x := range copies {
		if x.OK && x.Files == 1 && x.Direction == transfer.Get && x.Data() == text && (all || !slices.Contains(open, x.Protocol) && x.Protocol != standingProtocol) {
			times[x.Protocol] = append(times[x.Protocol], x.Seconds)
			b.size = x.Size
		}
	}
	for p, v := range times {
		if m := quantile.Median(v); b.protocol == "" || m < b.seconds {
			b.seconds, b.protocol = m, p
		}
	}
	return b
}

// probeMost is the time limit of a probe.
const probeMost = time.Minute

// probe times premix transfer probe, which should answer within a minute.
func (c *cell) probe() error {
	begin := time.Now()
	if err := c.run(nil, "transfer", "probe", c.name); err != nil {
		return err
	}
	took := time.Since(begin)
	if err := c.benchmark.results.Add(figures.Figure{Name: c.name + "/probe", Value: took.Seconds(), Unit: "s", Peer: "a minute", Ratio: figures.Lower(took.Seconds(), probeMost.Seconds())}); err != nil {
		return err
	}
	c.benchmark.results.Table(c.name+": premix transfer probe", [][]string{{"took", "may take"}, {figures.Seconds(took.Seconds()), figures.Seconds(probeMost.Seconds())}})
	return nil
}

// captureSize and captureReps describe the copies by which the capture's cost is judged.
const (
	captureSize = "500M"
	captureReps = 4
)

// captureCost compares copies by curl with and without a capture, in turns.
func (c *cell) captureCost() error {
	file, err := c.describe(c.name+"-capture", "get", captureSize, "", []string{"curl"})
	if err != nil {
		return err
	}
	times := map[string][]float64{}
	var drops int64
	for i := range max(c.reps, captureReps) {
		for _, how := range []string{"packet", "none"} {
			out := filepath.Join(c.dir, fmt.Sprintf("cost-%s-%d", how, i))
			if err := os.RemoveAll(out); err != nil {
				return err
			}
			if err := c.run([]int{1}, "transfer", "bench", file, "--out", out, "--repeat", "1", "--capture", how); err != nil {
				return err
			}
			copies, err := transfer.Read(out)
			if err != nil {
				return err
			}
			for _, x := range copies {
				if x.OK {
					times[how] = append(times[how], x.Seconds)
				}
				drops += x.Drops
			}
		}
	}
	if len(times["packet"]) == 0 || len(times["none"]) == 0 {
		return nil // the grid has reported that curl could not be measured
	}
	with, without := quantile.Median(times["packet"]), quantile.Median(times["none"])
	if err := c.benchmark.results.Add(figures.Figure{Name: c.name + "/capture", Value: with, Unit: "s", Peer: "none", Ratio: figures.Lower(with, without), Note: fmt.Sprintf("%d packets dropped", drops)}); err != nil {
		return err
	}
	c.benchmark.results.Table(c.name+": "+captureSize+" by curl", [][]string{{"with a capture", "without", "cost", "dropped"},
		{figures.Seconds(with), figures.Seconds(without), fmt.Sprintf("%.1f %%", 100*(with/without-1)), fmt.Sprint(drops)}})
	return nil
}
