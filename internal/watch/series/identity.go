package series

import (
	"bytes"
	"cmp"
	"encoding/json"
	"hash/maphash"
	"slices"
	"strings"
	"sync"

	"premix/internal/watch"
)

// identity is a series as memory and files identify it. Two identities may denote the same
// series: compare them with compareIdentity.
type identity struct {
	id     watch.ID
	labels string // as a JSON object, its keys sorted: the column labels
}

func compareIdentity(a, b *identity) int {
	if a == b {
		return 0
	}
	return cmp.Or(strings.Compare(a.id.Name, b.id.Name), strings.Compare(a.labels, b.labels))
}

// labelsText returns labels as a JSON object.
func labelsText(labels []watch.Label) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	text := func(s string) {
		if plain(s) { // nearly all strings are
			b.WriteByte('"')
			b.WriteString(s)
			b.WriteByte('"')
			return
		}
		e.Encode(s) // a string can always be encoded, and a buffer returns no error
		b.Truncate(b.Len() - 1)
	}
	b.WriteByte('{')
	for i, l := range labels {
		if i > 0 {
			b.WriteByte(',')
		}
		text(l.Key)
		b.WriteByte(':')
		text(l.Value)
	}
	b.WriteByte('}')
	return b.String()
}

// plain reports whether a string needs no escapes in JSON.
func plain(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}

// parseLabels parses the text that labelsText returns.
func parseLabels(text string) ([]watch.Label, error) {
	if text == "{}" {
		return nil, nil
	}
	var m map[string]string
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		return nil, err
	}
	labels := make([]watch.Label, 0, len(m))
	for k, v := range m {
		labels = append(labels, watch.Label{Key: k, Value: v})
	}
	slices.SortFunc(labels, func(a, b watch.Label) int { return strings.Compare(a.Key, b.Key) })
	return labels, nil
}

// maxIdentities is the number of series that identities remembers.
const maxIdentities = 1 << 20

// identities returns the same identity for all occurrences of a series in files.
type identities struct {
	mu  sync.Mutex
	all map[[2]string]*identity
}

// get returns the identity of the series with this name and labels (a JSON object).
func (s *identities) get(name, labels string) (*identity, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i, ok := s.all[[2]string{name, labels}]; ok {
		return i, nil
	}
	l, err := parseLabels(labels)
	if err != nil {
		return nil, err
	}
	i := &identity{id: watch.ID{Name: name, Labels: l}, labels: labels}
	if s.all == nil || len(s.all) >= maxIdentities {
		s.all = make(map[[2]string]*identity)
	}
	s.all[[2]string{name, labels}] = i
	return i, nil
}

// hashID returns the same hash for equal IDs.
func hashID(seed maphash.Seed, id watch.ID) uint64 {
	h := maphash.String(seed, id.Name)
	for _, l := range id.Labels {
		h = h*0x9e3779b97f4a7c15 + maphash.String(seed, l.Key)
		h = h*0x9e3779b97f4a7c15 + maphash.String(seed, l.Value)
	}
	return h
}

func equalID(a, b watch.ID) bool {
	return a.Name == b.Name && slices.Equal(a.Labels, b.Labels)
}
