package slurm

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"premix/internal/engine/pilot"
	"premix/internal/engine/programs"
	"premix/internal/kit/hostlist"
)

// listing is the output of squeue.
type listing []job

// job is a line of a listing: an element of an array, or several that wait.
type job struct {
	Name   string `json:"name"`
	Array  string `json:"array"`
	Index  string `json:"index"` // as in 3, 4-10,12 or 0-7%2
	State  string `json:"state"`
	Reason string `json:"reason,omitempty"`
	Node   string `json:"node,omitempty"`

	ranges [][2]int
}

// format is the output format for squeue. Names of premix's jobs have no bar in them.
const format = "%j|%F|%K|%T|%r|%N"

// parse parses the output of squeue, and keeps the jobs that premix submitted.
func parse(out string) listing {
	var list listing
	for line := range strings.Lines(out) {
		f := strings.Split(strings.TrimRight(line, "\n"), "|")
		if len(f) != strings.Count(format, "|")+1 || !strings.HasPrefix(f[0], programs.NamePrefix) {
			continue
		}
		list = append(list, job{Name: f[0], Array: f[1], Index: f[2], State: f[3], Reason: f[4], Node: f[5]})
	}
	return list
}

// parseIndex reads the indices of a line.
func parseIndex(text string) [][2]int {
	text, _, _ = strings.Cut(text, "%")
	var list [][2]int
	for _, part := range strings.Split(text, ",") {
		a, b, step, ok := hostlist.Range(part)
		switch {
		case ok && step == 1:
			list = append(list, [2]int{a, b})
		case ok: // squeue writes so if all steps are equal
			for i := a; i <= b; i += step {
				list = append(list, [2]int{i, i})
			}
		}
	}
	return list
}

// jobID is the id of an element of an array, as package pilot keeps it in a ledger:
// "7_3 (premix-TOKEN)". The name is in it because a controller that was restored from an
// older state gives the same numbers again, to jobs of premix and to others.
type jobID struct {
	element string // 7_3
	array   string
	index   int    // -1 without one
	name    string // "" matches any name: ids in older ledgers have none
}

func (id jobID) String() string { return id.element + " (" + id.name + ")" }

// makeID returns the id of an element.
func makeID(array string, index int, name string) jobID {
	return jobID{fmt.Sprintf("%s_%d", array, index), array, index, name}
}

// parseID reads an id.
func parseID(text string) jobID {
	element, name, _ := strings.Cut(text, " (")
	array, index, _ := strings.Cut(element, "_")
	n, err := strconv.Atoi(index)
	if err != nil {
		n = -1
	}
	return jobID{element, array, n, strings.TrimSuffix(name, ")")}
}

// status returns the status of an element of an array.
func (l listing) status(id jobID) (pilot.Status, bool) {
	found := false
	var st pilot.Status
	for i := range l {
		j := &l[i]
		if j.Array != id.array || id.name != "" && j.Name != id.name {
			continue
		}
		if j.ranges == nil {
			j.ranges = parseIndex(j.Index)
		}
		for _, r := range j.ranges {
			if id.index < r[0] || id.index > r[1] {
				continue
			}
			// A job that was started again may be listed twice: the live entry counts.
			if s := j.status(); !found || s.Phase < st.Phase {
				st, found = s, true
			}
		}
	}
	return st, found
}

// newCache returns the listing of the cluster that the environment selects.
func newCache(interval time.Duration) *programs.Shared[listing] {
	return programs.NewShared[listing](Name, "jobs", interval, clusterVariables...)
}

// clusterVariables select a cluster.
var clusterVariables = []string{"SLURM_CONF", "SLURM_CLUSTERS"}

// list returns a listing that was begun after the given time, and that time.
func (e *Engine) list(ctx context.Context, after time.Time) (listing, time.Time, error) {
	a, err := e.cache.Get(ctx, after, func(ctx context.Context) (listing, error) {
		out, err := programs.Run(ctx, "", "squeue", "--noheader", "--states=all", "--user="+programs.UserName(), "--format="+format)
		if err != nil {
			return nil, fmt.Errorf("squeue: %s", programs.Message(err))
		}
		return parse(out), nil
	})
	if err != nil {
		return nil, time.Time{}, err
	}
	return a.Value, a.Started, a.Err()
}
