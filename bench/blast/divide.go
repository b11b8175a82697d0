package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
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
	rows := [][]string{{"database", "queries", "blastn, CPU", "one node", "eight nodes, all", "slowest of eight", "of linear", "head", "nodes", "runs of queries"}}
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
			u, err := s.used(c.queries)
			if err != nil {
				return nil, err
			}
			if !bytes.Equal(u.out, c.text) {
				return nil, errors.New("the nodes find other hits than BLAST+")
			}
			if n == 1 {
				c.one = u.slowest
				continue
			}
			linear := c.one / u.slowest / float64(n)
			rows = append(rows, []string{units.Size(s.bytes), fmt.Sprintf("%d, %s", c.number, units.Size(int64(c.size))), fmt.Sprintf("%.1f s", c.blastn), fmt.Sprintf("%.1f s", c.one), fmt.Sprintf("%.1f s", u.nodes), fmt.Sprintf("%.2f s", u.slowest), fmt.Sprintf("%.2f", linear), fmt.Sprintf("%.1f s", u.head), fmt.Sprint(u.took), fmt.Sprint(len(u.runs))})
			err = s.b.results.Add(figures.Figure{Name: fmt.Sprintf("blast/divide/%d-queries/%d-letters", c.number, s.letters), Value: u.slowest, Unit: "s", Peer: "one node, and its number of nodes", Ratio: figures.Lower(u.slowest, c.one/float64(n)),
				Note: fmt.Sprintf("%d of %d nodes took part, with %d runs of queries: %s", u.took, n, len(u.runs), strings.Join(u.shares, "; "))})
			if err != nil {
				return nil, err
			}
		}
		s.stop()
	}
	return rows, nil
}

// usage is the use of a search.
type usage struct {
	head, nodes, slowest float64 // CPU time, s: of the head, of all nodes, and of the node that needed the most
	out                  []byte
	took                 int             // nodes that took part
	runs                 map[string]bool // of the queries that different nodes got
	shares               []string        // as the head reports them
}

var shareLine = regexp.MustCompile(`node (\S+) searched (fragments \S+) in \S+ s(?:, for (the parts \S+ of the queries, of \d+))?`)

// used searches, and returns the use.
func (s *nodes) used(queries string) (*usage, error) {
	var before []float64
	for i := range s.processes {
		c, _, err := s.usage(i)
		if err != nil {
			return nil, err
		}
		before = append(before, c)
	}
	cmd := s.search(queries)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	u := &usage{runs: map[string]bool{}}
	var err error
	if _, u.out, err = timed(cmd); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, stderr.Bytes())
	}
	u.head = cpu(cmd.ProcessState).Seconds()
	for i, b := range before {
		c, _, err := s.usage(i)
		if err != nil {
			return nil, err
		}
		u.nodes, u.slowest = u.nodes+c-b, max(u.slowest, c-b)
	}
	took := map[string]bool{}
	for _, m := range shareLine.FindAllStringSubmatch(stderr.String(), -1) {
		took[m[1]], u.runs[m[3]] = true, true
		u.shares = append(u.shares, strings.TrimSpace(m[2]+" "+m[3]))
	}
	u.took = len(took)
	return u, nil
}
