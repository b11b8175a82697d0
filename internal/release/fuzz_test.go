package release

import (
	"crypto/ed25519"
	"os"
	"path/filepath"
	"testing"
)

// FuzzVerify verifies releases with arbitrary digests, signatures and files. Only the signed
// release may be accepted.
func FuzzVerify(f *testing.F) {
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		f.Fatal(err)
	}
	// SHA-256 of the letter a.
	const sums = "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb  a\n"
	signature := ed25519.Sign(private, []byte(sums))
	f.Add([]byte(sums), signature, []byte("a"))
	f.Add([]byte(sums), signature, []byte("b"))
	f.Add([]byte("\n  \n"), []byte{}, []byte("a"))
	f.Fuzz(func(t *testing.T, text, sig, content []byte) {
		dir := t.TempDir()
		for name, b := range map[string][]byte{SumsName: text, SignatureName: sig, "a": content} {
			if err := os.WriteFile(filepath.Join(dir, name), b, 0o666); err != nil {
				t.Fatal(err)
			}
		}
		names, err := Verify(dir, public)
		right := string(text) == sums && string(content) == "a" && string(sig) == string(signature)
		if (err == nil) != right {
			t.Errorf("verified %v, %v: %q %q", names, err, text, content)
		}
	})
}
