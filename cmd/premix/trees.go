package main

import (
	"context"
	"crypto/rand"
	"fmt"

	"github.com/spf13/cobra"

	"premix/node"
	"premix/recipe"
	"premix/store/tree"
)

// treeFlags say where trees come from, for all verbs that mount them.
type treeFlags struct {
	origins, proxies       []string
	keyFile, tokenFile, ca string
}

func (t *treeFlags) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringArrayVar(&t.origins, "origin", nil, "where trees come from: http(s)://, oci://HOST/REPOSITORY or a directory; several are tried in order")
	f.StringArrayVar(&t.proxies, "proxy", nil, "reach origins through this proxy; several are tried in order, DIRECT is none")
	f.StringVar(&t.keyFile, "key-file", "", "file with the store's public keys: nobody else is believed")
	f.StringVar(&t.tokenFile, "token-file", "", "file with lines `machine HOST token TOKEN`, for origins and proxies that want credentials")
	f.StringVar(&t.ca, "ca", "", "file with certificates that are trusted besides the system's")
}

func (t *treeFlags) request(ref string) node.MountRequest {
	return node.MountRequest{
		ID: rand.Text(), Ref: ref, Origins: t.origins, Proxies: t.proxies,
		KeyFile: t.keyFile, Credentials: t.tokenFile, CAFile: t.ca,
	}
}

// trees mounts the trees that recipes name as data.
func (a *app) trees(ctx context.Context, t *treeFlags) recipe.Trees {
	return func(ref tree.Ref) (string, error) {
		m, err := node.Attach(ctx, t.request(ref.String()))
		if err != nil {
			return "", err
		}
		if m.Note != "" {
			fmt.Fprintf(a.stderr, "note: %s\n", m.Note)
		}
		return m.Dir, nil
	}
}
