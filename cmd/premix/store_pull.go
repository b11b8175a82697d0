package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"premix/internal/kit/units"
	"premix/internal/store"
	"premix/internal/store/mirror"
	"premix/internal/store/origin"
	"premix/internal/store/tree"
	"premix/internal/store/trust"
)

// reachFlags are the options for access to origins.
type reachFlags struct {
	o           origin.Options
	credentials string
}

func (r *reachFlags) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringArrayVar(&r.o.Proxies, "proxy", nil, "reach origins through this proxy; several are tried in order, DIRECT is without a proxy")
	f.StringVar(&r.credentials, "token-file", "", "`file` with lines machine HOST token TOKEN, for origins and proxies that need credentials")
	f.StringVar(&r.o.CAFile, "ca", "", "file with trusted certificates, besides the system's")
	f.StringVar(&r.o.CertFile, "client-cert", "", "certificate to show to the origin")
	f.StringVar(&r.o.KeyFile, "client-key", "", "private key of --client-cert")
	f.BoolVar(&r.o.PlainHTTP, "plain-http", false, "reach a registry without TLS; a registry on this machine does not need this")
}

func (r *reachFlags) options() (origin.Options, error) {
	r.o.UserAgent = "premix/" + version
	if r.credentials != "" {
		c, err := origin.ReadCredentials(r.credentials)
		if err != nil {
			return r.o, fileError(err)
		}
		r.o.Credentials = c
	}
	return r.o, nil
}

// fileError returns the error for a file that the command line names.
func fileError(err error) error {
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) {
		return &usageError{err, "name a file that exists and that you may read"}
	}
	return err
}

// copiedRow is the output of pull and push.
type copiedRow struct {
	Ref      string   `json:"ref"`
	Tree     string   `json:"tree"`
	Serial   int64    `json:"serial,omitempty"`
	Tagged   bool     `json:"tagged"`  // the tag was written; otherwise it already existed
	Objects  int64    `json:"objects"` // copied objects
	Bytes    int64    `json:"bytes"`   // bytes of the copied objects
	Found    int64    `json:"found"`   // objects that already existed
	Profiles []string `json:"profiles"`
	Seconds  float64  `json:"seconds"`
}

func (a *app) printCopied(c *mirror.Copied) error {
	row := copiedRow{Ref: c.Ref.String(), Tree: c.Tree.String(), Tagged: c.Tagged, Objects: c.Objects, Bytes: c.Bytes, Found: c.Found,
		Profiles: append([]string{}, c.Profiles...), Seconds: c.Took.Seconds()}
	if c.Record != nil {
		row.Serial = c.Record.Serial
	}
	if a.json {
		return a.printJSON(row)
	}
	what := "no tag of the mirror leads to it, so a gc removes it"
	if c.Record != nil {
		what = fmt.Sprintf("serial %d", row.Serial)
		if !c.Tagged {
			what += ", as before"
		}
	}
	_, err := fmt.Fprintf(a.stdout, "%s is tree %s (%s)\n%d objects copied, %s; %d were there already; %.1f s\n",
		row.Ref, row.Tree, what, row.Objects, units.Size(row.Bytes), row.Found, row.Seconds)
	return err
}

func copiedLine(p *mirror.Progress) string {
	done, whole := p.Done.Load(), p.Whole.Load()
	if whole == 0 {
		return "looking"
	}
	return fmt.Sprintf("%s %d %%, %s copied", share(done, whole), 100*done/whole, units.Size(p.Fetched.Load()))
}

func (a *app) storePull(s *storeFlags) *cobra.Command {
	var (
		reach    reachFlags
		origins  []string
		keyFile  string
		parallel = countFlag(mirror.DefaultParallel)
		o        mirror.PullOptions
	)
	cmd := &cobra.Command{
		Use:   "pull --origin URL... REF",
		Short: "Copy a tree from an origin into a mirror in a directory",
		Long: `Copy a tree, its profile and its tag from an origin into the directory --store, which
becomes a mirror of the origin's store: it has the same id, keys and signatures. Only
missing objects are copied, verified, many at once. The command may be interrupted at any
moment, and the same command continues. The tag changes last.

  premix store pull --origin https://example.org/store --store /srv/mirror refs/bacteria:2026`,
		Args: arguments("REF"),
		RunE: func(_ *cobra.Command, args []string) error {
			ref, err := reference(args[0])
			if err != nil {
				return err
			}
			if o.Dest, err = s.directory(); err != nil {
				return err
			}
			if len(origins) == 0 {
				return &usageError{errors.New("--origin is missing"), "name the origin to copy from: --origin URL"}
			}
			if o.From, o.Trust, err = reach.open(origins, keyFile, o.Rollback); err != nil {
				return err
			}
			o.Ref, o.Parallel, o.Progress = ref, int(parallel), &mirror.Progress{}
			o.Store.Home = store.Home()
			ctx, done := storeContext()
			defer done()
			stop := a.bar(func() string { return copiedLine(o.Progress) })
			c, err := mirror.Pull(ctx, o)
			stop()
			if err != nil {
				return err
			}
			if c.First && !a.json {
				fmt.Fprintf(a.notes(), "note: %s is used for the first time, and its key is trusted from now on\n", c.From)
			}
			return a.printCopied(c)
		},
	}
	reach.register(cmd)
	f := cmd.Flags()
	f.StringArrayVar(&origins, "origin", nil, "origin to copy from: http(s)://, oci://HOST/REPOSITORY or a directory; several are tried in order")
	f.StringVar(&keyFile, "key-file", "", "file with the store's public keys: no other key is trusted")
	f.StringArrayVar(&o.Profiles, "profile", []string{mirror.DefaultProfile}, "profiles to copy, if they exist")
	f.Var(&parallel, "parallel", "objects to fetch at once")
	f.BoolVar(&o.Store.Unsynced, "no-sync", false, "do not wait for the disk: verify the mirror after a power failure")
	f.BoolVar(&o.Rollback, "allow-rollback", false, "accept a tag that is older than a known one")
	return cmd
}

// open opens origins, and reads the keys to trust for them.
func (r *reachFlags) open(origins []string, keyFile string, rollback bool) (*origin.Group, *trust.Resolver, error) {
	options, err := r.options()
	if err != nil {
		return nil, nil, err
	}
	g, err := origin.OpenAll(origins, options)
	if err != nil {
		return nil, nil, err
	}
	dir, err := trust.Dir(store.Home())
	if err != nil {
		return nil, nil, &usageError{err, "set PREMIX_HOME to a directory of your own"}
	}
	var keys []tree.PublicKey
	if keyFile != "" {
		if keys, err = trust.ReadKeys(keyFile); err != nil {
			return nil, nil, fileError(err)
		}
	}
	return g, trust.New(trust.Options{Dir: dir, Keys: keys, AllowRollback: rollback}), nil
}
