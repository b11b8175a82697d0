package access_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"premix/internal/kit/access"
	"premix/internal/kit/exit"
	"premix/internal/kit/owner"
	"premix/internal/testkit/shortdir"
)

func listen(t *testing.T, o access.Options) (*access.Listener, error) {
	t.Helper()
	l, err := access.Listen(context.Background(), o)
	if err == nil {
		t.Cleanup(func() { l.Close() })
	}
	return l, err
}

// TestListen checks the rule about exposed addresses for every form of an address.
func TestListen(t *testing.T) {
	for _, c := range []struct {
		o       access.Options
		exposed bool
	}{
		{o: access.Options{Address: "127.0.0.1:0"}},
		{o: access.Options{Address: "127.8.9.10:0"}},
		{o: access.Options{Address: "localhost:0"}},
		{o: access.Options{Address: "0.0.0.0:0"}, exposed: true},
		{o: access.Options{Address: ":0"}, exposed: true},
		{o: access.Options{Address: "[::]:0"}, exposed: true},
		{o: access.Options{Address: "192.0.2.1:0"}, exposed: true}, // not an address of this machine, but refused before
		{o: access.Options{Address: "0.0.0.0:0", Secret: true}},
		{o: access.Options{Address: "0.0.0.0:0", Open: true}},
		{o: access.Options{Address: "unix:" + filepath.Join(shortdir.New(t), "socket")}},
	} {
		checked := access.Check(c.o)
		_, err := listen(t, c.o)
		var exposed *access.ExposedError
		if errors.As(err, &exposed) != c.exposed || errors.As(checked, &exposed) != c.exposed || err != nil && !c.exposed {
			t.Errorf("%+v: listen: %v; check: %v", c.o, err, checked)
		}
		if c.exposed && !strings.Contains(exposed.Hint(), "--open") {
			t.Errorf("the hint is %q", exposed.Hint())
		}
	}
	for _, address := range []string{"nowhere", "127.0.0.1:99999", "unix:", "unix:@abstract", "unix:/" + strings.Repeat("x", 120)} {
		var bad *access.AddressError
		if _, err := listen(t, access.Options{Address: address}); !errors.As(err, &bad) || bad.Hint() == "" {
			t.Errorf("%s: %v", address, err)
		}
	}
}

// A socket and the directory made for it are accessible only to their owner, with any umask.
func TestSocket(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0))
	dir := shortdir.New(t)
	path := filepath.Join(dir, "above", "new", "socket")
	l, err := listen(t, access.Options{Address: "unix:" + path})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]os.FileMode{path: 0o600 | fs.ModeSocket, filepath.Dir(path): 0o700 | fs.ModeDir, filepath.Join(dir, "above"): 0o755 | fs.ModeDir} {
		if st, err := os.Stat(name); err != nil || st.Mode() != want {
			t.Errorf("%s: mode %v, %v; want %v", name, st.Mode(), err, want)
		}
	}
	if entries, err := os.ReadDir(filepath.Dir(path)); err != nil || len(entries) != 1 {
		t.Errorf("beside the socket: %v, %v", entries, err)
	}
	if _, err := listen(t, access.Options{Address: "unix:" + path}); err == nil || !strings.Contains(err.Error(), "another server") {
		t.Errorf("a second server: %v", err)
	}
	go http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello") })) // it ends with the listener
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}}
	resp, err := client.Get("http://localhost/")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	client.CloseIdleConnections()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket is left: %v", err)
	}

	// The socket of a killed server is replaced.
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	dead.Close()
	if _, err := listen(t, access.Options{Address: "unix:" + path}); err != nil {
		t.Errorf("in place of a dead socket: %v", err)
	}

	// Other files are not replaced.
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := listen(t, access.Options{Address: "unix:" + file}); err == nil {
		t.Error("a file was replaced")
	}
	loose := filepath.Join(dir, "loose")
	if err := os.Mkdir(loose, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := listen(t, access.Options{Address: "unix:" + filepath.Join(loose, "socket")}); err == nil || !strings.Contains(err.Error(), "other users may write") {
		t.Errorf("in a directory of everyone: %v", err)
	}
}

// Requests by a page of another site through a browser are refused, and answers have the same
// security headers in all services.
func TestProtect(t *testing.T) {
	local, err := listen(t, access.Options{Address: "127.0.0.1:0", Hosts: []string{"Node7.example.org"}})
	if err != nil {
		t.Fatal(err)
	}
	socket, err := listen(t, access.Options{Address: "unix:" + filepath.Join(shortdir.New(t), "s")})
	if err != nil {
		t.Fatal(err)
	}
	wide, err := listen(t, access.Options{Address: "0.0.0.0:0", Secret: true})
	if err != nil {
		t.Fatal(err)
	}
	named, err := listen(t, access.Options{Address: "0.0.0.0:0", Open: true, Hosts: []string{"a.example"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		l            *access.Listener
		method, host string
		header       string
		want         int
	}{
		{local, "GET", "localhost:8090", "", 200},
		{local, "GET", "LOCALHOST", "", 200},
		{local, "GET", "127.9.9.9", "", 200},
		{local, "GET", "[::1]:80", "", 200},
		{local, "GET", "node7.example.org:80", "", 200},
		{local, "GET", "evil.example:8090", "", 403},
		{local, "GET", "127.0.0.1.evil.example", "", 403},
		{local, "GET", "localhost.evil.example", "", 403},
		{local, "GET", "10.0.0.1", "", 403},
		{local, "GET", "", "", 403},
		{socket, "GET", "localhost:8090", "", 200},
		{socket, "GET", "evil.example", "", 403},
		{wide, "GET", "node7:80", "", 200},
		{named, "GET", "a.example", "", 200},
		{named, "GET", "b.example", "", 403},
		{local, "POST", "localhost:8090", "", 200},
		{local, "POST", "localhost:8090", "same-origin", 200},
		{local, "POST", "localhost:8090", "cross-site", 403},
		{local, "POST", "localhost:8090", "same-site", 403},
		{local, "GET", "localhost:8090", "cross-site", 200},
	} {
		r := httptest.NewRequest(c.method, "/", nil)
		r.Host = c.host
		if c.header != "" {
			r.Header.Set("Sec-Fetch-Site", c.header)
		}
		w := httptest.NewRecorder()
		c.l.Protect(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})).ServeHTTP(w, r)
		if w.Code != c.want {
			t.Errorf("%s %s %q at %s: %d, want %d", c.method, c.host, c.header, c.l.Name(), w.Code, c.want)
		}
		for name, want := range map[string]string{"X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer",
			"Cross-Origin-Resource-Policy": "same-origin", "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'"} {
			if got := w.Header().Get(name); got != want {
				t.Errorf("%s is %q", name, got)
			}
		}
	}
	r := httptest.NewRequest("GET", "/", nil)
	for site, want := range map[string]bool{"": false, "none": false, "same-origin": false, "same-site": true, "cross-site": true} {
		r.Header.Set("Sec-Fetch-Site", site)
		if access.OtherSite(r) != want {
			t.Errorf("%q is of another site: %v", site, !want)
		}
	}
}

func write(t *testing.T, text string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
	return path
}

// Errors in a token file are reported with the line.
func TestReadTokens(t *testing.T) {
	for _, c := range []struct {
		text string
		line int
		want string
	}{
		{"# who\nann short\n", 2, "at least 16 characters"},
		{"ann\n", 1, "at least 16 characters"},
		{"ann 0123456789abcdef more\n", 1, "a user and a token"},
		{"ann 0123456789abcdef\n\nbob 0123456789abcdef\n", 3, "the one of an earlier line"},
		{"\n# nothing\n", 0, "no token"},
	} {
		_, err := access.ReadTokens(write(t, c.text, 0o600))
		place := ""
		if c.line > 0 {
			place = fmt.Sprintf(":%d: ", c.line)
		}
		var e *exit.Error
		if !errors.As(err, &e) || !strings.Contains(e.Error(), place) || !strings.Contains(e.Error(), c.want) || e.Hint() == "" {
			t.Errorf("%q: %v", c.text, err)
		}
	}
	var foreign *owner.Error
	if _, err := access.ReadTokens(write(t, "ann 0123456789abcdef\n", 0o640)); !errors.As(err, &foreign) {
		t.Errorf("a group can read the tokens: %v", err)
	}
	if _, err := access.ReadToken(write(t, "0123456789abcdef\n", 0o640)); !errors.As(err, &foreign) {
		t.Errorf("a group can read the token: %v", err)
	}
	if token, err := access.ReadToken(write(t, "0123456789abcdef\n", 0o600)); err != nil || token != "0123456789abcdef" {
		t.Errorf("one token: %q, %v", token, err)
	}
	for _, text := range []string{"", "short\n", "0123456789abcdef second\n"} {
		if _, err := access.ReadToken(write(t, text, 0o600)); err == nil {
			t.Errorf("%q is one token", text)
		}
	}
}

func TestUser(t *testing.T) {
	tokens, err := access.ReadTokens(write(t, "# who\nann 0123456789abcdef\n\nbob fedcba9876543210\n0000000000000000\n", 0o600))
	if err != nil {
		t.Fatal(err)
	}
	for header, want := range map[string]string{
		"":                                "refused",
		"0123456789abcdef":                "refused",
		"Bearer ":                         "refused",
		"Bearer 0123456789abcdeF":         "refused",
		"Bearer 0123456789abcdef":         "ann",
		"Bearer fedcba9876543210":         "bob",
		"Bearer 0000000000000000":         "",
		"Basic eDowMTIzNDU2Nzg5YWJjZGVm":  "ann", // x:0123456789abcdef
		"Basic 0123456789abcdef":          "refused",
		"Basic MDEyMzQ1Njc4OWFiY2RlZjp4=": "refused", // 0123456789abcdef:x
	} {
		r := httptest.NewRequest("GET", "/", nil)
		if header != "" {
			r.Header.Set("Authorization", header)
		}
		got, ok := tokens.User(r)
		if !ok {
			got = "refused"
		}
		if got != want {
			t.Errorf("%q: %q, want %q", header, got, want)
		}
		w := httptest.NewRecorder()
		tokens.Guard("test", http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})).ServeHTTP(w, r)
		if (w.Code == 200) != ok || !ok && w.Code != 401 {
			t.Errorf("%q: %d", header, w.Code)
		}
	}
	if err := tokens.Named("f"); err == nil {
		t.Error("all tokens have users")
	}
	var none *access.Tokens
	if _, ok := none.User(httptest.NewRequest("GET", "/", nil)); ok {
		t.Error("no tokens admit a request")
	}
}

func TestMakeToken(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0))
	path := filepath.Join(t.TempDir(), "token")
	if _, err := access.MakeToken(path); err != nil {
		t.Fatal(err)
	}
	first, err := access.ReadToken(path)
	if err != nil || len(first) != 32 {
		t.Fatalf("%q, %v", first, err)
	}
	if _, err := access.MakeToken(path); err != nil {
		t.Fatal(err)
	}
	if again, err := access.ReadToken(path); err != nil || again != first {
		t.Errorf("%q became %q, %v", first, again, err)
	}
}

// A loopback connection has the user of the process at its other end.
func TestOwn(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		l, err := access.Listen(context.Background(), access.Options{Address: address})
		if address == "[::1]:0" && err != nil {
			continue // the machine has no IPv6
		}
		if err != nil {
			t.Fatal(err)
		}
		server := &http.Server{ConnContext: access.ConnContext, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !access.Own(r.Context()) {
				w.WriteHeader(http.StatusUnauthorized)
			}
		})}
		go server.Serve(l) // it ends with the listener
		resp, err := http.Get(l.URL())
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != 200 {
			t.Errorf("%s: this user's own request: %s", address, resp.Status)
		}
		if os.Geteuid() == 0 && address == "127.0.0.1:0" {
			// Bash connects as another user.
			cmd := exec.Command("bash", "-c", `exec 3<>/dev/tcp/127.0.0.1/$0 && printf 'GET / HTTP/1.0\r\nHost: localhost\r\n\r\n' >&3 && head -n 1 <&3`, strings.TrimSuffix(l.URL()[len("http://127.0.0.1:"):], "/"))
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
			cmd.Dir = "/"
			out, err := cmd.CombinedOutput()
			if err != nil || !strings.Contains(string(out), "401") {
				t.Errorf("another user: %v, %s", err, out)
			}
		}
		server.Close()
	}
	if access.Own(context.Background()) {
		t.Error("no connection is this user's")
	}
}
