package web

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"premix/internal/hotstart"
	"premix/internal/kit/access"
	"premix/internal/node"
	"premix/internal/record"
	"premix/internal/replay/results"
	"premix/internal/testkit/browser"
	"premix/internal/testkit/shortdir"
	"premix/internal/transfer"
	"premix/internal/watch"
	"premix/internal/watch/alert"
	"premix/internal/watch/series"
)

// world is a server with everything that the pages show: a machine that was recorded for
// an hour and forty minutes, with a storm on its disk sdb, and directories of the other rooms.
// The machine does not exist, and neither does the node that answers for its mounts.
type world struct {
	*httptest.Server
	db           *series.DB
	end          time.Time // of what is recorded
	storm, quiet time.Time
}

func newWorld(t *testing.T, token string) *world {
	t.Helper()
	var tokens *access.Tokens
	if token != "" {
		tokens = access.NewTokens(token)
	}
	end := time.Now().UTC().Truncate(time.Second)
	w := &world{end: end, storm: end.Add(-10 * time.Minute), quiet: end.Add(-70 * time.Minute)}
	db, err := series.Open(filepath.Join(t.TempDir(), "metrics"), series.Options{Node: "node17"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	w.db = db
	w.record()
	dir := t.TempDir()
	s, err := New(Config{DB: db, Node: "node17", Version: "v1.4.0", Tokens: tokens,
		Status: func() []CollectorStatus {
			return []CollectorStatus{{Name: "disk", Last: end, Seconds: 0.0004}, {Name: "machine", Last: end, Seconds: 0.0007}, {Name: "mount", Last: end, Seconds: 0.002},
				{Name: "slurm", Last: end.Add(-time.Minute), Error: "sdiag: slurmctld does not answer (exit status 1)", Seconds: 5}}
		},
		Pages: Pages{Node: fakeNode(t), Snapshots: snapshotDir(t, filepath.Join(dir, "snapshots")), Transfers: []string{transferDir(t, filepath.Join(dir, "transfers"))}, Replays: []string{replayDir(t, filepath.Join(dir, "replays"))}}})
	if err != nil {
		t.Fatal(err)
	}
	w.Server = httptest.NewServer(s)
	t.Cleanup(w.Server.Close)
	// Live connections end when their readers do, and the server waits for them.
	t.Cleanup(w.CloseClientConnections)
	return w
}

// record writes the samples up to the end. They do not depend on the time of the day.
func (w *world) record() {
	rng := rand.New(rand.NewPCG(1, 2))
	start := w.end.Add(-100 * time.Minute)
	slow := map[string]float64{}
	walk := func(key string, by float64) float64 {
		slow[key] = 0.97*slow[key] + by*rng.NormFloat64()
		return slow[key]
	}
	for at := start; at.Before(w.end); at = at.Add(time.Second) {
		since := at.Sub(w.storm).Seconds()
		storm := 0.0
		if since >= 0 && since < 120 {
			storm = min(since/3+0.3, 1)
		}
		late := 0.0
		if since >= 3 && since < 123 {
			late = min((since-3)/4+0.2, 1)
		}
		var list []watch.Sample
		add := func(name string, unit watch.Unit, v float64, labels ...string) {
			list = append(list, watch.Sample{ID: watch.NewID(name, append(labels, "node", "node17")...), Unit: unit, Time: at, Value: max(v, 0)})
		}
		day := math.Sin(at.Sub(start).Seconds() / 2400)
		busy := 9 + 3*day + walk("cpu", 0.25) - 5*late
		add("node.cpu_user", watch.Cores, busy)
		add("node.cpu_system", watch.Cores, 1.2+0.2*rng.NormFloat64()+2*storm)
		add("node.memory_available", watch.Bytes, 80e9+8e9*day+walk("memory", 3e8))
		for _, r := range []string{"cpu", "io", "memory"} {
			v := 0.04 + walk("pressure "+r, 0.004)
			if r == "io" {
				v += 0.45 * storm
			}
			add("node.pressure", watch.Ratio, min(v, 1), "kind", "some", "resource", r)
		}
		add("node.blocked", watch.Count, math.Round(math.Abs(rng.NormFloat64())+9*storm))
		for i, device := range []string{"sda", "sdb", "nvme0n1"} {
			mine := 0.0
			if device == "sdb" {
				mine = storm
			}
			base := []float64{40, 15, 220}[i]
			add("disk.writes", watch.PerSecond, base+walk(device+"w", base/12)+2300*mine*(0.9+0.2*rng.Float64()), "device", device)
			add("disk.busy", watch.Ratio, min(0.1+base/1000+walk(device+"b", 0.008)+0.85*mine, 1), "device", device)
			add("disk.in_flight", watch.Count, math.Round(math.Abs(rng.NormFloat64())*base/80+mine*(140+40*rng.Float64())), "device", device)
			add("disk.write_wait", watch.Seconds, 0.0015+0.0003*rng.NormFloat64()+0.07*mine, "device", device)
			add("disk.read_bytes", watch.BytesPerSecond, base*6e5+walk(device+"r", base*4e4), "device", device)
			add("disk.written_bytes", watch.BytesPerSecond, base*2e5+walk(device+"wb", base*2e4)+9e6*mine, "device", device)
		}
		for i, ethernet := range []string{"eth0", "ib0"} {
			add("network.received_bytes", watch.BytesPerSecond, []float64{2e7, 2.4e8}[i]*(1+0.3*day)+walk(ethernet, 2e6), "interface", ethernet)
		}
		if at.Sub(start)%(10*time.Second) == 0 {
			add("mount.nfs_time", watch.Seconds, 0.0012+0.0002*rng.NormFloat64(), "mount", "/home", "operation", "GETATTR")
			add("scheduler.jobs", watch.Count, 120+math.Round(20*day), "partition", "normal", "state", "pending")
		}
		w.db.Samples(list)
	}
	n := 0
	steps := []struct {
		name          string
		slots         int
		length, cores float64
		asked, used   int64
		load          float64
	}{
		{"align", 6, 50, 2, 32 << 30, 26 << 29, 1.1},
		{"sort", 3, 14, 1, 8 << 30, 2 << 30, 0.85},
		{"call", 5, 22, 2, 32 << 30, 23 << 27, 0.8},
		{"qc", 2, 3, 1, 2 << 30, 150 << 20, 0.9},
	}
	for _, s := range steps {
		for slot := range s.slots {
			at := start.Add(time.Duration(rng.Float64() * s.length * float64(time.Second)))
			for at.Before(w.end) {
				n++
				length := s.length * (0.6 + 0.6*rng.Float64() + 0.2*rng.ExpFloat64())
				if s.name == "call" && at.After(w.storm.Add(-20*time.Second)) && at.Before(w.storm.Add(2*time.Minute)) {
					length *= 4
				}
				k := watch.Task{Key: fmt.Sprintf("/project/run7#%d.1", n), Name: fmt.Sprintf("NA%05d", 12000+n), Run: "/project/run7", Step: s.name, User: []string{"anna", "boris"}[slot%2], Node: "node17", Engine: "local",
					Start: "hot", Reason: "a snapshot was there", Queued: at.Add(-time.Duration(rng.ExpFloat64() * 8 * float64(time.Second))), Began: at, Cores: s.cores, Memory: s.asked}
				if at.Sub(start) < 4*time.Minute {
					k.Start, k.Reason = "cold", "no snapshot yet"
				}
				w.db.Task(k)
				end := at.Add(time.Duration(length * float64(time.Second)))
				if end.Before(w.end) {
					k.End, k.OK = end, true
					k.CPU = s.load * length
					k.MaxRSS = int64(float64(s.used) * (0.6 + 0.4*rng.Float64()))
					k.Read, k.Written = int64(3e8*rng.Float64()), int64(1e8*rng.Float64())
					k.WarmedIn = 0.006
					if k.Start == "cold" {
						k.WarmedIn = 0.3 * s.length * (0.5 + rng.Float64())
					}
					if rng.Float64() < 0.015 {
						k.OK, k.Exit, k.Reason = false, 1, "the tool ended with status 1"
					}
					w.db.Task(k)
				}
				at = end.Add(time.Duration(rng.Float64() * float64(2*time.Second)))
			}
		}
	}
	w.db.Event(watch.Event{Time: w.end.Add(-5 * time.Minute), Node: "node17", Layer: watch.LayerScheduler, Kind: "collector_failed", Text: "collector slurm: sdiag: slurmctld does not answer"})
}

// fakeNode answers as premix's node does, for mounts that do not exist.
func fakeNode(t *testing.T) string {
	t.Helper()
	dir := shortdir.New(t)
	l, err := net.Listen("unix", filepath.Join(dir, "socket"))
	if err != nil {
		t.Fatal(err)
	}
	since := time.Now().Add(-26 * time.Hour)
	origin := node.Origin{URL: "https://store.example.org", State: "healthy", Requests: 18210, Bytes: 61e9, P99: 0.084}
	mount := func(ref, dir string, total, present, hits, misses int64) node.Mounted {
		return node.Mounted{ID: ref, Ref: ref, Dir: dir, State: "mounted", Backend: "erofs", Total: total, Present: present, Fetched: present * 2 / 5, Hits: hits, Misses: misses,
			HitRatio: float64(hits) / float64(hits+misses), Slowest: []node.Fetch{{Chunk: 17, Seconds: 0.31, At: since}}, Since: since, Origins: []node.Origin{origin}}
	}
	failed := mount("ref/hg19", "/data/hg19", 3e9, 1e8, 10, 90)
	failed.State, failed.Error = "failed", "the origin does not answer: connection refused"
	mux := http.NewServeMux()
	answer := func(v any) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(v) }
	}
	mux.Handle("GET /v1/status", answer(node.Status{Version: 1, Premix: "v1.4.0", Dir: dir, Cache: "/var/cache/premix", Since: since, Mounts: []node.Mounted{
		mount("images/samtools:1.21", "/run/premix/samtools", 2.1e8, 3.4e7, 8100, 91),
		mount("images/bwa:0.7.18", "/run/premix/bwa", 1.4e8, 1.4e8, 22817, 64),
		mount("ref/hg38-bwa", "/data/hg38", 8.1e9, 7.9e9, 918261, 4021),
		mount("blast/nt", "/data/nt", 3.1e11, 4.4e10, 71023, 29817),
		failed,
	}}))
	mux.Handle("GET /v1/cache", answer(map[string]any{"used": int64(5.4e10), "quota": int64(2e11)}))
	s := &http.Server{Handler: mux}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { s.Close() })
	return dir
}

func snapshotDir(t *testing.T, dir string) string {
	t.Helper()
	for i, name := range []string{"align", "call"} {
		s := hotstart.Snapshot{Version: 2, ID: name + "-1a2b3c", Name: name, Argv: []string{[]string{"bwa", "gatk"}[i], "mem", "-t2", "/data/hg38/genome.fa", "{r1}"}, Created: time.Now().Add(-time.Duration(i+2) * 40 * time.Hour), Seconds: 21.5,
			Proof: &hotstart.ProofState{Equal: i == 0, Reason: []string{"", "out.vcf differs at byte 1,204"}[i]}}
		if err := os.MkdirAll(filepath.Join(dir, s.ID, "hot"), 0o700); err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		for name, content := range map[string][]byte{"snapshot.json": text, "pages": make([]byte, 3<<20)} {
			if err := os.WriteFile(filepath.Join(dir, s.ID, name), content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	return dir
}

func transferDir(t *testing.T, dir string) string {
	t.Helper()
	rng := rand.New(rand.NewPCG(5, 6))
	table, err := transfer.Create(dir, record.Header{Premix: "v1.4.0"})
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now().Add(-30 * time.Hour).UTC()
	for round := 1; round <= 12; round++ {
		for i, protocol := range []string{"aria2c-x8", "rsync", "scp", "xrdcp"} {
			speed := []float64{8.8e7, 7.1e7, 3.2e7, 9.4e7}[i] * (0.9 + 0.2*rng.Float64())
			c := transfer.Copy{ID: fmt.Sprintf("%03d-%d", round, i), Link: "campus", Protocol: protocol, Direction: transfer.Get, Size: 256 << 20, Files: 1, Round: round, Started: began.Add(time.Duration(round*4+i) * 30 * time.Minute),
				Seconds: float64(256<<20) / speed, Speed: speed, Steady: speed * 1.06, First: 0.05, Ratio: 1.04, OK: round != 5 || i != 2, RetransmitsDown: int64(rng.IntN(40)), BytesDown: 270 << 20}
			if !c.OK {
				c.Cause, c.Error = "exit", "scp: connection reset"
			}
			if round == 7 && i == 1 {
				c.Disturbed = "the link carried 40 MB for somebody else"
			}
			if err := table.Commit(c); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := table.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

// replayDir has tables of one workload on 64 cores under two policies that never were.
func replayDir(t *testing.T, dir string) string {
	t.Helper()
	rng := rand.New(rand.NewPCG(7, 8))
	below := filepath.Join(dir, "october")
	if err := os.MkdirAll(below, 0o755); err != nil {
		t.Fatal(err)
	}
	var sums []results.Sum
	var points []results.Point
	var jobs []results.Job
	for i, policy := range []string{"fcfs", "easy", "multifactor"} {
		wait := []float64{5200, 1900, 1500}[i]
		sums = append(sums, results.Sum{Policy: policy, Jobs: 400, WaitMean: wait, WaitMedian: wait / 4, WaitP95: wait * 4, TurnaroundMean: wait + 3600, SlowdownMean: wait / 90, SlowdownP95: wait / 9, Makespan: 86400 * 3, Utilisation: []float64{0.71, 0.83, 0.82}[i], Fairness: []float64{0.91, 0.78, 0.86}[i], CoreHours: 4100, Charge: 4400})
		for k := range 120 {
			at := float64(k) * 2160
			points = append(points, results.Point{Policy: policy, Time: at, Utilisation: min(0.7+0.1*float64(i)+0.15*math.Sin(at/9000)+0.05*rng.Float64(), 1), Waiting: max(0, wait/120*(1+math.Sin(at/14000))+3*rng.NormFloat64())})
		}
		free := make([]float64, 64) // when each core is free
		for k := range 400 {
			cores := []int32{1, 2, 4, 8, 16}[rng.IntN(5)]
			submit := float64(k) * 500
			start := submit
			for c := range cores {
				start = max(start, free[(int(cores)*k+int(c))%64])
			}
			run := 300 + 7000*rng.Float64()
			for c := range cores {
				free[(int(cores)*k+int(c))%64] = start + run
			}
			jobs = append(jobs, results.Job{Policy: policy, Job: int64(k + 1), User: fmt.Sprint("user", k%5), Cores: cores, Submit: submit, Eligible: submit, Start: start, End: start + run, Wait: start - submit, Run: run})
		}
	}
	write := func(name string, err error) {
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	write("policies", record.ToParquet(filepath.Join(below, "policies.parquet"), rowsOf(sums)))
	write("curves", record.ToParquet(filepath.Join(below, "curves.parquet"), rowsOf(points)))
	write("jobs", record.ToParquet(filepath.Join(below, "jobs.parquet"), rowsOf(jobs)))
	return dir
}

func rowsOf[T any](list []T) func(func(*T, error) bool) {
	return func(yield func(*T, error) bool) {
		for i := range list {
			if !yield(&list[i], nil) {
				return
			}
		}
	}
}

// clean fails the test if the page has reported errors or has sent requests to another host.
func (w *world) clean(t *testing.T, b *browser.Browser, except ...string) {
	t.Helper()
next:
	for _, s := range b.Wrong {
		for _, e := range except {
			if strings.Contains(s, e) {
				continue next
			}
		}
		t.Errorf("the browser complains: %s", s)
	}
	for _, address := range b.Asked {
		u, err := url.Parse(address)
		if err != nil || "http://"+u.Host != w.URL && u.Scheme != "data" && u.Scheme != "about" {
			t.Errorf("the page asked for %s", address)
		}
	}
}

// narrow fails the test if the page stays wider than its window. Drawings get the size of their
// place one frame later.
func narrow(t *testing.T, b *browser.Browser, what string) {
	t.Helper()
	const over = `document.documentElement.scrollWidth - document.documentElement.clientWidth`
	if !b.Comes(over + ` === 0`) {
		t.Errorf("%s: the page is %s pixels wider than the window: %s", what, b.Eval(over), b.Eval(`[...document.querySelectorAll("main *, header *")].filter((e) => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest(".scroll, nav, .choices")).slice(0, 5).map((e) => e.outerHTML.slice(0, 160)).join("\n")`))
	}
}

// named fails the test where something that can be used has no name.
func named(t *testing.T, b *browser.Browser, what string) {
	t.Helper()
	if s := b.Eval(`[...document.querySelectorAll("button, a, input, select, canvas[tabindex], [role=img], [role=region]")].filter((e) => e.checkVisibility() && !(e.innerText?.trim() || e.getAttribute("aria-label") || e.labels?.length || e.closest("[aria-hidden=true]"))).map((e) => e.outerHTML.slice(0, 120)).join("\n")`); s != "" {
		t.Errorf("%s: without a name: %s", what, s)
	}
}

func (w *world) window(from, to time.Time) string {
	return "from=" + from.Format("2006-01-02T15:04:05Z") + "&to=" + to.Format("2006-01-02T15:04:05Z")
}

// drawn is true when the panels have lines.
const drawn = `document.querySelectorAll(".panel .u-over").length >= 6 && document.querySelectorAll(".panel .values b").length >= 6`

func TestTimeLine(t *testing.T) {
	w := newWorld(t, "")
	b := browser.New(t)
	b.View(1440, 900, false)
	b.Go(w.URL + "/#/timeline?" + w.window(w.end.Add(-30*time.Minute), w.end))
	b.Until(drawn)
	b.Until(`document.querySelector(".band canvas").getAttribute("aria-label").includes("tasks, up to")`)
	named(t, b, "time line")
	narrow(t, b, "time line")
	b.Shoot("timeline", false)

	// A stretch is chosen with the mouse, and explained with a key.
	box := func(selector string) (x, y, wide, high float64) {
		var r [4]float64
		if err := json.Unmarshal([]byte(b.Eval(`(() => { const r = document.querySelector("`+selector+`").getBoundingClientRect(); return JSON.stringify([r.x, r.y, r.width, r.height]); })()`)), &r); err != nil {
			t.Fatal(err)
		}
		return r[0], r[1], r[2], r[3]
	}
	x, y, wide, high := box(".panel .u-over")
	at := func(m time.Time) float64 {
		return x + wide*float64(m.Sub(w.end.Add(-30*time.Minute)))/float64(30*time.Minute)
	}
	b.Drag(at(w.storm.Add(-90*time.Second)), y+high/2, at(w.storm.Add(3*time.Minute)), y+high/2)
	b.Until(`!document.querySelector(".chosen").hidden && location.hash.includes("selection=")`)
	b.Key("e", 0)
	b.Until(`document.querySelectorAll(".finding").length > 2`)
	first := b.Eval(`document.querySelector(".finding").innerText`)
	if !strings.Contains(first, "disk sdb") {
		t.Errorf("the first finding is %s", first)
	}
	if !strings.Contains(first, "call felt it") {
		t.Errorf("the tasks are not named: %s", first)
	}
	b.Shoot("explain", false)
	// Known series can be hidden, and shown again.
	b.Eval(`document.querySelector(".finding .except").click()`)
	b.Until(`document.querySelectorAll(".without li").length === 1 && document.querySelectorAll(".finding").length > 1 && location.hash.includes("without=disk")`)
	if second := b.Eval(`document.querySelector(".finding").innerText`); second == first {
		t.Errorf("it is still there: %s", second)
	}
	named(t, b, "explained without")
	b.Shoot("explain-without", false)
	b.Eval(`document.querySelector(".without button").click()`)
	b.Until(`document.querySelectorAll(".without li").length === 0 && document.querySelectorAll(".finding").length > 2`)
	// A finding shows its panel and its series.
	b.Eval(`document.querySelectorAll(".finding button")[0].click()`)
	b.Until(`document.querySelector(".panel.found") !== null || [...document.querySelectorAll(".panel h2")].some((h) => h.innerText.includes("in flight"))`)
	// The address alone brings it back.
	b.Until(`location.hash.includes("explain=1")`)
	address := b.Eval(`location.href`)
	b.Go("about:blank")
	b.Go(address)
	b.Until(`document.querySelectorAll(".finding").length > 2`)
	b.Key("Escape", 0)
	b.Until(`document.querySelector(".side").hidden && !location.hash.includes("explain")`)

	// A task is opened with a click on its bar.
	b.Until(drawn)
	// The bars have moved to where they belong beside nothing.
	b.Until(`(() => { const c = document.querySelector(".band canvas"); return c.width === Math.round(c.parentElement.clientWidth * devicePixelRatio); })()`)
	x, y, wide, _ = box(".band canvas")
	b.Drag(x+58+(wide-70)*0.3, y+5, x+58+(wide-70)*0.3, y+5)
	b.Until(`document.querySelector(".side .task dl")?.innerText.includes("run time")`)
	b.Shoot("task", false)
	b.Key("Escape", 0)

	// Playback continues until it is stopped. It would end by itself at the present: at its
	// slowest this takes most of an hour.
	label := b.Eval(`document.querySelector(".window").innerText`)
	b.Eval(`location.hash = "#/timeline?` + w.window(w.quiet, w.quiet.Add(15*time.Minute)) + `"`)
	b.Until(`document.querySelector(".window").innerText !== ` + fmt.Sprintf("%q", label))
	b.Until(drawn)
	b.Eval(`(() => { const s = document.querySelector(".playback select"); s.value = 1; s.onchange(); })()`)
	label = b.Eval(`document.querySelector(".window").innerText`)
	b.Key(" ", 0)
	b.Until(`document.querySelector(".window").innerText !== ` + fmt.Sprintf("%q", label))
	b.Until(`document.querySelector(".playback button").getAttribute("aria-label") === "Pause"`)
	b.Key(" ", 0)
	b.Until(`document.querySelector(".playback button").getAttribute("aria-label") === "Play"`)

	// The slider goes to any moment of the day.
	// This moment is in the past at any time of the day: the window is most of an hour old.
	b.Eval(`(() => { const s = document.querySelector(".day input"); s.value = 600; s.oninput(); })()`)
	b.Until(`document.querySelector(".window").innerText.endsWith("00:10:00")`)

	// Live shows the present.
	b.Key("l", 0)
	b.Until(`document.querySelector(".live").getAttribute("aria-pressed") === "true" && location.hash.includes("live=900")`)
	b.Until(`document.querySelectorAll(".panel .u-over").length >= 6`) // what was recorded may be too old to be their value of now
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			case <-time.After(200 * time.Millisecond):
				w.db.Samples([]watch.Sample{{ID: watch.NewID("node.cpu_user", "node", "node17"), Unit: watch.Cores, Time: time.Now(), Value: 77.5}})
			}
		}
	}()
	b.Until(`document.querySelector(".panels").innerText.includes("77.5")`)
	close(stop)
	<-done
	w.db.Task(watch.Task{Key: "live", Name: "newcomer", Step: "newstep", Began: time.Now(), Cores: 1})
	b.Until(`document.querySelector(".legend").innerText.includes("newstep")`)
	w.db.Event(watch.Event{Time: time.Now(), Node: "node17", Layer: watch.LayerMount, Kind: "mount_added", Text: "a mount came"})
	b.Until(`document.querySelector(".events").innerText.includes("a mount came")`)
	w.clean(t, b)
}

// Everything can be done with keys alone.
func TestKeys(t *testing.T) {
	w := newWorld(t, "")
	b := browser.New(t)
	b.View(1200, 800, false)
	b.Go(w.URL + "/#/timeline?" + w.window(w.storm.Add(-2*time.Minute), w.storm.Add(4*time.Minute)))
	b.Until(drawn)
	// From the top the tabulator comes to the charts, and the focused element is outlined.
	b.Key("Tab", 0)
	if s := b.Eval(`document.activeElement.innerText`); s != "To the content" {
		t.Errorf("the first that tab comes to is %s", s)
	}
	for i := 0; b.Eval(`document.activeElement.classList.contains("panels")`) != "true"; i++ {
		b.Key("Tab", 0)
		if i > 60 {
			t.Fatal("tab does not come to the charts")
		}
	}
	if s := b.Eval(`getComputedStyle(document.activeElement).outlineStyle`); s != "solid" {
		t.Errorf("the focus is outlined %s", s)
	}
	b.Key("ArrowRight", 0)
	b.Until(`/\d\d:\d\d:\d\d: /.test(document.querySelector("#said").textContent)`)
	for range 8 {
		b.Key("ArrowRight", browser.Shift)
	}
	b.Until(`location.hash.includes("selection=")`)
	b.Key("Escape", 0)
	b.Until(`!location.hash.includes("selection=")`)
	b.Key("Enter", 0)
	b.Until(`document.querySelector(".finding")?.innerText.includes("disk sdb")`)
	b.Key("Escape", 0)
	// Tasks, one after the other.
	b.Eval(`document.querySelector(".band canvas").focus()`)
	b.Key(".", 0)
	b.Until(`/NA\d+ of .*, 1 of \d+/.test(document.querySelector("#said").textContent)`)
	b.Key("Enter", 0)
	b.Until(`document.querySelector(".side .task") !== null`)
	b.Key("Escape", 0)
	// Time.
	before := b.Eval(`document.querySelector(".window").innerText`)
	b.Key("[", 0)
	b.Until(`document.querySelector(".window").innerText !== ` + fmt.Sprintf("%q", before))
	b.Key("]", 0)
	b.Until(`document.querySelector(".window").innerText === ` + fmt.Sprintf("%q", before))
	b.Key("-", 0)
	b.Until(`document.querySelector(".window").innerText !== ` + fmt.Sprintf("%q", before))
	// Panels.
	b.Key("p", 0)
	b.Until(`document.querySelector(".chooser").open`)
	b.Type("write wait")
	b.Until(`document.querySelectorAll(".choices input").length === 1`)
	b.Shoot("panels", false)
	b.Key("Tab", 0)
	b.Key(" ", 0)
	b.Key("Escape", 0)
	b.Until(`[...document.querySelectorAll(".panel h2")].some((h) => h.innerText.includes("write wait"))`)
	// Theme, keys, pages.
	b.Key("t", 0)
	b.Until(`document.documentElement.dataset.theme === "dark"`)
	b.Key("?", 0)
	b.Until(`document.querySelector("dialog .keys") !== null`)
	b.Shoot("keys", false)
	b.Key("Escape", 0)
	for i, page := range []string{"timeline", "tasks", "images", "snapshots", "transfers", "replay", "status"} {
		b.Key(fmt.Sprint(i+1), 0)
		b.Until(`location.hash.startsWith("#/` + page + `")`)
	}
	w.clean(t, b)
}

// pages are all pages but the time line, each with a selector of its content.
var pages = []struct{ name, filled string }{
	{"tasks", `document.querySelectorAll("tbody tr").length > 20 && document.body.innerText.includes("ask for 4 GiB")`},
	{"images", `document.querySelectorAll("tbody tr").length === 6 && document.body.innerText.includes("hg38")`},
	{"snapshots", `document.body.innerText.includes("What they saved") && document.querySelectorAll(".start.hot").length > 0`},
	{"transfers", `document.querySelectorAll("svg.chart circle").length > 4 && document.body.innerText.includes("xrdcp")`},
	{"replay", `document.querySelectorAll("svg.chart rect").length > 50 && document.querySelectorAll("polyline").length === 9`},
	{"job", `document.body.innerText.includes("Which job?")`},
	{"status", `document.body.innerText.includes("slurmctld does not answer") && document.body.innerText.includes("node17")`},
}

func TestPages(t *testing.T) {
	// The pages show paths, which may be long.
	long := filepath.Join(shortdir.New(t), strings.Repeat("x", 150))
	if err := os.Mkdir(long, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", long)
	w := newWorld(t, "")
	b := browser.New(t)
	for _, view := range []struct {
		name       string
		wide, high int
		dark       bool
		reduced    bool
	}{{"desktop", 1280, 900, false, false}, {"dark", 1280, 900, true, false}, {"phone", 375, 740, false, false}, {"phone-dark", 375, 740, true, false}} {
		b.View(view.wide, view.high, view.dark)
		if view.name != "desktop" {
			b.Go(w.URL + "/#/timeline?explain=1&" + w.window(w.storm.Add(-4*time.Minute), w.storm.Add(6*time.Minute)))
			b.Until(drawn + ` && document.querySelectorAll(".finding").length > 2`)
			narrow(t, b, view.name+" time line")
			named(t, b, view.name+" time line")
			b.Shoot(view.name+"-timeline", view.wide < 600)
		}
		for _, p := range pages {
			if view.name == "phone-dark" && os.Getenv("PREMIX_SCREENSHOTS") == "" {
				break // the same as the others, but for their pictures
			}
			b.Go("about:blank")
			b.Go(w.URL + "/#/" + p.name + "?" + w.window(w.end.Add(-100*time.Minute), w.end))
			b.Until(p.filled)
			narrow(t, b, view.name+" "+p.name)
			named(t, b, view.name+" "+p.name)
			if level := b.Eval(`document.querySelectorAll("h1").length`); level != "1" {
				t.Errorf("%s: %s headings", p.name, level)
			}
			b.Shoot(view.name+"-"+p.name, true)
		}
		want := map[bool]string{false: "rgb(247, 248, 250)", true: "rgb(18, 21, 27)"}[view.dark]
		if got := b.Eval(`getComputedStyle(document.body).backgroundColor`); got != want {
			t.Errorf("%s: the ground is %s", view.name, got)
		}
	}
	// A heading sorts, and a task is shown on the time line.
	b.View(1280, 900, false)
	b.Go("about:blank")
	b.Go(w.URL + "/#/tasks?" + w.window(w.end.Add(-20*time.Minute), w.end))
	b.Until(pages[0].filled)
	b.Eval(`[...document.querySelectorAll("section:last-of-type thead button")].find((e) => e.innerText === "ran").click()`)
	b.Until(`document.querySelector("section:last-of-type th[aria-sort=descending]")?.innerText === "ran"`)
	// A running task may be the longest by now; the use of its time is not known yet.
	b.Eval(`[...document.querySelectorAll("section:last-of-type tbody tr")].find((r) => r.querySelector(".state.good")).querySelector("button").click()`)
	b.Until(`document.querySelector("dialog").innerText.includes("Where its time went")`)
	b.Shoot("task-dialog", false)
	b.Eval(`document.querySelector("dialog .primary").click()`)
	b.Until(`location.hash.startsWith("#/timeline") && location.hash.includes("selection=")`)
	b.Until(drawn)
	b.Go("about:blank")
	b.Go(w.URL + "/#/timeline?" + w.window(w.end.Add(-30*time.Minute), w.end))
	b.Until(drawn)
	b.Shoot("watch-1280", true)
	b.Print()
	narrow(t, b, "printed time line")
	b.Shoot("watch-print", true)
	b.Sheets("watch")
	w.clean(t, b)
}

// TestJobPage shows a job on two machines, wide and narrow, and says which alerts fire.
func TestJobPage(t *testing.T) {
	w := newWorld(t, "")
	for i := range 600 {
		at := w.end.Add(-time.Duration(i) * time.Second)
		for n, node := range []string{"node17", "node18"} {
			w.db.Samples([]watch.Sample{
				{ID: watch.NewID("task.cpu", "node", node, "manager", "slurm", "task", "4711.0"), Unit: watch.Cores, Time: at, Value: 4 + float64(n) + math.Sin(float64(i)/30)},
				{ID: watch.NewID("task.memory", "node", node, "manager", "slurm", "task", "4711.0"), Unit: watch.Bytes, Time: at, Value: 4 << 30},
			})
		}
	}
	fires := func(rule, node, text string) *alert.Alert {
		return &alert.Alert{ID: rule, Rule: rule, Severity: "critical", Series: "mount.available", Name: "mount.available", Labels: map[string]string{"node": node, "mount": "/a/long/directory/of/a/file/system/that/is/full"},
			State: alert.Firing, Since: w.end.Add(-time.Hour), Fired: w.end.Add(-time.Hour), Text: text}
	}
	handler, err := New(Config{DB: w.db, Node: "node17", Version: "v1.4.0", Alerts: func() alert.Answer {
		return alert.Answer{Rules: 7, Firing: 2, Alerts: []*alert.Alert{fires("file-system-full", "node17", "mount.available is 1 GiB, below 10 GiB"), fires("silent", "node18", "node.load has had no sample since 2026-11-19T10:00:00Z")},
			Ended: []*alert.Alert{}, Waiting: map[string]int{"mail": 3}, Receivers: map[string]string{"mail": "connection refused"}}
	}})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	t.Cleanup(server.CloseClientConnections)
	w.Server = server
	b := browser.New(t)
	for _, wide := range []int{1280, 400} {
		b.View(wide, 900, false)
		b.Go("about:blank")
		b.Go(w.URL + "/#/job?item=4711&" + w.window(w.end.Add(-10*time.Minute), w.end))
		b.Until(`document.querySelectorAll("polyline").length === 2 && document.querySelectorAll("tbody tr").length === 2 && document.body.innerText.includes("node18")`)
		narrow(t, b, fmt.Sprintf("job at %d", wide))
		named(t, b, fmt.Sprintf("job at %d", wide))
		b.Shoot(fmt.Sprintf("job-%d", wide), true)
		// The banner of alerts is above every page, and the page Status lists them.
		b.Until(`document.querySelector(".alerts").innerText.includes("2 alerts fire")`)
		b.Eval(`document.querySelector(".alerts a").click()`)
		b.Until(`document.body.innerText.includes("3 messages wait for mail: connection refused") && document.body.innerText.includes("file-system-full")`)
		narrow(t, b, fmt.Sprintf("status at %d", wide))
		b.Shoot(fmt.Sprintf("alerts-%d", wide), true)
	}
	w.clean(t, b)
}

// TestTaskFilters looks for tasks among thousands of processes outside premix.
func TestTaskFilters(t *testing.T) {
	w := newWorld(t, "")
	b := browser.New(t)
	for i := range 3000 {
		at := w.end.Add(-time.Duration(i) * 100 * time.Millisecond)
		w.db.Task(watch.Task{Key: fmt.Sprintf("node17:%d@1", i), Name: fmt.Sprintf("grep%d", i%300), Step: fmt.Sprintf("grep%d", i%300), User: "carla", Node: "node17", Engine: watch.ProcessEngine, Began: at, End: at.Add(time.Second), OK: true, Cores: 8, Memory: 32 << 30, MaxRSS: 1 << 20})
	}
	for _, wide := range []int{1280, 400} {
		b.View(wide, 900, false)
		b.Go("about:blank")
		b.Go(w.URL + "/#/tasks?" + w.window(w.end.Add(-20*time.Minute), w.end))
		b.Until(pages[0].filled)
		if text := b.Eval(`document.body.innerText.includes("grep")`); text != "false" {
			t.Error("processes outside premix are among the tasks")
		}
		narrow(t, b, fmt.Sprintf("tasks at %d", wide))
		b.Shoot(fmt.Sprintf("tasks-%d", wide), true)
	}
	b.View(1280, 900, false)
	choose := func(label, value string) {
		t.Helper()
		done := b.Eval(fmt.Sprintf(`(() => { const e = document.querySelector('[aria-label=%q]'); e.value = %q; e.dispatchEvent(new Event(e.tagName === "SELECT" ? "change" : "input")); return "chosen"; })()`, label, value))
		if done != "chosen" {
			t.Fatal(done)
		}
	}
	const heading, rows = `[...document.querySelectorAll("h2")].at(-1).innerText`, `[...[...document.querySelectorAll("table")].at(-1).querySelectorAll("tbody tr")]`
	choose("Search tasks", "call NA14")
	b.Until(heading + `.includes("found") && ` + rows + `.length > 10 && ` + rows + `.every((r) => r.innerText.includes("call") && r.innerText.includes("NA14"))`)
	choose("Search tasks", "")
	choose("State", "failed")
	b.Until(rows + `.length > 5 && ` + rows + `.every((r) => r.innerText.includes("failed"))`)
	choose("State", "")
	choose("User", "boris")
	b.Until(rows + `.length > 20 && [...document.querySelectorAll("tbody tr")].every((r) => !r.innerText.includes("anna"))`)
	choose("User", "")
	choose("Engine", "process")
	b.Until(`document.body.innerText.includes("grep") && !document.body.innerText.includes("NA14")`)
	if text := b.Eval(`document.body.innerText.includes("Advice")`); text != "false" {
		t.Error("processes outside premix get advice")
	}
	if high := b.Eval(`document.documentElement.scrollHeight < 6000`); high != "true" {
		t.Errorf("the page is %s px high", b.Eval(`document.documentElement.scrollHeight`))
	}
	b.Shoot("tasks-processes", true)
	w.clean(t, b)
}

// The page asks for the token once, and reports a wrong one.
func TestToken(t *testing.T) {
	w := newWorld(t, "correct-horse-battery")
	b := browser.New(t)
	b.View(1200, 800, false)
	b.Go(w.URL + "/#/timeline?" + w.window(w.end.Add(-10*time.Minute), w.end))
	b.Until(`document.querySelector("dialog.token")?.open && document.activeElement.id === "token"`)
	b.Shoot("token", false)
	b.Type("wrong")
	b.Key("Enter", 0)
	b.Until(`document.querySelector("dialog.token")?.innerText.includes("not accepted") && document.activeElement.id === "token"`)
	b.Type("correct-horse-battery")
	b.Key("Enter", 0)
	b.Until(drawn)
	for _, address := range b.Asked {
		if strings.Contains(address, "battery") {
			t.Errorf("the token stands in the address %s", address)
		}
	}
	// It is kept for the tab.
	b.Reload()
	b.Until(drawn)
	// Or it is in the address that premix watch prints, and does not stay there.
	b.Eval(`sessionStorage.clear()`)
	b.Go(w.URL + "/?#token=correct-horse-battery")
	b.Until(`location.hash === "" || location.hash.startsWith("#/")`)
	b.Until(drawn)
	for _, address := range b.Asked {
		if strings.Contains(address, "battery") {
			t.Errorf("the token was sent in the address %s", address)
		}
	}
	w.clean(t, b, "401 (Unauthorized)")
}

// Without records, mounts and snapshots every page has a hint.
func TestEmptyPages(t *testing.T) {
	db, err := series.Open(t.TempDir(), series.Options{Node: "n"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	s, err := New(Config{DB: db, Node: "n", Version: "v1", Pages: Pages{Node: t.TempDir(), Snapshots: filepath.Join(t.TempDir(), "none")}})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{Server: httptest.NewServer(s)}
	t.Cleanup(w.Server.Close)
	t.Cleanup(w.CloseClientConnections)
	b := browser.New(t)
	b.View(1000, 700, false)
	for page, says := range map[string]string{
		"timeline": "Nothing is recorded yet", "tasks": "No task ran in this window", "images": "No node runs on this machine", "snapshots": "No snapshot is prepared",
		"transfers": "No transfers are shown", "replay": "No replay is shown", "status": "This server only shows",
	} {
		b.Go("about:blank")
		b.Go(w.URL + "/#/" + page)
		b.Until(`document.querySelector("main").innerText.includes("` + says + `")`)
		b.Shoot("empty-"+page, false)
	}
	w.clean(t, b)

	// The page reports that the server is away, and connects again.
	b.Go("about:blank")
	b.Go(w.URL + "/#/timeline")
	b.Until(`document.querySelector("main").innerText.includes("Nothing is recorded yet")`)
	b.Call("Network.emulateNetworkConditions", map[string]any{"offline": true, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}, nil)
	b.Key("2", 0)
	b.Until(`document.querySelector("main").innerText.includes("does not answer")`)
	b.Shoot("gone", false)
	b.Call("Network.emulateNetworkConditions", map[string]any{"offline": false, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}, nil)
	b.Eval(`document.querySelector(".failure button").click()`)
	b.Until(`document.querySelector("main").innerText.includes("No task ran in this window")`)
}

// The page allows itself nothing from elsewhere.
func TestPolicy(t *testing.T) {
	s := server(t, Config{})
	for _, path := range []string{"/", "/app.js", "/vendor/uplot.js"} {
		r := get(s, path)
		if r.Code != 200 || !strings.Contains(r.Header().Get("Content-Security-Policy"), "default-src 'none'; script-src 'self'") {
			t.Errorf("%s: %d, %v", path, r.Code, r.Header())
		}
	}
	if r := get(s, "/none.js"); r.Code != 404 {
		t.Errorf("%d", r.Code)
	}
}
