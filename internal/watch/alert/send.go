package alert

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/quotedprintable"
	"net"
	"net/http"
	"net/smtp"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode"
)

// Message is a list of alerts that have fired or ended, for one receiver.
type Message struct {
	ID       string    `json:"id"`   // unique for the directory of the state
	Node     string    `json:"node"` // machine that sends it
	Time     time.Time `json:"time"`
	Receiver string    `json:"receiver"`
	Alerts   []*Alert  `json:"alerts"`
}

// RefusedError is returned if a receiver will never accept a message.
type RefusedError struct{ Text string }

func (e *RefusedError) Error() string { return e.Text }

// Sender sends messages.
type Sender struct {
	Client *http.Client   // nil: one with a timeout
	Roots  *x509.CertPool // nil: the system's
	// Timeout bounds the time of a message: 30 s.
	Timeout time.Duration
}

// Send sends a message once. The error is a *RefusedError if another try would fail too.
func (s *Sender) Send(ctx context.Context, r *Receiver, m *Message) error {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(s.Timeout, 30*time.Second))
	defer cancel()
	if r.URL != "" {
		return s.post(ctx, r, m)
	}
	return s.mail(ctx, r, m)
}

// Types of Alertmanager's webhook, version 4.
type (
	webhook struct {
		Version           string            `json:"version"`
		GroupKey          string            `json:"groupKey"`
		TruncatedAlerts   int               `json:"truncatedAlerts"`
		Status            State             `json:"status"`
		Receiver          string            `json:"receiver"`
		GroupLabels       map[string]string `json:"groupLabels"`
		CommonLabels      map[string]string `json:"commonLabels"`
		CommonAnnotations map[string]string `json:"commonAnnotations"`
		ExternalURL       string            `json:"externalURL"`
		Alerts            []webhookAlert    `json:"alerts"`
	}
	webhookAlert struct {
		Status       State             `json:"status"`
		Labels       map[string]string `json:"labels"`
		Annotations  map[string]string `json:"annotations"`
		StartsAt     time.Time         `json:"startsAt"`
		EndsAt       time.Time         `json:"endsAt"`
		GeneratorURL string            `json:"generatorURL"`
		Fingerprint  string            `json:"fingerprint"`
	}
)

// status returns "firing" if an alert of the message fires.
func (m *Message) status() State {
	if slices.ContainsFunc(m.Alerts, func(a *Alert) bool { return a.State == Firing }) {
		return Firing
	}
	return Resolved
}

// webhook returns the body of a POST.
func (m *Message) webhook() webhook {
	w := webhook{Version: "4", GroupKey: "premix/" + m.Node, Status: m.status(), Receiver: m.Receiver, GroupLabels: map[string]string{},
		CommonLabels: map[string]string{}, CommonAnnotations: map[string]string{}}
	for _, a := range m.Alerts {
		labels := map[string]string{}
		for k, v := range a.Labels {
			labels[k] = v
		}
		labels["alertname"], labels["severity"], labels["series"] = a.Rule, a.Severity, a.Name
		w.Alerts = append(w.Alerts, webhookAlert{Status: a.State, Labels: labels, StartsAt: a.Fired, EndsAt: a.Ended, Fingerprint: a.ID,
			Annotations: map[string]string{"summary": a.Text, "value": number(a.Value)}})
	}
	common := func(of func(a webhookAlert) map[string]string) map[string]string {
		same := map[string]string{}
		for k, v := range of(w.Alerts[0]) {
			if !slices.ContainsFunc(w.Alerts, func(a webhookAlert) bool { other, ok := of(a)[k]; return !ok || other != v }) {
				same[k] = v
			}
		}
		return same
	}
	if len(w.Alerts) > 0 {
		w.CommonLabels = common(func(a webhookAlert) map[string]string { return a.Labels })
		w.CommonAnnotations = common(func(a webhookAlert) map[string]string { return a.Annotations })
	}
	return w
}

func (s *Sender) post(ctx context.Context, r *Receiver, m *Message) error {
	body, err := json.Marshal(m.webhook())
	if err != nil {
		return &RefusedError{err.Error()}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.URL, bytes.NewReader(body))
	if err != nil {
		return &RefusedError{err.Error()}
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "premix-watch")
	req.Header.Set("Idempotency-Key", m.ID)
	if r.Token != "" {
		req.Header.Set("Authorization", "Bearer "+r.Token)
	}
	client := s.Client
	if client == nil {
		// A redirect could lead the token, and the alerts, to another host.
		client = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	}
	resp, err := client.Do(req)
	if err != nil {
		var ue *url.Error
		if errors.As(err, &ue) {
			err = ue.Err // without the address, which may contain a secret
		}
		return err
	}
	defer resp.Body.Close()
	io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<20)) // so that the connection can be reused
	switch {
	case resp.StatusCode/100 == 2:
		return nil
	case slices.Contains([]int{http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity}, resp.StatusCode):
		return &RefusedError{"it answers " + resp.Status} // it is about the message, and not about the address or the token
	}
	return errors.New("it answers " + resp.Status)
}

// subject returns the subject of a mail.
func (m *Message) subject() string {
	fires, ended := 0, 0
	for _, a := range m.Alerts {
		if a.State == Firing {
			fires++
		} else {
			ended++
		}
	}
	if len(m.Alerts) == 1 {
		a := m.Alerts[0]
		verb := "fires"
		if a.State == Resolved {
			verb = "has ended"
		}
		return fmt.Sprintf("[premix] %s %s on %s", a.Rule, verb, cmp.Or(a.Labels["node"], m.Node))
	}
	switch {
	case ended == 0:
		return fmt.Sprintf("[premix] %d alerts fire", fires)
	case fires == 0:
		return fmt.Sprintf("[premix] %d alerts have ended", ended)
	}
	return fmt.Sprintf("[premix] alerts: %d fire, %d have ended", fires, ended)
}

// text returns the body of a mail.
func (m *Message) text() string {
	var b strings.Builder
	for _, a := range m.Alerts {
		verb, at := "FIRES", a.Fired
		if a.State == Resolved {
			verb, at = "ENDED", a.Ended
		}
		fmt.Fprintf(&b, "%s  %s (%s), %s\n    %s\n    %s\n\n", verb, oneLine(a.Rule), oneLine(a.Severity), at.UTC().Format("2006-01-02 15:04:05 UTC"), oneLine(a.Text), oneLine(a.Series))
	}
	fmt.Fprintf(&b, "-- \npremix watch on %s\n", oneLine(m.Node))
	return b.String()
}

// oneLine replaces control characters, which names of directories may contain.
func oneLine(s string) string {
	return strings.Map(func(c rune) rune {
		if unicode.IsControl(c) {
			return ' '
		}
		return c
	}, s)
}

// mailText returns a mail with its headers (RFC 5322).
func mailText(r *Receiver, m *Message) []byte {
	var b bytes.Buffer
	header := func(key, value string) { fmt.Fprintf(&b, "%s: %s\r\n", key, value) }
	header("From", r.From)
	header("To", strings.Join(r.To, ",\r\n "))
	header("Subject", mime.QEncoding.Encode("utf-8", oneLine(m.subject())))
	header("Date", m.Time.Format("Mon, 02 Jan 2006 15:04:05 -0700"))
	_, domain, _ := strings.Cut(r.From, "@")
	// The same id at each try: a mail program shows a repeated mail once.
	header("Message-ID", "<premix."+m.ID+"@"+domain+">")
	header("Auto-Submitted", "auto-generated") // RFC 3834: no answers of absence
	header("MIME-Version", "1.0")
	header("Content-Type", "text/plain; charset=utf-8")
	header("Content-Transfer-Encoding", "quoted-printable")
	b.WriteString("\r\n")
	q := quotedprintable.NewWriter(&b)
	io.WriteString(q, strings.ReplaceAll(m.text(), "\n", "\r\n")) // a buffer returns no error
	q.Close()
	return b.Bytes()
}

// mail sends a message by SMTP (RFC 5321).
func (s *Sender) mail(ctx context.Context, r *Receiver, m *Message) (err error) {
	host, _, err := net.SplitHostPort(r.Server)
	if err != nil {
		return &RefusedError{err.Error()}
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", r.Server)
	if err != nil {
		return err
	}
	defer conn.Close()
	if end, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(end); err != nil {
			return err
		}
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	config := &tls.Config{ServerName: host, RootCAs: s.Roots, MinVersion: tls.VersionTLS12}
	if r.TLS == "tls" {
		conn = tls.Client(conn, config)
	}
	// A server that answers 5xx will do so again, except before it knows the mail.
	before := true
	defer func() {
		var answer *textproto.Error
		if !before && errors.As(err, &answer) && answer.Code/100 == 5 {
			err = &RefusedError{"the mail server answers " + oneLine(answer.Error())}
		}
	}()
	c, err := smtp.NewClient(conn, host)
	if err != nil {
		return err
	}
	defer c.Close()
	if r.TLS == "starttls" {
		if ok, _ := c.Extension("STARTTLS"); !ok {
			return errors.New("the mail server does not offer STARTTLS; tls: none sends without it")
		}
		if err := c.StartTLS(config); err != nil {
			return err
		}
	}
	if r.User != "" {
		if err := c.Auth(smtp.PlainAuth("", r.User, r.Password, host)); err != nil {
			return err
		}
	}
	before = false
	if err := c.Mail(r.From); err != nil {
		return err
	}
	// One address that is refused does not keep the mail from the others.
	var refused error
	taken := 0
	for _, to := range r.To {
		if err := c.Rcpt(to); err != nil {
			refused = err
			continue
		}
		taken++
	}
	if taken == 0 {
		return refused
	}
	w, err := c.Data()
	if err != nil {
		return err
	}
	if _, err := w.Write(mailText(r, m)); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	c.Quit() // the mail has been accepted
	if refused != nil {
		return &RefusedError{fmt.Sprintf("the mail server takes the mail for %d of %d addresses: %s", taken, len(r.To), oneLine(refused.Error()))}
	}
	return nil
}
