package alert

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/mail"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/emersion/go-sasl"
	"github.com/emersion/go-smtp"

	"premix/internal/watch"
	"premix/internal/watch/series"
)

var known = Units{"mount.available": watch.Bytes, "mount.size": watch.Bytes, "node.load": watch.Count, "node.pressure": watch.Ratio,
	"disk.read_bytes": watch.BytesPerSecond, "mount.answer": watch.Seconds}

// rulesFile writes a file of rules, and files of a token and a password beside it.
func rulesFile(t *testing.T, text string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range map[string]string{"rules.yaml": text, "token": "0123456789abcdef\n", "password": "secret\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "rules.yaml")
}

func read(t *testing.T, text string) *Rules {
	t.Helper()
	r, err := ReadRules(rulesFile(t, text), known)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestReadRules(t *testing.T) {
	r := read(t, `
every: 2s
receivers:
  - {name: ops, webhook: "https://hooks.example.org/x", token_file: token}
  - {name: mail, smtp: "mail.example.org:587", from: Premix <premix@example.org>, to: [a@example.org, b@example.org], user: premix, password_file: password}
rules:
  - {name: full, series: mount.available, match: {mount: "/scratch*"}, of: mount.size, below: 5 %, for: 10m, nodes: [n1, "gpu*"], to: ops}
  - {name: soon, series: mount.available, reaches: 1 GiB, within: 4h, over: 2h, severity: page}
  - {name: gone, series: node.load, absent: 2m}
  - {name: slow, series: mount.answer, above: 500ms}
  - {name: busy, series: "vendor.*", above: -1.5e3}
  - {name: reads, series: disk.read_bytes, above: 2 GB/s}
`)
	var got []string
	for _, one := range r.Rules {
		got = append(got, one.Name+": "+one.String())
	}
	want := []string{
		`full: mount.available{mount="/scratch*"} / mount.size below 0.05, for 10m, on n1 gpu*`,
		`soon: mount.available reaches 1.073741824e+09 within 4h, by the last 2h`,
		`gone: node.load absent for 2m`,
		`slow: mount.answer above 0.5`,
		`busy: vendor.* above -1500`,
		`reads: disk.read_bytes above 2e+09`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("the rules are\n%s", strings.Join(got, "\n"))
	}
	if to := fmt.Sprint(r.Rules[0].To, r.Rules[1].To); to != "[ops] [ops mail]" {
		t.Errorf("the receivers are %s", to)
	}
	if r.Every != 2*time.Second || r.Stale != 5*time.Minute || r.Rules[1].Severity != "page" || r.Rules[0].Severity != "warning" {
		t.Errorf("got %+v", r)
	}
	m := r.Receivers[1]
	if r.Receivers[0].Token != "0123456789abcdef" || m.Password != "secret" || m.From != "premix@example.org" || m.TLS != "starttls" || len(m.To) != 2 {
		t.Errorf("the receivers are %+v %+v", r.Receivers[0], m)
	}
}

func TestReadRulesRefuses(t *testing.T) {
	const ops = "receivers: [{name: ops, webhook: 'http://localhost/'}]\n"
	for _, c := range []struct{ name, text, want string }{
		{"empty", "", "the file of rules is empty"},
		{"no rules", ops, "1: the file has no rules:"},
		{"empty rules", "rules: []\n", "1: rules: is empty"},
		{"no list", "rules: 3\n", "1: rules must be a list"},
		{"key", "rulez: []\nrules: [{name: a, series: node.load, above: 1}]", "1: unknown key rulez in the file"},
		{"key of a rule", "rules:\n  - name: a\n    series: node.load\n    abov: 1\n", "4: unknown key abov in a rule|2: rule a has 0 conditions"},
		{"series", "rules:\n  - {name: a, series: node.laod, above: 1}", "2: there is no series node.laod"},
		{"no layer", "rules:\n  - {name: a, series: load, above: 1}", "2: load is not the name of a series"},
		{"of", "rules:\n  - {name: a, series: mount.available, of: mount.sizes, above: 1}", "2: there is no series mount.sizes"},
		{"unit", "rules:\n  - {name: a, series: node.load, above: 3 GiB}", `2: above: "3 GiB" is not a value in count`},
		{"percent", "rules:\n  - {name: a, series: mount.available, below: 5 %}", `2: below: "5 %" is not a value in B`},
		{"infinite", "rules:\n  - {name: a, series: node.load, above: .inf}", `2: above: ".inf" is not a value in count`},
		{"two", "rules:\n  - {name: a, series: node.load, above: 1, below: 2}", "2: rule a has 2 conditions"},
		{"within", "rules:\n  - {name: a, series: node.load, reaches: 1}", "2: rule a has reaches: without within:"},
		{"foreign key", "rules:\n  - {name: a, series: node.load, above: 1, over: 1h}", "2: over: is for rules with reaches:"},
		{"for", "rules:\n  - {name: a, series: node.load, above: 1, for: soon}", `2: for: "soon" is not a time`},
		{"every", "every: 10ms\nrules:\n  - {name: a, series: node.load, above: 1}", "1: every must be at least 1s"},
		{"twice", "rules:\n  - {name: a, series: node.load, above: 1}\n  - {name: a, series: node.load, above: 1}", "3: there is another rule a"},
		{"receiver", ops + "rules:\n  - {name: a, series: node.load, above: 1, to: opps}", "3: there is no receiver opps"},
		{"no name", "rules:\n  - {series: node.load, above: 1}", "2: a rule has no name:"},
		{"address", "receivers: [{name: ops, webhook: localhost}]\nrules: [{name: a, series: node.load, above: 1}]", `1: webhook: "localhost" is not an address`},
		{"two ways", "receivers: [{name: ops}]\nrules: [{name: a, series: node.load, above: 1}]", "1: receiver ops must have webhook: or smtp:, and not both"},
		{"mail", "receivers: [{name: m, smtp: mail, from: x, to: [a@b]}]\nrules: [{name: a, series: node.load, above: 1}]", `1: smtp: "mail" is not a host and a port|1: from: "x" is not a mail address`},
		{"injection", "receivers: [{name: m, smtp: 'mail:25', from: a@b, to: \"a@b\\r\\nBcc: c@d\"}]\nrules: [{name: a, series: node.load, above: 1}]", "1: to: \"a@b\\r\\nBcc: c@d\" is not a mail address"},
		{"clear", "receivers: [{name: m, smtp: 'mail:25', from: a@b, to: a@b, user: u, password_file: password, tls: none}]\nrules: [{name: a, series: node.load, above: 1}]", "1: receiver m would send its password in clear text"},
		{"secret", "receivers: [{name: ops, webhook: 'http://localhost/', token_file: nothing}]\nrules: [{name: a, series: node.load, above: 1}]", "1: token_file: "},
		{"syntax", "rules:\n  - {name: a\n", "this is not YAML"},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := rulesFile(t, c.text)
			_, err := ReadRules(file, known)
			if err == nil {
				t.Fatal("it is accepted")
			}
			text := strings.ReplaceAll(strings.ReplaceAll(err.Error(), file+":", ""), file, "0")
			for want := range strings.SplitSeq(c.want, "|") {
				if !strings.Contains(text, want) {
					t.Errorf("the error is\n%s\nwithout %s", text, want)
				}
			}
		})
	}
}

func TestPattern(t *testing.T) {
	for _, c := range []struct {
		p, text string
		want    bool
	}{
		{"a", "a", true}, {"a", "ab", false}, {"*", "", true}, {"a*", "abc", true}, {"*c", "abc", true}, {"a*c", "abc", true}, {"a*c", "ab", false},
		{"a*b*c", "axxbyyc", true}, {"a*b*c", "acb", false}, {"/scratch*", "/scratch/a", true}, {"*a*", "bcd", false}, {"a*a", "a", false},
	} {
		if got := pattern(c.p).matches(c.text); got != c.want {
			t.Errorf("%s matches %q: %v", c.p, c.text, got)
		}
	}
}

// bench is a database and an engine whose clock the test sets.
type bench struct {
	t    *testing.T
	db   *series.DB
	dir  string
	now  time.Time
	mu   sync.Mutex
	got  []string
	fail error
}

func newBench(t *testing.T) *bench {
	b := &bench{t: t, dir: t.TempDir(), now: time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)}
	db, err := series.Open(filepath.Join(b.dir, "data"), series.Options{Node: "n1"})
	if err != nil {
		t.Fatal(err)
	}
	b.db = db
	t.Cleanup(func() { db.Close() })
	return b
}

func (b *bench) engine(rules *Rules) *Engine {
	b.t.Helper()
	e, err := New(b.t.Context(), Options{Rules: rules, From: b.db, Node: "n1", Dir: filepath.Join(b.dir, "alerts"), Now: func() time.Time { return b.now }, Retry: time.Millisecond,
		Send: func(_ context.Context, r *Receiver, m *Message) error {
			b.mu.Lock()
			defer b.mu.Unlock()
			if b.fail != nil {
				return b.fail
			}
			for _, a := range m.Alerts {
				b.got = append(b.got, fmt.Sprintf("%s %s %s %s", r.Name, a.Rule, a.State, a.Labels["mount"]))
			}
			return nil
		}})
	if err != nil {
		b.t.Fatal(err)
	}
	return e
}

func (b *bench) sample(name string, v float64, labels ...string) {
	b.db.Samples([]watch.Sample{{ID: watch.NewID(name, append(labels, "node", "n1")...), Unit: known[name], Time: b.now, Value: v}})
}

// states returns the alerts of an engine as RULE:STATE, sorted.
func states(e *Engine) string {
	var list []string
	for _, a := range e.Answer().Alerts {
		list = append(list, a.Rule+":"+string(a.State))
	}
	slices.Sort(list)
	return strings.Join(list, " ")
}

// sent waits until the messages have been sent, and returns them.
func (b *bench) sent(e *Engine) []string {
	b.t.Helper()
	ctx, stop := context.WithCancel(b.t.Context())
	defer stop()
	done := make(chan struct{})
	go func() { defer close(done); e.Run(ctx) }()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		waiting := 0
		for _, n := range e.Answer().Waiting {
			waiting += n
		}
		if waiting == 0 {
			break
		}
		if time.Now().After(end) {
			b.t.Fatal("messages are waiting")
		}
	}
	stop()
	<-done
	b.mu.Lock()
	defer b.mu.Unlock()
	got := b.got
	b.got = nil
	return got
}

const receivers = "every: 1h\nreceivers: [{name: ops, webhook: 'http://localhost/'}]\n"

func TestThreshold(t *testing.T) {
	b := newBench(t)
	e := b.engine(read(t, receivers+`
rules:
  - {name: full, series: mount.available, of: mount.size, below: 10 %, for: 1m, match: {mount: "/s*"}}
  - {name: load, series: node.load, above: 4}
`))
	step := func(load, free float64, want string) {
		t.Helper()
		b.now = b.now.Add(30 * time.Second)
		b.sample("node.load", load)
		b.sample("mount.size", 1000, "mount", "/s1")
		b.sample("mount.available", free, "mount", "/s1")
		b.sample("mount.size", 1000, "mount", "/other")
		b.sample("mount.available", 0, "mount", "/other")
		e.Evaluate(t.Context())
		if got := states(e); got != want {
			t.Fatalf("at %s the alerts are %q, not %q", b.now.Format("15:04:05"), got, want)
		}
	}
	step(4, 100, "")
	step(4.1, 99, "full:pending load:firing")
	step(3, 99, "full:pending")
	step(3, 100, "") // it ended before its time: no message
	step(3, 50, "full:pending")
	step(3, 50, "full:pending")
	step(3, 50, "full:firing")
	step(3, 50, "full:firing")
	if got, want := fmt.Sprint(b.sent(e)), "[ops load firing  ops load resolved  ops full firing /s1]"; got != want {
		t.Errorf("sent are %s", got)
	}
	if got := b.sent(e); len(got) > 0 {
		t.Errorf("a state is sent again: %v", got)
	}
	a := e.Answer().Alerts[0]
	if a.Text != "mount.available / mount.size is 5 %, below 10 %" {
		t.Errorf("the text is %q", a.Text)
	}

	// The next engine knows what was sent.
	b.now = b.now.Add(time.Hour)
	e = b.engine(e.o.Rules)
	e.Evaluate(t.Context()) // nothing has been sampled yet
	if got := states(e); got != "full:firing" {
		t.Errorf("after a restart the alerts are %q", got)
	}
	step(3, 50, "full:firing")
	if got := b.sent(e); len(got) > 0 {
		t.Errorf("after a restart %v is sent", got)
	}
	step(3, 500, "")
	if got := fmt.Sprint(b.sent(e)); got != "[ops full resolved /s1]" {
		t.Errorf("sent is %s", got)
	}

	// A series that is no longer sampled is not above or below anything.
	step(9, 500, "load:firing")
	b.now = b.now.Add(6 * time.Minute)
	e.Evaluate(t.Context())
	if got := states(e); got != "" {
		t.Errorf("of old samples: %q", got)
	}

	// A rule that is gone ends its alerts.
	step(9, 500, "load:firing")
	b.sent(e)
	e = b.engine(read(t, receivers+"rules: [{name: other, series: node.load, above: 100}]"))
	b.now = b.now.Add(time.Second)
	b.sample("node.load", 9)
	e.Evaluate(t.Context())
	if got := fmt.Sprint(b.sent(e)); got != "[ops load resolved ]" {
		t.Errorf("of a rule that is gone: %s", got)
	}
}

func TestAbsence(t *testing.T) {
	b := newBench(t)
	rules := read(t, receivers+"rules: [{name: gone, series: node.load, absent: 2m, forget: 3h}]")
	e := b.engine(rules)
	pass := func(d time.Duration, sampled bool, want string) {
		t.Helper()
		b.now = b.now.Add(d)
		if sampled {
			b.sample("node.load", 1)
		}
		e.Evaluate(t.Context())
		if got := states(e); got != want {
			t.Fatalf("at %s the alerts are %q, not %q", b.now.Format("15:04:05"), got, want)
		}
	}
	pass(time.Hour, false, "") // it was never there
	pass(time.Second, true, "")
	pass(2*time.Minute, false, "")
	pass(time.Second, false, "gone:firing")
	pass(time.Hour, false, "gone:firing")
	pass(time.Second, true, "")
	pass(3*time.Minute, false, "gone:firing")
	// A restart neither ends it nor makes a new one.
	e = b.engine(rules)
	pass(time.Second, false, "gone:firing")
	pass(3*time.Minute, false, "gone:firing")
	pass(3*time.Hour, false, "") // forgotten
	pass(time.Second, true, "")
	// While premix does not run, nothing is missed.
	b.now = b.now.Add(time.Hour)
	e = b.engine(rules)
	pass(10*time.Second, false, "")
	pass(2*time.Minute, false, "gone:firing")
}

func TestPrediction(t *testing.T) {
	for _, c := range []struct {
		name    string
		minutes int
		value   func(minute float64) float64
		want    bool
	}{
		{"falls in 5 hours", 60, func(m float64) float64 { return 360 - m }, false},
		{"falls in 3 hours", 60, func(m float64) float64 { return 240 - m }, true},
		{"rises", 60, func(m float64) float64 { return 240 + m }, false},
		{"stays", 60, func(float64) float64 { return 10 }, false},
		{"stays at the bound", 60, func(float64) float64 { return 0 }, true},
		{"too short", 20, func(m float64) float64 { return 240 - m }, false},
		{"half of the time", 40, func(m float64) float64 { return 240 - m }, true},
		{"noise around a level", 60, func(m float64) float64 { return 500 + 20*float64(int(m)%2) }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t)
			e := b.engine(read(t, receivers+"rules: [{name: soon, series: mount.available, reaches: 0, within: 4h}]"))
			for m := range c.minutes * 6 {
				b.now = b.now.Add(10 * time.Second)
				b.sample("mount.available", c.value(float64(m)/6), "mount", "/s")
			}
			e.Evaluate(t.Context())
			if got := states(e) == "soon:firing"; got != c.want {
				t.Errorf("it fires: %v", got)
			}
		})
	}
}

// A receiver that fails gets every message once it works, in order; more than the queue
// holds are dropped, the oldest first.
func TestQueue(t *testing.T) {
	b := newBench(t)
	e := b.engine(read(t, receivers+"rules: [{name: load, series: node.load, above: 1}]"))
	b.fail = errors.New("not now")
	flip := func(n int) {
		for i := range n {
			b.now = b.now.Add(time.Second)
			b.sample("node.load", float64(2*((i+1)%2)))
			e.Evaluate(t.Context())
		}
	}
	flip(6)
	if n := e.Answer().Waiting["ops"]; n != 6 {
		t.Errorf("%d messages wait", n)
	}
	// They survive a kill.
	e = b.engine(e.o.Rules)
	go func() { time.Sleep(20 * time.Millisecond); b.mu.Lock(); b.fail = nil; b.mu.Unlock() }()
	want := "[ops load firing  ops load resolved  ops load firing  ops load resolved  ops load firing  ops load resolved ]"
	if got := fmt.Sprint(b.sent(e)); got != want {
		t.Errorf("sent are %s", got)
	}
	b.fail = &RefusedError{"never"}
	flip(1)
	if got := b.sent(e); len(got) > 0 || e.Answer().Waiting["ops"] > 0 {
		t.Errorf("a refused message is kept: %v", got)
	}
	b.fail = errors.New("not now")
	e.mu.Lock()
	var lost map[string]int
	for range mostWaiting + 5 {
		lost = e.queue(b.now, []*Alert{{Rule: "load", Labels: map[string]string{}}})
	}
	n := len(e.state.Waiting["ops"])
	e.mu.Unlock()
	if n != mostWaiting || lost["ops"] != 1 {
		t.Errorf("%d wait, and the last dropped %v", n, lost)
	}
}

func message() *Message {
	at := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	return &Message{ID: "7-abc", Node: "n1", Time: at, Receiver: "ops", Alerts: []*Alert{
		{ID: "f1", Rule: "full", Severity: "page", Series: `mount.available{mount="/s\ncratch",node="n2"}`, Name: "mount.available", Labels: map[string]string{"node": "n2", "mount": "/s\ncratch"}, State: Firing, Fired: at, Text: "mount.available is 3 GiB – below 10 GiB\r\nBcc: x@y"},
	}}
}

func TestWebhook(t *testing.T) {
	status := 200
	var header http.Header
	var body map[string]any
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header = r.Header
		text, err := io.ReadAll(r.Body)
		if err != nil || json.Unmarshal(text, &body) != nil || r.Method != http.MethodPost {
			t.Errorf("got %s %s, %v", r.Method, text, err)
		}
		w.Header().Set("Location", "http://127.0.0.1:1/")
		w.WriteHeader(status)
	}))
	defer server.Close()
	to := &Receiver{URL: server.URL, Token: "0123456789abcdef"}
	s := &Sender{}
	if err := s.Send(t.Context(), to, message()); err != nil {
		t.Fatal(err)
	}
	if header.Get("Authorization") != "Bearer 0123456789abcdef" || header.Get("Idempotency-Key") != "7-abc" || header.Get("Content-Type") != "application/json" {
		t.Errorf("the header is %v", header)
	}
	one := body["alerts"].([]any)[0].(map[string]any)
	labels := one["labels"].(map[string]any)
	if body["version"] != "4" || body["status"] != "firing" || labels["alertname"] != "full" || labels["node"] != "n2" || one["startsAt"] != "2026-11-20T12:00:00Z" || one["endsAt"] != "0001-01-01T00:00:00Z" {
		t.Errorf("the body is %v", body)
	}
	for _, c := range []struct {
		status int
		final  bool
	}{{400, true}, {422, true}, {401, false}, {404, false}, {429, false}, {500, false}, {302, false}} {
		status = c.status
		err := s.Send(t.Context(), to, message())
		var refused *RefusedError
		if err == nil || errors.As(err, &refused) != c.final {
			t.Errorf("%d is %v", c.status, err)
		}
	}
	server.Close()
	if err := s.Send(t.Context(), to, message()); err == nil || strings.Contains(err.Error(), server.URL) {
		t.Errorf("of a server that is gone: %v", err)
	}
}

// mailbox is a backend of a mail server, which keeps all mails.
type mailbox struct {
	mu    sync.Mutex
	mails []string
	to    []string
	fail  *smtp.SMTPError // to DATA
	login string
}

type mailSession struct{ b *mailbox }

func (b *mailbox) NewSession(*smtp.Conn) (smtp.Session, error) { return &mailSession{b}, nil }
func (*mailSession) AuthMechanisms() []string                  { return []string{sasl.Plain} }
func (s *mailSession) Auth(string) (sasl.Server, error) {
	return sasl.NewPlainServer(func(_, user, password string) error {
		if s.b.login = user + " " + password; password != "secret" {
			return smtp.ErrAuthFailed
		}
		return nil
	}), nil
}
func (*mailSession) Reset()                               {}
func (*mailSession) Logout() error                        { return nil }
func (*mailSession) Mail(string, *smtp.MailOptions) error { return nil }
func (s *mailSession) Rcpt(to string, _ *smtp.RcptOptions) error {
	if strings.HasPrefix(to, "unknown") {
		return &smtp.SMTPError{Code: 550, Message: "no such user"}
	}
	s.b.to = append(s.b.to, to)
	return nil
}
func (s *mailSession) Data(r io.Reader) error {
	text, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	if s.b.fail != nil {
		return s.b.fail
	}
	s.b.mails = append(s.b.mails, string(text))
	return nil
}

func TestMail(t *testing.T) {
	box := &mailbox{}
	server := smtp.NewServer(box)
	server.Domain = "localhost"
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go server.Serve(l)
	defer server.Close()
	s := &Sender{Timeout: 5 * time.Second}
	to := &Receiver{Server: l.Addr().String(), From: "premix@example.org", To: []string{"a@example.org", "b@example.org"}, TLS: "none"}
	if err := s.Send(t.Context(), to, message()); err != nil {
		t.Fatal(err)
	}
	m, err := mail.ReadMessage(strings.NewReader(box.mails[0]))
	if err != nil {
		t.Fatal(err)
	}
	if m.Header.Get("Subject") != "[premix] full fires on n2" || m.Header.Get("Bcc") != "" || m.Header.Get("Message-ID") != "<premix.7-abc@example.org>" || m.Header.Get("To") != "a@example.org, b@example.org" {
		t.Errorf("the mail is\n%s", box.mails[0])
	}
	body, err := io.ReadAll(m.Body)
	if err != nil || !strings.Contains(string(body), "FIRES  full (page), 2026-11-20 12:00:00 UTC") || strings.Contains(string(body), "\nBcc") || !strings.Contains(string(body), "=E2=80=93") {
		t.Errorf("the body is\n%s", body)
	}

	// The same through TLS, with a password.
	web := httptest.NewTLSServer(http.NotFoundHandler()) // for its certificate
	defer web.Close()
	s.Roots = x509.NewCertPool()
	s.Roots.AddCert(web.Certificate())
	secure := smtp.NewServer(box)
	secure.TLSConfig = &tls.Config{Certificates: web.TLS.Certificates}
	for _, kind := range []string{"starttls", "tls"} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		if kind == "tls" {
			l = tls.NewListener(l, secure.TLSConfig)
		}
		go secure.Serve(l)
		with := *to
		with.Server, with.TLS, with.User, with.Password = l.Addr().String(), kind, "premix", "secret"
		if err := s.Send(t.Context(), &with, message()); err != nil || box.login != "premix secret" {
			t.Errorf("by %s: %v, %q", kind, err, box.login)
		}
		if err := (&Sender{}).Send(t.Context(), &with, message()); err == nil {
			t.Errorf("by %s, an unknown certificate is accepted", kind)
		}
		with.Password = "wrong"
		var refused *RefusedError
		if err := s.Send(t.Context(), &with, message()); err == nil || errors.As(err, &refused) {
			t.Errorf("by %s with a wrong password: %v", kind, err)
		}
	}
	defer secure.Close()
	box.mails, box.to = box.mails[:1], box.to[:2]

	// Without an offer of STARTTLS, from the server or from an attacker between, no mail is sent.
	strict := *to
	strict.TLS = "starttls"
	if err := s.Send(t.Context(), &strict, message()); err == nil || !strings.Contains(err.Error(), "does not offer STARTTLS") {
		t.Errorf("without STARTTLS: %v", err)
	}
	some := *to
	some.To = []string{"unknown@example.org", "c@example.org"}
	var refused *RefusedError
	if err := s.Send(t.Context(), &some, message()); !errors.As(err, &refused) || !strings.Contains(err.Error(), "for 1 of 2 addresses") {
		t.Errorf("of an unknown address: %v", err)
	}
	some.To = some.To[:1]
	if err := s.Send(t.Context(), &some, message()); !errors.As(err, &refused) {
		t.Errorf("of unknown addresses only: %v", err)
	}
	box.fail = &smtp.SMTPError{Code: 451, Message: "later"}
	if err := s.Send(t.Context(), to, message()); err == nil || errors.As(err, &refused) {
		t.Errorf("of a busy server: %v", err)
	}
	if len(box.mails) != 2 || fmt.Sprint(box.to) != "[a@example.org b@example.org c@example.org a@example.org b@example.org]" {
		t.Errorf("%d mails to %v", len(box.mails), box.to)
	}
}
