package web

import (
	"cmp"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"premix/internal/hotstart"
	"premix/internal/kit/htmlpage"
	"premix/internal/node"
	"premix/internal/replay/results"
	"premix/internal/transfer"
	"premix/internal/transfer/summary"
	"premix/internal/watch"
	"premix/internal/watch/series"
)

//go:embed web
var web embed.FS

// Pages holds the sources of the pages of the dashboard that do not show series. Where a
// field is empty the page says how to set it.
type Pages struct {
	Node      string   // directory of premix's node; "" for the default
	Snapshots string   // directory of snapshots; "" for the default
	Transfers []string // directories with results of transfers
	Replays   []string // directories with tables of replays, or directories of these
}

// source is the part of a *series.DB that the pages need.
type source interface {
	Names(ctx context.Context) ([]series.Info, error)
	EachTask(ctx context.Context, q series.TaskQuery, f func(watch.Task)) error
	Query(ctx context.Context, q series.Query) ([]series.Result, error)
}

// router registers routes: a *http.ServeMux.
type router interface {
	Handle(pattern string, h http.Handler)
	HandleFunc(pattern string, f func(http.ResponseWriter, *http.Request))
}

// routes registers the pages with mux. guard refuses requests without access to the
// recorded data; the page itself, which asks for the token, does not need access.
//
//	GET /api/v1/nodes       machines with series in the database
//	GET /api/v1/images      mounts and cache of premix's node
//	GET /api/v1/snapshots   the snapshots, and the time that they saved the tasks
//	GET /api/v1/transfers   measured copies
//	GET /api/v1/replays     replayed workloads; /api/v1/replays/N one of them
//	GET /api/v1/usage       the resources that tasks requested and used
//	GET /                   the dashboard
func (p Pages) routes(mux router, db source, guard func(http.Handler) http.Handler) {
	page := func(pattern string, f func(r *http.Request) (any, error)) {
		mux.Handle(pattern, guard(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			v, err := f(r)
			if err != nil {
				refuse(w, r, err)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Cache-Control", "no-store")
			_ = json.NewEncoder(w).Encode(v) // it fails only if the client has gone
		})))
	}
	page("GET /api/v1/nodes", func(r *http.Request) (any, error) { return nodes(r.Context(), db) })
	page("GET /api/v1/images", func(r *http.Request) (any, error) { return p.images(r.Context()) })
	page("GET /api/v1/snapshots", func(r *http.Request) (any, error) { return p.snapshots(r, db) })
	page("GET /api/v1/transfers", func(*http.Request) (any, error) { return p.transfers() })
	page("GET /api/v1/replays", func(*http.Request) (any, error) { return p.replays() })
	page("GET /api/v1/replays/{n}", func(r *http.Request) (any, error) { return p.replay(r.PathValue("n")) })
	page("GET /api/v1/usage", func(r *http.Request) (any, error) { return usageOf(r, db) })

	content, err := fs.Sub(web, "web")
	if err != nil {
		panic(err) // the directory is embedded
	}
	files := http.FileServerFS(content)
	mux.HandleFunc("GET /premix.css", htmlpage.ServeStyle)
	mux.HandleFunc("GET /", func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		// Permit only embedded files, and no scripts inside the page.
		h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
		h.Set("Cache-Control", "no-cache")
		if !utf8.ValidString(r.URL.Path) {
			http.NotFound(w, r) // package fs would treat it as an error of the server
			return
		}
		files.ServeHTTP(w, r)
	})
}

// during parses start and end of a request; both are optional.
func during(r *http.Request, usual time.Duration) (start, end time.Time, err error) {
	read := func(name string, otherwise time.Time) (time.Time, error) {
		text := r.FormValue(name)
		if text == "" {
			return otherwise, nil
		}
		t, err := time.Parse(time.RFC3339, text)
		if err != nil {
			return t, &problem{http.StatusBadRequest, name + "=" + text + " is not a time", "write it as 2026-11-19T14:03:10Z"}
		}
		return t, nil
	}
	if end, err = read("end", time.Now()); err != nil {
		return start, end, err
	}
	if start, err = read("start", end.Add(-usual)); err != nil {
		return start, end, err
	}
	if !start.Before(end) {
		return start, end, &problem{http.StatusBadRequest, "start is not before end", "leave start and end out for the last " + usual.String()}
	}
	return start, end, nil
}

// nodeAnswer describes a machine.
type nodeAnswer struct {
	Node   string    `json:"node"`
	Series int       `json:"series"`
	First  time.Time `json:"first"`
	Last   time.Time `json:"last"`
}

func nodes(ctx context.Context, db source) (any, error) {
	infos, err := db.Names(ctx)
	if err != nil {
		return nil, err
	}
	list := []*nodeAnswer{}
	by := map[string]*nodeAnswer{}
	for _, i := range infos {
		name := i.ID.Label("node")
		n := by[name]
		if n == nil {
			n = &nodeAnswer{Node: name, First: i.First, Last: i.Last}
			by[name] = n
			list = append(list, n)
		}
		n.Series++
		if i.First.Before(n.First) {
			n.First = i.First
		}
		if i.Last.After(n.Last) {
			n.Last = i.Last
		}
	}
	slices.SortFunc(list, func(a, b *nodeAnswer) int { return cmp.Compare(a.Node, b.Node) })
	return map[string]any{"nodes": list}, nil
}

// patience is the time to wait for an answer of premix's node.
const patience = 3 * time.Second

// imagesAnswer is the state of premix's node. Running is false if no node runs, which is
// not an error: a machine may have no mounts.
type imagesAnswer struct {
	Running bool              `json:"running"`
	Why     string            `json:"why,omitempty"` // why the node does not answer
	Status  *node.Status      `json:"status,omitempty"`
	Cache   *node.CacheStatus `json:"cache,omitempty"`
}

func (p Pages) images(ctx context.Context) (any, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	c := node.NewClient(cmp.Or(p.Node, node.Dir()))
	status, err := c.Status(ctx)
	if err != nil {
		return imagesAnswer{Why: err.Error()}, nil
	}
	slices.SortFunc(status.Mounts, func(a, b node.Mounted) int { return cmp.Compare(a.Dir, b.Dir) })
	a := imagesAnswer{Running: true, Status: status}
	if a.Cache, err = c.Cache(ctx); err != nil {
		a.Why = err.Error() // the mounts are still worth showing
	}
	return a, nil
}

// snapshotAnswer describes a snapshot.
type snapshotAnswer struct {
	ID      string               `json:"id"`
	Name    string               `json:"name"`
	Argv    []string             `json:"argv"`
	Created time.Time            `json:"created"`
	Seconds float64              `json:"seconds"` // duration of its preparation
	Bytes   int64                `json:"bytes"`
	Proof   *hotstart.ProofState `json:"proof"` // null: not compared yet
}

// savedAnswer compares the tasks of a step that started in one way with its cold starts, by
// the time until they read their input.
type savedAnswer struct {
	Step  string  `json:"step"`
	Start string  `json:"start"`
	Tasks int     `json:"tasks"`
	Cold  float64 `json:"cold"`  // median of the step's cold starts, seconds
	Took  float64 `json:"took"`  // median of the tasks, seconds
	Saved float64 `json:"saved"` // seconds, all tasks together
}

func (p Pages) snapshots(r *http.Request, db source) (any, error) {
	start, end, err := during(r, 30*24*time.Hour)
	if err != nil {
		return nil, err
	}
	dir := p.Snapshots
	if dir == "" {
		if dir, err = hotstart.DefaultStore(); err != nil {
			return nil, err
		}
	}
	all, err := hotstart.List(dir)
	if err != nil {
		return nil, err
	}
	list := []snapshotAnswer{}
	for _, s := range all {
		list = append(list, snapshotAnswer{s.ID, s.Name, s.Argv, s.Created, s.Seconds, s.Bytes(), s.Proof})
	}
	took := make(starts)
	if err := db.EachTask(r.Context(), series.TaskQuery{Start: start, End: end, Fields: startFields}, took.add); err != nil {
		return nil, err
	}
	return map[string]any{"dir": dir, "snapshots": list, "saved": took.saved(), "start": start, "end": end}, nil
}

// starts are the times until tasks read their input, by step and kind of start.
type starts map[string]map[string]*spread

// startFields are the fields that starts.add reads.
const startFields = series.TaskStep | series.TaskStart | series.TaskWarmedIn

func (s starts) add(t watch.Task) {
	if t.Start == "" || t.WarmedIn <= 0 {
		return
	}
	kinds := s[t.Step]
	if kinds == nil {
		kinds = make(map[string]*spread)
		s[strings.Clone(t.Step)] = kinds
	}
	if kinds[t.Start] == nil {
		kinds[strings.Clone(t.Start)] = &spread{}
	}
	kinds[t.Start].add(t.WarmedIn)
}

// saved compares starts of each kind with the cold starts of the same step. It leaves out
// steps without a cold start.
func (s starts) saved() []savedAnswer {
	list := []savedAnswer{}
	for step, kinds := range s {
		if kinds["cold"] == nil {
			continue
		}
		cold := kinds["cold"].median()
		for kind, took := range kinds {
			if kind == "cold" {
				continue
			}
			list = append(list, savedAnswer{Step: step, Start: kind, Tasks: took.n, Cold: cold, Took: took.median(),
				Saved: float64(took.n)*cold - took.sum})
		}
	}
	slices.SortFunc(list, func(a, b savedAnswer) int {
		return cmp.Or(cmp.Compare(b.Saved, a.Saved), cmp.Compare(a.Step, b.Step), cmp.Compare(a.Start, b.Start))
	})
	return list
}

// mostCopies is the number of copies of each directory that an answer has, the last ones.
const mostCopies = 500

type transfersAnswer struct {
	Dir    string           `json:"dir"`
	Error  string           `json:"error,omitempty"`
	Hint   string           `json:"hint,omitempty"`
	Copies int              `json:"copies"`
	Groups []*summary.Group `json:"groups"`
	Rows   []transfer.Copy  `json:"rows"` // the last ones
}

func (p Pages) transfers() (any, error) {
	list := []transfersAnswer{}
	for _, dir := range p.Transfers {
		a := transfersAnswer{Dir: dir, Groups: []*summary.Group{}, Rows: []transfer.Copy{}}
		rows, err := transfer.Read(dir)
		if err == nil {
			var r *summary.Report
			if r, err = summary.Read(dir); err == nil {
				a.Copies, a.Groups = r.Copies, r.Groups
				a.Rows = rows[max(0, len(rows)-mostCopies):]
			}
		}
		if err != nil {
			// A directory that cannot be read does not hide the others.
			a.Error = err.Error()
			var hinted interface{ Hint() string }
			if errors.As(err, &hinted) {
				a.Hint = hinted.Hint()
			}
		}
		list = append(list, a)
	}
	return map[string]any{"dirs": list}, nil
}

// replayDirs returns the directories with tables: the ones in p, and their subdirectories.
func (p Pages) replayDirs() []string {
	var dirs []string
	for _, dir := range p.Replays {
		if results.IsTables(dir) {
			dirs = append(dirs, dir)
			continue
		}
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, e := range entries {
			if below := filepath.Join(dir, e.Name()); results.IsTables(below) {
				dirs = append(dirs, below)
			}
		}
	}
	return dirs
}

type replayAnswer struct {
	Name     string        `json:"name"`
	Dir      string        `json:"dir"`
	Written  time.Time     `json:"written"`
	Policies []results.Sum `json:"policies"`
	Error    string        `json:"error,omitempty"`
}

func (p Pages) replays() (any, error) {
	list := []replayAnswer{}
	for _, dir := range p.replayDirs() {
		a := replayAnswer{Name: filepath.Base(dir), Dir: dir, Policies: []results.Sum{}}
		sums, written, err := results.ReadSums(dir)
		if err != nil {
			a.Error = err.Error()
		} else {
			a.Policies, a.Written = sums, written
		}
		list = append(list, a)
	}
	return map[string]any{"dirs": append([]string{}, p.Replays...), "replays": list}, nil
}

func (p Pages) replay(n string) (any, error) {
	dirs := p.replayDirs()
	i, err := strconv.Atoi(n)
	if err != nil || i < 0 || i >= len(dirs) {
		return nil, &problem{http.StatusNotFound, "unknown replay " + n, "/api/v1/replays lists them"}
	}
	return results.ReadTables(dirs[i])
}
