package login

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/docker/cli/cli/config/configfile"
	"github.com/docker/docker-credential-helpers/client"
	helpers "github.com/docker/docker-credential-helpers/credentials"
	"github.com/google/go-containerregistry/pkg/authn"
)

// Keychain is an authn.Keychain of the files of this user.
type Keychain struct{}

// Found is an authn.Authenticator with credentials, and the place where they were found.
type Found struct {
	config authn.AuthConfig
	// Place is the name of the file, or a description of another place.
	Place string
}

// New returns credentials from a place that is not a file of this user.
func New(config authn.AuthConfig, place string) *Found { return &Found{config, place} }

// Authorization implements authn.Authenticator.
func (f *Found) Authorization() (*authn.AuthConfig, error) {
	c := f.config
	return &c, nil
}

// String describes the credentials, without the secret.
func (f *Found) String() string {
	if f.config.Username != "" {
		return fmt.Sprintf("user %s from %s", f.config.Username, f.Place)
	}
	return "a token from " + f.Place
}

// Redact removes the secrets from a text, in which a registry may have repeated them.
func (f *Found) Redact(text string) string {
	for _, secret := range []string{f.config.Password, f.config.Auth, f.config.IdentityToken, f.config.RegistryToken} {
		if secret != "" {
			text = strings.ReplaceAll(text, secret, "(secret)")
		}
	}
	return text
}

// Error reports a file or a helper that does not give its credentials.
type Error struct {
	File string
	Err  error
}

func (e *Error) Error() string { return fmt.Sprintf("credentials in %s: %v", e.File, e.Err) }

func (e *Error) Unwrap() error { return e.Err }

// Hint returns the hint for the user.
func (e *Error) Hint() string {
	if errors.Is(e.Err, fs.ErrPermission) {
		return "make it readable for this user, or set DOCKER_CONFIG to a directory of your own"
	}
	return "correct the file, or install the helper that it names"
}

// Resolve implements authn.Keychain. The result is a [Found], or authn.Anonymous.
func (k Keychain) Resolve(r authn.Resource) (authn.Authenticator, error) {
	f, err := k.Find(r)
	if err != nil {
		return nil, err
	}
	if f == nil {
		return authn.Anonymous, nil
	}
	return f, nil
}

// Find returns the credentials for a registry or a repository, or nil.
func (Keychain) Find(r authn.Resource) (*Found, error) {
	for _, file := range Files() {
		content, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0 && !ownFile(file) {
			continue
		}
		var pathError *fs.PathError
		if errors.As(err, &pathError) {
			err = pathError.Err
		}
		if err != nil {
			return nil, &Error{file, err}
		}
		f, err := Parse(content, file, r)
		if err != nil || f != nil {
			return f, err
		}
	}
	return nil, nil
}

// ownFile reports whether a file that cannot be read is one that the user has named.
func ownFile(file string) bool {
	return file == os.Getenv("REGISTRY_AUTH_FILE") || file == filepath.Join(os.Getenv("DOCKER_CONFIG"), "config.json")
}

// Files returns the files in the order in which they are read.
func Files() []string {
	var files []string
	add := func(dir string, names ...string) {
		if dir != "" {
			files = append(files, filepath.Join(append([]string{dir}, names...)...))
		}
	}
	home, _ := os.UserHomeDir() // without one there are no such files
	if u, err := user.Current(); home == "" && err == nil {
		home = u.HomeDir // a unit of systemd has no HOME
	}
	add(os.Getenv("REGISTRY_AUTH_FILE"))
	if dir := os.Getenv("DOCKER_CONFIG"); dir != "" {
		add(dir, "config.json")
	} else {
		add(home, ".docker", "config.json")
	}
	uid := os.Geteuid()
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		add(dir, "containers", "auth.json")
	} else {
		add("/run/user", strconv.Itoa(uid), "containers", "auth.json")
	}
	if uid == 0 {
		add("/run/containers/0/auth.json")
	}
	add(home, ".config", "containers", "auth.json")
	return files
}

// Parse returns the credentials for a registry or a repository in the content of a file,
// or nil.
func Parse(content []byte, place string, r authn.Resource) (*Found, error) {
	file := configfile.New("")
	if err := file.LoadFromReader(bytes.NewReader(content)); err != nil {
		return nil, &Error{place, err}
	}
	host := r.RegistryStr()
	names := []string{host}
	if slices.Contains(dockerHub, host) {
		names = dockerHub
	}
	for _, name := range names {
		if helper := file.CredentialHelpers[name]; helper != "" {
			f, err := ask(helper, name, place)
			if err != nil || f != nil {
				return f, err
			}
		}
	}
	best, length := "", -1
	for key, auth := range file.AuthConfigs {
		if n := fits(key, names, r.String()); n > length && (auth.Username != "" || auth.Password != "" || auth.IdentityToken != "" || auth.RegistryToken != "") {
			best, length = key, n
		}
	}
	if length >= 0 {
		a := file.AuthConfigs[best]
		return New(authn.AuthConfig{Username: a.Username, Password: a.Password, IdentityToken: a.IdentityToken, RegistryToken: a.RegistryToken}, place), nil
	}
	if file.CredentialsStore == "" {
		return nil, nil
	}
	for _, name := range slices.Backward(names) { // docker login stores https://index.docker.io/v1/
		f, err := ask(file.CredentialsStore, name, place)
		if err != nil || f != nil {
			return f, err
		}
	}
	return nil, nil
}

// dockerHub lists the names of Docker's own registry.
var dockerHub = []string{"index.docker.io", "docker.io", "registry-1.docker.io", "https://index.docker.io/v1/"}

// fits returns the length of the path in a key of auths that names a registry of the
// given names, or a part of it with the repository; -1 if it does not.
func fits(key string, names []string, repository string) int {
	if slices.Contains(names, key) {
		return 0
	}
	key = strings.TrimPrefix(strings.TrimPrefix(key, "https://"), "http://")
	host, rest, _ := strings.Cut(strings.TrimSuffix(key, "/"), "/")
	if rest == "v1" || rest == "v2" {
		rest = ""
	}
	matches := func(name string) bool {
		if host == name {
			return true
		}
		parts, wanted := strings.Split(host, "."), strings.Split(name, ".")
		if !strings.Contains(host, "*") || len(parts) != len(wanted) {
			return false
		}
		for i, p := range parts {
			if ok, err := path.Match(p, wanted[i]); !ok || err != nil {
				return false
			}
		}
		return true
	}
	if !slices.ContainsFunc(names, matches) {
		return -1
	}
	_, at, _ := strings.Cut(repository, "/")
	if rest != "" && at != rest && !strings.HasPrefix(at, rest+"/") {
		return -1
	}
	return len(rest)
}

// ask asks a helper. It returns nil if the helper has no credentials.
func ask(helper, registry, place string) (*Found, error) {
	c, err := client.Get(client.NewShellProgramFunc("docker-credential-"+helper), registry)
	if helpers.IsErrCredentialsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, &Error{place, fmt.Errorf("docker-credential-%s: %w", helper, err)}
	}
	place = fmt.Sprintf("docker-credential-%s, which %s names", helper, place)
	if c.Username == "<token>" {
		return New(authn.AuthConfig{IdentityToken: c.Secret}, place), nil
	}
	if c.Username == "" && c.Secret == "" {
		return nil, nil
	}
	return New(authn.AuthConfig{Username: c.Username, Password: c.Secret}, place), nil
}
