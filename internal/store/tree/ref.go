package tree

import (
	"fmt"
	"strings"

	"premix/internal/kit/regex"
	"premix/internal/store/object"
)

// DefaultTag is the tag of a reference without a tag.
const DefaultTag = "latest"

// Ref is a parsed reference to a tree: NAME[:TAG] or NAME@DIGEST.
type Ref struct {
	Name   string        // "refs/bacteria": one or more components, each of a-z 0-9 . _ -
	Tag    string        // "" if a digest is given
	Digest object.Digest // zero if a tag is given
}

var (
	component = `[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?`
	nameForm  = regex.Lazy(`^` + component + `(?:/` + component + `)*$`)
	tagForm   = regex.Lazy(`^[A-Za-z0-9_][A-Za-z0-9._-]*$`)
)

// isTag compares the length separately: a counted repetition is expensive to compile.
func isTag(s string) bool { return len(s) <= 128 && tagForm().MatchString(s) }

// ParseRef parses a reference. Valid names are safe as file names and as repositories
// of an OCI registry.
func ParseRef(s string) (Ref, error) {
	name, digest, found := strings.Cut(s, "@")
	if found {
		d, err := object.ParseDigest(strings.TrimPrefix(digest, "blake3:"))
		if err != nil {
			return Ref{}, fmt.Errorf("reference %q: %w", s, err)
		}
		return Ref{Name: name, Digest: d}, checkName(s, name)
	}
	name, tag, found := strings.Cut(s, ":")
	if !found {
		tag = DefaultTag
	}
	if err := checkName(s, name); err != nil {
		return Ref{}, err
	}
	// The history of a tag lies beside its record, in TAG.history.jsonl.
	if !isTag(tag) || strings.HasSuffix(tag, ".history") {
		return Ref{}, fmt.Errorf("reference %q: the tag %q must be letters, digits, '.', '_' and '-', at most 128, and begin with a letter or digit", s, tag)
	}
	return Ref{Name: name, Tag: tag}, nil
}

func checkName(s, name string) error {
	if len(name) > 200 || !nameForm().MatchString(name) {
		return fmt.Errorf("reference %q: the name %q must be lower-case letters, digits, '.', '_' and '-', in parts joined by '/', as in refs/bacteria:2026", s, name)
	}
	return nil
}

// ParseProfileName checks the name of a profile, which follows the rules of tags.
func ParseProfileName(s string) error {
	if !isTag(s) {
		return fmt.Errorf("profile %q: the name must be letters, digits, '.', '_' and '-', at most 128, and begin with a letter or digit", s)
	}
	return nil
}

func (r Ref) String() string {
	if !r.Digest.IsZero() {
		return r.Name + "@" + r.Digest.String()
	}
	return r.Name + ":" + r.Tag
}

// TagPath returns the path of the tag's current record below a store's root.
func (r Ref) TagPath() string { return "tags/" + r.Name + "/" + r.Tag + ".json" }

// HistoryPath returns the path of the tag's history below a store's root.
func (r Ref) HistoryPath() string { return "tags/" + r.Name + "/" + r.Tag + ".history.jsonl" }

// ProfilePath returns the path of a profile's record below a store's root.
func ProfilePath(d object.Digest, profile string) string {
	return "profiles/" + d.String() + "/" + profile + ".json"
}
