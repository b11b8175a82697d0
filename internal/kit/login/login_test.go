package login

import (
	"encoding/base64"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
)

// place makes a home without credentials.
func place(t *testing.T) string {
	home := t.TempDir()
	t.Setenv("HOME", home)
	for _, name := range []string{"DOCKER_CONFIG", "REGISTRY_AUTH_FILE"} {
		t.Setenv(name, "")
	}
	t.Setenv("XDG_RUNTIME_DIR", filepath.Join(home, "run"))
	return home
}

func write(t *testing.T, path, content string, mode os.FileMode) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(content), mode)); err != nil {
		t.Fatal(err)
	}
}

func auth(user string) string {
	return `{"auth":"` + base64.StdEncoding.EncodeToString([]byte(user+":pw-"+user)) + `"}`
}

// found returns the user for a repository, and the place.
func found(t *testing.T, repository string) (user, secret, from string) {
	t.Helper()
	repo, err := name.NewRepository(repository)
	if err != nil {
		t.Fatal(err)
	}
	f, err := Keychain{}.Find(repo)
	if err != nil {
		t.Fatal(err)
	}
	if f == nil {
		return "", "", ""
	}
	c, err := f.Authorization()
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(f.String(), c.Password) && c.Password != "" {
		t.Errorf("the description %q has the secret", f)
	}
	return c.Username + c.IdentityToken, c.Password, f.Place
}

func TestKeys(t *testing.T) {
	home := place(t)
	file := filepath.Join(home, ".docker", "config.json")
	write(t, file, `{"auths":{"quay.io":`+auth("quay")+`,"quay.io/lab":`+auth("lab")+`,"quay.io/lab/deep":`+auth("deep")+`,
		"https://old.example.org/v1/":`+auth("old")+`,"https://index.docker.io/v1/":`+auth("hub")+`,"*.dkr.*.example.com":`+auth("glob")+`,
		"empty.example.org":{},"tok.example.org":{"identitytoken":"id"},"host:5000":`+auth("port")+`}}`, 0o600)
	for repository, want := range map[string]string{
		"quay.io/other/x": "quay", "quay.io/lab/x": "lab", "quay.io/lab/deep/x": "deep", "quay.io/lab": "lab", "quay.io/labour/x": "quay",
		"old.example.org/x": "old", "ubuntu": "hub", "docker.io/lab/x": "hub", "1.dkr.eu.example.com/x": "glob", "dkr.eu.example.com/x": "",
		"empty.example.org/x": "", "tok.example.org/x": "id", "host:5000/x": "port", "host:5001/x": "", "unknown.example.org/x": "",
	} {
		user, secret, from := found(t, repository)
		if user != want || want != "" && want != "id" && secret != "pw-"+want || want != "" && from != file {
			t.Errorf("%s: %q, %q from %q; want %q", repository, user, secret, from, want)
		}
	}
}

// The first file that has credentials for the registry is used.
func TestFiles(t *testing.T) {
	home := place(t)
	order := []string{
		filepath.Join(home, "named.json"), filepath.Join(home, "docker", "config.json"), filepath.Join(home, "run", "containers", "auth.json"),
		filepath.Join(home, ".config", "containers", "auth.json"),
	}
	t.Setenv("REGISTRY_AUTH_FILE", order[0])
	t.Setenv("DOCKER_CONFIG", filepath.Dir(order[1]))
	write(t, filepath.Join(home, ".docker", "config.json"), `{"auths":{"h.example.org":`+auth("hidden")+`}}`, 0o600) // DOCKER_CONFIG replaces it
	for i := len(order) - 1; i >= 0; i-- {
		user := string(rune('a' + i))
		write(t, order[i], `{"auths":{"h.example.org":`+auth(user)+`}}`, 0o600)
		if got, _, from := found(t, "h.example.org/x"); got != user || from != order[i] {
			t.Errorf("%s from %s, want %s from %s", got, from, user, order[i])
		}
	}
	write(t, order[0], `{"auths":{"other.example.org":`+auth("z")+`}}`, 0o600)
	if got, _, _ := found(t, "h.example.org/x"); got != "b" {
		t.Errorf("%s, want b", got)
	}
}

func TestHelpers(t *testing.T) {
	home := place(t)
	write(t, filepath.Join(home, "bin", "docker-credential-good"), "#!/bin/sh\nread r; case $r in h.*) echo '{\"ServerURL\":\"'$r'\",\"Username\":\"helped\",\"Secret\":\"swordfish\"}';; t.*) echo '{\"Username\":\"<token>\",\"Secret\":\"idt\"}';; *) echo 'credentials not found in native keychain'; exit 1;; esac\n", 0o755)
	write(t, filepath.Join(home, "bin", "docker-credential-bad"), "#!/bin/sh\necho locked; exit 1\n", 0o755)
	t.Setenv("PATH", filepath.Join(home, "bin")+":"+os.Getenv("PATH"))
	file := filepath.Join(home, ".docker", "config.json")
	write(t, file, `{"credsStore":"good","credHelpers":{"b.example.org":"bad","m.example.org":"missing"},"auths":{"h.example.org":{},"p.example.org":`+auth("plain")+`}}`, 0o600)
	for repository, want := range map[string]string{"h.example.org/x": "helped", "t.example.org/x": "idt", "p.example.org/x": "plain", "n.example.org/x": ""} {
		if got, _, _ := found(t, repository); got != want {
			t.Errorf("%s: %q, want %q", repository, got, want)
		}
	}
	for registry, want := range map[string]string{"b.example.org": "locked", "m.example.org": "docker-credential-missing"} {
		repo, err := name.NewRepository(registry + "/x")
		if err != nil {
			t.Fatal(err)
		}
		_, err = Keychain{}.Resolve(repo)
		var known *Error
		if !errors.As(err, &known) || known.File != file || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", registry, err)
		}
	}
}

func TestMalformed(t *testing.T) {
	home := place(t)
	file := filepath.Join(home, ".docker", "config.json")
	write(t, file, `{"auths":`, 0o600)
	repo, err := name.NewRepository("h.example.org/x")
	if err != nil {
		t.Fatal(err)
	}
	_, err = Keychain{}.Resolve(repo)
	var known *Error
	if !errors.As(err, &known) || known.File != file || known.Hint() == "" {
		t.Errorf("%v", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"auths":{"quay.io/lab":{"auth":"YTpi"},"*.x":{}},"credHelpers":{}}`))
	repo, err := name.NewRepository("quay.io/lab/x")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		if strings.Contains(string(content), "cred") {
			t.Skip("it would run a helper")
		}
		found, err := Parse(content, "place", repo)
		if err == nil && found != nil {
			if c, err := found.Authorization(); err != nil || c.Username == "" && c.Password == "" && c.IdentityToken == "" && c.RegistryToken == "" {
				t.Errorf("%+v: %v", c, err)
			}
		}
	})
}
