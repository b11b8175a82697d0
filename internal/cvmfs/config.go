package cvmfs

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// Config is the configuration of a client for one repository.
type Config struct {
	Servers []string   // URLs of the repository, the best first
	Proxies [][]string // groups, the best first; within one all are equal. "DIRECT" means none
	Keys    []string   // files and directories of master keys
	GeoAPI  bool       // the servers are to be ordered by distance
	// Profiles are files with profiles: config.d/NAME.profile and config.d/NAME.*.profile, in
	// the order of their names.
	Profiles []string
	vars     map[string]string
}

// ReadConfig reads the configuration of a repository from a directory like /etc/cvmfs,
// in the order of the client of CVMFS: default.conf, default.d/*.conf, default.local,
// domain.d/DOMAIN.conf and .local, config.d/NAME.conf and .local. Files that do not exist
// are left out. The files have lines KEY=VALUE, with quotes and $KEY as in a shell, and
// nothing else of a shell.
func ReadConfig(dir, name string) (*Config, error) {
	c := &Config{vars: map[string]string{}}
	org, domain, _ := strings.Cut(name, ".")
	files := []string{"default.conf"}
	more, err := filepath.Glob(filepath.Join(dir, "default.d", "*.conf"))
	if err != nil {
		return nil, &Error{Kind: Usage, Reason: err.Error(), Err: err}
	}
	for _, f := range more {
		files = append(files, "default.d/"+filepath.Base(f))
	}
	files = append(files, "default.local", "domain.d/"+domain+".conf", "domain.d/"+domain+".local", "config.d/"+name+".conf", "config.d/"+name+".local")
	for _, f := range files {
		if err := c.read(filepath.Join(dir, f)); err != nil {
			return nil, err
		}
	}
	fill := strings.NewReplacer("@fqrn@", name, "@org@", org)
	for _, s := range strings.FieldsFunc(c.vars["CVMFS_SERVER_URL"], func(r rune) bool { return r == ';' || r == ',' }) {
		c.Servers = append(c.Servers, fill.Replace(strings.TrimSpace(s)))
	}
	if c.Proxies, err = ParseProxies(c.vars["CVMFS_HTTP_PROXY"]); err != nil {
		return nil, err
	}
	c.GeoAPI = slices.Contains([]string{"yes", "on", "true", "1"}, strings.ToLower(c.vars["CVMFS_USE_GEOAPI"]))
	if k := c.vars["CVMFS_PUBLIC_KEY"]; k != "" {
		c.Keys = strings.Split(k, ":")
	} else if k := c.vars["CVMFS_KEYS_DIR"]; k != "" {
		c.Keys = []string{k}
	} else {
		// Packages with keys have them here: of a domain in a directory of its own.
		for _, d := range []string{filepath.Join("keys", domain), "keys"} {
			if found, _ := filepath.Glob(filepath.Join(dir, d, "*.pub")); len(found) > 0 {
				c.Keys = []string{filepath.Join(dir, d)}
				break
			}
		}
	}
	for _, pattern := range []string{name + ".profile", name + ".*.profile"} {
		found, err := filepath.Glob(filepath.Join(dir, "config.d", pattern))
		if err != nil {
			return nil, &Error{Kind: Usage, Reason: err.Error(), Err: err}
		}
		c.Profiles = append(c.Profiles, found...)
	}
	return c, nil
}

var (
	assignment = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)=(.*)$`) })
	variable   = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\$\{?([A-Za-z_][A-Za-z0-9_]*)\}?`) })
)

func (c *Config) read(file string) error {
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrInvalid) {
		return nil
	}
	if err != nil {
		return &Error{Kind: Usage, Reason: err.Error(), Err: err}
	}
	defer f.Close()
	s := bufio.NewScanner(f)
	for n := 1; s.Scan(); n++ {
		line := strings.TrimSpace(s.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		m := assignment().FindStringSubmatch(line)
		if m == nil {
			return &Error{Kind: Usage, Reason: fmt.Sprintf("%s:%d: %q is not KEY=VALUE", file, n, line), HintText: "only assignments of the client's configuration are read, and nothing else of a shell"}
		}
		c.vars[m[1]] = c.value(m[2])
	}
	if err := s.Err(); err != nil {
		return &Error{Kind: Usage, Reason: fmt.Sprintf("%s: %v", file, err), Err: err}
	}
	return nil
}

// Variables returns all assignments, as values for variables in symbolic links.
func (c *Config) Variables() map[string]string { return maps.Clone(c.vars) }

// value removes quotes and a comment, and replaces variables.
func (c *Config) value(s string) string {
	expand := func(s string) string {
		return variable().ReplaceAllStringFunc(s, func(v string) string { return c.vars[strings.Trim(v, "${}")] })
	}
	switch {
	case strings.HasPrefix(s, "'"):
		s, _, _ = strings.Cut(s[1:], "'")
		return s
	case strings.HasPrefix(s, `"`):
		s, _, _ = strings.Cut(s[1:], `"`)
		return expand(s)
	}
	s, _, _ = strings.Cut(s, " ")
	return expand(s)
}

// ParseProxies parses the form of CVMFS_HTTP_PROXY: groups separated by ";", in each
// group proxies separated by "|". An empty string means DIRECT.
func ParseProxies(s string) ([][]string, error) {
	const hint = "write it as in http://squid1:3128|http://squid2:3128;DIRECT"
	var groups [][]string
	for g := range strings.SplitSeq(s, ";") {
		var group []string
		for p := range strings.SplitSeq(g, "|") {
			if p = strings.TrimSpace(p); p == "" {
				continue
			}
			if p != "DIRECT" {
				if p == "auto" {
					return nil, &Error{Kind: Cannot, Reason: "a proxy is \"auto\", and proxy auto-configuration is not read here", HintText: hint}
				}
				if !strings.Contains(p, "://") {
					p = "http://" + p
				}
				if u, err := url.Parse(p); err != nil || u.Host == "" {
					return nil, &Error{Kind: Usage, Reason: fmt.Sprintf("%q is not a proxy", p), HintText: hint}
				}
			}
			if !slices.Contains(group, p) {
				group = append(group, p)
			}
		}
		if len(group) > 0 {
			groups = append(groups, group)
		}
	}
	if len(groups) == 0 {
		groups = [][]string{{"DIRECT"}}
	}
	return groups, nil
}
