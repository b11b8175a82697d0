package queue

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// Quote quotes any text as one word of the shell.
func Quote(s string) string {
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return r >= 0x80 || !plainByte(byte(r)) }) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// plainByte reports whether a byte has no special meaning anywhere in a word of the
// shell.
func plainByte(c byte) bool {
	switch {
	case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		return true
	}
	return strings.IndexByte("_./,:=@%+-", c) >= 0
}

// notDirect is the set of first words that do not name a program on PATH: reserved words and
// builtins of the shells that may be /bin/sh. It does not contain true and false: apart from
// options, the programs do the same as the builtins; see Direct.
var notDirect = sync.OnceValue(func() map[string]bool {
	words := make(map[string]bool)
	for _, w := range strings.Fields(`
		if then else elif fi do done case esac while until for in select function time coproc
		. : [ alias bg bind break builtin caller cd chdir command compgen complete compopt continue
		declare dirs disown echo enable eval exec exit export fc fg getopts hash help history jobs
		kill let local logout mapfile newgrp popd print printf pushd pwd read readarray readonly
		return set shift shopt source suspend test times trap type typeset ulimit umask unalias
		unset wait whence`) {
		words[w] = true
	}
	return words
})

// knownShell reports whether /bin/sh is a shell whose builtins notDirect lists, and
// has no functions from the environment.
var knownShell = sync.OnceValue(func() bool {
	path, err := filepath.EvalSymlinks("/bin/sh")
	if err != nil {
		return false
	}
	for _, kv := range os.Environ() {
		if strings.HasPrefix(kv, "BASH_FUNC_") {
			return false
		}
	}
	name := filepath.Base(path)
	return name == "dash" || name == "bash"
})

// Direct splits a command that needs no shell: a program and words without special
// meaning, bare or in single quotes. ok is false for any other command, and
// for a command that the shell would execute itself. If the program is then not found, or
// cannot be executed, the shell must run the command after all, and handles the error.
func Direct(command string) (argv []string, ok bool) {
	if !knownShell() {
		return nil, false
	}
	for i := 0; i < len(command); {
		if command[i] == ' ' || command[i] == '\t' {
			i++
			continue
		}
		var word []byte
		started := i
		quoted := false
		for i < len(command) && command[i] != ' ' && command[i] != '\t' {
			if command[i] == '\'' && len(argv) > 0 {
				end := strings.IndexByte(command[i+1:], '\'')
				if end < 0 {
					return nil, false
				}
				word = append(word, command[i+1:i+1+end]...)
				i += end + 2
				quoted = true
				continue
			}
			if !plainByte(command[i]) {
				return nil, false
			}
			i++
			if quoted {
				word = append(word, command[i-1])
			}
		}
		text := command[started:i]
		if quoted {
			// What stood before the first quote was not gathered.
			text = command[started:started+strings.IndexByte(text, '\'')] + string(word)
		}
		argv = append(argv, text)
	}
	if len(argv) == 0 {
		return nil, false
	}
	program := argv[0]
	if strings.ContainsAny(program, "=%") || notDirect()[program] {
		return nil, false
	}
	if program == "true" || program == "false" {
		// The programs have options, the builtins have none.
		for _, a := range argv[1:] {
			if strings.HasPrefix(a, "-") {
				return nil, false
			}
		}
	}
	return argv, true
}
