package slurm

import (
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"premix/internal/engine/programs"
)

// Census is how many jobs Slurm has, of all users, and how its scheduler does.
type Census struct {
	Started time.Time `json:"-"` // before it was asked
	Jobs    []Counted `json:"jobs"`
	// Diag is the output of sdiag, by section and key as it writes them, joined by a dot:
	// "Main schedule statistics.Last cycle". Values that are not numbers are omitted. Diag is
	// empty if sdiag did not answer.
	Diag map[string]float64 `json:"diag,omitempty"`
}

// Counted are jobs that are alike.
type Counted struct {
	Partition string `json:"partition"` // the first partition that a waiting job names
	State     string `json:"state"`     // as squeue writes it, in lower case
	Jobs      int    `json:"jobs"`      // elements of arrays each
}

// MinCensusInterval is how old a census is at least before Slurm is asked again. It
// lists all jobs, and sdiag makes the controller lock its tables as well.
const MinCensusInterval = 30 * time.Second

// TakeCensus queries Slurm, unless another premix of this user on this machine has done so
// within the interval: then it returns that answer, from a file beside the listing.
// If Slurm does not answer, the error is kept and shared, too. Without
// squeue on PATH it is errMissing.
func TakeCensus(ctx context.Context, interval time.Duration) (*Census, error) {
	if _, err := exec.LookPath("squeue"); err != nil {
		return nil, errMissing
	}
	interval = max(interval, MinCensusInterval)
	shared := programs.NewShared[Census](Name, "counts", interval, clusterVariables...)
	a, err := shared.Get(ctx, time.Time{}, countAll)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, err
	}
	if err := a.Err(); err != nil {
		return nil, err
	}
	a.Value.Started = a.Started
	return &a.Value, nil
}

// countAll asks Slurm for a census.
func countAll(ctx context.Context) (Census, error) {
	// Long lists of indices would be cut, see squeue(1), SLURM_BITSTR_LEN.
	out, err := programs.Run(ctx, "", "env", "SLURM_BITSTR_LEN=0", "squeue", "--noheader", "--all", "--format="+censusFormat)
	if err != nil {
		return Census{}, fmt.Errorf("squeue: %s", strings.TrimPrefix(programs.Message(err), "squeue: error: "))
	}
	c := Census{Jobs: ParseCensus(out)}
	if out, err := programs.Run(ctx, "", "sdiag"); err == nil {
		c.Diag = ParseDiag(out)
	}
	return c, nil
}

// censusFormat makes squeue print the partition and the state of a job, and the indices of the
// elements of an array that a line stands for.
const censusFormat = "%P|%T|%K"

// ParseCensus counts the jobs in the output of squeue with that format. A line may stand for
// many waiting elements of an array.
func ParseCensus(out string) []Counted {
	var list []Counted
	place := make(map[[2]string]int)
	for line := range strings.Lines(out) {
		f := strings.Split(strings.TrimRight(line, "\n"), "|")
		if len(f) != 3 {
			continue
		}
		partition, _, _ := strings.Cut(f[0], ",")
		n := 0
		for _, r := range parseIndex(f[2]) {
			n += r[1] - r[0] + 1
		}
		key := [2]string{partition, strings.ToLower(f[1])}
		i, ok := place[key]
		if !ok {
			i = len(list)
			place[key] = i
			list = append(list, Counted{Partition: key[0], State: key[1]})
		}
		list[i].Jobs += max(n, 1) // a job without an array has no indices
	}
	return list
}

// ParseDiag parses the output of sdiag(1): keys with a colon and a number below headings,
// which have no number. It omits the tables of remote procedure calls, which follow.
func ParseDiag(out string) map[string]float64 {
	diag := make(map[string]float64)
	section := ""
	for line := range strings.Lines(out) {
		text := strings.TrimSpace(line)
		if strings.HasPrefix(text, "Remote Procedure Call statistics") {
			break
		}
		key, value, _ := strings.Cut(text, ":")
		f := strings.Fields(value)
		if len(f) == 0 { // a heading, or a line of asterisks
			section, _, _ = strings.Cut(strings.Trim(key, "* "), " (") // (microseconds)
			continue
		}
		v, err := strconv.ParseFloat(f[0], 64)
		if err != nil {
			continue
		}
		name := strings.Join(strings.Fields(key), " ")
		if section != "" {
			name = section + "." + name
		}
		diag[name] = v
	}
	return diag
}
