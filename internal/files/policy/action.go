package policy

import (
	"bufio"
	"encoding/json"
	"io"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"premix/internal/files"
	"premix/internal/kit/beneath"
)

// Action is an operation on one file or directory, as a plan on disk stores it.
type Action struct {
	ID    int64  `json:"id"` // from 1
	Rule  string `json:"rule"`
	Verb  Verb   `json:"verb"`
	Path  Path   `json:"path"`
	To    Path   `json:"to,omitempty"`    // of Place, Migrate and Premigrate
	Names []Path `json:"names,omitempty"` // additional names of the file
	// As the scan found it: bytes, bytes on disk, nanoseconds since 1970.
	Size      int64 `json:"size"`
	Allocated int64 `json:"allocated"`
	Device    int64 `json:"device"`
	Inode     int64 `json:"inode"`
	Modified  int64 `json:"modified"`
	Changed   int64 `json:"changed"`
}

// Path is a path that is a string in JSON, or {"base64":"..."} if it is not UTF-8.
type Path string

type pathBytes struct {
	Base64 []byte `json:"base64"`
}

// MarshalJSON implements json.Marshaler.
func (p Path) MarshalJSON() ([]byte, error) {
	if utf8.ValidString(string(p)) {
		return json.Marshal(string(p))
	}
	return json.Marshal(pathBytes{[]byte(p)})
}

// UnmarshalJSON implements json.Unmarshaler.
func (p *Path) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '"' {
		return json.Unmarshal(b, (*string)(p))
	}
	var raw pathBytes
	err := json.Unmarshal(b, &raw)
	*p = Path(raw.Base64)
	return err
}

// planHeader is the first line of a plan on disk.
type planHeader struct {
	Format   int       `json:"premix_files_plan"` // 1
	Rules    string    `json:"rules"`             // the text of the file
	Pools    []Pool    `json:"pools"`
	Table    string    `json:"table"`
	Started  time.Time `json:"begun"` // of the scan
	Finished time.Time `json:"ended"`
	Now      time.Time `json:"now"`
	Actions  int64     `json:"actions"`
	Bytes    int64     `json:"bytes"`

	Candidates string `json:"candidates,omitempty"` // digest of their file
}

func (h *planHeader) add(a Amount) {
	h.Actions += a.Count
	h.Bytes += a.Bytes
}

// each calls f with the actions of the plan, rule by rule, the heaviest first if a rule has
// a weight: those of the rules with LIST, or those of the others. It leaves out files that
// premix itself has made.
func (p *Plan) each(lists bool, f func(*Action) error) error {
	id := int64(0)
	number := func(a *Action) error {
		id++
		a.ID = id
		return f(a)
	}
	g := p.table.NewGroup()
	for _, r := range p.Rules {
		if r.Verb == Exclude || (r.Verb == List) != lists {
			continue
		}
		if r.Ahead != nil {
			for i := range r.Ahead.stale {
				if err := number(&r.Ahead.stale[i]); err != nil {
					return err
				}
			}
		}
		if !r.Active {
			continue
		}
		if err := p.eachOf(g, r, r.Verb, r.taken(math.MaxInt), number); err != nil {
			return err
		}
		if r.Ahead != nil {
			if err := p.eachOf(g, r, Premigrate, r.Ahead.refs(), number); err != nil {
				return err
			}
		}
	}
	return nil
}

// eachOf calls f with the actions of a rule on rows. The rows are read in the order of the
// table and passed on in their own order, as many at a time as fit into memory.
func (p *Plan) eachOf(g *files.Group, r *RulePlan, v Verb, refs []ref, f func(*Action) error) error {
	for len(refs) > 0 {
		part := refs[:min(len(refs), 1<<17)]
		refs = refs[len(part):]
		actions, err := p.read(g, r, v, part)
		if err != nil {
			return err
		}
		for i := range actions {
			if actions[i].Path == "" {
				continue
			}
			if err := f(&actions[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *Plan) read(g *files.Group, r *RulePlan, v Verb, refs []ref) ([]Action, error) {
	actions := make([]Action, len(refs))
	type want struct {
		ref
		of   int
		name bool // an additional name
	}
	var list []want
	for i, at := range refs {
		list = append(list, want{at, i, false})
		if v == Premigrate {
			continue
		}
		for _, other := range r.others[at] {
			list = append(list, want{other, i, true})
		}
	}
	slices.SortFunc(list, func(a, b want) int { return a.compare(b.ref) })
	group := int32(-1)
	var e files.Entry
	for _, w := range list {
		if w.group != group {
			g.Reset(int(w.group))
			group = w.group
		}
		if err := g.Entry(w.row, &e); err != nil {
			return nil, err
		}
		a := &actions[w.of]
		if w.name {
			a.Names = append(a.Names, Path(e.Path()))
			continue
		}
		if strings.HasPrefix(e.Name, ownPrefix) {
			continue
		}
		a.Rule, a.Verb, a.Path = r.Name, v, Path(e.Path())
		a.To = Path(p.rules.destination(r.rule, e.Path()))
		if v == Premigrate {
			a.To = Path(p.rules.copyPath(r.rule, stateOf(&e)))
		}
		a.Size, a.Allocated, a.Device, a.Inode, a.Modified, a.Changed = e.Size, e.Allocated, e.Device, e.Inode, e.Modified, e.Changed
	}
	return actions, nil
}

// write writes the plan to a file. The file appears whole or not at all, and is synced when
// write returns.
func (p *Plan) write(path string) error {
	h := planHeader{Format: 1, Rules: p.rules.Text, Pools: p.rules.Pools, Table: p.Table, Started: p.table.Started, Finished: p.table.Finished, Now: p.Now, Candidates: p.digest}
	for _, r := range p.Rules {
		if r.Active && r.Verb != List {
			h.add(r.Taken)
		}
		if r.Ahead != nil {
			h.add(r.Ahead.Taken)
			h.add(r.Ahead.Stale)
		}
	}
	return beneath.Write(path, 0o666, beneath.Durable, func(f io.Writer) error {
		w := bufio.NewWriterSize(f, 1<<20)
		enc := json.NewEncoder(w)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(h); err != nil {
			return err
		}
		if err := p.each(false, func(a *Action) error { return enc.Encode(a) }); err != nil {
			return err
		}
		return w.Flush()
	})
}

// writeList writes the entries of the rules with LIST, a line for each, in the form of the
// plan. The file appears whole or not at all.
func (p *Plan) writeList(path string) error {
	return beneath.Write(path, 0o666, beneath.Durable, func(f io.Writer) error {
		w := bufio.NewWriterSize(f, 1<<20)
		enc := json.NewEncoder(w)
		enc.SetEscapeHTML(false)
		if err := p.each(true, func(a *Action) error { return enc.Encode(a) }); err != nil {
			return err
		}
		return w.Flush()
	})
}

// readPlan reads the header of a plan. It returns a function that returns one action after
// the other, and io.EOF at the end.
func readPlan(r io.Reader) (h planHeader, next func() (*Action, error), err error) {
	dec := json.NewDecoder(bufio.NewReaderSize(r, 1<<20))
	if err := dec.Decode(&h); err != nil {
		return h, nil, err
	}
	return h, func() (*Action, error) {
		a := new(Action)
		err := dec.Decode(a)
		return a, err
	}, nil
}
