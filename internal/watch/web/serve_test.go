package web

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/snappy"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"google.golang.org/protobuf/encoding/protowire"

	"premix/internal/kit/access"
	"premix/internal/kit/exit"
	"premix/internal/watch"
	"premix/internal/watch/relay"
	"premix/internal/watch/series"
)

var begin = time.Date(2026, 11, 19, 10, 0, 0, 0, time.UTC)

func database(t *testing.T) *series.DB {
	t.Helper()
	db, err := series.Open(t.TempDir(), series.Options{Node: "n1", Flush: time.Millisecond, Now: func() time.Time { return begin }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

// filled has ten seconds of two disks, three tasks and an event.
func filled(t *testing.T) *series.DB {
	db := database(t)
	for i := range 10 {
		at := begin.Add(time.Duration(i) * time.Second)
		db.Samples([]watch.Sample{
			{ID: watch.NewID("disk.read_bytes", "node", "n1", "device", "sda"), Unit: watch.BytesPerSecond, Time: at, Value: float64(i)},
			{ID: watch.NewID("disk.read_bytes", "node", "n1", "device", "s\"db"), Unit: watch.BytesPerSecond, Time: at, Value: 1e-9},
			{ID: watch.NewID("node.load", "node", "n1"), Unit: watch.Count, Time: at, Value: 2},
		})
	}
	const gb = 1 << 30
	for i := range 3 {
		db.Task(watch.Task{Key: fmt.Sprint("k", i), Name: "s", User: "ada", Step: "bwa", Run: "/r", Began: begin, End: begin.Add(time.Duration(i+1) * time.Hour), OK: true,
			Cores: 4, CPU: 3600 * float64(i+1), Memory: 32 * gb, MaxRSS: 3*gb - 1<<28})
	}
	db.Task(watch.Task{Key: "p", Name: "grep", User: "ada", Step: "grep", Engine: watch.ProcessEngine, Began: begin, End: begin.Add(time.Minute), OK: true, Cores: 1, CPU: 60})
	db.Event(watch.Event{Time: begin, Node: "n1", Layer: watch.LayerMount, Kind: "mount_added", Text: "a mount came"})
	return db
}

func server(t *testing.T, c Config) *Server {
	t.Helper()
	if c.DB == nil {
		c.DB = filled(t)
	}
	c.Node, c.Version = "n1", "v1"
	c.Now = func() time.Time { return begin.Add(10 * time.Second) }
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func get(s http.Handler, path string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest("GET", path, nil)
	r.Host = "127.0.0.1:8090"
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w
}

const window = "start=2026-11-19T10:00:00Z&end=2026-11-19T10:00:10Z"

func TestSeries(t *testing.T) {
	s := server(t, Config{})
	for _, tt := range []struct{ name, query, want string }{
		{"one series", "name=disk.read_bytes&match=device%3Dsda&step=5&" + window,
			`{"start":"2026-11-19T10:00:00.000Z","end":"2026-11-19T10:00:10.000Z","step":5,"series":[{"name":"disk.read_bytes","labels":{"device":"sda","node":"n1"},"unit":"B/s","layer":"disk","points":[[1795082400000,0,2,4],[1795082405000,5,7,9]]}]}`},
		{"times in milliseconds, a step with a unit", "name=node.*&start=1795082400000&end=1795082410000&step=1m",
			`{"start":"2026-11-19T10:00:00.000Z","end":"2026-11-19T10:00:10.000Z","step":60,"series":[{"name":"node.load","labels":{"node":"n1"},"unit":"count","layer":"node","points":[[1795082400000,2,2,2]]}]}`},
		{"small numbers", "name=disk.read_bytes&match=device%3Ds%22db&step=10&" + window,
			`{"start":"2026-11-19T10:00:00.000Z","end":"2026-11-19T10:00:10.000Z","step":10,"series":[{"name":"disk.read_bytes","labels":{"device":"s\"db","node":"n1"},"unit":"B/s","layer":"disk","points":[[1795082400000,1e-09,1e-09,1e-09]]}]}`},
		{"names that overlap are told once", "name=node.*&name=node.load&step=1m&" + window,
			`{"start":"2026-11-19T10:00:00.000Z","end":"2026-11-19T10:00:10.000Z","step":60,"series":[{"name":"node.load","labels":{"node":"n1"},"unit":"count","layer":"node","points":[[1795082400000,2,2,2]]}]}`},
		{"none", "name=disk.none&" + window,
			`{"start":"2026-11-19T10:00:00.000Z","end":"2026-11-19T10:00:10.000Z","step":1,"series":[]}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := get(s, "/api/v1/series?"+tt.query)
			if got := strings.TrimSpace(w.Body.String()); w.Code != 200 || got != tt.want {
				t.Errorf("%d\n%s\nwant\n%s", w.Code, got, tt.want)
			}
		})
	}
}

// The answer to a mistake has its reason and a hint.
func TestRefusals(t *testing.T) {
	s := server(t, Config{Limits: Limits{Points: 5, Window: 24 * time.Hour, Tasks: 10}})
	for _, tt := range []struct {
		name, path string
		status     int
		want       string
	}{
		{"no name", "/api/v1/series", 400, "a name is missing"},
		{"misspelt", "/api/v1/series?nam=x", 400, `unknown parameter \"nam\"`},
		{"no time", "/api/v1/series?name=x&start=yesterday", 400, "start=yesterday is not a time"},
		{"backwards", "/api/v1/events?start=2026-11-20T00:00:00Z&end=2026-11-19T00:00:00Z", 400, "is not before end"},
		{"too long", "/api/v1/tasks?start=2026-11-18T00:00:00Z&end=2026-11-20T00:00:00Z", 400, "is 2 days, and the limit is 1"},
		{"too many points", "/api/v1/series?name=*&step=1&" + window, 400, "more than 5 points"},
		{"no step", "/api/v1/series?name=x&step=0", 400, "step=0 is not a step"},
		{"no label", "/api/v1/series?name=x&match=device", 400, "match=device is not a label and its value"},
		{"no limit", "/api/v1/tasks?limit=0", 400, "limit=0 is not from 1 to 10"},
		{"a token in the address", "/api/v1/names?token=x", 400, "must not be in an address"},
		{"no series", "/api/v1/explain?without=disk.busy%7Bdevice%7D&" + window, 400, "without=disk.busy{device} is not a series"},
		{"no time to leave out", "/api/v1/explain?without=2026-11-19T00:00:00Z/now&" + window, 400, "is not a time START/END"},
		{"no such route", "/api/v1/nothing", 404, "nothing found at /api/v1/nothing"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := get(s, tt.path)
			var e struct{ Error, Hint string }
			if err := json.Unmarshal(w.Body.Bytes(), &e); err != nil || e.Error == "" || e.Hint == "" {
				t.Errorf("%s: %v", w.Body, err)
			}
			if w.Code != tt.status || !strings.Contains(w.Body.String(), tt.want) {
				t.Errorf("%d %s", w.Code, w.Body)
			}
		})
	}
}

// Series are picked as they are written.
func TestSelector(t *testing.T) {
	id := watch.NewID("disk.busy", "node", "n1", "device", "s\"d\\a\n,}{")
	for _, tt := range []struct {
		text  string
		ok    bool
		picks bool
	}{
		{id.String(), true, true},
		{"disk.busy", true, true},
		{"disk.*", true, true},
		{"*", true, true},
		{`disk.busy{node="n1"}`, true, true},
		{`disk.busy{}`, true, true},
		{`disk.busy{node="n2"}`, true, false},
		{`disk.busy{rack="r"}`, true, false},
		{"disk.bus", true, false},
		{"", false, false},
		{"disk.busy{", false, false},
		{"disk.busy{node}", false, false},
		{`disk.busy{node="n1"`, false, false},
		{`disk.busy{node="n1"device="a"}`, false, false},
		{`disk.busy{node="n1"}x`, false, false},
		{"disk busy", false, false},
		{"d*k.busy", false, false},
	} {
		s, ok := parseSelector(tt.text)
		if ok != tt.ok || ok && s.picks(id) != tt.picks {
			t.Errorf("%q: %v %v, picks %v", tt.text, ok, s, s.picks(id))
		}
	}
	o, err := without([]string{"2026-11-19T00:00:00Z/2026-11-19T00:10:00Z", "disk.busy", `mount.size{mount="/a/b"}`})
	if err != nil || len(o.Without) != 1 || o.Without[0].End.Sub(o.Without[0].Start) != 10*time.Minute || !o.Except(id) || o.Except(watch.NewID("node.load")) || !o.Except(watch.NewID("mount.size", "mount", "/a/b")) {
		t.Errorf("%+v, %v", o, err)
	}
}

func TestWhoMayAsk(t *testing.T) {
	db := filled(t)
	open, closed := server(t, Config{DB: db}), server(t, Config{DB: db, Tokens: access.NewTokens("0123456789abcdef")})
	for _, tt := range []struct {
		name   string
		s      *Server
		path   string
		header []string
		want   int
	}{
		{"loopback needs no token", open, "/api/v1/status", nil, 200},
		{"no token", closed, "/api/v1/status", nil, 401},
		{"no token, metrics", closed, "/metrics", nil, 401},
		{"a wrong token", closed, "/api/v1/status", []string{"Authorization", "Bearer 0123456789abcdeX"}, 401},
		{"not a bearer", closed, "/api/v1/status", []string{"Authorization", "0123456789abcdef"}, 401},
		{"the token", closed, "/api/v1/status", []string{"Authorization", "Bearer 0123456789abcdef"}, 200},
		{"the document is no secret", closed, "/openapi.json", nil, 200},
		{"nor whether it lives", closed, "/healthz", nil, 200},
		{"unknown paths are none of anybody's business", closed, "/api/v1/nothing", nil, 401},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if w := get(tt.s, tt.path, tt.header...); w.Code != tt.want {
				t.Errorf("%d, want %d: %s", w.Code, tt.want, w.Body)
			}
		})
	}
}

// document is the OpenAPI document.
type document struct {
	Paths map[string]map[string]struct {
		Parameters []struct {
			Ref string `json:"$ref"`
		} `json:"parameters"`
		Responses map[string]struct {
			Content map[string]struct {
				Schema any `json:"schema"`
			} `json:"content"`
		} `json:"responses"`
	} `json:"paths"`
	Components struct {
		Parameters map[string]struct{ Name string } `json:"parameters"`
	} `json:"components"`
}

// routeList is a router that records the routes.
type routeList []string

func (l *routeList) Handle(pattern string, _ http.Handler) {
	*l = append(*l, strings.TrimPrefix(pattern, "GET "))
}

func (l *routeList) HandleFunc(pattern string, _ func(http.ResponseWriter, *http.Request)) {
	l.Handle(pattern, nil)
}

// Every route is in the document, and everything in the document is a route that answers
// as it says.
func TestOpenAPI(t *testing.T) {
	var doc document
	if err := json.Unmarshal(openAPI, &doc); err != nil {
		t.Fatal(err)
	}
	empty := t.TempDir()
	c := Config{Pages: Pages{Node: empty, Snapshots: empty}}
	s := server(t, c)
	var paths routeList
	for _, r := range s.routes {
		paths = append(paths, r.path)
	}
	c.Pages.routes(&paths, nil, func(h http.Handler) http.Handler { return h })
	for _, path := range paths {
		if doc.Paths[path] == nil && path != "/" && path != "/premix.css" {
			t.Errorf("%s is not in the document", path)
		}
	}
	queries := map[string]string{"/api/v1/series": "name=*&" + window, "/api/v1/job": "id=4711&" + window}
	for path, methods := range doc.Paths {
		if _, posts := methods["post"]; posts && (path == relay.Path || path == writePath) && len(methods) == 1 {
			continue // TestReceiveRoutes sends to them
		}
		if !slices.Contains(paths, path) {
			t.Errorf("%s is in the document, and is no route", path)
			continue
		}
		op, ok := methods["get"]
		if !ok || len(methods) != 1 {
			t.Errorf("%s has other methods than GET", path)
			continue
		}
		t.Run(path, func(t *testing.T) {
			for _, p := range op.Parameters {
				ref := strings.TrimPrefix(p.Ref, "#/components/parameters/")
				name := doc.Components.Parameters[ref].Name
				if name == "" {
					t.Fatalf("unknown parameter %s", p.Ref)
				}
				if path == "/api/v1/live" || strings.Contains(path, "{") {
					continue // would answer for ever; is part of the path
				}
				if w := get(s, path+"?"+name+"="); strings.Contains(w.Body.String(), "unknown parameter") {
					t.Errorf("%s is in the document: %s", name, w.Body)
				}
			}
			if strings.Contains(path, "{") {
				return // there is none
			}
			content, ok := op.Responses["200"].Content["application/json"]
			if !ok {
				return
			}
			c := jsonschema.NewCompiler()
			whole, err := jsonschema.UnmarshalJSON(bytes.NewReader(openAPI))
			if err != nil {
				t.Fatal(err)
			}
			// A schema of its own that refers to the document.
			b, err := json.Marshal(content.Schema)
			if err != nil {
				t.Fatal(err)
			}
			b = bytes.ReplaceAll(b, []byte(`"#/components`), []byte(`"doc.json#/components`))
			own, err := jsonschema.UnmarshalJSON(bytes.NewReader(b))
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(c.AddResource("file:///doc.json", whole), c.AddResource("file:///own.json", own)); err != nil {
				t.Fatal(err)
			}
			schema, err := c.Compile("file:///own.json")
			if err != nil {
				t.Fatal(err)
			}
			w := get(s, path+"?"+queries[path])
			value, err := jsonschema.UnmarshalJSON(w.Body)
			if err != nil || w.Code != 200 {
				t.Fatalf("%d: %v", w.Code, err)
			}
			if err := schema.Validate(value); err != nil {
				t.Error(err)
			}
		})
	}
}

// A job is summed up over its steps and its machines; another one whose number begins with
// the same digits is not part of it.
func TestJob(t *testing.T) {
	db := database(t)
	for i := range 10 {
		at := begin.Add(time.Duration(i) * time.Second)
		for node, tasks := range map[string][]string{"n1": {"4711.batch", "4711.0"}, "n2": {"4711.0", "47110.0"}, "oss1": {"4711"}} {
			for _, task := range tasks {
				if node == "oss1" {
					db.Samples([]watch.Sample{{ID: watch.NewID("task.lustre_read_bytes", "node", node, "manager", "slurm", "target", "OST0", "task", task), Unit: watch.BytesPerSecond, Time: at, Value: 1000}})
					continue
				}
				db.Samples([]watch.Sample{
					{ID: watch.NewID("task.cpu", "node", node, "manager", "slurm", "task", task), Unit: watch.Cores, Time: at, Value: float64(i)},
					{ID: watch.NewID("task.throttled", "node", node, "manager", "slurm", "task", task), Unit: watch.Ratio, Time: at, Value: 0.5},
					{ID: watch.NewID("task.cpu", "node", node, "manager", "premix", "run", "/r", "task", "1.1"), Unit: watch.Cores, Time: at, Value: 7},
				})
			}
		}
	}
	s := server(t, Config{DB: db})
	type answer struct {
		Nodes []struct {
			Node       string
			Mean, Most map[string]float64
		}
		Curves []struct {
			Name   string
			Points [][3]float64
		}
	}
	ask := func(query string) (a answer) {
		t.Helper()
		w := get(s, "/api/v1/job?"+query+"&"+window)
		if err := json.Unmarshal(w.Body.Bytes(), &a); err != nil || w.Code != 200 {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
		return a
	}
	a := ask("id=4711")
	if len(a.Nodes) != 3 || a.Nodes[0].Mean["task.cpu"] != 9 || a.Nodes[0].Most["task.cpu"] != 18 || a.Nodes[1].Mean["task.cpu"] != 4.5 || a.Nodes[0].Mean["task.throttled"] != 0.5 || a.Nodes[2].Mean["task.lustre_read_bytes"] != 1000 {
		t.Errorf("the machines are %+v", a.Nodes)
	}
	if len(a.Curves) != 3 || a.Curves[0].Name != "task.cpu" || len(a.Curves[0].Points) != 10 || a.Curves[0].Points[9][1] != 27 || a.Curves[0].Points[9][2] != 18 || a.Curves[2].Points[0][1] != 0.5 {
		t.Errorf("the curves are %+v", a.Curves)
	}
	if a := ask("run=/r"); len(a.Nodes) != 2 || a.Nodes[1].Mean["task.cpu"] != 7 {
		t.Errorf("the run is on %+v", a.Nodes)
	}
	if a := ask("id=471"); len(a.Nodes) != 0 {
		t.Errorf("job 471 is on %+v", a.Nodes)
	}
	for _, query := range []string{"", "id=1&run=/r"} {
		if w := get(s, "/api/v1/job?"+query); w.Code != 400 {
			t.Errorf("%s: %d", query, w.Code)
		}
	}
	for window, want := range map[time.Duration]time.Duration{time.Minute: time.Second, 30 * time.Minute: 9 * time.Second, time.Hour: time.Minute, 24 * time.Hour: 8 * time.Minute, 7 * 24 * time.Hour: time.Hour, 90 * 24 * time.Hour: 11 * time.Hour} {
		if got := jobStep(window); got != want || window/got > jobPoints {
			t.Errorf("of %v the step is %v", window, got)
		}
	}
}

// Of 10,000 tasks the page gets the 50 that it shows, and the number of all.
func TestManyTasks(t *testing.T) {
	db := database(t)
	for i := range 10_000 {
		db.Task(watch.Task{Key: fmt.Sprint("k", i), Name: fmt.Sprintf("sample%d", i), User: "ada", Step: "bwa", Run: "/r", Node: "n1", Engine: "local", Queued: begin.Add(-time.Duration(i) * time.Second),
			Began: begin, End: begin.Add(time.Duration(i) * time.Second), OK: i%100 != 7, Cores: 1})
	}
	s := server(t, Config{DB: db})
	const all = "start=2026-11-19T10:00:00Z&end=2026-11-20T10:00:00Z"
	for _, tt := range []struct {
		query, first, last string // by key
		count              int
	}{
		{"limit=50&" + all, "k9950", "k9999", 10_000},
		{"limit=50&by=waited&" + all, "k9950", "k9999", 10_000},
		{"limit=10&state=failed&" + all, "k9007", "k9907", 100},
		{"limit=50&search=SAMPLE77+ada&" + all, "k77", "k7799", 111},
	} {
		w := get(s, "/api/v1/tasks?"+tt.query)
		var answer struct {
			Tasks []watch.Task
			Count int
		}
		if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil || answer.Count != tt.count {
			t.Fatalf("%s: %d, %v", tt.query, answer.Count, err)
		}
		slices.SortFunc(answer.Tasks, func(a, b watch.Task) int { return a.End.Compare(b.End) })
		if last := answer.Tasks[len(answer.Tasks)-1].Key; last != tt.last {
			t.Errorf("%s: the last is %s", tt.query, last)
		}
		if first := answer.Tasks[0].Key; first != tt.first && tt.first != "k77" {
			t.Errorf("%s: the first is %s", tt.query, first)
		}
		if n := len(w.Body.Bytes()); n > 40_000 {
			t.Errorf("%s: the answer has %d bytes", tt.query, n)
		}
	}
}

func TestTasks(t *testing.T) {
	s := server(t, Config{})
	for _, tt := range []struct {
		query string
		n     int
		cut   bool
	}{
		{"limit=2&" + window, 2, true},
		{"limit=4&" + window, 4, false},
		{window, 4, false},
		{"engine=process&" + window, 1, false},
		{"engine=-process&" + window, 3, false},
		{"engine=local&" + window, 0, false},
		{"user=nobody&" + window, 0, false},
		{"state=succeeded&search=BW+/r&" + window, 3, false},
		{"state=succeeded&search=bwa+minimap&" + window, 0, false},
		{"state=failed&" + window, 0, false},
		{"search=ada&limit=1&by=waited&" + window, 1, true},
		{"user=ada&run=/r&step=bwa&" + window, 3, false},
	} {
		w := get(s, "/api/v1/tasks?"+tt.query)
		var tasks struct {
			Tasks     []watch.Task
			Truncated bool
			Count     int
		}
		all := tt.n
		if tt.cut {
			all = 4
		}
		if err := json.Unmarshal(w.Body.Bytes(), &tasks); err != nil || tasks.Count != all || len(tasks.Tasks) != tt.n || tasks.Truncated != tt.cut || tasks.Tasks == nil {
			t.Errorf("%s: %s, %v", tt.query, w.Body, err)
		}
	}
}

func TestGzip(t *testing.T) {
	s := server(t, Config{})
	w := get(s, "/openapi.json", "Accept-Encoding", "br, gzip;q=0.5")
	if w.Header().Get("Content-Encoding") != "gzip" {
		t.Fatal("not compressed")
	}
	z, err := gzip.NewReader(w.Body)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(z); err != nil || !bytes.Equal(b, openAPI) {
		t.Errorf("something else: %v", err)
	}
	for _, accept := range []string{"", "br", "gzip;q=0"} {
		if w := get(s, "/openapi.json", "Accept-Encoding", accept); w.Header().Get("Content-Encoding") != "" {
			t.Errorf("compressed for %q", accept)
		}
	}
}

func TestMetrics(t *testing.T) {
	s := server(t, Config{})
	w := get(s, "/metrics")
	for _, want := range []string{
		"# TYPE premix_disk_read_bytes gauge\n",
		"premix_disk_read_bytes{device=\"sda\",node=\"n1\"} 9\n",
		`premix_disk_read_bytes{device="s\"db",node="n1"} 1e-09`,
		"premix_node_load{node=\"n1\"} 2\n",
		"premix_watch_points 30\n",
	} {
		if !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s is missing", want)
		}
	}
	if strings.Contains(w.Body.String(), "error") {
		t.Errorf("%s", w.Body)
	}
}

// Series of a known name with unusual labels are served, too.
func TestMetricsOfUnequalLabels(t *testing.T) {
	db := database(t)
	for _, id := range []watch.ID{watch.NewID("vendor.x"), watch.NewID("vendor.x", "a-b", "1"), watch.NewID("vendor.x", "__c", "2"), watch.NewID("vendor.x", "9", "\xff")} {
		db.Samples([]watch.Sample{{ID: id, Unit: "°C", Time: begin, Value: 1}})
	}
	w := get(server(t, Config{DB: db}), "/metrics")
	if n := strings.Count(w.Body.String(), "\npremix_vendor_x"); w.Code != 200 || n != 4 {
		t.Errorf("%d, %d of 4 series: %s", w.Code, n, w.Body)
	}
}

func TestLive(t *testing.T) {
	db := database(t)
	web := httptest.NewServer(server(t, Config{DB: db, Limits: Limits{Live: 1}}))
	defer web.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "GET", web.URL+"/api/v1/live?name=node.*", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	in := bufio.NewReader(resp.Body)
	line := func() string {
		l, err := in.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSuffix(l, "\n")
	}
	if l := line(); l != ": premix watch" { // it listens
		t.Fatal(l)
	}
	if w := get(server(t, Config{DB: db, Limits: Limits{Live: 1}}), "/healthz"); w.Code != 200 {
		t.Error(w.Code)
	}
	second, err := http.Get(web.URL + "/api/v1/live")
	if err != nil {
		t.Fatal(err)
	}
	second.Body.Close()
	if second.StatusCode != 503 {
		t.Errorf("a second one where one is allowed: %s", second.Status)
	}
	db.Samples([]watch.Sample{
		{ID: watch.NewID("node.load", "node", "n1"), Time: begin, Value: 1},
		{ID: watch.NewID("disk.x"), Time: begin, Value: 1},
		{ID: watch.NewID("node.load", "node", "n1"), Time: begin.Add(time.Second), Value: 2.5},
	})
	db.Event(watch.Event{Time: begin, Kind: "k", Text: "x\ny"})
	var got []string
	for len(got) < 6 {
		if l := line(); l != "" {
			got = append(got, l)
		}
	}
	want := []string{
		"event: samples", `data: {"t":1795082400000,"v":[["node.load",{"node":"n1"},1]]}`,
		"event: samples", `data: {"t":1795082401000,"v":[["node.load",{"node":"n1"},2.5]]}`,
		"event: event", `data: {"time":"2026-11-19T10:00:00Z","node":"","layer":"","kind":"k","text":"x\ny"}`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestServeEnds(t *testing.T) {
	s := server(t, Config{})
	ctx, cancel := context.WithCancel(context.Background())
	l, err := access.Listen(ctx, access.Options{Address: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	finished := make(chan error, 1)
	go func() { finished <- s.Serve(ctx, l) }()
	resp, err := http.Get("http://" + l.Addr().String() + "/api/v1/live") // answers for ever
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	cancel()
	if err := <-finished; err != nil {
		t.Error(err)
	}
}

// receiver is a receiver of remote write that decodes its requests.
type receiver struct {
	mu     sync.Mutex
	answer func(n int) int // status of the n-th request
	n      int
	got    map[string][]string // samples by labels
	heads  []http.Header
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.n++
	r.heads = append(r.heads, req.Header)
	if r.answer != nil {
		if status := r.answer(r.n); status != 200 {
			http.Error(w, "not now", status)
			return
		}
	}
	packed, err := io.ReadAll(req.Body)
	var b []byte
	if err == nil {
		b, err = snappy.Decode(nil, packed)
	}
	if err != nil {
		http.Error(w, err.Error(), 400)
		return
	}
	each(b, func(_ protowire.Number, one []byte, _ uint64) {
		key := ""
		var samples []string
		each(one, func(n protowire.Number, inner []byte, _ uint64) {
			var texts []string
			var v float64
			var at int64
			each(inner, func(f protowire.Number, text []byte, bits uint64) {
				switch {
				case n == 1:
					texts = append(texts, string(text))
				case f == 1:
					v = math.Float64frombits(bits)
				default:
					at = int64(bits)
				}
			})
			if n == 1 {
				key += strings.Join(texts, "=") + ","
			} else {
				samples = append(samples, fmt.Sprintf("%v@%d", v, at-begin.UnixMilli()))
			}
		})
		r.got[key] = append(r.got[key], samples...)
	})
}

// each calls f for the fields of a message.
func each(b []byte, f func(n protowire.Number, bytes []byte, bits uint64)) {
	for len(b) > 0 {
		n, kind, size := protowire.ConsumeTag(b)
		b = b[size:]
		switch kind {
		case protowire.BytesType:
			v, size := protowire.ConsumeBytes(b)
			f(n, v, 0)
			b = b[size:]
		case protowire.Fixed64Type:
			v, size := protowire.ConsumeFixed64(b)
			f(n, nil, v)
			b = b[size:]
		default:
			v, size := protowire.ConsumeVarint(b)
			f(n, nil, v)
			b = b[size:]
		}
	}
}

func TestRemoteWrite(t *testing.T) {
	for _, tt := range []struct {
		name   string
		answer func(n int) int
		opt    RemoteOptions
		want   RemoteStats
	}{
		{"all is well", nil, RemoteOptions{Batch: 7}, RemoteStats{Sent: 40}},
		{"a receiver that is busy", func(n int) int { return map[bool]int{true: 503, false: 200}[n <= 3] }, RemoteOptions{Batch: 1000}, RemoteStats{Sent: 40}},
		{"one that asks for patience", func(n int) int { return map[bool]int{true: 429, false: 200}[n == 1] }, RemoteOptions{Batch: 1000}, RemoteStats{Sent: 40}},
		{"one that refuses the first", func(n int) int { return map[bool]int{true: 400, false: 200}[n == 1] }, RemoteOptions{Batch: 10, Delay: time.Hour}, RemoteStats{Sent: 30, Refused: 10}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			rec := &receiver{answer: tt.answer, got: make(map[string][]string)}
			web := httptest.NewServer(rec)
			defer web.Close()
			db := database(t)
			tt.opt.URL, tt.opt.Token, tt.opt.Delay, tt.opt.Retry = web.URL, "secret", cmp.Or(tt.opt.Delay, 5*time.Millisecond), time.Millisecond
			r, err := NewRemoteWrite(db, tt.opt)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(context.Background())
			done := make(chan struct{})
			go func() { defer close(done); r.Run(ctx) }()
			for i := range 20 {
				at := begin.Add(time.Duration(i) * time.Second)
				db.Samples([]watch.Sample{
					{ID: watch.NewID("disk.read_bytes", "node", "n1", "Z", "", "device", "sda"), Time: at, Value: float64(i)},
					{ID: watch.NewID("node.load", "node", "n1"), Time: at, Value: 2},
				})
			}
			got := await(t, r, 40)
			if got.Sent != tt.want.Sent || got.Refused != tt.want.Refused || got.Dropped != 0 {
				t.Errorf("%+v", got)
			}
			cancel()
			<-done
			rec.mu.Lock()
			defer rec.mu.Unlock()
			if tt.want.Refused == 0 {
				var all []string
				for i := range 20 {
					all = append(all, fmt.Sprintf("%d@%d", i, i*1000))
				}
				key := "__name__=premix_disk_read_bytes,device=sda,node=n1,"
				if !slices.Equal(rec.got[key], all) {
					t.Errorf("got %v", rec.got)
				}
			}
			h := rec.heads[0]
			if h.Get("Authorization") != "Bearer secret" || h.Get("Content-Encoding") != "snappy" || h.Get("X-Prometheus-Remote-Write-Version") != "0.1.0" {
				t.Errorf("headers %v", h)
			}
		})
	}
	if _, err := NewRemoteWrite(nil, RemoteOptions{URL: "prometheus:9090"}); exit.Of(err) != exit.Usage {
		t.Errorf("an address without a scheme: %v", err)
	}
}

// await returns when as many samples have been sent or refused, and none waits.
func await(t *testing.T, r *RemoteWrite, n int64) RemoteStats {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if s := r.Stats(); s.Sent+s.Refused >= n && s.Waiting == 0 {
			return s
		}
	}
	t.Fatalf("%+v: not %d", r.Stats(), n)
	return RemoteStats{}
}

// A receiver that takes nothing costs a bounded amount of memory.
func TestRemoteQueueIsBounded(t *testing.T) {
	r, err := NewRemoteWrite(database(t), RemoteOptions{URL: "http://127.0.0.1:1/", Queue: 100})
	if err != nil {
		t.Fatal(err)
	}
	for range 30 {
		r.push(series.Update{Samples: make([]watch.Sample, 10)})
	}
	if s := r.Stats(); s.Waiting != 100 || s.Dropped != 200 {
		t.Errorf("%+v", s)
	}
}

// Stats returns the numbers of samples so far.
func (r *RemoteWrite) Stats() RemoteStats {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.stats
	s.Waiting = len(r.queue)
	return s
}
