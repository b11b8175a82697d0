package tagsync

import (
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"gopkg.in/yaml.v3"

	"premix/internal/kit/problem"
	"premix/internal/kit/regex"
	"premix/internal/kit/units"
	"premix/internal/store/tree"
)

// maxList is the size limit of a watch list, in bytes.
const maxList = 16 << 20

// Keys, in their usual order.
var (
	listKeys  = []string{"name", "interval", "together", "timeout", "platform", "gone", "gc", "images"}
	entryKeys = []string{"image", "tags", "exclude", "exclude_names", "newest", "as", "platform", "gone"}
	gcKeys    = []string{"keep", "keep_for"}
)

// Forms of values; the schema has the same.
var (
	nameForm     = regex.Lazy(`^[a-z0-9][a-z0-9._-]*$`)
	platformForm = regex.Lazy(`^[a-z0-9]+/[a-z0-9]+(/[a-z0-9.]+)?$`)
)

var document = problem.Document{Name: "watch list", Form: "a watch list has a key images: with a list of names below it"}

// Load reads and checks a watch list. It returns all mistakes in it as [Problems].
func Load(file string) (*List, error) {
	l := &loader{Collector: problem.Collector{File: file}, gone: GonePolicy{After: defaultGone}}
	abs, err := filepath.Abs(file)
	if err != nil {
		return nil, err
	}
	text, err := readFile(file)
	if err != nil {
		l.Add(0, "name a watch list: premix help image shows one", "%v", err)
		return nil, l.Err()
	}
	l.list = &List{Path: abs, Interval: defaultInterval, Together: defaultTogether, Timeout: defaultTimeout}
	l.list.Name = strings.ToLower(strings.TrimSuffix(filepath.Base(abs), filepath.Ext(abs)))
	if root := l.YAML(text, document); root != nil {
		l.top(root)
	}
	if err := l.Err(); err != nil {
		return nil, err
	}
	return l.list, nil
}

func readFile(file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxList+1))
	if err == nil && len(text) > maxList {
		err = fmt.Errorf("%s is larger than %s", file, units.Size(maxList))
	}
	return text, err
}

// loader converts one YAML file to a List.
type loader struct {
	problem.Collector
	list     *List
	platform string // of entries without one
	gone     GonePolicy
}

// texts reads a non-empty list of texts.
func (l *loader) texts(n *yaml.Node, key string) (list []string) {
	if n.Kind != yaml.SequenceNode || len(n.Content) == 0 {
		l.Add(n.Line, key+": [ONE, ANOTHER]", "%s must be a list", key)
		return nil
	}
	for _, c := range n.Content {
		if s, ok := l.Text(problem.Follow(c), "each of "+key); ok {
			list = append(list, s)
		}
	}
	return list
}

// patterns reads a list of patterns.
func (l *loader) patterns(n *yaml.Node, key string) []string {
	list := l.texts(n, key)
	for _, p := range list {
		l.pattern(n.Line, key, p)
	}
	return list
}

func (l *loader) pattern(line int, key, p string) {
	if _, err := path.Match(p, ""); err != nil {
		l.Add(line, "close each [ with ], and write \\ before a wildcard that is meant literally", "%s: the pattern %q is malformed", key, p)
	}
}

func (l *loader) number(n *yaml.Node, key string, most int) int {
	i, err := strconv.Atoi(n.Value)
	if n.Kind != yaml.ScalarNode || n.Tag != "!!int" || err != nil || i < 1 || i > most {
		l.Add(n.Line, "", "%s must be a whole number from 1 to %d", key, most)
		return 1
	}
	return i
}

// duration reads a positive time, which may begin with days.
func (l *loader) duration(n *yaml.Node, key string) time.Duration {
	s, ok := l.Text(n, key)
	if !ok {
		return time.Second
	}
	d, err := units.ParseDuration(s)
	if err != nil {
		l.Add(n.Line, units.TimeHint, "%s: %q is not a time", key, s)
		return time.Second
	}
	return d
}

func (l *loader) readPlatform(n *yaml.Node) string {
	s, ok := l.Text(n, "platform")
	if ok && !platformForm().MatchString(s) {
		l.Add(n.Line, "write it as in linux/amd64 or linux/arm64/v8", "platform: %q is not a platform", s)
	}
	return s
}

func (l *loader) readGone(n *yaml.Node) GonePolicy {
	switch n.Value {
	case "keep":
		return GonePolicy{Keep: true}
	case "remove":
		return GonePolicy{}
	}
	return GonePolicy{After: l.duration(n, "gone")}
}

func (l *loader) top(root *yaml.Node) {
	var images *yaml.Node
	l.Mapping(root, "the watch list", listKeys, func(key string, v *yaml.Node) {
		switch key {
		case "name":
			l.list.Name, _ = l.Text(v, key)
		case "interval":
			l.list.Interval = l.duration(v, key)
		case "together":
			l.list.Together = l.number(v, key, 64)
		case "timeout":
			l.list.Timeout = l.duration(v, key)
		case "platform":
			l.platform = l.readPlatform(v)
		case "gone":
			l.gone = l.readGone(v)
		case "gc":
			l.gc(v)
		case "images":
			images = v
		}
	})
	if !nameForm().MatchString(l.list.Name) {
		l.Add(0, "name: mine, in small letters, digits and . _ -", "the list has no name, and its file name %q is not valid as one", l.list.Name)
	}
	switch {
	case images == nil:
		l.Add(root.Line, "images: [debian:12]", "images is missing")
		return
	case images.Kind != yaml.SequenceNode:
		l.Add(images.Line, "images: [debian:12]", "images must be a list")
		return
	}
	for _, n := range images.Content {
		l.entry(problem.Follow(n))
	}
}

func (l *loader) gc(n *yaml.Node) {
	gc := &GC{Keep: 1, KeepFor: 24 * time.Hour}
	switch {
	case n.Kind == yaml.ScalarNode && n.Tag == "!!bool":
		var on bool
		if n.Decode(&on) != nil || !on {
			return
		}
	case n.Kind == yaml.MappingNode:
		l.Mapping(n, "gc", gcKeys, func(key string, v *yaml.Node) {
			switch key {
			case "keep":
				gc.Keep = l.number(v, "gc.keep", 1<<30)
			case "keep_for":
				gc.KeepFor = l.duration(v, "gc.keep_for")
			}
		})
	default:
		l.Add(n.Line, "gc: true, or gc: {keep_for: 7d}", "gc must be true, false or a mapping")
	}
	l.list.GC = gc
}

func (l *loader) entry(n *yaml.Node) {
	e := Entry{Line: n.Line, Platform: l.platform, Gone: l.gone}
	was := len(l.List)
	var image string
	switch n.Kind {
	case yaml.ScalarNode:
		image, _ = l.Text(n, "an image")
	case yaml.MappingNode:
		l.Mapping(n, "an image", entryKeys, func(key string, v *yaml.Node) {
			switch key {
			case "image":
				image, _ = l.Text(v, key)
			case "tags":
				e.Tags = l.patterns(v, key)
			case "exclude":
				e.Exclude = l.patterns(v, key)
			case "exclude_names":
				e.ExcludeNames = l.patterns(v, key)
			case "newest":
				e.Newest = l.number(v, key, 1<<30)
			case "as":
				e.As, _ = l.Text(v, key)
			case "platform":
				e.Platform = l.readPlatform(v)
			case "gone":
				e.Gone = l.readGone(v)
			}
		})
		if image == "" && len(l.List) == was {
			l.Add(n.Line, "image: REGISTRY/NAME:TAG", "the key image is missing")
		}
	default:
		l.Add(n.Line, "write REGISTRY/NAME:TAG, or image: and more keys", "an image must be a text or a mapping")
	}
	if len(l.List) > was {
		return
	}
	l.source(&e, image)
	if len(l.List) == was {
		l.list.Entries = append(l.list.Entries, e)
	}
}

// source splits [REGISTRY/]NAME[:TAG].
func (l *loader) source(e *Entry, image string) {
	rest := strings.TrimPrefix(image, "docker://")
	host := name.DefaultRegistry
	if first, more, ok := strings.Cut(rest, "/"); ok && (strings.ContainsAny(first, ".:") || first == "localhost") {
		host, rest = first, more
	}
	if host == "docker.io" {
		host = name.DefaultRegistry
	}
	if strings.Contains(rest, "@") {
		l.Add(e.Line, "write a tag; an image that never changes is added with premix image add", "%s names a digest", image)
		return
	}
	if i := strings.LastIndexByte(rest, ':'); i >= 0 {
		if e.Tags != nil {
			l.Add(e.Line, "leave one of them out", "%s has a tag, and there are tags: besides", image)
			return
		}
		e.Tags, rest = []string{rest[i+1:]}, rest[:i]
		l.pattern(e.Line, "image", e.Tags[0])
	}
	if e.Tags == nil {
		e.Tags = []string{tree.DefaultTag}
	}
	registry, err := name.NewRegistry(host)
	if err != nil || wild(host) {
		l.Add(e.Line, "give a host, and perhaps a port; wildcards may only follow it", "%q is not a registry", host)
		return
	}
	e.Registry = registry.RegistryStr()
	if e.Registry == name.DefaultRegistry && !strings.Contains(rest, "/") {
		rest = "library/" + rest
	}
	e.Name = rest
	l.pattern(e.Line, "image", rest)
	if !wild(rest) {
		if _, err := name.NewRepository(e.Registry + "/" + rest); err != nil {
			l.Add(e.Line, "write [REGISTRY/]NAME[:TAG]", "%s: %v", image, err)
			return
		}
	}
	l.local(e)
}

// local sets the name that the images of an entry have in the store, from the name in the registry
// if the entry has none.
func (l *loader) local(e *Entry) {
	given := e.As != ""
	if !given {
		switch {
		case e.Registry != name.DefaultRegistry:
			e.As = e.Registry + "/${name}"
		case strings.HasPrefix(e.Name, "library/"):
			e.As = "${base}"
		default:
			e.As = "${name}"
		}
	}
	const hint = "as: mirror/${name}, where ${name} is the name without its registry"
	example := "a/b"
	if !wild(e.Name) {
		example = e.Name
	} else if e.as("a/b") == e.as("a/c") {
		l.Add(e.Line, hint, "as: several names would become one, %s", e.As)
		return
	}
	for _, tag := range e.Tags {
		if wild(tag) {
			tag = tree.DefaultTag
		}
		if _, err := tree.ParseRef(e.as(example) + ":" + tag); err != nil {
			l.Add(e.Line, hint, "the name %s is not valid in a store: %v", e.as(example), err)
			return
		}
	}
}
