package tagsync

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"premix/internal/kit/beneath"
	"premix/internal/kit/exit"
	"premix/internal/store"
	"premix/internal/store/object"
)

// StateFormat is the format of a [State].
const StateFormat = "premix images 1"

// State is the recorded state of a watch list in a store.
type State struct {
	Format   string       `json:"format"`
	List     string       `json:"list"`              // path of the list
	Began    time.Time    `json:"began"`             // the last round
	Finished time.Time    `json:"ended,omitzero"`    // zero while it is running, or if it was interrupted
	Images   []Image      `json:"images"`            // in the order of their references
	Entries  []RetryState `json:"entries,omitempty"` // entries that could not be expanded
}

// Image is an image of a list, or of an earlier version of it.
type Image struct {
	Ref      string        `json:"ref"`                // in the store
	Registry string        `json:"registry"`           // its source
	Name     string        `json:"name"`               // in the registry
	Tag      string        `json:"tag"`                // in the registry
	Platform string        `json:"platform,omitempty"` // from the list
	Claimed  bool          `json:"claimed"`            // it belongs to the list; otherwise only its failures are recorded
	Digest   string        `json:"digest,omitempty"`   // of the tag when it was added; "" before
	Record   object.Digest `json:"image,omitzero"`     // digest of the added record
	Changed  time.Time     `json:"changed,omitzero"`   // when it was added
	Checked  time.Time     `json:"checked,omitzero"`   // when the registry last returned the digest
	Gone     time.Time     `json:"gone,omitzero"`      // when the registry was first seen without the tag
	RetryState
}

// Source returns the image's name in its registry.
func (i *Image) Source() string { return displayed(i.Registry, i.Name, i.Tag) }

// RetryState records repeated failures.
type RetryState struct {
	Entry    string    `json:"entry,omitempty"` // set for an entry
	Failures int       `json:"failures,omitempty"`
	Retry    time.Time `json:"retry,omitzero"` // the next try
	Error    string    `json:"error,omitempty"`
	Hint     string    `json:"hint,omitempty"`
}

// Read returns the recorded state of a list; it is empty for an unknown list.
func Read(s *store.Store, name string) (*State, error) {
	dir, err := s.Own("watch")
	if err != nil {
		return nil, err
	}
	return readState(filepath.Join(dir, name+".json"))
}

func readState(file string) (*State, error) {
	st := &State{Format: StateFormat, Images: []Image{}}
	content, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return st, nil
	}
	if err == nil {
		err = json.Unmarshal(content, st)
	}
	if err == nil && st.Format != StateFormat {
		err = fmt.Errorf("its format is %q", st.Format)
	}
	if err != nil {
		return nil, exit.Errorf(exit.Failed, "remove the file: the next round makes it again; images that have left the list since must then be removed with premix image rm", "%s cannot be read: %w", file, err)
	}
	return st, nil
}

// write replaces the file, and with sync waits until it is on the disk.
func (st *State) write(file string, sync bool) error {
	slices.SortFunc(st.Images, func(a, b Image) int { return cmp.Compare(a.Ref, b.Ref) })
	content, err := json.MarshalIndent(st, "", "  ")
	if err != nil {
		return err
	}
	how := beneath.Volatile
	if sync {
		how = beneath.Durable
	}
	return beneath.Replace(file, 0o600, how, append(content, '\n'))
}

// others returns the images of the other lists of the store: by reference, the name of
// the list.
func others(dir, name string) (map[string]string, error) {
	list, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	owners := map[string]string{}
	for _, e := range list {
		other, ok := strings.CutSuffix(e.Name(), ".json")
		if !ok || other == name {
			continue
		}
		st, err := readState(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		for _, i := range st.Images {
			if i.Claimed {
				owners[i.Ref] = other
			}
		}
	}
	return owners, nil
}
