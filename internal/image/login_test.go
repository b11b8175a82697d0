package image

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// TestLogin finds an image in registries that ask for credentials, in both ways.
func TestLogin(t *testing.T) {
	im, err := random.Image(1000, 2)
	if err != nil {
		t.Fatal(err)
	}
	const user, secret = "ann", "s3cr3t/of ann"
	for _, way := range []string{"basic", "token"} {
		t.Run(way, func(t *testing.T) {
			home := t.TempDir()
			t.Setenv("HOME", home)
			t.Setenv("DOCKER_CONFIG", filepath.Join(home, "docker"))
			t.Setenv("XDG_RUNTIME_DIR", filepath.Join(home, "run"))
			t.Setenv("REGISTRY_AUTH_FILE", "")
			inner := registry.New()
			open := true
			var web *httptest.Server
			web = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				u, p, ok := r.BasicAuth()
				good := ok && u == user && p == secret
				// This registry repeats in its answer the password that it received.
				deny := func() { http.Error(w, "wrong password "+p, http.StatusUnauthorized) }
				switch {
				case open:
				case r.URL.Path == "/token":
					if !good {
						deny()
						return
					}
					fmt.Fprint(w, `{"token":"tok"}`)
					return
				case way == "basic" && !good:
					w.Header().Set("WWW-Authenticate", `Basic realm="lab"`)
					deny()
					return
				case way == "token" && r.Header.Get("Authorization") != "Bearer tok":
					w.Header().Set("WWW-Authenticate", `Bearer realm="`+web.URL+`/token",service="lab"`)
					deny()
					return
				}
				inner.ServeHTTP(w, r)
			}))
			defer web.Close()
			host := strings.TrimPrefix(web.URL, "http://")
			ref, err := name.ParseReference(host + "/lab/tool:1")
			if err != nil {
				t.Fatal(err)
			}
			if err := remote.Write(ref, im); err != nil {
				t.Fatal(err)
			}
			open = false

			look := func() error {
				s, err := find(t.Context(), "docker://"+host+"/lab/tool:1", v1.Platform{OS: "linux", Architecture: "amd64"})
				if err != nil {
					return err
				}
				for i := range s.layers {
					r, err := s.layers[i].open()
					if err != nil {
						return err
					}
					r.Close()
				}
				return nil
			}
			store := func(file, password string) {
				auth := base64.StdEncoding.EncodeToString([]byte(user + ":" + password))
				if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(`{"auths":{"`+host+`":{"auth":"`+auth+`"}}}`), 0o600)); err != nil {
					t.Fatal(err)
				}
			}
			docker, containers := filepath.Join(home, "docker", "config.json"), filepath.Join(home, "run", "containers", "auth.json")
			fails := func(want ...string) {
				t.Helper()
				err := look()
				var known *Error
				if !errors.As(err, &known) || known.Kind != Unreachable {
					t.Fatalf("%v", err)
				}
				text := known.Error() + "\n" + known.Hint()
				for _, w := range append(want, host, "docker login "+host) {
					if !strings.Contains(text, w) {
						t.Errorf("%q is not in:\n%s", w, text)
					}
				}
				if strings.Contains(fmt.Sprintf("%s%+v", text, known.Err), "wrong/of") {
					t.Errorf("the secret is in:\n%s", text)
				}
			}
			fails("without credentials", docker, containers)
			store(containers, "wrong/of ann")
			fails("user "+user, containers)
			store(containers, secret)
			if err := look(); err != nil {
				t.Errorf("auth.json: %v", err)
			}
			store(docker, "wrong/of ann")
			fails("user "+user, docker)
			store(docker, secret)
			if err := look(); err != nil {
				t.Errorf("config.json: %v", err)
			}
		})
	}
}
