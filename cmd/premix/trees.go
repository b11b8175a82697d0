package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"premix/internal/engine/pilot"
	"premix/internal/hotstart"
	"premix/internal/image"
	"premix/internal/node"
	"premix/internal/recipe"
	"premix/internal/store/tree"
)

// treeFlags are the options for the sources of trees, of all verbs that mount them.
type treeFlags struct {
	origins, proxies       []string
	keyFile, tokenFile, ca string
	recordImage            string // for run: file for the order in which the image is touched
	cvmfs                  string // directory of the configuration for repositories
}

func (t *treeFlags) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringArrayVar(&t.origins, "origin", nil, "origin of trees: http(s)://, oci://HOST/REPOSITORY or a directory; several are tried in order")
	f.StringArrayVar(&t.proxies, "proxy", nil, "reach origins through this proxy; several are tried in order, DIRECT is without a proxy")
	f.StringVar(&t.keyFile, "key-file", "", "file with the store's public keys: no other key is trusted")
	f.StringVar(&t.tokenFile, "token-file", "", "`file` with lines machine HOST token TOKEN, for origins and proxies that need credentials")
	f.StringVar(&t.ca, "ca", "", "file with trusted certificates, besides the system's")
}

// registerData adds the flags of verbs that mount the data of recipes.
func (t *treeFlags) registerData(cmd *cobra.Command) {
	t.register(cmd)
	cmd.Flags().StringVar(&t.cvmfs, "cvmfs-config", "", "directory `DIR` of the configuration of CVMFS's client, for data in cvmfs:// (default \""+cvmfsConfig+"\")")
}

// remote returns the options for premix on another machine, where the files that they
// name must have the same path. It returns nil if no option was given.
func (t *treeFlags) remote() (_ *pilot.Trees, err error) {
	e := pilot.Trees{Origins: slices.Clone(t.origins), Proxies: t.proxies, KeyFile: t.keyFile, Credentials: t.tokenFile, CAFile: t.ca, CVMFS: t.cvmfs}
	if len(e.Origins)+len(e.Proxies) == 0 && e.KeyFile+e.Credentials+e.CAFile+e.CVMFS == "" {
		return nil, nil
	}
	for i, o := range e.Origins {
		if !strings.Contains(o, "://") {
			if e.Origins[i], err = filepath.Abs(o); err != nil {
				return nil, err
			}
		}
	}
	for _, p := range []*string{&e.KeyFile, &e.Credentials, &e.CAFile, &e.CVMFS} {
		if *p != "" {
			if *p, err = filepath.Abs(*p); err != nil {
				return nil, err
			}
		}
	}
	return &e, nil
}

func (t *treeFlags) request(ref string) node.MountRequest {
	return node.MountRequest{
		ID: rand.Text(), Ref: ref, Origins: t.origins, Proxies: t.proxies,
		KeyFile: t.keyFile, Credentials: t.tokenFile, CAFile: t.ca,
	}
}

// root returns the request for the root of an image. In the containers of an ordinary user all
// files belong to root, which is that user.
func (t *treeFlags) root(ref tree.Ref) node.MountRequest {
	r := t.request(ref.String())
	r.Own = os.Geteuid() != 0
	return r
}

// sources returns the sources of the trees, the repositories and the image that a recipe
// names.
func (a *app) sources(ctx context.Context, t *treeFlags) recipe.Sources {
	return recipe.Sources{
		Trees: func(ref tree.Ref) (string, error) {
			m, err := a.mounted(ctx, t, ref, "")
			if err != nil {
				return "", err
			}
			return m.Dir, nil
		},
		Repositories: func(url string) (string, error) {
			r := node.MountRequest{ID: rand.Text()}
			// The values of variables would be a part of the path, and differ between
			// machines: symlinks have their defaults.
			f := cvmfsFlags{config: cmp.Or(t.cvmfs, cvmfsConfig), constant: true}
			if err := f.of(url, "", &r); err != nil {
				return "", err
			}
			m, err := a.attached(ctx, r)
			if err != nil {
				return "", err
			}
			return m.Dir, nil
		},
		Images: func(ref tree.Ref) (*hotstart.Image, error) {
			if err := hotstart.NoContainers(); err != nil {
				return nil, err
			}
			record, err := a.mounted(ctx, t, image.RecordRef(ref), "")
			if err != nil {
				return nil, err
			}
			im, err := image.Open(record.Dir)
			if err != nil {
				return nil, err
			}
			r := t.root(tree.Ref{Name: ref.Name, Digest: im.Root})
			r.Record = t.recordImage
			root, err := a.attached(ctx, r)
			if err != nil {
				return nil, err
			}
			return hotstart.OpenImage(record.Tree.String(), im, root.Dir, filepath.Join(node.Dir(), "exec"))
		},
	}
}

// mounted mounts a tree, unless it is already mounted. If record is not empty, it is the
// file for the order in which the tree is touched.
func (a *app) mounted(ctx context.Context, t *treeFlags, ref tree.Ref, record string) (*node.Mounted, error) {
	r := t.request(ref.String())
	r.Record = record
	return a.attached(ctx, r)
}

// attached mounts at a directory of the node's choice, unless it is mounted there.
func (a *app) attached(ctx context.Context, r node.MountRequest) (*node.Mounted, error) {
	began := time.Now()
	m, err := node.Attach(ctx, r)
	// The note of an existing mount was printed when it was made.
	if err == nil && m.Note != "" && m.Since.After(began) {
		fmt.Fprintf(a.notes(), "note: %s\n", m.Note)
	}
	return m, err
}
