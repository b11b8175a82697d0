package dropin

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"premix/internal/hotstart"
	"premix/internal/hotstart/calls"
	"premix/internal/hotstart/inplace"
)

// Status lists this user's snapshots and cold starts on this machine.
type Status struct {
	Store     string     `json:"store"`
	Bytes     int64      `json:"bytes"`
	Quota     int64      `json:"quota"`
	Snapshots []Snapshot `json:"snapshots"`
	Cold      []Cold     `json:"cold"`
}

// Snapshot is a snapshot with its use, as far as the table of starts reaches back.
type Snapshot struct {
	ID      string    `json:"id"`
	Tool    string    `json:"tool"`
	Argv    []string  `json:"argv"`
	Bytes   int64     `json:"bytes"`
	Starts  int       `json:"starts"`
	Saved   float64   `json:"saved"` // seconds
	Used    time.Time `json:"used"`
	Created time.Time `json:"created"`
}

// Cold summarizes the recorded cold starts of a tool.
type Cold struct {
	Tool   string    `json:"tool"`
	Starts int       `json:"starts"`
	Last   time.Time `json:"last"`
	Reason string    `json:"reason"` // of the last start
}

// ReadStatus returns the snapshots, newest use first, and the tools that started cold.
func ReadStatus(quota int64) (*Status, error) {
	store, err := inplace.DefaultStore()
	if err != nil {
		return nil, err
	}
	list, err := inplace.List(store)
	if err != nil {
		return nil, err
	}
	st := &Status{Store: store, Quota: quota, Snapshots: []Snapshot{}, Cold: []Cold{}}
	at, cold := map[string]int{}, map[string]*Cold{}
	for _, s := range list {
		if s.Refused != "" {
			continue
		}
		at[s.ID] = len(st.Snapshots)
		st.Snapshots = append(st.Snapshots, Snapshot{ID: s.ID, Tool: filepath.Base(s.Argv[0]), Argv: s.Argv, Bytes: s.Bytes(), Used: s.Used(), Created: s.Created})
		st.Bytes += st.Snapshots[at[s.ID]].Bytes
	}
	here := calls.ThisMachine()
	err = calls.Starts(time.Time{}, func(r calls.Start) {
		if i, ok := at[r.ID]; ok && r.Start == string(hotstart.Hot) {
			st.Snapshots[i].Starts++
			st.Snapshots[i].Saved += r.Saved - r.Waited
		}
		if r.Start == string(hotstart.Cold) && here.Has(r) {
			if cold[r.Tool] == nil {
				cold[r.Tool] = &Cold{Tool: r.Tool}
			}
			c := cold[r.Tool]
			c.Starts++
			c.Last, c.Reason = r.Time, r.Why
		}
	})
	for _, c := range cold {
		st.Cold = append(st.Cold, *c)
	}
	slices.SortFunc(st.Snapshots, func(a, b Snapshot) int { return b.Used.Compare(a.Used) })
	slices.SortFunc(st.Cold, func(a, b Cold) int { return strings.Compare(a.Tool, b.Tool) })
	return st, err
}

// Trim removes the least recently used snapshots until the others take at most quota
// bytes. It keeps snapshots that are in use. It returns the removed snapshots.
func Trim(store string, quota int64) ([]*inplace.Snapshot, error) {
	list, err := inplace.List(store)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(list, func(a, b *inplace.Snapshot) int { return a.Used().Compare(b.Used()) })
	var total int64
	sizes := make([]int64, len(list))
	for i, s := range list {
		sizes[i] = s.Bytes()
		total += sizes[i]
	}
	var removed []*inplace.Snapshot
	for i, s := range list {
		if total <= quota {
			break
		}
		err := s.Remove()
		if errors.Is(err, hotstart.ErrInUse) {
			continue
		}
		if err != nil {
			return removed, err
		}
		total -= sizes[i]
		removed = append(removed, s)
	}
	return removed, nil
}
