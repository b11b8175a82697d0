package cvmfs

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"
)

// ProfileFormat is the value of a profile's format field.
const ProfileFormat = "premix profile of a repository 1"

// Profile lists the paths of a repository that a program touched while it started, in
// order of the first touch. It has names and no hashes, so that it is useful for later
// revisions too: names that a revision does not have are left out.
type Profile struct {
	Format     string  `json:"format"`
	Repository string  `json:"repository"`
	Entries    []Touch `json:"entries"`
}

// Touch is an entry of a profile.
type Touch struct {
	// Path is a path from the root of the repository. A regular file stands for its
	// content, and everything for the catalogs that describe it.
	Path ProfilePath `json:"path"`
	// Parts are the touched parts of a file: for each the first MiB, and the first one
	// behind it, in ascending order. No parts mean the whole file.
	Parts [][2]int64 `json:"mib,omitempty"`
}

// ProfilePath is a path of any bytes. Its text has "%" and two digits in place of "%" and of
// each byte that is not part of a character in UTF-8.
type ProfilePath string

// MarshalText encodes the path as its type describes.
func (p ProfilePath) MarshalText() ([]byte, error) {
	var b []byte
	for rest := string(p); rest != ""; {
		r, n := utf8.DecodeRuneInString(rest)
		if r == utf8.RuneError && n == 1 || r == '%' {
			b = fmt.Appendf(b, "%%%02X", rest[0])
		} else {
			b = append(b, rest[:n]...)
		}
		rest = rest[n:]
	}
	return b, nil
}

// UnmarshalText decodes the text that MarshalText returns.
func (p *ProfilePath) UnmarshalText(text []byte) error {
	before, rest, more := strings.Cut(string(text), "%")
	path := before
	for more {
		n, err := strconv.ParseUint(rest[:min(2, len(rest))], 16, 8)
		if err != nil || len(rest) < 2 {
			return fmt.Errorf("%.100q is not a path: write %%25 for %%", text)
		}
		before, rest, more = strings.Cut(rest[2:], "%")
		path += string([]byte{byte(n)}) + before
	}
	*p = ProfilePath(path)
	return nil
}

// Limits of profiles.
const (
	profileMost = 64 << 20 // bytes
	partSize    = 1 << 20
	partsMost   = 1 << 40 // so that offsets fit into 63 bits
)

// ParseProfile decodes a profile of a repository.
func ParseProfile(content []byte, repository string) (*Profile, error) {
	var p Profile
	d := json.NewDecoder(bytes.NewReader(content))
	d.DisallowUnknownFields()
	if err := d.Decode(&p); err != nil {
		return nil, fmt.Errorf("it is not a profile of a repository: %w", err)
	}
	if d.More() {
		return nil, fmt.Errorf("it is not a profile of a repository: more follows its end")
	}
	if p.Format != ProfileFormat {
		return nil, fmt.Errorf("its format is %.60q, this premix reads %q", p.Format, ProfileFormat)
	}
	if p.Repository != repository {
		return nil, fmt.Errorf("it is of the repository %.100q, not of %s", p.Repository, repository)
	}
	for _, t := range p.Entries {
		path := string(t.Path)
		if path != "" && (path[0] != '/' || slices.ContainsFunc(strings.Split(path[1:], "/"), func(s string) bool { return s == "" || s == "." || s == ".." })) {
			return nil, fmt.Errorf("%.100q is not a path from the root of the repository", path)
		}
		end := int64(0)
		for _, r := range t.Parts {
			if r[0] < end || r[1] <= r[0] || r[1] > partsMost {
				return nil, fmt.Errorf("%.100q: parts that are not in order", path)
			}
			end = r[1]
		}
	}
	return &p, nil
}

// ReadProfile reads the profile of a repository from a file.
func ReadProfile(file, repository string) (*Profile, error) {
	const hint = "record one: premix mount --record FILE cvmfs://REPOSITORY DIR"
	info, err := os.Stat(file)
	if err == nil && info.Size() > profileMost {
		err = fmt.Errorf("%s has %d bytes, the limit is %d", file, info.Size(), profileMost)
	}
	var content []byte
	if err == nil {
		content, err = os.ReadFile(file)
	}
	if err != nil {
		return nil, &Error{Kind: Usage, Reason: "the profile: " + err.Error(), HintText: hint, Err: err}
	}
	p, err := ParseProfile(content, repository)
	if err != nil {
		return nil, &Error{Kind: Usage, Reason: fmt.Sprintf("the profile %s: %v", file, err), HintText: hint, Err: err}
	}
	return p, nil
}

// ReadProfile reads a profile of the repository from a file.
func (l *Live) ReadProfile(file string) (*Profile, error) { return ReadProfile(file, l.r.name) }

// Recorder records the paths that readers of a Live touch.
type Recorder struct {
	l *Live

	mu      sync.Mutex
	entries []Touch
	at      map[ProfilePath]int
	touched int
}

// Record starts recording, until Stop is called. It continues prior, unless that is nil.
func (l *Live) Record(prior *Profile) *Recorder {
	r := &Recorder{l: l, at: map[ProfilePath]int{}}
	if prior != nil {
		r.entries = slices.Clone(prior.Entries)
		for i, t := range r.entries {
			r.at[t.Path] = i
		}
	}
	l.recorder.Store(r)
	return r
}

// Stop ends the recording. The result so far stays available.
func (r *Recorder) Stop() { r.l.recorder.CompareAndSwap(r, nil) }

// Touched returns a number that grows with each new touch.
func (r *Recorder) Touched() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.touched
}

// Marshal returns the profile recorded so far, as the content of a file.
func (r *Recorder) Marshal() ([]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := Profile{Format: ProfileFormat, Repository: r.l.r.name, Entries: r.entries}
	if p.Entries == nil {
		p.Entries = []Touch{} // so that JSON has a list and not null
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", " ")
	err := e.Encode(p)
	return b.Bytes(), err
}

// entryLocked returns the entry of a path, and whether it is new.
func (r *Recorder) entryLocked(path string) (*Touch, bool) {
	p := ProfilePath(path)
	i, ok := r.at[p]
	if !ok {
		i = len(r.entries)
		r.at[p] = i
		r.entries = append(r.entries, Touch{Path: p})
		r.touched++
	}
	return &r.entries[i], !ok
}

// directory records the root of a catalog.
func (r *Recorder) directory(path string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.entryLocked(path)
}

// read records a read of n bytes, more than none, of a file.
func (r *Recorder) read(f *openFile, off, n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t, fresh := r.entryLocked(f.path)
	if len(f.chunks) <= 1 {
		t.Parts = nil // it comes as a whole
		return
	}
	if !fresh && len(t.Parts) == 0 {
		return // the whole file is recorded
	}
	part := [2]int64{off / partSize, (off + n + partSize - 1) / partSize}
	if slices.ContainsFunc(t.Parts, func(o [2]int64) bool { return o[0] <= part[0] && part[1] <= o[1] }) {
		return
	}
	r.touched++
	t.Parts = joined(append(t.Parts, part))
}

// joined returns parts in order, without overlaps.
func joined(parts [][2]int64) [][2]int64 {
	slices.SortFunc(parts, func(a, b [2]int64) int { return int(a[0] - b[0]) })
	var out [][2]int64
	for _, p := range parts {
		if n := len(out); n > 0 && p[0] <= out[n-1][1] {
			out[n-1][1] = max(out[n-1][1], p[1])
			continue
		}
		out = append(out, p)
	}
	return out
}

// touched records a use of a catalog.
func (l *Live) touched(n int) {
	r := l.recorder.Load()
	if r == nil {
		return
	}
	if name, _, ok := l.numbers.at(n); ok {
		r.directory(name.prefix)
	}
}
