package cvmfs

import (
	"context"
	"crypto/rsa"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"premix/internal/kit/beneath"
)

// Suffixes of the files in Options.Seen with the signed documents of the newest revision
// seen. They are verified again whenever they are used.
const (
	savedManifest    = ".published"
	savedWhitelist   = ".whitelist"
	savedCertificate = ".certificate"
)

// remember keeps the signed documents of the revision.
func (r *Repository) remember(o Options) error {
	if o.Seen == "" {
		return nil
	}
	var errs []error
	for suffix, b := range map[string][]byte{savedCertificate: r.certificate, savedWhitelist: r.whitelist, savedManifest: r.published} {
		errs = append(errs, beneath.Replace(filepath.Join(o.Seen, r.name+suffix), 0o600, beneath.Volatile, b))
	}
	return errors.Join(errs...)
}

// remembered verifies the documents that remember has kept, and makes their revision the
// repository's. The whitelist must not have expired.
func (r *Repository) remembered(ctx context.Context, o Options, keys []*rsa.PublicKey) error {
	if o.Seen == "" {
		return fmt.Errorf("no revision is kept: %w", fs.ErrNotExist)
	}
	var b [3][]byte
	for i, suffix := range []string{savedManifest, savedWhitelist, savedCertificate} {
		var err error
		if b[i], err = os.ReadFile(filepath.Join(o.Seen, r.name+suffix)); err != nil {
			return fmt.Errorf("no revision is kept: %w", err)
		}
	}
	w, err := parseWhitelist(b[1], o.Name, keys, o.now())
	if err != nil {
		return err
	}
	l, m, err := r.read(b[0])
	if err != nil {
		return err
	}
	if block, _ := pem.Decode(b[2]); block == nil {
		return distrust("", "the kept certificate of %s is damaged", r.name)
	}
	if err := checkManifest(l, w, b[2], r.name); err != nil {
		return err
	}
	r.manifest, r.published, r.whitelist, r.certificate = m, b[0], b[1], b[2]
	return r.checkSeen(ctx, o)
}
