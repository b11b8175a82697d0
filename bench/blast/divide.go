package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"premix/internal/kit/units"
	"premix/internal/testkit/figures"
)

// divide measures large sets of queries on eight nodes, each fragment on two of them, and on one
// node. On this machine the nodes share its cores, so the time of a search is taken as the
// CPU time of the node that needs the most.
func (b *bench) divide(from *origins) error {
	const count = 8
	rows := [][]string{{"database", "queries", "blastn, CPU", "one node", "eight nodes, all", "slowest of eight", "of linear", "head"}}
	parts, err := numbers(b.divideDatabases)
	if err != nil {
		return err
	}
	for _, part := range parts {
		s := &nodes{b: b, dir: filepath.Join(b.dir, fmt.Sprintf("cluster-%d", part)), letters: b.clusterLetters / int64(part)}
		more, err := s.divide(from, count)
		if err != nil {
			return err
		}
		rows = append(rows, more...)
	}
	b.results.Table("CPU time of searches for many queries, and the share of the slowest of eight nodes", rows)
	return nil
}

// numbers reads numbers with commas between them.
func numbers(text string) (list []int, err error) {
	for field := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(field)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%q is not a number above 0", field)
		}
		list = append(list, n)
	}
	return list, nil
}

func (s *nodes) divide(from *origins, count int) (rows [][]string, err error) {
	if s.ram, err = os.MkdirTemp("/dev/shm", "premix-bench-"); err != nil {
		return nil, err
	}
	defer os.RemoveAll(s.ram)
	defer s.stop()
	if err := s.prepare(from); err != nil {
		return nil, err
	}
	type cell struct {
		text         []byte // of BLAST+
		blastn, one  float64
		queries      string
		size, number int
	}
	var cells []*cell
	sizes, err := numbers(s.b.divideQueries)
	if err != nil {
		return nil, err
	}
	for _, n := range sizes {
		text := strings.Join(from.queries(n, 500), "")
		c := &cell{queries: filepath.Join(s.dir, fmt.Sprintf("%d.fa", n)), size: len(text), number: n}
		if err := os.WriteFile(c.queries, []byte(text), 0o644); err != nil {
			return nil, err
		}
		cmd := s.plain(c.queries)
		if c.text, err = cmd.Output(); err != nil {
			return nil, err
		}
		c.blastn = cpu(cmd.ProcessState).Seconds()
		cells = append(cells, c)
	}
	for _, n := range []int{1, count} {
		if err := s.start(n, 3*s.bytes); err != nil {
			return nil, err
		}
		for _, c := range cells {
			head, all, slowest, out, err := s.used(c.queries)
			if err != nil {
				return nil, err
			}
			if !bytes.Equal(out, c.text) {
				return nil, errors.New("the nodes find other hits than BLAST+")
			}
			if n == 1 {
				c.one = slowest
				continue
			}
			linear := c.one / slowest / float64(n)
			rows = append(rows, []string{units.Size(s.bytes), fmt.Sprintf("%d, %s", c.number, units.Size(int64(c.size))), fmt.Sprintf("%.1f s", c.blastn), fmt.Sprintf("%.1f s", c.one), fmt.Sprintf("%.1f s", all), fmt.Sprintf("%.2f s", slowest), fmt.Sprintf("%.2f", linear), fmt.Sprintf("%.1f s", head)})
			err = s.b.results.Add(figures.Figure{Name: fmt.Sprintf("blast/divide/%d-queries/%d-letters", c.number, s.letters), Value: slowest, Unit: "s", Peer: "one node, and its number of nodes", Ratio: figures.Lower(slowest, c.one/float64(n))})
			if err != nil {
				return nil, err
			}
		}
		s.stop()
	}
	return rows, nil
}

// used searches, and returns the CPU time of the head, of the nodes, and of the node that needed the
// most.
func (s *nodes) used(queries string) (head, all, slowest float64, out []byte, err error) {
	var before []float64
	for i := range s.processes {
		c, _, err := s.usage(i)
		if err != nil {
			return 0, 0, 0, nil, err
		}
		before = append(before, c)
	}
	cmd := s.search(queries)
	if _, out, err = timed(cmd); err != nil {
		return 0, 0, 0, nil, err
	}
	for i, b := range before {
		c, _, err := s.usage(i)
		if err != nil {
			return 0, 0, 0, nil, err
		}
		all, slowest = all+c-b, max(slowest, c-b)
	}
	return cpu(cmd.ProcessState).Seconds(), all, slowest, out, nil
}
