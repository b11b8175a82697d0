package store

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"premix/internal/kit/beneath"
	"premix/internal/kit/owner"
	"premix/internal/store/tree"
)

// KeyFile returns the path of a store's private key: keys/ID.key in home, or in the
// user's configuration directory for premix if home is "".
func KeyFile(home, id string) (string, error) {
	if home == "" {
		config, err := os.UserConfigDir()
		if err != nil {
			return "", &UsageError{Reason: fmt.Sprintf("there is no directory for keys: %v", err), HintText: "set PREMIX_HOME to a directory of your own, or give --key FILE", Err: err}
		}
		home = filepath.Join(config, "premix")
	}
	return filepath.Join(home, "keys", id+".key"), nil
}

// KeyFile returns the given file, or the default one if that is "".
func (s *Store) KeyFile(wished string) (string, error) {
	if wished != "" {
		return filepath.Abs(wished)
	}
	return KeyFile(s.home, s.info.ID)
}

// checkKeyPlace refuses to put a private key where a web server may serve it.
func (s *Store) checkKeyPlace(wished string) error {
	file, err := s.KeyFile(wished)
	if err != nil {
		return err
	}
	if below(file, s.dir) {
		return &UsageError{Reason: fmt.Sprintf("the private key would be in the store, at %s, where a web server may serve it", file), HintText: "give --key a file elsewhere, or set PREMIX_HOME to a directory outside the store"}
	}
	return nil
}

func (s *Store) writeKey(wished string, key tree.PrivateKey) error {
	file, err := s.KeyFile(wished)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return fmt.Errorf("make the directory of the private key: %w", err)
	}
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return &UsageError{Reason: fmt.Sprintf("the private key's file %s exists already", file), HintText: "give --key another file: keys are never overwritten", Err: err}
	}
	if err != nil {
		return fmt.Errorf("write the private key: %w", err)
	}
	_, err = f.WriteString(key.Secret() + "\n")
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		os.Remove(file) // a partial key is useless, and would block the next command
	}
	return err
}

// Key reads the store's private key, from file or from the default file if that is "",
// and checks that it belongs to the store.
func (s *Store) Key(file string) (tree.PrivateKey, error) {
	file, err := s.KeyFile(file)
	if err != nil {
		return tree.PrivateKey{}, err
	}
	content, err := owner.ReadSecret(file)
	if err != nil {
		way := "copy it from the machine where the store was made, or give its file with --key; premix store key prints its usual path"
		var foreign *owner.Error
		if errors.As(err, &foreign) {
			way = foreign.HintText
		}
		return tree.PrivateKey{}, &UsageError{Reason: fmt.Sprintf("the store's private key cannot be read: %v", err), HintText: way, Err: err}
	}
	key, err := tree.ParsePrivateKey(string(content))
	if err != nil {
		return tree.PrivateKey{}, &UsageError{Reason: fmt.Sprintf("%s: %v", file, err), HintText: "name the right file with --key", Err: err}
	}
	if !slices.Contains(s.info.Keys, key.Public()) {
		return tree.PrivateKey{}, &UsageError{Reason: fmt.Sprintf("the private key %s does not belong to the store %s", file, s.dir), HintText: "name the right file with --key; premix store key lists the store's public keys"}
	}
	return key, nil
}

// NewKey makes a new private key, which signs from now on, and adds its public key to
// store.json: signatures by earlier keys stay valid. The earlier key's file stays
// beside the new one, named .old.
func (s *Store) NewKey(file string) (tree.PublicKey, error) {
	old, err := s.Key(file)
	if err != nil {
		return tree.PublicKey{}, err
	}
	place, err := s.KeyFile(file)
	if err != nil {
		return tree.PublicKey{}, err
	}
	var seed [32]byte
	rand.Read(seed[:])
	key := tree.NewPrivateKey(seed)
	// The public key is written first: a private key that the store does not list is
	// useless, and in this order a crash leaves the old key working.
	s.info.Keys = append(s.info.Keys, key.Public())
	if err := s.dropAllBootstraps(); err != nil {
		return tree.PublicKey{}, accessError(s.dir, err)
	}
	if err := s.writeInfo(); err != nil {
		return tree.PublicKey{}, accessError(s.dir, err)
	}
	public := old.Public()
	kept := fmt.Sprintf("%s.%x.old", place, public[:4])
	if err := beneath.Move(place, kept, beneath.Durable); err != nil {
		return tree.PublicKey{}, fmt.Errorf("keep the earlier private key: %w", err)
	}
	return key.Public(), s.writeKey(file, key)
}
