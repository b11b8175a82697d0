package origin

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"premix/internal/kit/exit"
	"premix/internal/store/object"
)

// Options configure how origins are reached. The zero value is usable.
type Options struct {
	// Proxies are tried in order: URLs (http://HOST:PORT, https://, socks5://) and the
	// word DIRECT. If there are none, the environment decides (HTTP_PROXY and so on).
	Proxies []string
	// Credentials of origins and proxies; nil for none.
	Credentials *Credentials
	// CAFile holds certificates (PEM) that are trusted besides the system's.
	CAFile string
	// CertFile and KeyFile identify this client (PEM). They are presented to the
	// origin's own host only.
	CertFile, KeyFile string
	// PlainHTTP permits registries without TLS; a registry on this machine does not
	// need it.
	PlainHTTP bool
	// UserAgent is sent to servers; the default is "premix".
	UserAgent string

	Connections int           // concurrent, to one origin; default 32
	Connect     time.Duration // limit for connecting and for TLS; default 10 s
	Header      time.Duration // limit for the first byte of an answer; default 30 s
	Stall       time.Duration // a body must bring StallBytes in every such interval; default 15 s
	StallBytes  int64         // default 64 KiB

	// The fields below are for groups.

	Near      Near          // asked for objects before the origins; may be nil
	Fetches   int           // concurrent fetches of objects; default 64
	Patience  time.Duration // how long a fetch waits for origins to recover; default 20 s, negative: not at all
	Rest      time.Duration // how long an origin rests after its first failure; default 500 ms
	RestMost  time.Duration // and its longest rest; default 10 s
	Hedge     bool          // use a second origin when the first is slower than for 99 of 100 fetches
	Cooldown  time.Duration // how long an origin that gave a wrong object is used last; default 1 min
	OnFetch   func(origin string, d object.Digest, bytes int, took time.Duration, err error)
	OnRecover func(origin string) // called when an origin has recovered
}

func (o Options) filled() Options {
	set := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	set(&o.Connect, 10*time.Second)
	set(&o.Header, 30*time.Second)
	set(&o.Stall, 15*time.Second)
	set(&o.Patience, 20*time.Second)
	set(&o.Rest, 500*time.Millisecond)
	set(&o.RestMost, 10*time.Second)
	set(&o.Cooldown, time.Minute)
	if o.StallBytes <= 0 {
		o.StallBytes = 64 << 10
	}
	if o.Connections <= 0 {
		o.Connections = 32
	}
	if o.Fetches <= 0 {
		o.Fetches = 64
	}
	if o.UserAgent == "" {
		o.UserAgent = "premix"
	}
	return o
}

// OpenError reports that a name or its options do not give an origin.
type OpenError struct {
	Origin   string // without credentials
	Err      error
	HintText string
}

func (e *OpenError) Error() string { return fmt.Sprintf("origin %s: %v", e.Origin, e.Err) }

// ExitCode implements exit.Coded.
func (*OpenError) ExitCode() exit.Code { return exit.Usage }
func (e *OpenError) Unwrap() error     { return e.Err }

// Hint returns the hint for the user.
func (e *OpenError) Hint() string { return e.HintText }

// Open returns the origin at a directory, or at a URL: file://, http://, https://, or
// oci://HOST/REPOSITORY. It makes no connection. The error is an [OpenError].
func Open(s string, o Options) (Origin, error) {
	scheme, _, found := strings.Cut(s, "://")
	if !found {
		if s == "" {
			return nil, &OpenError{"\"\"", errors.New("it is empty"), "name a directory, or a URL that begins with http://, https:// or oci://"}
		}
		return openDir(s, s, o)
	}
	u, err := url.Parse(s)
	if err != nil {
		// The error of url.Parse quotes the whole URL, perhaps with a password.
		return nil, &OpenError{scheme + "://...", errors.New("it is not a URL"), "write it as in https://example.org/store"}
	}
	if u.User != nil {
		return nil, &OpenError{u.Scheme + "://" + u.Host + u.Path, errors.New("user and password do not belong in a URL, where other users of this machine see them"),
			"put a line `machine " + u.Host + " login USER password PASSWORD` into the credentials file"}
	}
	if u.RawQuery != "" || u.Fragment != "" {
		return nil, &OpenError{u.Scheme + "://" + u.Host + u.Path, errors.New("it has a query or a fragment"), "give the URL of the store's root directory"}
	}
	switch scheme {
	case "file":
		if u.Host != "" && u.Host != "localhost" {
			return nil, &OpenError{s, errors.New("a file URL must name this machine"), "write file:///PATH"}
		}
		return openDir(s, u.Path, o)
	case "http", "https":
		return NewHTTP(u, o)
	case "oci":
		return NewOCI(u.Host+strings.TrimRight(u.Path, "/"), o)
	}
	return nil, &OpenError{s, fmt.Errorf("%q is not a scheme of an origin", scheme), "name a directory, or a URL that begins with http://, https:// or oci://"}
}

// openDir opens a directory. It does not use certificates, but reports an invalid file
// of certificates, which is a mistake for any origin.
func openDir(name, path string, o Options) (Origin, error) {
	if _, _, err := tlsConfigs(o); err != nil {
		return nil, &OpenError{name, err, hintPEM}
	}
	return NewDir(path)
}

// OpenAll returns the group of the named origins.
func OpenAll(names []string, o Options) (*Group, error) {
	var all []Origin
	for _, s := range names {
		one, err := Open(s, o)
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return NewGroup(all, o), nil
}
