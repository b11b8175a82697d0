package service

import (
	"net/http"
)

// user returns the user of a request: the owner of its token, or its address if the service
// has no tokens.
func (s *Service) user(r *http.Request) (string, error) {
	if s.o.Tokens == nil {
		return s.o.Proxies.Client(r), nil
	}
	if user, ok := s.o.Tokens.User(r); ok {
		return user, nil
	}
	return "", &Refusal{Status: http.StatusUnauthorized, Reason: "token", Message: "a token is needed: Authorization: Bearer TOKEN"}
}
