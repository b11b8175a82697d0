package slurm

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"premix/internal/engine/pilot"
	"premix/internal/kit/beneath"
	"premix/internal/kit/lock"
	"premix/internal/kit/owner"
)

// listing is the output of squeue, as a file.
type listing struct {
	Begun  time.Time `json:"begun"`            // before it was asked
	Failed string    `json:"failed,omitempty"` // error message, if Slurm did not answer
	Jobs   []job     `json:"jobs"`
}

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
func parse(out string) []job {
	var list []job
	for line := range strings.Lines(out) {
		f := strings.Split(strings.TrimRight(line, "\n"), "|")
		if len(f) != strings.Count(format, "|")+1 || !strings.HasPrefix(f[0], namePrefix) {
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
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		a, err := strconv.Atoi(first)
		b, berr := strconv.Atoi(last)
		if err == nil && berr == nil {
			list = append(list, [2]int{a, b})
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
func (l *listing) status(id jobID) (pilot.Status, bool) {
	found := false
	var st pilot.Status
	for i := range l.Jobs {
		j := &l.Jobs[i]
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

// cache is the listing that all premix processes of a user share.
type cache struct {
	path     string
	interval time.Duration
	last     *listing // of this process
}

func newCache(interval time.Duration) *cache {
	sum := sha256.Sum256([]byte(os.Getenv("SLURM_CONF") + "\x00" + os.Getenv("SLURM_CLUSTERS")))
	return &cache{path: filepath.Join(cacheDir(), "listing-"+hex.EncodeToString(sum[:6])+".json"), interval: interval}
}

// cacheDir returns a directory of this user on this machine.
func cacheDir() string {
	if home := os.Getenv("PREMIX_HOME"); home != "" {
		return filepath.Join(home, "run", "slurm")
	}
	_, dir := owner.RuntimeDir()
	return filepath.Join(dir, "slurm")
}

// get returns a listing that was begun after the given time, and is not older than the
// interval.
func (c *cache) get(ctx context.Context, after time.Time) (*listing, error) {
	if c.fresh(c.last, after) {
		return c.last.result()
	}
	if err := c.makeDir(); err != nil {
		return nil, err
	}
	f, err := owner.OpenFile(c.path+".lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := lock.Await(ctx, f, lock.Exclusive); err != nil {
		return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	// Somebody else may have asked while this one waited.
	if text, err := os.ReadFile(c.path); err == nil {
		l := &listing{}
		if json.Unmarshal(text, l) == nil && c.fresh(l, after) {
			c.last = l
			return l.result()
		}
	}
	l := &listing{Begun: time.Now()}
	out, err := program(ctx, "", "squeue", "--noheader", "--states=all", "--user="+userName(), "--format="+format)
	if ctx.Err() != nil {
		return nil, cmp.Or(err, ctx.Err()) // the error is not Slurm's, so do not share it
	}
	if err != nil {
		l.Failed = said(err)
	}
	l.Jobs = parse(out)
	c.last = l
	if text, err := json.Marshal(l); err == nil {
		// Without the file each process asks for itself.
		_ = beneath.Replace(c.path, 0o600, beneath.Volatile, text)
	}
	return l.result()
}

func (c *cache) fresh(l *listing, after time.Time) bool {
	if l == nil || l.Begun.After(time.Now()) {
		return false
	}
	return l.Begun.After(after) && time.Since(l.Begun) < c.interval
}

func (l *listing) result() (*listing, error) {
	if l.Failed != "" {
		return nil, fmt.Errorf("squeue: %s", l.Failed)
	}
	return l, nil
}

// makeDir makes the directory, and refuses a directory of another user.
func (c *cache) makeDir() error {
	dir := filepath.Dir(c.path)
	var err error
	if base, runtime := owner.RuntimeDir(); filepath.Dir(dir) == runtime {
		err = owner.MakePrivate(base, dir)
	} else if err = os.MkdirAll(dir, 0o700); err == nil {
		err = owner.Private(dir)
	}
	var foreign *owner.Error
	if errors.As(err, &foreign) {
		return fmt.Errorf("%w: set PREMIX_HOME or XDG_RUNTIME_DIR to a directory of your own", err)
	}
	return err
}

func userName() string {
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return strconv.Itoa(os.Geteuid())
}
