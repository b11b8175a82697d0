package link

import (
	"errors"
	"strings"
	"testing"

	"premix/internal/transfer"
)

// FuzzParse checks that mistakes in link files have a hint, and that each protocol of a
// valid file has a script, which quotes the words of the file.
func FuzzParse(f *testing.F) {
	f.Add(whole)
	f.Add("name: a\nhost: '$(touch x)'\n")
	f.Add("{a: &a [*a]}")
	f.Add("protocols: [{use: scp, set: {streams: 1e9}}]")
	f.Fuzz(func(t *testing.T, text string) {
		l, err := parse(text)
		if err != nil {
			var p Problems
			if !errors.As(err, &p) || len(p) == 0 {
				t.Fatalf("%q: %v", text, err)
			}
			return
		}
		if strings.HasPrefix(l.Host, "-") || strings.ContainsAny(l.Host, " \n'\"$`;&|") || strings.HasPrefix(l.User, "-") {
			t.Errorf("the host is %q, the user %q", l.Host, l.User)
		}
		for i := range l.Protocols {
			if p := &l.Protocols[i]; p.Script(transfer.Get, false) == "" && p.Script(transfer.Put, false) == "" && p.Script(transfer.Get, true) == "" && p.Script(transfer.Put, true) == "" {
				t.Errorf("protocol %s does nothing", p.Name)
			}
		}
	})
}
