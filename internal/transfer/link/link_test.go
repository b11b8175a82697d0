package link

import (
	"bytes"
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"gopkg.in/yaml.v3"

	"premix/internal/transfer"
)

const whole = `
name: campus
host: peer.example.org
port: 2222
user: me
identity: key
known_hosts: /etc/ssh/known
directory: data
peer_directory: /scratch/premix
interface: eth0
sizes: [5M, 2.5G, 512]
trees: [{files: 10000, size: 4K}]
directions: [get, put]
repeat: 7
seed: 3
timeout: 10m
quiet: {for: 1s, below: 2Mbit/s}
peak: ["11:00-15:00", "23:00-01:00"]
protocols:
  - scp
  - use: aria2
    name: aria2-16
    set: {streams: 16}
  - name: mine
    about: a program of one's own
    get: mine -n ${deep} "${src}" "${dst}" $other
    set: {deep: 3}
    needs: [mine]
    expect: udp
    open: true
`

func parse(text string) (*Link, error) { return Parse("l.yaml", "/some/where/l.yaml", []byte(text)) }

func TestWhole(t *testing.T) {
	l, err := parse(whole)
	if err != nil {
		t.Fatal(err)
	}
	if l.Name != "campus" || l.Identity != "/some/where/key" || l.Directory != "/some/where/data" || l.Timeout != 10*time.Minute ||
		l.Quiet != (Quiet{time.Second, 250_000}) || l.Repeat != 7 || len(l.Ways) != 2 || l.Peer() != "me@peer.example.org" {
		t.Errorf("%+v", l)
	}
	want := []Data{{1, 5 << 20}, {1, 5 << 29}, {1, 512}, {10000, 40960000}}
	for i, d := range l.Data {
		if d != want[i] {
			t.Errorf("data %d is %+v, want %+v", i, d, want[i])
		}
	}
	if l.Data[3].String() != "10000x4K" || l.Data[1].String() != "2.5G" {
		t.Errorf("names %s, %s", l.Data[3], l.Data[1])
	}
	if len(l.Protocols) != 3 {
		t.Fatalf("%d protocols", len(l.Protocols))
	}
	a := l.Protocols[1]
	if a.Name != "aria2-16" || a.Settings["streams"] != "16" || a.Settings["server_port"] != "8782" || a.Server == "" {
		t.Errorf("%+v", a)
	}
	shipped, err := Shipped()
	if err != nil || shipped["aria2"].Settings["streams"] != "8" {
		t.Errorf("a link file has changed a shipped protocol: %v", shipped["aria2"].Settings)
	}
	m := l.Protocols[2]
	if m.Expect != "udp" || !m.Open || m.Script(transfer.Get, false) == "" || m.Script(transfer.Get, true) != "" || m.Script(transfer.Put, false) != "" {
		t.Errorf("%+v", m)
	}
	for at, want := range map[string]string{"10:59": "off-peak", "11:00": "peak", "14:59": "peak", "15:00": "off-peak", "00:30": "peak", "23:00": "peak", "01:00": "off-peak"} {
		when, err := time.Parse("15:04", at)
		if err != nil || l.Period(when) != want {
			t.Errorf("%s is %s, want %s", at, l.Period(when), want)
		}
	}
}

// Every text with special characters arrives unchanged in a script.
func TestVariables(t *testing.T) {
	l, err := parse(whole)
	if err != nil {
		t.Fatal(err)
	}
	hard := "/d/it's $HOME `x` \"q\" \\ *"
	script := l.Variables(&l.Protocols[2], Places{Local: hard, Remote: "/scratch/premix/a/b", RemoteRoot: "/scratch/premix", Address: "fd00::1", Put: true}) +
		`printf '%s|' "${local}" "${remote_inside}" "${host_address}" "${src}" "${deep}" "${scp}"`
	out, err := exec.Command("sh", "-c", script).Output()
	if err != nil {
		t.Fatal(err)
	}
	want := hard + "|a/b|[fd00::1]|" + hard + "|3|-o BatchMode=yes -o ConnectTimeout=15 -o ServerAliveInterval=10 -o ServerAliveCountMax=3 -P 2222 -i /some/where/key -o IdentitiesOnly=yes -o UserKnownHostsFile=/etc/ssh/known -o StrictHostKeyChecking=yes|"
	if string(out) != want {
		t.Errorf("variables:\n%s\nwant:\n%s", out, want)
	}
}

// sh can parse all scripts of the shipped protocols.
func TestShippedScripts(t *testing.T) {
	list, err := Shipped()
	if err != nil {
		t.Fatal(err)
	}
	if len(list) < 15 {
		t.Errorf("only %d protocols", len(list))
	}
	for name, p := range list {
		if p.About == "" {
			t.Errorf("%s says nothing about itself", name)
		}
		for _, s := range []string{p.Get, p.Put, p.GetTree, p.PutTree, p.Server, p.Prepare} {
			cmd := exec.Command("sh", "-n")
			cmd.Stdin = strings.NewReader(s)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%s: %v: %s\n%s", name, err, out, s)
			}
		}
	}
}

func TestMistakes(t *testing.T) {
	const good = "host: h\ndirectory: d\npeer_directory: /p\nsizes: [1M]\nprotocols: [scp]\n"
	if _, err := parse(good); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, text string
		line       int
		want       string
	}{
		{"empty", "", 0, "empty"},
		{"no mapping", "- a\n", 1, "not a link file"},
		{"not YAML", "a: [\n", 0, "not YAML"},
		{"two", good + "---\na: b\n", 0, "second document"},
		{"missing", "host: h\n", 1, "protocols is missing"},
		{"no data", "host: h\ndirectory: d\npeer_directory: /p\nprotocols: [scp]\n", 1, "what is to be copied"},
		{"unknown key", good + "hots: x\n", 6, "unknown key hots"},
		{"twice", good + "host: x\n", 6, "occurs twice"},
		{"option as host", strings.Replace(good, "host: h", "host: -oProxyCommand=x", 1), 1, "not of the right form"},
		{"option as user", good + "user: -x\n", 6, "not of the right form"},
		{"root", strings.Replace(good, "/p", "/", 1), 3, "not /"},
		{"relative peer", strings.Replace(good, "/p", "p", 1), 3, "absolute"},
		{"blank", strings.Replace(good, "/p", "/p q", 1), 3, "not of the right form"},
		{"size", strings.Replace(good, "1M", "1X", 1), 4, "not a size"},
		{"not a size", strings.Replace(good, "1M", "0", 1), 4, "not a size"},
		{"protocol", strings.Replace(good, "scp", "scq", 1), 5, "unknown protocol scq"},
		{"same twice", strings.Replace(good, "scp", "scp, scp", 1), 5, "occurs twice"},
		{"no command", strings.Replace(good, "[scp]", "[{name: x}]", 1), 5, "no command"},
		{"no name", strings.Replace(good, "[scp]", "[{get: x}]", 1), 5, "needs a name"},
		{"place", strings.Replace(good, "[scp]", "[{name: x, get: 'x ${lcal}'}]", 1), 5, "${lcal} is not defined"},
		{"setting", strings.Replace(good, "[scp]", "[{name: x, get: x, set: {host: a}}]", 1), 5, "name of a setting"},
		{"expect", strings.Replace(good, "[scp]", "[{name: x, get: x, expect: icmp}]", 1), 5, "only be udp"},
		{"peak", good + "peak: ['25:00-26:00']\n", 6, "span of a day"},
		{"repeat", good + "repeat: 0\n", 6, "whole number"},
		{"quiet", good + "quiet: {below: 3}\n", 6, "rate"},
		{"tree", good + "trees: [{files: 3}]\n", 6, "size of each"},
		{"direction", good + "directions: [up]\n", 6, "get or put"},
		{"timeout", good + "timeout: 5\n", 6, "must be a time"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := parse(c.text)
			var p Problems
			if !errors.As(err, &p) {
				t.Fatalf("error %v", err)
			}
			for _, x := range p {
				if strings.Contains(x.Message, c.want) && (c.line == 0 || x.Line == c.line) {
					return
				}
			}
			t.Errorf("problems %+v, want %q in line %d", p, c.want, c.line)
		})
	}
}

// The schema accepts the files that Load accepts, and refuses files of the wrong form.
func TestSchema(t *testing.T) {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(Schema()))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("urn:premix:link:1", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("urn:premix:link:1")
	if err != nil {
		t.Fatal(err)
	}
	for text, ok := range map[string]bool{
		whole:                                   true,
		strings.Replace(whole, "5M,", "5X,", 1): false,
		strings.Replace(whole, "host:", "hots:", 1):         false,
		strings.Replace(whole, "- scp", "- {name: x}", 1):   false,
		strings.Replace(whole, "expect: udp", "nil: x", 1):  false,
		strings.Replace(whole, "repeat: 7", "repeat: 0", 1): false,
	} {
		var v any
		if err := yaml.Unmarshal([]byte(text), &v); err != nil {
			t.Fatal(err)
		}
		if err := s.Validate(v); (err == nil) != ok {
			t.Errorf("valid: %v, want %v; %v\n%s", err == nil, ok, err, text)
		}
		if _, err := parse(text); (err == nil) != ok {
			t.Errorf("loads: %v, want %v", err, ok)
		}
	}
}

func TestForHost(t *testing.T) {
	l, err := ForHost("me@there")
	if err != nil || l.Host != "there" || l.User != "me" {
		t.Fatalf("%+v, %v", l, err)
	}
	for _, p := range l.Protocols {
		if p.Open || p.Server != "" {
			t.Errorf("%s is among the protocols of a host that was only named", p.Name)
		}
	}
	for _, bad := range []string{"-oProxyCommand=x", "a b", "@x", "x@-y", ""} {
		if _, err := ForHost(bad); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}
