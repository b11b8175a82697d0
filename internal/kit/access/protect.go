package access

import (
	"encoding/json"
	"net/http"
	"slices"
)

// Protect returns a handler that refuses the requests that the rule does not allow and
// passes the others to h. It sets headers of all responses; h may replace them.
func (l *Listener) Protect(h http.Handler) http.Handler {
	hosts := make([]string, len(l.o.Hosts))
	for i, name := range l.o.Hosts {
		hosts[i] = hostOf(name)
	}
	origins := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		head := w.Header()
		head.Set("X-Content-Type-Options", "nosniff")
		head.Set("X-Frame-Options", "DENY")
		head.Set("Referrer-Policy", "no-referrer")
		head.Set("Cross-Origin-Resource-Policy", "same-origin")
		head.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		named := slices.Contains(hosts, hostOf(r.Host)) || l.local && Loopback(r.Host)
		if !named && (l.local || len(hosts) > 0) {
			refuse(w, http.StatusForbidden, "the service is not called "+hostOf(r.Host), "use http://127.0.0.1 or http://localhost, or start the service with --host NAME")
			return
		}
		if origins.Check(r) != nil {
			refuse(w, http.StatusForbidden, "the request was made by a page of another site", "send it from a program, or from the page of this service")
			return
		}
		h.ServeHTTP(w, r)
	})
}

// OtherSite reports whether a browser sent a request on behalf of a page of another
// origin. A handler calls it before a GET that changes something.
func OtherSite(r *http.Request) bool {
	site := r.Header.Get("Sec-Fetch-Site")
	return site != "" && site != "same-origin" && site != "none"
}

func refuse(w http.ResponseWriter, status int, text, hint string) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"error": text, "hint": hint}) // fails if the client has disconnected
}
