package docs

import (
	"strings"
	"testing"
)

// A topic is found by its name and has a heading, and its name is unique.
func TestTopics(t *testing.T) {
	seen := map[string]bool{}
	for _, topic := range Topics() {
		if seen[topic.Name] {
			t.Errorf("two pages have the name %s", topic.Name)
		}
		seen[topic.Name] = true
		text, ok := Page(topic.Name)
		if !ok || !strings.Contains(text, "# "+topic.Title+"\n") || topic.Title == "" {
			t.Errorf("%s: %v, title %q", topic.Name, ok, topic.Title)
		}
	}
	for _, name := range []string{"recipe", "exit-codes", "starts"} {
		if !seen[name] {
			t.Errorf("there is no page %s", name)
		}
	}
	if _, ok := Page("no-such-page"); ok {
		t.Error("a page was found that does not exist")
	}
}
