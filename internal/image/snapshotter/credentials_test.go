package snapshotter

import (
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"google.golang.org/protobuf/encoding/protowire"
)

// message returns a message with fields of bytes, numbered from 1; "" leaves one out.
func message(values ...string) string {
	var b []byte
	for i, v := range values {
		if v != "" {
			b = protowire.AppendBytes(protowire.AppendTag(b, protowire.Number(i+1), protowire.BytesType), []byte(v))
		}
	}
	return string(b)
}

func TestPullRequest(t *testing.T) {
	var c credentials
	repo, err := name.NewRepository("reg.example.org/lab/tool")
	if err != nil {
		t.Fatal(err)
	}
	other, err := name.NewRepository("reg.example.org/lab/other")
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range []struct {
		auth string
		want authn.AuthConfig
	}{
		{message("ann", "secret"), authn.AuthConfig{Username: "ann", Password: "secret"}},
		{message("", "", "YW5uOnM6ZQ=="), authn.AuthConfig{Username: "ann", Password: "s:e"}},
		{message("", "", "", "server", "id"), authn.AuthConfig{IdentityToken: "id"}},
		{message("", "", "", "", "", "bearer"), authn.AuthConfig{RegistryToken: "bearer"}},
	} {
		c.note(pullRequest([]byte(message(message("reg.example.org/lab/tool:1"), k.auth))))
		if got, ok := c.find(repo); !ok || got != k.want {
			t.Errorf("%+v, want %+v", got, k.want)
		}
		if _, ok := c.find(other); ok {
			t.Error("another repository has the credentials")
		}
	}
	c.note(pullRequest([]byte(message(message("reg.example.org/lab/tool:2")))))
	if got, ok := c.find(repo); ok {
		t.Errorf("%+v stays after a request without credentials", got)
	}
}

func FuzzPullRequest(f *testing.F) {
	f.Add([]byte(message(message("reg.example.org/lab/tool:1"), message("ann", "secret"))))
	f.Fuzz(func(t *testing.T, b []byte) {
		image, auth := pullRequest(b)
		if len(image) > len(b) || auth.Auth != "" {
			t.Errorf("%q, %+v", image, auth)
		}
		(&credentials{}).note(image, auth)
	})
}
