package web

import (
	"bytes"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/snappy"
	"google.golang.org/protobuf/encoding/protowire"

	"premix/internal/kit/access"
	"premix/internal/watch"
	"premix/internal/watch/relay"
	"premix/internal/watch/series"
)

func receiving(t *testing.T, tokens ...string) (*Server, *series.DB) {
	t.Helper()
	db := database(t)
	from, err := relay.NewReceiver(db, "n1", filepath.Join(t.TempDir(), "receive"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { from.Close() })
	return server(t, Config{DB: db, Tokens: access.NewTokens("0123456789readers"), Receive: &Receive{From: from, Tokens: access.NewTokens(tokens...),
		Units: map[string]watch.Unit{"disk.read_bytes": watch.BytesPerSecond}}}), db
}

func post(s http.Handler, path, token string, body []byte, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest("POST", path, bytes.NewReader(body))
	r.Host = "127.0.0.1:8090"
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w
}

const sends = "0123456789senders"

// Who may send may not read, and the other way round.
func TestReceiveRoutes(t *testing.T) {
	s, _ := receiving(t, sends)
	for _, path := range []string{relay.Path, writePath} {
		for token, want := range map[string]int{"": 401, "0123456789readers": 401, "0123456789another": 401, sends: 400} {
			if w := post(s, path, token, []byte("nonsense")); w.Code != want {
				t.Errorf("%s with %q: %d %s", path, token, w.Code, w.Body)
			}
		}
		if w := get(s, path); w.Code == 200 {
			t.Errorf("GET %s: %d", path, w.Code)
		}
	}
	if w := get(s, "/api/v1/status", "Authorization", "Bearer "+sends); w.Code != 401 {
		t.Errorf("a sender reads: %d", w.Code)
	}
	large := bytes.Repeat([]byte("x"), mostSent+1)
	if w := post(s, writePath, sends, large); w.Code != 413 {
		t.Errorf("a large request: %d", w.Code)
	}
	if w := post(s, writePath, sends, nil, "X-Prometheus-Remote-Write-Version", "2.0.0"); w.Code != 415 {
		t.Errorf("version 2: %d", w.Code)
	}
	w := post(s, relay.Path, sends, nil, "Premix-Node", "n2", "Premix-Sender", "0123456789abcdef", "Premix-First", "0")
	if w.Code != 200 || w.Body.String() != "{\"applied\":0}\n" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	// Without --receive there is no such route.
	if w := post(server(t, Config{}), relay.Path, sends, nil); w.Code == 200 {
		t.Errorf("without a receiver: %d", w.Code)
	}
}

// message appends a field of bytes.
func message(b []byte, number protowire.Number, content []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, number, protowire.BytesType), content)
}

// timeSeries is a prometheus.TimeSeries, by the numbers of its fields in types.proto.
func timeSeries(at time.Time, values []float64, labels ...string) []byte {
	var b []byte
	for i := 0; i+1 < len(labels); i += 2 {
		b = message(b, 1, message(message(nil, 1, []byte(labels[i])), 2, []byte(labels[i+1])))
	}
	for i, v := range values {
		s := protowire.AppendFixed64(protowire.AppendTag(nil, 1, protowire.Fixed64Type), math.Float64bits(v))
		s = protowire.AppendVarint(protowire.AppendTag(s, 2, protowire.VarintType), uint64(at.UnixMilli()+int64(1000*i)))
		b = message(b, 2, s)
	}
	return message(b, 4, []byte{8, 1}) // a histogram, which is left out
}

func TestRemoteWritten(t *testing.T) {
	s, db := receiving(t, sends)
	at := begin
	stale := math.Float64frombits(0x7ff0000000000002) // Prometheus' mark of the end of a series
	var request []byte
	request = message(request, 1, timeSeries(at, []float64{1, 2, stale}, "__name__", "premix_disk_read_bytes", "device", "sda", "node", "n2"))
	request = message(request, 1, timeSeries(at, []float64{7}, "__name__", "node_load1", "instance", "n3:9100", "job", "node", "empty", ""))
	request = message(request, 1, timeSeries(at, []float64{9}, "__name__", "up"))
	request = message(request, 3, []byte("metadata is left out"))
	body := snappy.Encode(nil, request)
	for range 2 { // a repeated request changes nothing
		if w := post(s, writePath, sends, body); w.Code != 204 {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
	}
	got := make(map[string]string)
	for _, name := range []string{"disk.*", "vendor.*"} {
		results, err := db.Query(t.Context(), series.Query{Name: name, Start: at, End: at.Add(time.Minute), Step: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range results {
			got[r.ID.String()] = fmt.Sprintf("%s %d %v", r.Unit, r.Points[0].Count, r.Points[0].Max)
		}
	}
	want := map[string]string{`disk.read_bytes{device="sda",node="n2"}`: "B/s 2 2", `vendor.node_load1{instance="n3:9100",job="node",node="n3"}`: "count 1 7", `vendor.up`: "count 1 9"}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v", got)
	}
	for name, request := range map[string][]byte{"no name": message(nil, 1, timeSeries(at, []float64{1}, "a", "b")), "cut": request[:len(request)-30], "no message": {0xff}} {
		if w := post(s, writePath, sends, snappy.Encode(nil, request)); w.Code != 400 {
			t.Errorf("%s: %d %s", name, w.Code, w.Body)
		}
	}
	bomb := snappy.Encode(nil, make([]byte, mostDecoded+1))
	if w := post(s, writePath, sends, bomb); w.Code != 400 {
		t.Errorf("a request that grows: %d", w.Code)
	}
}

// A token of one machine does not bring series of another.
func TestRemoteWrittenByOne(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(file, []byte("n2 "+sends+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	tokens, err := access.ReadTokens(file)
	if err != nil {
		t.Fatal(err)
	}
	s, _ := receiving(t)
	s.c.Receive.Tokens = tokens
	for node, want := range map[string]int{"n2": 204, "n3": 400} {
		body := snappy.Encode(nil, message(nil, 1, timeSeries(begin, []float64{1}, "__name__", "up", "node", node)))
		if w := post(s, writePath, sends, body); w.Code != want {
			t.Errorf("%s: %d %s", node, w.Code, w.Body)
		}
	}
}

// Prometheus itself sends, and all that it scrapes arrives.
func TestPrometheusSends(t *testing.T) {
	prometheus, err := exec.LookPath("prometheus")
	if err != nil {
		t.Skip("prometheus is not installed: scripts/setup.sh test installs it")
	}
	s, db := receiving(t, sends)
	receiver := httptest.NewServer(s)
	defer receiver.Close()
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "# TYPE premix_disk_read_bytes gauge\npremix_disk_read_bytes{node=\"n9\",device=\"sda\"} 42\n")
	}))
	defer target.Close()
	dir := t.TempDir()
	config := fmt.Sprintf("global: {scrape_interval: 1s}\nscrape_configs:\n  - {job_name: a, static_configs: [{targets: ['%s']}]}\nremote_write:\n  - {url: '%s%s', authorization: {credentials: %s}}\n",
		strings.TrimPrefix(target.URL, "http://"), receiver.URL, writePath, sends)
	if err := os.WriteFile(filepath.Join(dir, "prometheus.yml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(prometheus, "--config.file="+filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path="+filepath.Join(dir, "tsdb"), "--web.listen-address=127.0.0.1:0")
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	for end := time.Now().Add(60 * time.Second); ; time.Sleep(200 * time.Millisecond) {
		results, err := db.Query(t.Context(), series.Query{Name: "disk.read_bytes", Match: []watch.Label{{Key: "node", Value: "n9"}, {Key: "job", Value: "a"}}, Start: time.Now().Add(-5 * time.Minute), End: time.Now().Add(time.Minute), Step: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		if len(results) == 1 && len(results[0].Points) >= 3 && results[0].Points[0].Mean == 42 && results[0].Unit == watch.BytesPerSecond {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d series arrived\n%s", len(results), said.String())
		}
	}
}

func FuzzRemoteWritten(f *testing.F) {
	f.Add(message(nil, 1, timeSeries(begin, []float64{1, 2}, "__name__", "premix_disk_read_bytes", "instance", "n3:9100")))
	names := promNames(map[string]watch.Unit{"disk.read_bytes": watch.BytesPerSecond})
	f.Fuzz(func(t *testing.T, b []byte) {
		samples, err := decodeWriteRequest(b, names, "")
		for _, s := range samples {
			if err == nil && (s.ID.Name == "" || !finite(s.Value)) {
				t.Errorf("%s is %v", s.ID, s.Value)
			}
		}
	})
}
