package main

import (
	"crypto/ed25519"
	"fmt"

	"github.com/spf13/cobra"

	"premix/internal/release"
)

// releaseKey is the public key of the owner of premix's releases, in hexadecimal. The
// linker sets it; without it users name the key.
var releaseKey string

func (a *app) verifyReleaseCommand() *cobra.Command {
	var keyFile string
	cmd := &cobra.Command{
		Use:   "verify-release [--key FILE] PATH",
		Short: "Verify files of a release of premix",
		Long: `Verify a file of a release, or all files in a directory, by their digests in SHA256SUMS,
and SHA256SUMS by its signature in SHA256SUMS.sig. Both lie beside the files.

  premix verify-release --key release.pub premix_1.0.0_amd64.deb

Without --key the key that this premix was built with is used, so that an installed premix
can verify the next one.`,
		Args: arguments("PATH"),
		RunE: func(_ *cobra.Command, args []string) error {
			key, err := chosenKey(keyFile)
			if err != nil {
				return err
			}
			names, err := release.Verify(args[0], key)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(map[string]any{"verified": names})
			}
			for _, name := range names {
				if _, err := fmt.Fprintf(a.stdout, "verified %s\n", name); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&keyFile, "key", "", "file with the public key of the release's owner, in PEM form")
	return cmd
}

func chosenKey(file string) (ed25519.PublicKey, error) {
	switch {
	case file != "":
		return release.ReadKey(file)
	case releaseKey != "":
		return release.ParseKey(releaseKey)
	}
	return nil, &usageError{fmt.Errorf("this premix was built without a release key"), "give the public key of the release's owner: --key FILE"}
}
