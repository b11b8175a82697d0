package release

import (
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"premix/internal/kit/exit"
)

// made makes a release of two files, one of them in a directory, and returns its directory and key.
func made(t *testing.T) (dir string, public ed25519.PublicKey, private ed25519.PrivateKey) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	var sums strings.Builder
	for _, name := range []string{"a.deb", "sub/b.tar.gz"} {
		put(t, filepath.Join(dir, name), "content of "+name)
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256([]byte("content of "+name)), name)
	}
	put(t, filepath.Join(dir, SumsName), sums.String())
	put(t, filepath.Join(dir, SignatureName), string(ed25519.Sign(private, []byte(sums.String()))))
	return dir, public, private
}

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
}

func TestVerify(t *testing.T) {
	dir, key, private := made(t)
	for path, want := range map[string]string{dir: "[a.deb sub/b.tar.gz]", filepath.Join(dir, "a.deb"): "[a.deb]"} {
		names, err := Verify(path, key)
		if err != nil || fmt.Sprint(names) != want {
			t.Errorf("%s: %v, %v, want %s", path, names, err, want)
		}
	}
	// A part of a release is enough.
	if err := os.RemoveAll(filepath.Join(dir, "sub")); err != nil {
		t.Fatal(err)
	}
	if names, err := Verify(dir, key); err != nil || len(names) != 1 {
		t.Errorf("%v, %v", names, err)
	}
	_, other, _ := made(t)
	for _, c := range []struct {
		name string
		edit func(dir string)
		key  ed25519.PublicKey
		code exit.Code
		says string
	}{
		{"another key", func(string) {}, other, exit.Trust, "is not signed by this key"},
		{"a changed file", func(dir string) { put(t, filepath.Join(dir, "a.deb"), "content of b.deb") }, nil, exit.Trust, "differs from the file of the release"},
		{"a changed list", func(dir string) {
			put(t, filepath.Join(dir, SumsName), hex.EncodeToString(make([]byte, 32))+"  a.deb\n")
		}, nil, exit.Trust, "is not signed"},
		{"a further file", func(dir string) { put(t, filepath.Join(dir, "c"), "") }, nil, exit.Trust, "is not a file of the release"},
		{"no signature", func(dir string) { os.Remove(filepath.Join(dir, SignatureName)) }, nil, exit.Usage, "the signature of the release cannot be read"},
		{"an empty signature", func(dir string) { put(t, filepath.Join(dir, SignatureName), "") }, nil, exit.Trust, "is not signed"},
		{"a line of another form", func(dir string) {
			put(t, filepath.Join(dir, SumsName), "a.deb\n")
			put(t, filepath.Join(dir, SignatureName), string(ed25519.Sign(private, []byte("a.deb\n"))))
		}, key, exit.Trust, "a line in another form"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir, key, _ := made(t)
			c.edit(dir)
			if c.key != nil {
				key = c.key
			}
			_, err := Verify(dir, key)
			if err == nil || !strings.Contains(err.Error(), c.says) || exit.Of(err) != c.code {
				t.Errorf("%v, code %v, want %q and %v", err, exit.Of(err), c.says, c.code)
			}
		})
	}
}

// openssl writes keys and signatures that this package accepts, and verifies signatures of this
// package.
func TestOpenSSL(t *testing.T) {
	if _, err := exec.LookPath("openssl"); err != nil {
		t.Skip("openssl is missing: apt-get install openssl")
	}
	dir, public, private := made(t)
	keys := t.TempDir()
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	pub := filepath.Join(keys, "pub")
	put(t, pub, string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})))
	if key, err := ReadKey(pub); err != nil || !key.Equal(public) {
		t.Errorf("%v, %v", key, err)
	}
	if key, err := ParseKey(hex.EncodeToString(public)); err != nil || !key.Equal(public) {
		t.Errorf("%v, %v", key, err)
	}
	openssl := func(args ...string) {
		t.Helper()
		if out, err := exec.Command("openssl", args...).CombinedOutput(); err != nil {
			t.Fatalf("openssl %v: %v\n%s", args, err, out)
		}
	}
	sums, sig := filepath.Join(dir, SumsName), filepath.Join(dir, SignatureName)
	openssl("pkeyutl", "-verify", "-pubin", "-inkey", pub, "-rawin", "-in", sums, "-sigfile", sig)
	secret := filepath.Join(keys, "secret")
	if der, err = x509.MarshalPKCS8PrivateKey(private); err != nil {
		t.Fatal(err)
	}
	put(t, secret, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})))
	openssl("pkeyutl", "-sign", "-inkey", secret, "-rawin", "-in", sums, "-out", sig)
	if _, err := Verify(dir, public); err != nil {
		t.Error(err)
	}
}

func TestKeysOfOtherKinds(t *testing.T) {
	dir := t.TempDir()
	rsa := filepath.Join(dir, "key")
	for name, text := range map[string]string{"empty": "", "private": "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "broken": "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"} {
		put(t, rsa, text)
		if _, err := ReadKey(rsa); err == nil || exit.Of(err) != exit.Usage {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, text := range []string{"", "zz", strings.Repeat("00", 31)} {
		if _, err := ParseKey(text); err == nil {
			t.Errorf("%q is a key", text)
		}
	}
}
