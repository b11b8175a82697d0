package hotstart

import (
	"errors"
	"testing"
)

func TestCheckPtrace(t *testing.T) {
	refused := func() (string, error) { return "allow it", errors.New("refused") }
	permitted := func() (string, error) { return "", nil }
	for _, c := range []struct {
		name      string
		supported error
		try       func() (string, error)
		want      Check
	}{
		{"permitted", nil, permitted, Check{"ptrace", true, "a process may trace its own children", ""}},
		{"refused", nil, refused, Check{"ptrace", false, "refused", "allow it"}},
		// No setting of the machine can change this.
		{"another processor", errors.New("x86-64 only"), refused, Check{"ptrace", true, "not used on this processor", ""}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := checkPtrace(c.supported, c.try); got != c.want {
				t.Errorf("it is %+v, want %+v", got, c.want)
			}
		})
	}
}
