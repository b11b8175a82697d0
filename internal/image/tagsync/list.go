package tagsync

import (
	"cmp"
	"path"
	"slices"
	"strings"
	"time"
)

// List is a checked watch list.
type List struct {
	Name     string
	Path     string        // absolute
	Interval time.Duration // between rounds
	Together int           // images at a time
	Timeout  time.Duration // of adding one image
	GC       *GC           // nil: no gc after a round
	Entries  []Entry
}

// GC says which trees a gc after a round keeps, like store.GCOptions.
type GC struct {
	Keep    int
	KeepFor time.Duration
}

// Entry names images of one registry.
type Entry struct {
	Line         int
	Registry     string   // in the form of go-containerregistry
	Name         string   // within the registry; may contain wildcards
	Tags         []string // may contain wildcards
	Exclude      []string // patterns of tags
	ExcludeNames []string // patterns of names
	Newest       int      // tags of each name; 0: all
	As           string   // template of the name in the store
	Platform     string   // "" for the platform of this machine
	Gone         GonePolicy
}

// GonePolicy says what happens to an image that its registry no longer has.
type GonePolicy struct {
	Keep  bool          // it stays
	After time.Duration // it is removed after this time, unless it reappears
}

// Defaults.
const (
	defaultInterval = 15 * time.Minute
	defaultTogether = 4
	defaultTimeout  = 2 * time.Hour
	defaultGone     = 24 * time.Hour
)

// wild reports whether a pattern matches more than one text.
func wild(pattern string) bool { return strings.ContainsAny(pattern, `*?[\`) }

func matchesAny(patterns []string, s string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		ok, err := path.Match(p, s)
		return ok && err == nil // Load has checked the patterns
	})
}

// fitsName reports whether the entry matches a name of its registry.
func (e *Entry) fitsName(name string) bool {
	return matchesAny([]string{e.Name}, name) && !matchesAny(e.ExcludeNames, name)
}

func (e *Entry) fitsTag(tag string) bool {
	return matchesAny(e.Tags, tag) && !matchesAny(e.Exclude, tag)
}

// fits reports whether the entry matches an image, if its registry has it.
func (e *Entry) fits(registry, name, tag string) bool {
	return e.Registry == registry && e.fitsName(name) && e.fitsTag(tag)
}

// listed reports whether the registry must be asked for a name's tags.
func (e *Entry) listed() bool { return e.Newest > 0 || slices.ContainsFunc(e.Tags, wild) }

// choose returns the tags to add from the existing ones.
func (e *Entry) choose(tags []string) []string {
	var fit []string
	for _, t := range tags {
		if e.fitsTag(t) {
			fit = append(fit, t)
		}
	}
	slices.SortFunc(fit, compareVersions)
	fit = slices.Compact(fit)
	if e.Newest > 0 && len(fit) > e.Newest {
		fit = fit[len(fit)-e.Newest:]
	}
	return fit
}

// as returns the name in the store for a name of the registry.
func (e *Entry) as(name string) string {
	return strings.NewReplacer("${name}", name, "${base}", path.Base(name)).Replace(e.As)
}

// String returns the entry for messages.
func (e *Entry) String() string {
	return displayed(e.Registry, e.Name, strings.Join(e.Tags, ","))
}

// displayed returns a source for messages.
func displayed(registry, name, tag string) string { return registry + "/" + name + ":" + tag }

// compareVersions compares tags like versions: runs of digits are numbers.
func compareVersions(a, b string) int {
	first, second := a, b
	for a != "" && b != "" {
		x, y := run(a), run(b)
		var c int
		if isDigit(x[0]) && isDigit(y[0]) {
			n, m := strings.TrimLeft(x, "0"), strings.TrimLeft(y, "0")
			c = cmp.Or(cmp.Compare(len(n), len(m)), cmp.Compare(n, m))
		} else {
			c = cmp.Compare(x, y)
		}
		if c != 0 {
			return c
		}
		a, b = a[len(x):], b[len(y):]
	}
	return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(first, second))
}

// run returns the longest prefix of s that has either only digits or no digits.
func run(s string) string {
	for i := 1; i < len(s); i++ {
		if isDigit(s[i]) != isDigit(s[0]) {
			return s[:i]
		}
	}
	return s
}

func isDigit(b byte) bool { return '0' <= b && b <= '9' }
