package service

import (
	"bufio"
	"crypto/sha256"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
)

// Tokens tell who may search.
type Tokens struct {
	users map[[sha256.Size]byte]string
}

// ReadTokens reads a file with a user and its token on each line. Empty lines and
// those that begin with # are passed over. Nobody else may read the file.
func ReadTokens(path string) (*Tokens, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if st.Mode().Perm()&0o077 != 0 {
		return nil, &TokensError{path, 0, "others may read or write the file", "chmod 600 " + path}
	}
	t := &Tokens{users: map[[sha256.Size]byte]string{}}
	in := bufio.NewScanner(f)
	for n := 1; in.Scan(); n++ {
		fields := strings.Fields(in.Text())
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		if len(fields) != 2 || len(fields[1]) < 16 {
			return nil, &TokensError{path, n, "a line has a user and a token of at least 16 characters", "make one with: openssl rand -hex 16"}
		}
		sum := sha256.Sum256([]byte(fields[1]))
		if t.users[sum] != "" {
			return nil, &TokensError{path, n, "the token is that of an earlier line", "give every line a token of its own"}
		}
		t.users[sum] = fields[0]
	}
	return t, in.Err()
}

// TokensError is a mistake in a file of tokens.
type TokensError struct {
	File   string
	Line   int // 0: the whole file
	Reason string
	Way    string
}

func (e *TokensError) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("%s: %s", e.File, e.Reason)
	}
	return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Reason)
}

// Hint names the way out.
func (e *TokensError) Hint() string { return e.Way }

// user tells who sent a request: by a token, which is the Bearer of Authorization or the
// password of Basic, or else by address. Digests are compared, so that the time it
// takes tells nothing of a token.
func (s *Service) user(r *http.Request) (string, error) {
	if s.o.Tokens == nil {
		host, _, err := net.SplitHostPort(r.RemoteAddr)
		if err != nil {
			return r.RemoteAddr, nil
		}
		return host, nil
	}
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok {
		_, token, _ = r.BasicAuth()
	}
	if user := s.o.Tokens.users[sha256.Sum256([]byte(strings.TrimSpace(token)))]; user != "" {
		return user, nil
	}
	return "", &Refusal{Status: http.StatusUnauthorized, Reason: "token", Message: "a token is needed: Authorization: Bearer TOKEN"}
}
