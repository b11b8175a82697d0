package access

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"

	"premix/internal/kit/exit"
	"premix/internal/kit/owner"
)

// shortest is the least length of a token.
const shortest = 16

// Tokens are the tokens of a service. A nil *Tokens admits no request.
type Tokens struct {
	sums  [][sha256.Size]byte
	users []string
}

// ReadTokens reads a file of tokens. A line is a token, or a user and its token. Empty
// lines and lines that begin with # have no meaning.
func ReadTokens(path string) (*Tokens, error) {
	text, err := owner.ReadSecret(path)
	if err != nil {
		return nil, err
	}
	t := &Tokens{}
	in := bufio.NewScanner(bytes.NewReader(text))
	for n := 1; in.Scan(); n++ {
		fields := strings.Fields(in.Text())
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		user, token := "", fields[len(fields)-1]
		if len(fields) == 2 {
			user = fields[0]
		}
		if len(fields) > 2 || len(token) < shortest {
			return nil, exit.Errorf(exit.Usage, "make a token with: openssl rand -hex 16", "%s:%d: a line is a token, or a user and a token; a token has at least %d characters", path, n, shortest)
		}
		sum := sha256.Sum256([]byte(token))
		if _, there := t.find(sum); there {
			return nil, exit.Errorf(exit.Usage, "give every line a token of its own", "%s:%d: the token is the one of an earlier line", path, n)
		}
		t.sums, t.users = append(t.sums, sum), append(t.users, user)
	}
	if err := in.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if len(t.sums) == 0 {
		return nil, exit.Errorf(exit.Usage, "make a token with: openssl rand -hex 16", "%s: there is no token in the file", path)
	}
	return t, nil
}

// Named returns an error unless every token has a user.
func (t *Tokens) Named(path string) error {
	for _, user := range t.users {
		if user == "" {
			return exit.Errorf(exit.Usage, "write a user and a token on each line", "%s: a line has no user", path)
		}
	}
	return nil
}

// MakeToken reads the tokens of a file. If the file is missing, MakeToken makes it with a
// new token. Only the owner of the file can read it.
func MakeToken(path string) (*Tokens, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		return ReadTokens(path)
	}
	if err != nil {
		return nil, err
	}
	token := make([]byte, 16)
	rand.Read(token)
	_, err = f.WriteString(hex.EncodeToString(token) + "\n")
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, errors.Join(err, os.Remove(path))
	}
	return ReadTokens(path)
}

// ReadToken reads a file with one token, for a client.
func ReadToken(path string) (string, error) {
	text, err := owner.ReadSecret(path)
	if err != nil {
		return "", err
	}
	fields := strings.Fields(string(text))
	if len(fields) != 1 || len(fields[0]) < shortest {
		return "", exit.Errorf(exit.Usage, "make a token with: openssl rand -hex 16", "%s: the file must have one token of at least %d characters", path, shortest)
	}
	return fields[0], nil
}

// Guard returns a handler that passes requests with a token to h. If t is nil it passes
// all requests.
func (t *Tokens) Guard(realm string, h http.Handler) http.Handler {
	if t == nil {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, ok := t.User(r); !ok {
			w.Header().Set("WWW-Authenticate", fmt.Sprintf("Bearer realm=%q", realm))
			refuse(w, http.StatusUnauthorized, "the token is missing or wrong", "send it as a header: Authorization: Bearer TOKEN")
			return
		}
		h.ServeHTTP(w, r)
	})
}

// NewTokens returns tokens without users. It is for tests: services read theirs from files.
func NewTokens(tokens ...string) *Tokens {
	t := &Tokens{}
	for _, token := range tokens {
		t.sums, t.users = append(t.sums, sha256.Sum256([]byte(token))), append(t.users, "")
	}
	return t
}

// find compares a digest with the digests of all tokens, in constant time.
func (t *Tokens) find(sum [sha256.Size]byte) (user string, ok bool) {
	found := 0
	for i := range t.sums {
		found |= subtle.ConstantTimeCompare(sum[:], t.sums[i][:]) * (i + 1)
	}
	if found == 0 {
		return "", false
	}
	return t.users[found-1], true
}

// User returns the user whose token a request bears, as Authorization: Bearer TOKEN or
// as the password of Basic.
func (t *Tokens) User(r *http.Request) (user string, ok bool) {
	if t == nil {
		return "", false
	}
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok {
		if _, token, ok = r.BasicAuth(); !ok {
			return "", false
		}
	}
	return t.find(sha256.Sum256([]byte(strings.TrimSpace(token))))
}
