package link

import (
	_ "embed"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"os/user"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"gopkg.in/yaml.v3"

	"premix/internal/transfer"

	"premix/internal/kit/problem"
	"premix/internal/kit/regex"
	"premix/internal/kit/units"
)

//go:embed link.schema.json
var schema []byte

// Schema returns the JSON Schema (draft 2020-12) of a link file.
func Schema() []byte { return slices.Clone(schema) }

//go:embed protocols.yaml
var shipped []byte

// maxLink is the size in bytes above which a file cannot be a link file.
const maxLink = 1 << 20

// The keys, in the order in which people write them.
var (
	linkKeys = []string{"name", "host", "port", "user", "identity", "known_hosts", "directory", "peer_directory", "interface",
		"sizes", "trees", "directions", "repeat", "seed", "timeout", "stall", "quiet", "peak", "protocols"}
	protocolKeys = []string{"use", "name", "about", "needs", "needs_peer", "set", "server", "prepare", "get", "put", "get_tree", "put_tree", "open", "resumes", "verifies", "stages", "expect"}
	treeKeys     = []string{"files", "size"}
	quietKeys    = []string{"for", "below"}
)

// The forms of texts; the schema has the same.
var (
	nameForm    = regex.Lazy(`^[a-z0-9][a-z0-9._-]*$`)
	hostForm    = regex.Lazy(`^[A-Za-z0-9:][A-Za-z0-9._:-]*$`)
	userForm    = regex.Lazy(`^[A-Za-z_][A-Za-z0-9._-]*$`)
	settingForm = regex.Lazy(`^[a-z][a-z0-9_]*$`)
	rateForm    = regex.Lazy(`^([0-9]+(?:\.[0-9]+)?) ?([KMG]?)bit/s$`)
	spanForm    = regex.Lazy(`^([0-9]{1,2}):([0-9]{2})-([0-9]{1,2}):([0-9]{2})$`)
	// Paths are not quoted in commands that are lists of words for ssh.
	pathForm = regex.Lazy(`^[A-Za-z0-9_./@%+=:,~-]+$`)
)

// The default values.
const (
	defaultRepeat  = 5
	defaultTimeout = 30 * time.Minute
	maxFiles       = 1_000_000
)

var defaultQuiet = Quiet{For: 500 * time.Millisecond, Rate: 1e6 / 8}

// Problem is one mistake in a link file.
type Problem = problem.Problem

// Problems is the list of all mistakes in one file, sorted by line.
type Problems = problem.List

type loader struct {
	problem.Collector
	known map[string]Protocol // shipped protocols; nil while these are being read
	link  *Link
}

// Load reads and checks a link file. It returns all mistakes in the file as [Problems].
func Load(file string) (*Link, error) {
	abs, err := filepath.Abs(file)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, Problems{{File: file, Message: err.Error(), Hint: "name a link file: premix help transfer shows one"}}
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxLink+1))
	if err != nil || len(text) > maxLink {
		return nil, Problems{{File: file, Message: "cannot be read, or is larger than 1 MiB", Hint: "is this a link file?"}}
	}
	return Parse(file, abs, text)
}

// Parse parses the text of a link file; relative paths in it start from abs.
func Parse(file, abs string, text []byte) (*Link, error) {
	known, err := Shipped()
	if err != nil {
		return nil, err
	}
	l := &loader{Collector: problem.Collector{File: file}, known: known, link: &Link{Path: abs, Repeat: defaultRepeat, Timeout: defaultTimeout, Quiet: defaultQuiet,
		Ways: []transfer.Direction{transfer.Get}}}
	if root := l.YAML(text, document); root != nil {
		l.top(root)
	}
	if err := l.Err(); err != nil {
		return nil, err
	}
	return l.link, nil
}

// Shipped returns the protocols of protocols.yaml, by name. They are read once; the map and
// its values must not be changed.
var Shipped = sync.OnceValues(readShipped)

func readShipped() (map[string]Protocol, error) {
	l := &loader{Collector: problem.Collector{File: "protocols.yaml"}}
	list := map[string]Protocol{}
	if root := l.YAML(shipped, document); root != nil {
		l.Mapping(root, "protocols", nil, func(name string, n *yaml.Node) {
			p := Protocol{Name: name, Settings: map[string]string{}}
			l.protocol(&p, n)
			list[name] = p
		})
	}
	return list, l.Err()
}

// ForHost returns a link without a file, for a host named on the command line as
// [USER@]HOST, with the shipped protocols that are not open.
func ForHost(peer string) (*Link, error) {
	known, err := Shipped()
	if err != nil {
		return nil, err
	}
	l := &Link{Host: peer, Port: 22, Repeat: 1, Timeout: 24 * time.Hour, Quiet: defaultQuiet, Ways: []transfer.Direction{transfer.Get, transfer.Put}}
	if u, h, ok := strings.Cut(peer, "@"); ok {
		l.User, l.Host = u, h
		if !userForm().MatchString(u) {
			return nil, fmt.Errorf("%q is not the name of a user", u)
		}
	}
	if !hostForm().MatchString(l.Host) {
		return nil, fmt.Errorf("%q is not the name of a host", l.Host)
	}
	l.Name = strings.ToLower(l.Host)
	for _, name := range slices.Sorted(maps.Keys(known)) {
		if p := known[name]; !p.Open && p.Server == "" {
			p.Settings = maps.Clone(p.Settings) // a copy for this link
			l.Protocols = append(l.Protocols, p)
		}
	}
	return l, nil
}

var document = problem.Document{Name: "link file", Form: "a link file has at least host:, directory:, peer_directory:, sizes: and protocols:"}

func (l *loader) text(n *yaml.Node, key string) string {
	s, _ := l.Text(n, key)
	return s
}

// formed returns the text of a key. A text that does not match form is a mistake, and
// formed returns "".
func (l *loader) formed(n *yaml.Node, key string, form *regexp.Regexp, hint string) string {
	s := l.text(n, key)
	if s != "" && !form.MatchString(s) {
		l.Add(n.Line, hint, "%s: %q is not of the right form", key, s)
		return ""
	}
	return s
}

func (l *loader) number(n *yaml.Node, key string, least, most int) int {
	v, err := strconv.Atoi(l.text(n, key))
	if err != nil || v < least || v > most {
		l.Add(n.Line, "", "%s must be a whole number from %d to %d", key, least, most)
		return least
	}
	return v
}

func (l *loader) boolean(n *yaml.Node, key string) bool {
	v, err := strconv.ParseBool(l.text(n, key))
	if err != nil {
		l.Add(n.Line, "", "%s must be true or false", key)
	}
	return v
}

func (l *loader) list(n *yaml.Node, key string, each func(*yaml.Node)) {
	if n.Kind != yaml.SequenceNode || len(n.Content) == 0 {
		l.Add(n.Line, "", "%s must be a list", key)
		return
	}
	for _, e := range n.Content {
		each(problem.Follow(e))
	}
}

func (l *loader) duration(n *yaml.Node, key string) time.Duration {
	d, err := units.ParseDuration(l.text(n, key))
	if err != nil {
		l.Add(n.Line, "write it as in 500ms, 30s or 10m", "%s must be a time", key)
	}
	return d
}

func (l *loader) size(n *yaml.Node, key string) int64 {
	v, err := units.ParseSize(l.text(n, key))
	if err != nil || v == 0 {
		l.Add(n.Line, units.SizeHint, "%s: %q is not a size", key, n.Value)
	}
	return v
}

func (l *loader) top(root *yaml.Node) {
	k := l.link
	k.Port = 22
	k.Name = strings.ToLower(strings.TrimSuffix(filepath.Base(k.Path), filepath.Ext(k.Path)))
	seen := map[string]bool{}
	l.Mapping(root, "the link file", linkKeys, func(key string, n *yaml.Node) {
		seen[key] = true
		switch key {
		case "name":
			k.Name = l.formed(n, key, nameForm(), "small letters, digits and . _ -, a letter or a digit first")
		case "host":
			k.Host = l.formed(n, key, hostForm(), "a name or an address")
		case "port":
			k.Port = l.number(n, key, 1, 65535)
		case "user":
			k.User = l.formed(n, key, userForm(), "the name of a user at the peer")
		case "identity":
			k.Identity = l.path(n, key)
		case "known_hosts":
			k.KnownHosts = l.path(n, key)
		case "directory":
			k.Directory = l.path(n, key)
		case "peer_directory":
			k.PeerDirectory = l.formed(n, key, pathForm(), "letters, digits and _ . / @ % + = : , - only")
			if k.PeerDirectory != "" && (!path.IsAbs(k.PeerDirectory) || path.Clean(k.PeerDirectory) == "/") {
				l.Add(n.Line, "begin with /", "peer_directory must be an absolute path, and not /")
			}
			k.PeerDirectory = path.Clean(k.PeerDirectory)
		case "interface":
			k.Interface = l.text(n, key)
		case "sizes":
			l.list(n, key, func(e *yaml.Node) { k.Data = append(k.Data, Data{Files: 1, Size: l.size(e, key)}) })
		case "trees":
			l.list(n, key, func(e *yaml.Node) { l.tree(e) })
		case "directions":
			k.Ways = nil
			l.list(n, key, func(e *yaml.Node) {
				w := transfer.Direction(l.text(e, key))
				if w != transfer.Get && w != transfer.Put || slices.Contains(k.Ways, w) {
					l.Add(e.Line, "directions: [get, put]", "a direction is get or put, each once")
				}
				k.Ways = append(k.Ways, w)
			})
		case "repeat":
			k.Repeat = l.number(n, key, 1, 100_000)
		case "seed":
			k.Seed = uint64(l.number(n, key, 0, math.MaxInt))
		case "timeout":
			k.Timeout = l.duration(n, key)
		case "stall":
			k.Stall = l.duration(n, key)
		case "quiet":
			l.Mapping(n, key, quietKeys, func(q string, n *yaml.Node) {
				if q == "for" {
					k.Quiet.For = l.duration(n, "quiet.for")
					return
				}
				k.Quiet.Rate = l.rate(n)
			})
		case "peak":
			l.list(n, key, l.span)
		case "protocols":
			l.list(n, key, l.entry)
		}
	})
	for _, key := range []string{"host", "directory", "peer_directory", "protocols"} {
		if !seen[key] {
			l.Add(root.Line, "premix help transfer shows an example", "%s is missing", key)
		}
	}
	if !seen["sizes"] && !seen["trees"] {
		l.Add(root.Line, "sizes: [5M, 500M]", "sizes and trees are missing: what is to be copied?")
	}
	if seen["name"] || nameForm().MatchString(k.Name) {
		return
	}
	l.Add(root.Line, "name: my-link", "the file's name makes no name for the link")
}

func (l *loader) path(n *yaml.Node, key string) string {
	s := l.formed(n, key, pathForm(), "letters, digits and _ . / @ % + = : , - only")
	if s == "" {
		return ""
	}
	if rest, ok := strings.CutPrefix(s, "~/"); ok {
		if u, err := user.Current(); err == nil {
			return filepath.Join(u.HomeDir, rest)
		}
	}
	if !filepath.IsAbs(s) {
		s = filepath.Join(filepath.Dir(l.link.Path), s)
	}
	if !pathForm().MatchString(s) {
		l.Add(n.Line, "give an absolute path without blanks", "%s: %q is used in commands, where some of its characters have a special meaning", key, s)
	}
	return filepath.Clean(s)
}

func (l *loader) tree(n *yaml.Node) {
	d := Data{}
	var each int64
	l.Mapping(n, "an entry of trees", treeKeys, func(key string, n *yaml.Node) {
		if key == "files" {
			d.Files = l.number(n, key, 2, maxFiles)
		} else {
			each = l.size(n, key)
		}
	})
	if d.Files == 0 || each == 0 {
		l.Add(n.Line, "trees: [{files: 10000, size: 4K}]", "a tree has a number of files and the size of each")
		return
	}
	d.Size = each * int64(d.Files)
	l.link.Data = append(l.link.Data, d)
}

func (l *loader) rate(n *yaml.Node) int64 {
	m := rateForm().FindStringSubmatch(l.text(n, "quiet.below"))
	if m == nil {
		l.Add(n.Line, "write it as in 1Mbit/s", "quiet.below must be a rate")
		return 0
	}
	v, _ := strconv.ParseFloat(m[1], 64) // the form permits only digits
	return int64(v * map[string]float64{"": 1, "K": 1e3, "M": 1e6, "G": 1e9}[m[2]] / 8)
}

func (l *loader) span(n *yaml.Node) {
	s, ok := ParseSpan(l.text(n, "peak"))
	if !ok {
		l.Add(n.Line, `peak: ["11:00-15:00"]`, "peak: %q is not a span of a day", n.Value)
	}
	l.link.Peak = append(l.link.Peak, s)
}

// ParseSpan parses HH:MM-HH:MM.
func ParseSpan(text string) (Span, bool) {
	m := spanForm().FindStringSubmatch(text)
	if m == nil {
		return Span{}, false
	}
	var v [4]int
	for i := range v {
		v[i], _ = strconv.Atoi(m[i+1]) // the form permits only digits
	}
	s := Span{time.Duration(v[0])*time.Hour + time.Duration(v[1])*time.Minute, time.Duration(v[2])*time.Hour + time.Duration(v[3])*time.Minute}
	return s, v[0] < 24 && v[1] < 60 && (v[2] < 24 || v[2] == 24 && v[3] == 0) && v[3] < 60 && s.From != s.To
}

// entry parses an entry of protocols: a name, or a mapping.
func (l *loader) entry(n *yaml.Node) {
	p := Protocol{Settings: map[string]string{}}
	use := func(n *yaml.Node) {
		name := l.text(n, "protocol")
		from, ok := l.known[name]
		if !ok && name != "" {
			l.Add(n.Line, "there are: "+strings.Join(slices.Sorted(maps.Keys(l.known)), ", ")+"; describe another one with name:, get: and put:", "unknown protocol %s", name)
		}
		from.Name = name
		from.Settings = maps.Clone(from.Settings)
		if from.Settings == nil {
			from.Settings = map[string]string{}
		}
		p = from
	}
	if n.Kind == yaml.ScalarNode {
		use(n)
	} else {
		for i := 0; i+1 < len(n.Content); i += 2 {
			if n.Content[i].Value == "use" {
				use(problem.Follow(n.Content[i+1]))
			}
		}
		l.protocol(&p, n)
	}
	if p.Name == "" {
		l.Add(n.Line, "name: my-tool", "a protocol needs a name")
	}
	for _, other := range l.link.Protocols {
		if other.Name == p.Name && p.Name != "" {
			l.Add(n.Line, "give one of them another name:", "%s occurs twice in protocols", p.Name)
		}
	}
	l.link.Protocols = append(l.link.Protocols, p)
}

// protocol parses a mapping, which overrides the values in p.
func (l *loader) protocol(p *Protocol, n *yaml.Node) {
	scripts := map[string]*string{"get": &p.Get, "put": &p.Put, "get_tree": &p.GetTree, "put_tree": &p.PutTree, "server": &p.Server, "prepare": &p.Prepare}
	lines := map[string]int{}
	words := func(n *yaml.Node, key string) (list []string) {
		l.list(n, key, func(e *yaml.Node) { list = append(list, l.text(e, key)) })
		return list
	}
	l.Mapping(n, "a protocol", protocolKeys, func(key string, n *yaml.Node) {
		switch key {
		case "use": // was read before
		case "name":
			p.Name = l.formed(n, key, nameForm(), "small letters, digits and . _ -, a letter or a digit first")
		case "about":
			p.About = l.text(n, key)
		case "needs":
			p.Needs = words(n, key)
		case "needs_peer":
			p.NeedsPeer = words(n, key)
		case "set":
			l.Mapping(n, key, nil, func(name string, v *yaml.Node) {
				if !settingForm().MatchString(name) || slices.Contains(placeNames, name) {
					l.Add(v.Line, "use lower-case letters, digits and _, and a name that is not in use", "%q can't be the name of a setting", name)
				}
				p.Settings[name] = l.text(v, "set."+name)
			})
		case "open":
			p.Open = l.boolean(n, key)
		case "resumes":
			p.Resumes = l.boolean(n, key)
		case "verifies":
			p.Verifies = l.boolean(n, key)
		case "stages":
			p.Stages = l.boolean(n, key)
		case "expect":
			if p.Expect = l.text(n, key); p.Expect != "udp" {
				l.Add(n.Line, "expect: udp", "expect can only be udp")
			}
		default:
			*scripts[key] = l.text(n, key)
			lines[key] = n.Line
		}
	})
	if p.Get == "" && p.Put == "" && p.GetTree == "" && p.PutTree == "" {
		l.Add(n.Line, `get: my-tool "${peer}:${remote}" "${local}"`, "the protocol has no command: get, put, get_tree or put_tree")
	}
	known := append(slices.Clone(placeNames), slices.Sorted(maps.Keys(p.Settings))...)
	for key, line := range lines {
		for _, m := range placeForm().FindAllStringSubmatch(*scripts[key], -1) {
			if !slices.Contains(known, m[1]) {
				l.Add(line, "there are: "+strings.Join(known, ", ")+"; a variable of the script's own is written $"+m[1], "%s: ${%s} is not defined", key, m[1])
			}
		}
	}
}
