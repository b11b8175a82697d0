package origin

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"

	"premix/internal/kit/exit"
	"premix/internal/kit/owner"
)

// Credentials holds the tokens and passwords of machines, from a credentials file.
type Credentials struct {
	file    string
	entries []entry
}

type entry struct {
	machine string // host[:port], or scheme://host[:port]
	login   string
	secret  string // password
	token   string
}

// CredentialsError reports an invalid credentials file. It never quotes the file.
type CredentialsError struct {
	File     string
	Line     int // 0 for the file as a whole
	Reason   string
	HintText string
}

func (e *CredentialsError) Error() string {
	if e.Line > 0 {
		return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Reason)
	}
	return e.File + ": " + e.Reason
}

// ExitCode implements exit.Coded.
func (*CredentialsError) ExitCode() exit.Code { return exit.Usage }

// Hint returns the hint for the user.
func (e *CredentialsError) Hint() string { return e.HintText }

// ReadCredentials reads a credentials file, which must be private to its owner.
func ReadCredentials(path string) (*Credentials, error) {
	text, err := owner.ReadSecret(path)
	var foreign *owner.Error
	if errors.As(err, &foreign) {
		return nil, &CredentialsError{path, 0, "it " + foreign.Reason, foreign.HintText}
	}
	if err != nil {
		return nil, err
	}
	return ParseCredentials(path, text)
}

// ParseCredentials parses lines in the manner of netrc(5):
//
//	machine example.org login me password secret
//	machine store.example.org:8443 token 0123456789
//	machine http://10.0.0.5:8400 token 0123456789
//
// A machine is a host, with a port unless it is the scheme's own. Credentials are sent
// over TLS or within this machine, unless the machine is written with http:// as in the
// third line. There is no default entry: it would be sent to any host. Everything from
// a word that begins with # to the end of its line is a comment.
func ParseCredentials(file string, content []byte) (*Credentials, error) {
	c := &Credentials{file: file}
	fail := func(line int, format string, args ...any) (*Credentials, error) {
		return nil, &CredentialsError{file, line, fmt.Sprintf(format, args...), "write lines as in `machine example.org token TOKEN`, or `machine example.org login USER password PASSWORD`"}
	}
	var key string
	for n, line := range strings.Split(string(content), "\n") {
		for _, w := range strings.Fields(line) {
			if strings.HasPrefix(w, "#") && key == "" {
				break
			}
			if key == "" {
				switch w {
				case "machine", "login", "password", "token", "account":
					key = w
				case "default", "macdef":
					return fail(n+1, "%s is not supported", w)
				default:
					return fail(n+1, "it has an unexpected word")
				}
				if key != "machine" && len(c.entries) == 0 {
					return fail(n+1, "%s comes before any machine", key)
				}
				continue
			}
			if key == "machine" {
				c.entries = append(c.entries, entry{machine: strings.ToLower(strings.TrimSuffix(w, "/"))})
			} else {
				e := &c.entries[len(c.entries)-1]
				switch key {
				case "login":
					e.login = w
				case "password":
					e.secret = w
				case "token":
					e.token = w
				}
			}
			key = ""
		}
	}
	if key != "" {
		return fail(strings.Count(string(content), "\n")+1, "nothing follows %s", key)
	}
	for _, e := range c.entries {
		if e.token == "" && (e.login == "" || e.secret == "") {
			return fail(0, "machine %s has neither a token nor login and password", e.machine)
		}
	}
	return c, nil
}

// header returns the value of the Authorization header for u, or "" for none. The first
// entry of the file that matches wins.
func (c *Credentials) header(u *url.URL) (string, error) {
	e, err := c.find(u)
	switch {
	case err != nil || e == nil:
		return "", err
	case e.token != "":
		return "Bearer " + e.token, nil
	}
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(e.login+":"+e.secret)), nil
}

func (c *Credentials) find(u *url.URL) (*entry, error) {
	if c == nil {
		return nil, nil
	}
	host := strings.ToLower(u.Host)
	var plain bool
	for i := range c.entries {
		e := &c.entries[i]
		switch e.machine {
		case u.Scheme + "://" + host:
			return e, nil
		case host, "https://" + host:
			if u.Scheme == "http" && !loopback(u.Hostname()) {
				plain = true
				continue
			}
			if e.machine == host || u.Scheme == "https" {
				return e, nil
			}
		}
	}
	if plain {
		return nil, &CredentialsError{c.file, 0, "the credentials of " + host + " would be sent unencrypted over plain HTTP", "use https://, or write `machine http://" + host + "` if you trust the network"}
	}
	return nil, nil
}

// loopback reports whether a host is this machine.
func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
