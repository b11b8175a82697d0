package main

import (
	"context"
	"testing"
)

// The loop and the peers that are there run a command as often as they are told.
func TestContenders(t *testing.T) {
	b := &benchmark{options: options{premix: "/no/such/premix", wanted: "loop,xargs,make", cores: 2}, ctx: context.Background(), work: t.TempDir()}
	list, err := b.contenders()
	if err != nil || len(list) == 0 {
		t.Fatal(list, err)
	}
	for _, c := range list {
		if _, _, err := b.once(c, job{program: "true", path: "/bin/true", args: []string{"1"}, count: 5}); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if _, _, err := b.once(c, job{program: "false", path: "/bin/false", args: []string{"1"}, count: 1}); err == nil {
			t.Errorf("%s: a command that fails is not noticed", c.name)
		}
	}
}
