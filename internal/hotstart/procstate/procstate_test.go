package procstate

import (
	"os"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for text, ok := range map[string]bool{
		"null,pipe,file": true, "null,file,joined": true, "terminal,terminal,joined,5,17": true, "pipe,null,null": true,
		"pipe,pipe,pipe,4,ignored:1,ignored:13": true,
		"null,file,file,ignored:65":             false, "null,file,file,ignored:0": false, "null,file,file,ignored:x": false, "": false, "null,pipe": false, "null,null,joined": false, "null,socket,file": false, "joined,file,file": false, "null,file,file,2": false, "null,file,file,x": false,
	} {
		a, err := Parse(text)
		if (err == nil) != ok || ok && a.String() != text {
			t.Errorf("%q: %+v, %v", text, a, err)
		}
	}
}

// Meanwhile no signal has a handler, and afterwards all have their handlers again.
func TestWithActions(t *testing.T) {
	caught := func() string {
		b, err := os.ReadFile("/proc/self/status")
		if err != nil {
			t.Fatal(err)
		}
		_, after, _ := strings.Cut(string(b), "SigCgt:")
		set, _, _ := strings.Cut(strings.TrimSpace(after), "\n")
		return set
	}
	before, during := caught(), ""
	WithActions(Inherited{}, func() { during = caught() })
	if strings.Trim(during, "0") != "" || strings.Trim(before, "0") == "" || caught() != before {
		t.Errorf("handlers of %s before, of %s meanwhile, of %s afterwards", before, during, caught())
	}
}
