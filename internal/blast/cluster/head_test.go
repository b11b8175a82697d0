package cluster

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"premix/internal/blast/database"
	"premix/internal/blast/part"
	"premix/internal/kit/access"
)

// echo is a program whose result names each fragment, the queries and the place of the search.
type echo struct{}

func (echo) Name() database.Program                  { return database.BLAST }
func (echo) Version(context.Context) (string, error) { return "1", nil }
func (echo) Check(*part.Order) error                 { return nil }
func (echo) Search(_ context.Context, _ *part.Order, d *database.Database, queries string, _ bool, out, _ io.Writer) error {
	text, err := os.ReadFile(queries)
	if err == nil {
		for _, f := range d.Fragments {
			fmt.Fprintf(out, "%d %s head;", f.First, text)
		}
	}
	return err
}

// faulty is a node with fragments. behave answers searches; complete sends the result.
type faulty struct {
	fragments []int
	behave    func(ctx context.Context, f *frames, complete func())
}

// start serves as a node until the end of the test, and counts the questions for its status.
func (n faulty) start(t *testing.T, name, token string, asked func()) (address string) {
	t.Helper()
	config, err := access.Mutual(token)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/node", func(w http.ResponseWriter, _ *http.Request) {
		asked()
		s := Status{Programs: map[database.Program]string{database.BLAST: "1"}, Cores: 1, Databases: []HeldDatabase{{Name: "db", ID: "0"}}}
		for _, f := range n.fragments {
			s.Databases[0].Fragments = append(s.Databases[0].Fragments, HeldFragment{Number: f, Complete: true})
		}
		answer(w, s, nil)
	})
	mux.HandleFunc("POST /v1/search", func(w http.ResponseWriter, r *http.Request) {
		in := bufio.NewReader(r.Body)
		line, err := in.ReadSlice('\n')
		var o searchOrder
		if err = errors.Join(err, json.Unmarshal(line, &o)); err != nil {
			t.Error(err)
			return
		}
		text, err := io.ReadAll(in)
		if err != nil {
			return
		}
		f := &frames{w: w, to: http.NewResponseController(w)}
		n.behave(r.Context(), f, func() {
			for i := o.Range[0]; i < o.Range[1]; i++ {
				fmt.Fprintf(f, "%d %s %s;", i, text, name)
			}
			_ = f.end(ending{}) // the head may have enough
		})
	})
	server := httptest.NewUnstartedServer(mux)
	server.TLS = config
	server.StartTLS()
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

// kill closes the connection in the middle of a frame, as the kernel does for a killed node.
func kill(_ context.Context, f *frames, _ func()) {
	_, _ = f.Write([]byte("half of"))
	panic(http.ErrAbortHandler)
}

// hang never sends anything.
func hang(ctx context.Context, _ *frames, _ func()) { <-ctx.Done() }

// live sends the result.
func live(_ context.Context, _ *frames, complete func()) { complete() }

// Each fragment is in the results once for each query, whichever node fails in whichever way.
func TestLostNodes(t *testing.T) {
	redone, used := make(chan struct{}), make(chan struct{})
	slow := func(_ context.Context, _ *frames, complete func()) {
		<-redone
		complete()
		<-used
	}
	var calls atomic.Int32
	once := func(ctx context.Context, f *frames, complete func()) {
		if calls.Add(1) == 1 {
			complete()
			return
		}
		close(redone)
		hang(ctx, f, complete)
		close(used)
	}
	for _, c := range []struct {
		name    string
		nodes   []faulty
		queries []string
		want    string // the place where each fragment is searched
		note    string // "": none
		asked   bool   // the nodes are asked again
	}{
		{"all live", []faulty{{[]int{0, 1}, live}, {[]int{2, 3}, live}}, []string{"q"}, "n0 n0 n1 n1", "", false},
		{"one is killed", []faulty{{[]int{0, 1, 2, 3}, live}, {[]int{2, 3}, kill}}, []string{"q"}, "n0 n0 n0 n0", "other nodes search", false},
		{"one hangs", []faulty{{[]int{0, 1, 2, 3}, live}, {[]int{2, 3}, hang}}, []string{"q"}, "n0 n0 n0 n0", "it was silent for 500ms: other nodes search", false},
		{"another is killed, too", []faulty{{[]int{0, 1}, live}, {[]int{2, 3}, hang}, {[]int{2, 3}, kill}}, []string{"q"}, "n0 n0 head head", "this machine searches", true},
		{"no other node has the fragments", []faulty{{[]int{0, 1}, live}, {[]int{2, 3}, hang}}, []string{"q"}, "n0 n0 head head", "it was silent for 1s: other nodes search", true},
		{"a suspected node is first after all", []faulty{{[]int{0, 1}, live}, {[]int{2, 3}, slow}, {[]int{2, 3}, once}}, []string{"q"}, "n0 n0 n1 n2", "", false},
		{"a team loses a node", []faulty{{[]int{0, 1, 2, 3}, live}, {[]int{0, 1, 2, 3}, kill}}, []string{"a", "b"}, "n0 n0 n0 n0 n0 n0 n0 n0", "other nodes search", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var addresses []string
			var questions atomic.Int32
			for i, n := range c.nodes {
				addresses = append(addresses, n.start(t, fmt.Sprintf("n%d", i), "token", func() { questions.Add(1) }))
			}
			var notes []string // the head calls this function once at a time
			h, err := NewHead(addresses, "token", func(s string) { notes = append(notes, s) })
			if err != nil {
				t.Fatal(err)
			}
			defer h.Close()
			h.silent = time.Second
			db := &database.Database{Name: "db", ID: "0", Program: database.BLAST}
			for f := range 4 {
				db.Fragments = append(db.Fragments, database.Fragment{First: int64(f), Letters: 1})
			}
			dir := t.TempDir()
			var queries []string
			for i, q := range c.queries {
				queries = append(queries, filepath.Join(dir, fmt.Sprint("q", i)))
				if err := os.WriteFile(queries[i], []byte(q), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			results, err := h.Remote(echo{}, db, dir)(t.Context(), part.Order{Program: database.BLAST}, queries)
			if err != nil {
				t.Fatal(err)
			}
			var got []string // sorted by fragments
			for _, r := range results {
				text, err := os.ReadFile(r.Path)
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, strings.Split(strings.TrimSuffix(string(text), ";"), ";")...)
			}
			slices.Sort(got)
			var want []string
			for i, place := range strings.Fields(c.want) {
				want = append(want, fmt.Sprintf("%d %s %s", i/len(queries), c.queries[i%len(queries)], place))
			}
			if all := strings.Join(notes, "\n"); !slices.Equal(got, want) || !strings.Contains(all, c.note) || c.note == "" && all != "" {
				t.Errorf("got %q, want %q\n%s", got, want, all)
			}
			if n := int(questions.Load()); n > len(c.nodes) != c.asked {
				t.Errorf("%d nodes were asked %d times", len(c.nodes), n)
			}
		})
	}
}

// A node that refuses the connection does not delay a search.
func TestNodeRefuses(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	node := faulty{[]int{0}, live}.start(t, "n", "token", func() {})
	h, err := NewHead([]string{gone, node}, "token", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	query := filepath.Join(t.TempDir(), "q")
	if err := os.WriteFile(query, []byte("q"), 0o600); err != nil {
		t.Fatal(err)
	}
	db := &database.Database{Name: "db", ID: "0", Program: database.BLAST, Fragments: []database.Fragment{{Letters: 1}}}
	if results, err := h.Remote(echo{}, db, t.TempDir())(t.Context(), part.Order{Program: database.BLAST}, []string{query}); err != nil || len(results) != 1 {
		t.Errorf("%v, %v", results, err)
	}
}
