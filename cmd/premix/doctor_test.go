package main

import (
	"strings"
	"testing"

	"premix/internal/hotstart"
)

func TestChecksAreInColumns(t *testing.T) {
	var b strings.Builder
	err := writeChecks(&b, []hotstart.Check{
		{Name: "user", OK: true, Detail: "root"},
		{Name: "namespaces", Detail: "none", Hint: "be root"},
		{Name: "containers", Detail: "not known", Hint: "be root"},
		{Name: "hot start", Detail: "needs both"},
		{Name: "snapshot store", OK: true, Detail: "/store"},
	})
	if err != nil {
		t.Fatal(err)
	}
	const want = `ok  user            root
--  namespaces      none
                    hint: be root
--  containers      not known
--  hot start       needs both
ok  snapshot store  /store
`
	if got := b.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
