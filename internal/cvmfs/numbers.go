package cvmfs

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
)

// catalogName identifies a catalog.
type catalogName struct {
	hash   Hash
	prefix string
}

// numbers gives catalogs numbers. They are in a file, so that a later process gives them
// the same ones: a line for each, with its hash, its size and its quoted prefix.
type numbers struct {
	mu    sync.Mutex
	file  *os.File // nil: they are in memory
	names []catalogName
	sizes []int64
	found map[catalogName]int
}

// openNumbers reads the numbers of a file; "" means memory.
func openNumbers(path string) (*numbers, error) {
	if path == "" {
		return &numbers{found: map[catalogName]int{}}, nil
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	n := &numbers{file: f, found: map[catalogName]int{}}
	r := bufio.NewReader(f)
	whole := int64(0)
	for {
		line, err := r.ReadString('\n')
		if errors.Is(err, io.EOF) {
			break // a last line without its end was never used
		}
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		var text, prefix string
		var size int64
		if _, err := fmt.Sscanf(line, "%s %d %q\n", &text, &size, &prefix); err != nil {
			return nil, errors.Join(fmt.Errorf("%s:%d: %w", path, len(n.names)+1, err), f.Close())
		}
		h, err := parseHash(text)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%s:%d: %w", path, len(n.names)+1, err), f.Close())
		}
		n.add(catalogName{h, prefix}, size)
		whole += int64(len(line))
	}
	if err := f.Truncate(whole); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if _, err := f.Seek(whole, io.SeekStart); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return n, nil
}

func (n *numbers) add(name catalogName, size int64) int {
	i := len(n.names)
	n.names, n.sizes = append(n.names, name), append(n.sizes, size)
	n.found[name] = i
	return i
}

// catalogsMost is the number of catalogs, so that nodes fit into 63 bits.
const catalogsMost = 1<<31 - 2

// of returns the number of a catalog.
func (n *numbers) of(h Hash, size int64, prefix string) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	name := catalogName{h, prefix}
	if i, ok := n.found[name]; ok {
		return i, nil
	}
	if len(n.names) >= catalogsMost {
		return 0, errors.New("too many catalogs")
	}
	if n.file == nil {
		return n.add(name, size), nil
	}
	line := fmt.Sprintf("%s %d %q\n", h, size, prefix)
	if at, err := n.file.WriteString(line); err != nil {
		// The beginning of a line must not be taken for a whole one.
		if end, e := n.file.Seek(-int64(at), io.SeekCurrent); e == nil {
			_ = n.file.Truncate(end)
		}
		return 0, err
	}
	return n.add(name, size), nil
}

// at returns the catalog with a number.
func (n *numbers) at(i int) (name catalogName, size int64, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if i < 0 || i >= len(n.names) {
		return name, 0, false
	}
	return n.names[i], n.sizes[i], true
}

func (n *numbers) close() error {
	if n.file == nil {
		return nil
	}
	return n.file.Close()
}

// quotedPath returns a path for a message, without control characters.
func quotedPath(p string) string {
	if p == "" {
		return "/"
	}
	return strings.Trim(fmt.Sprintf("%q", p), `"`)
}
