package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"premix/internal/kit/beneath"
	"premix/internal/lazyfs"
	"premix/internal/store/object"
)

// Steps of a mount in the journal.
const (
	stepStarted = "begun"   // system calls may have been made, but no client has its answer yet
	stepMounted = "mounted" // it should be mounted
	stepAgain   = "again"   // likewise, but by an earlier node: it must be mounted again
	stepEnding  = "ending"  // it is being removed
)

// entry is a mount in the journal.
type entry struct {
	MountRequest
	Tree   object.Digest  `json:"tree,omitzero"`
	Base   string         `json:"base"`   // name of its base
	InUse  lazyfs.Backend `json:"in_use"` // backend of the base
	Size   int64          `json:"size"`   // of the image, bytes
	Reason string         `json:"reason,omitempty"`
	BDI    string         `json:"bdi,omitempty"` // of the base: see lazyfs.Mount.BDI
	Step   string         `json:"step"`
	Since  time.Time      `json:"since"`
}

// shares reports whether the mount uses the base of other mounts of its tree.
func (e *entry) shares() bool { return e.Record == "" && e.CVMFS == nil && !inPlace() }

// journal is the content of state.json.
type journal struct {
	Version int     `json:"version"`
	Mounts  []entry `json:"mounts"`
}

func readJournal(dir string) (*journal, error) {
	if err := checkDir(dir); err != nil {
		return nil, err
	}
	content, err := os.ReadFile(statePath(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return &journal{Version: Version}, nil
	}
	if err != nil {
		return nil, err
	}
	var j journal
	if err := json.Unmarshal(content, &j); err != nil {
		return nil, fmt.Errorf("%s: %w", statePath(dir), err)
	}
	if j.Version != Version {
		return nil, fmt.Errorf("%s: version %d, this premix reads %d", statePath(dir), j.Version, Version)
	}
	return &j, nil
}

// write replaces the journal atomically.
func (j *journal) write(dir string) error {
	content, err := json.MarshalIndent(j, "", " ")
	if err != nil {
		return err
	}
	return beneath.Replace(statePath(dir), 0o600, beneath.Durable, append(content, '\n'))
}
