package choose

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"premix/internal/kit/beneath"
	"premix/internal/transfer"
	"premix/internal/transfer/link"
)

// Known is the data that premix stores about a link.
type Known struct {
	Name    string   `json:"name"`
	Host    string   `json:"host"`
	User    string   `json:"user"`
	File    string   `json:"file"`    // link file; empty: none
	Results []string `json:"results"` // directories, absolute
}

// Home is premix's directory, with the data about links.
type Home struct{ Dir string }

func (h Home) links() string { return filepath.Join(h.Dir, "transfer", "links") }

// Probes returns the directory of results of a link's probes.
func (h Home) Probes(name string) string { return filepath.Join(h.Dir, "transfer", "probes", name) }

// Key returns the default path of the key of a standing server, by its address.
func (h Home) Key(server string) string {
	return filepath.Join(h.Dir, "transfer", "servers", server+".key")
}

// Remember adds a directory of results to the list of its link.
func (h Home) Remember(l *link.Link, results string) error {
	results, err := filepath.Abs(results)
	if err != nil {
		return err
	}
	k := Known{Name: l.Name}
	path := filepath.Join(h.links(), l.Name+".json")
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, &k)
	} else if errors.Is(err, fs.ErrNotExist) {
		err = os.MkdirAll(h.links(), 0o755)
	}
	if err != nil {
		return fmt.Errorf("remember the link %s: %w", l.Name, err)
	}
	k.Host, k.User = l.Host, l.User
	if l.Path != "" {
		k.File = l.Path
	}
	if !slices.Contains(k.Results, results) {
		k.Results = append(k.Results, results)
	}
	if text, err = json.MarshalIndent(k, "", "  "); err != nil {
		return err
	}
	return beneath.Replace(path, 0o666, beneath.Volatile, append(text, '\n'))
}

// Find returns the link with a name, which is the name of a link or [USER@]HOST. For an
// unknown host it returns a new link without measurements.
func (h Home) Find(name string) (*link.Link, *Known, error) {
	entries, err := os.ReadDir(h.links())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, err
	}
	user, host, given := strings.Cut(name, "@")
	if !given {
		user, host = "", name
	}
	var found *Known
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(h.links(), e.Name()))
		k := &Known{}
		if err != nil || filepath.Ext(e.Name()) != ".json" || json.Unmarshal(text, k) != nil {
			continue // a file that is being written, or is damaged, is ignored
		}
		if k.Name == name {
			found = k
			break
		}
		if k.Host == host && (!given || k.User == user) && found == nil {
			found = k
		}
	}
	if found != nil && found.File != "" {
		l, err := link.Load(found.File)
		if err == nil {
			return l, found, nil
		}
		if _, serr := os.Stat(found.File); serr == nil {
			return nil, nil, err
		}
		// The link file was removed; its measurements are still valid.
	}
	if found != nil {
		name = found.Host
		if found.User != "" {
			name = found.User + "@" + found.Host
		}
	}
	l, err := link.ForHost(name)
	if err != nil {
		return nil, nil, err
	}
	if found == nil {
		found = &Known{Name: l.Name, Host: l.Host, User: l.User}
	}
	l.Name = found.Name
	return l, found, nil
}

// Measurements returns the usable copies of a link. It skips directories that were removed.
func (k *Known) Measurements() ([]transfer.Copy, error) {
	var all []transfer.Copy
	for _, dir := range k.Results {
		list, err := transfer.Read(dir)
		var none *transfer.NoResults
		if errors.As(err, &none) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, c := range list {
			if c.Link == k.Name {
				all = append(all, c)
			}
		}
	}
	return all, nil
}
