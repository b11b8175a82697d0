package watch

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

	"premix/internal/beneath"
	"premix/internal/exit"
	"premix/store"
	"premix/store/object"
)

// StateFormat is the format of a [State].
const StateFormat = "premix images 1"

// State is what a store remembers of a watch list.
type State struct {
	Format  string    `json:"format"`
	List    string    `json:"list"`              // path of the list
	Began   time.Time `json:"began"`             // the last round
	Ended   time.Time `json:"ended,omitzero"`    // zero while it is under way, or where it was cut off
	Images  []Image   `json:"images"`            // in the order of their references
	Entries []Trouble `json:"entries,omitempty"` // that could not be expanded
}

// Image is an image that a list asks for, or did.
type Image struct {
	Ref      string        `json:"ref"`                // in the store
	Registry string        `json:"registry"`           // where it comes from
	Name     string        `json:"name"`               // there
	Tag      string        `json:"tag"`                // there
	Platform string        `json:"platform,omitempty"` // as the list has it
	Claimed  bool          `json:"claimed"`            // it belongs to the list; otherwise only its trouble is remembered
	Digest   string        `json:"digest,omitempty"`   // that the tag had when it was added; "" before
	Record   object.Digest `json:"image,omitzero"`     // what was added
	Changed  time.Time     `json:"changed,omitzero"`   // when that was
	Checked  time.Time     `json:"checked,omitzero"`   // when the registry last told the digest
	Gone     time.Time     `json:"gone,omitzero"`      // since when it has the tag no more
	Trouble
}

// Source is the image in its registry.
func (i *Image) Source() string { return displayed(i.Registry, i.Name, i.Tag) }

// Trouble is what keeps failing.
type Trouble struct {
	Entry    string    `json:"entry,omitempty"` // set where it is an entry's
	Failures int       `json:"failures,omitempty"`
	Retry    time.Time `json:"retry,omitzero"` // not before
	Error    string    `json:"error,omitempty"`
	Hint     string    `json:"hint,omitempty"`
}

// StateError is about the file of a state.
type StateError struct {
	File string
	Err  error
}

func (e *StateError) Error() string { return fmt.Sprintf("%s cannot be read: %v", e.File, e.Err) }

// ExitCode implements exit.Coded.
func (*StateError) ExitCode() exit.Code { return exit.Failed }
func (e *StateError) Unwrap() error     { return e.Err }

// Hint names the way out.
func (e *StateError) Hint() string {
	return "remove it: the next round finds out what is there; images that have left the list meanwhile are then to be removed by premix image rm"
}

// Read returns what a store remembers of a list; nothing where it never had one.
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
		return nil, &StateError{file, err}
	}
	return st, nil
}

// write replaces the file, which with sync is on the disk when it returns.
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

// others tells what belongs to the other lists of the store: by reference, the
// name of the list.
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
