package cvmfs

import (
	"bytes"
	"crypto"
	"crypto/rsa"
	"crypto/sha1"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// letter is a signed document.
type letter struct {
	lines     []string
	hash      string // of the lines, as text: the signature is of it
	signature []byte
}

// openLetter takes a document apart, and compares its hash.
func openLetter(b []byte) (*letter, error) {
	text, rest, found := bytes.Cut(b, []byte("\n--\n"))
	printed, signature, finished := bytes.Cut(rest, []byte("\n"))
	if !found || !finished || len(signature) == 0 {
		return nil, fmt.Errorf("it has no signature")
	}
	h, err := parseHash(string(printed))
	if err != nil {
		return nil, err
	}
	if got := h.algorithm.sum(b[:len(text)+1]); got != h {
		return nil, fmt.Errorf("its hash is %s, and it says %s", got, h)
	}
	return &letter{strings.Split(string(text), "\n"), string(printed), signature}, nil
}

// Manifest is the signed description of a revision.
type Manifest struct {
	Root        Hash // of the root catalog
	RootSize    int64
	Name        string // of the repository
	Revision    uint64
	TTL         time.Duration
	Published   time.Time
	certificate Hash
}

// longestTTL bounds the TTL of a manifest.
const longestTTL = 365 * 24 * time.Hour

// parseManifest parses a manifest. Its signature is verified by the caller.
func parseManifest(l *letter) (*Manifest, error) {
	m := &Manifest{}
	seen := map[byte]bool{}
	number := func(s string) (n uint64, err error) {
		if n, err = strconv.ParseUint(s, 10, 64); err == nil && n > math.MaxInt64 {
			err = strconv.ErrRange
		}
		return n, err
	}
	for _, line := range l.lines {
		if line == "" {
			continue
		}
		if seen[line[0]] {
			return nil, fmt.Errorf("two lines %c", line[0])
		}
		seen[line[0]] = true
		value := line[1:]
		var n uint64
		var err error
		switch line[0] {
		case 'C':
			m.Root, err = parseHash(value)
		case 'B':
			n, err = number(value)
			m.RootSize = int64(n)
		case 'D':
			if n, err = number(value); err == nil {
				m.TTL = min(time.Duration(min(n, math.MaxInt32))*time.Second, longestTTL)
			}
		case 'S':
			m.Revision, err = number(value)
		case 'N':
			m.Name = value
		case 'X':
			m.certificate, err = parseHash(value)
		case 'T':
			n, err = number(value)
			m.Published = time.Unix(int64(n), 0)
		}
		if err != nil {
			return nil, fmt.Errorf("line %c: %w", line[0], err)
		}
	}
	for _, c := range "CDSNX" {
		if !seen[byte(c)] {
			return nil, fmt.Errorf("there is no line %c", c)
		}
	}
	return m, nil
}

// whitelist lists the certificates that may sign.
type whitelist struct {
	expires      time.Time
	fingerprints []string // in lower case, without colons, with the suffix of the algorithm
}

// hintExpired is the hint for a whitelist that has expired.
const hintExpired = "check the clock of this machine; the keepers of the repository sign a new whitelist every month"

// parseWhitelist verifies a whitelist.
func parseWhitelist(b []byte, name string, keys []*rsa.PublicKey, now time.Time) (*whitelist, error) {
	const hint = "check the master keys (--master-key), and that the server is the repository's"
	l, err := openLetter(b)
	if err != nil {
		if bytes.Contains(b, []byte("\nVpkcs7\n")) {
			return nil, &Error{Kind: Cannot, Reason: "the whitelist of " + name + " is signed with PKCS #7, which is not read here"}
		}
		return nil, distrust(hint, "the whitelist of %s: %v", name, err)
	}
	if !slices.ContainsFunc(keys, func(k *rsa.PublicKey) bool {
		return rsa.VerifyPKCS1v15(k, 0, []byte(l.hash), l.signature) == nil
	}) {
		return nil, distrust(hint, "the whitelist of %s is not signed by one of the %d master keys", name, len(keys))
	}
	w := &whitelist{}
	if len(l.lines) < 3 || !strings.HasPrefix(l.lines[1], "E") {
		return nil, distrust(hint, "the whitelist of %s has no time of expiry", name)
	}
	if w.expires, err = time.Parse("20060102150405", l.lines[1][1:]); err != nil {
		return nil, distrust(hint, "the whitelist of %s: %v", name, err)
	}
	if !now.Before(w.expires) {
		return nil, distrust(hintExpired, "the whitelist of %s has expired at %s", name, w.expires.Format(time.RFC3339))
	}
	if l.lines[2] != "N"+name {
		return nil, distrust(hint, "the whitelist is of another repository: %q instead of %s", strings.TrimPrefix(l.lines[2], "N"), name)
	}
	for _, line := range l.lines[3:] {
		if line == "Vpkcs7" || line == "Wcachain" {
			return nil, &Error{Kind: Cannot, Reason: fmt.Sprintf("the whitelist of %s asks for %s, which is not read here", name, line[1:])}
		}
		print, _, _ := strings.Cut(line, "#")
		if print = strings.ToLower(strings.ReplaceAll(strings.TrimSpace(print), ":", "")); print != "" {
			w.fingerprints = append(w.fingerprints, print)
		}
	}
	return w, nil
}

// permits reports whether a certificate, in DER, may sign.
func (w *whitelist) permits(der []byte) bool {
	return slices.ContainsFunc(w.fingerprints, func(print string) bool {
		h, err := parseHash(print)
		return err == nil && h.algorithm.sum(der) == h
	})
}

// checkManifest verifies the signature of a manifest with a certificate of the whitelist.
func checkManifest(l *letter, w *whitelist, certificate []byte, name string) error {
	const hint = "check that the server is the repository's"
	block, _ := pem.Decode(certificate)
	if block == nil {
		return distrust(hint, "the certificate of %s is not in PEM", name)
	}
	if !w.permits(block.Bytes) {
		return distrust(hint, "the certificate of %s is not in its whitelist", name)
	}
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return distrust(hint, "the certificate of %s: %v", name, err)
	}
	key, ok := c.PublicKey.(*rsa.PublicKey)
	if !ok {
		return &Error{Kind: Cannot, Reason: fmt.Sprintf("the certificate of %s has a key of type %s, which is not read here", name, c.PublicKeyAlgorithm)}
	}
	sum := sha1.Sum([]byte(l.hash))
	if err := rsa.VerifyPKCS1v15(key, crypto.SHA1, sum[:], l.signature); err != nil {
		return distrust(hint, "the manifest of %s is not signed by its certificate", name)
	}
	return nil
}

// readKeys reads master keys from files and from the files *.pub of directories.
func readKeys(paths []string) ([]*rsa.PublicKey, error) {
	const hint = "give a file with a public key in PEM, or a directory of files NAME.pub, with --master-key"
	var keys []*rsa.PublicKey
	for _, path := range paths {
		files := []string{path}
		if st, err := os.Stat(path); err == nil && st.IsDir() {
			if files, err = filepath.Glob(filepath.Join(path, "*.pub")); err != nil {
				return nil, &Error{Kind: Usage, Reason: err.Error(), HintText: hint, Err: err}
			}
		}
		for _, file := range files {
			b, err := os.ReadFile(file)
			if err != nil {
				return nil, &Error{Kind: Usage, Reason: err.Error(), HintText: hint, Err: err}
			}
			found := false
			for block, rest := pem.Decode(b); block != nil; block, rest = pem.Decode(rest) {
				k, err := x509.ParsePKIXPublicKey(block.Bytes)
				if key, ok := k.(*rsa.PublicKey); err == nil && ok {
					keys, found = append(keys, key), true
				}
			}
			if !found {
				return nil, &Error{Kind: Usage, Reason: file + " has no RSA public key", HintText: hint}
			}
		}
	}
	if len(keys) == 0 {
		return nil, &Error{Kind: Usage, Reason: "there is no master key", HintText: hint}
	}
	return keys, nil
}
