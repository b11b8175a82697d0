package problem

import (
	"errors"
	"testing"
)

func TestCollector(t *testing.T) {
	c := Collector{File: "rules.sql"}
	if err := c.Err(); err != nil {
		t.Fatalf("nothing is wrong, and yet: %v", err)
	}
	c.Add(7, "write b", "there is no %q", "a")
	c.AddAt(2, 9, "", "second")
	c.AddAt(2, 4, "", "first")
	c.Add(0, "", "all of it")
	c.Add(7, "", "the same line")
	err := c.Err()
	var list List
	if !errors.As(err, &list) || len(list) != 5 {
		t.Fatalf("got %#v", err)
	}
	want := "rules.sql: all of it\n" +
		"rules.sql:2:4: first\n" +
		"rules.sql:2:9: second\n" +
		"rules.sql:7: there is no \"a\"\n  hint: write b\n" +
		"rules.sql:7: the same line"
	if got := err.Error(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
