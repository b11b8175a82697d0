package release

import (
	"bufio"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"premix/internal/kit/exit"
)

// Names of the files that say which bytes a release has.
const (
	SumsName      = "SHA256SUMS"
	SignatureName = "SHA256SUMS.sig"
)

// maxSums is the largest SHA256SUMS that is read: a release has some dozens of files.
const maxSums = 1 << 20

func untrusted(format string, args ...any) error {
	return exit.Errorf(exit.Trust, "do not use these files: get the release again, from the place where its owner publishes it", format, args...)
}

func unusable(hint, format string, args ...any) error {
	return exit.Errorf(exit.Usage, hint, format, args...)
}

// ReadKey reads a public key from a file in PEM form.
func ReadKey(path string) (ed25519.PublicKey, error) {
	const hint = "give the file with the public key of the release's owner: -----BEGIN PUBLIC KEY-----"
	text, err := readSmall(path)
	if err != nil {
		return nil, unusable(hint, "the key cannot be read: %v", err)
	}
	part, _ := pem.Decode(text)
	if part == nil || part.Type != "PUBLIC KEY" {
		return nil, unusable(hint, "%s is not a public key in PEM form", path)
	}
	any, err := x509.ParsePKIXPublicKey(part.Bytes)
	if err != nil {
		return nil, unusable(hint, "%s: %v", path, err)
	}
	key, ok := any.(ed25519.PublicKey)
	if !ok {
		return nil, unusable(hint, "%s is a key of another kind than Ed25519", path)
	}
	return key, nil
}

// ParseKey returns the key whose 32 bytes are text, in hexadecimal.
func ParseKey(text string) (ed25519.PublicKey, error) {
	key, err := hex.DecodeString(text)
	if err != nil || len(key) != ed25519.PublicKeySize {
		return nil, fmt.Errorf("%q is not a public key: 64 hexadecimal digits", text)
	}
	return key, nil
}

// Verify verifies path, which is a file of a release or a directory of such files, and
// returns the names of the verified files. A file that the release does not have is an
// error; a file of the release that is not there is not.
func Verify(path string, key ed25519.PublicKey) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, unusable("name a file of a release, or its directory", "%v", err)
	}
	dir, names := filepath.Split(filepath.Clean(path))
	list := []string{names}
	if info.IsDir() {
		dir = path
		if list, err = filesOf(path); err != nil {
			return nil, unusable("name a directory that you may read", "%v", err)
		}
	} else if dir == "" {
		dir = "."
	}
	sums, err := signed(dir, key)
	if err != nil {
		return nil, err
	}
	var verified []string
	for _, name := range list {
		if name == SumsName || name == SignatureName {
			continue
		}
		want, ok := sums[name]
		if !ok {
			return nil, untrusted("%s is not a file of the release: %s does not list it", filepath.Join(dir, name), SumsName)
		}
		got, err := digest(filepath.Join(dir, name))
		if err != nil {
			return nil, unusable("make the file readable", "%v", err)
		}
		if got != want {
			return nil, untrusted("%s differs from the file of the release: its SHA-256 is %s, and %s has %s", filepath.Join(dir, name), got, SumsName, want)
		}
		verified = append(verified, name)
	}
	if len(verified) == 0 {
		return nil, unusable("put the files that you want to verify beside "+SumsName, "%s has no file of the release", dir)
	}
	slices.Sort(verified)
	return verified, nil
}

// filesOf returns the paths of all files below dir, relative to it.
func filesOf(dir string) ([]string, error) {
	var list []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, path)
		list = append(list, name)
		return err
	})
	return list, err
}

// signed returns the digests of the files of a release, after it has verified their
// signature.
func signed(dir string, key ed25519.PublicKey) (map[string]string, error) {
	hint := "get " + SumsName + " and " + SignatureName + " of the release, and put them beside its files"
	text, err := readSmall(filepath.Join(dir, SumsName))
	if err != nil {
		return nil, unusable(hint, "the digests of the release cannot be read: %v", err)
	}
	signature, err := readSmall(filepath.Join(dir, SignatureName))
	if err != nil {
		return nil, unusable(hint, "the signature of the release cannot be read: %v", err)
	}
	if !ed25519.Verify(key, text, signature) {
		return nil, untrusted("%s is not signed by this key", filepath.Join(dir, SumsName))
	}
	sums := map[string]string{}
	for lines := bufio.NewScanner(strings.NewReader(string(text))); lines.Scan(); {
		sum, name, ok := strings.Cut(lines.Text(), "  ")
		if !ok || len(sum) != 2*sha256.Size || name == "" {
			return nil, untrusted("%s has a line in another form: %q", filepath.Join(dir, SumsName), lines.Text())
		}
		sums[name] = sum
	}
	return sums, nil
}

// readSmall reads a file of at most maxSums bytes.
func readSmall(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxSums+1))
	if err == nil && len(text) > maxSums {
		err = errors.New(path + " is too large")
	}
	return text, err
}

func digest(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
