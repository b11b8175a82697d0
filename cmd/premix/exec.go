package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"premix/internal/image"
	"premix/internal/image/bundle"
	"premix/internal/kit/exit"
	"premix/internal/node"
	"premix/internal/store/tree"
)

// commandStatus is the status, other than 0, of a command in an image.
type commandStatus struct{ code int }

func (e *commandStatus) Error() string {
	return fmt.Sprintf("the command ended with status %d", e.code)
}

// ExitCode implements exit.Coded.
func (e *commandStatus) ExitCode() exit.Code { return exit.Code(e.code) }

func (a *app) execCommand() *cobra.Command {
	var (
		t      treeFlags
		stores []string
		binds  []string
		r      bundle.Request
	)
	cmd := &cobra.Command{
		Use:   "exec [--store DIR | --origin URL] [flags] IMAGE -- [CMD...]",
		Short: "Run a command in an image of a store",
		Long: `Mount the root of an image, and run a command in it with runc: with the image's
environment, user and working directory, while the image arrives. Files that the
command writes in the root are removed afterwards. premix exits with the status of the
command. Without CMD the image's own command is run. An ordinary user's command runs
in a user namespace, as root of the image.

  premix exec --store /srv/store --bind $PWD:/data biodepot/star:2.7 -- STAR --version`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return arguments("IMAGE")(cmd, args)
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			ref, err := reference(args[0])
			if err != nil {
				return err
			}
			r.Command = args[1:]
			switch {
			case len(r.Command) > 0 && r.Command[0] == "--":
				r.Command = r.Command[1:]
			case len(r.Command) > 0 && strings.HasPrefix(r.Command[0], "-"):
				return &usageError{fmt.Errorf("%s comes after the image, where the command begins", r.Command[0]), "put options of premix exec before IMAGE, and the command after --"}
			}
			if r.Binds, err = parseBinds(binds); err != nil {
				return err
			}
			for _, e := range r.Env {
				if name, _, ok := strings.Cut(e, "="); !ok || name == "" {
					return &usageError{fmt.Errorf("--env %s has no value", e), "write NAME=VALUE"}
				}
			}
			if r.Network != bundle.NetworkHost && r.Network != bundle.NetworkNone {
				return &usageError{fmt.Errorf("there is no network %q", r.Network), "it is one of host and none"}
			}
			t.origins = append(t.origins, stores...)
			if err := bundle.Possible(); err != nil {
				return err
			}
			if err := a.attachImage(ref, &t, &r); err != nil {
				return err
			}
			status, err := bundle.Run(filepath.Join(node.Dir(), "exec"), r)
			if err == nil && status != 0 {
				err = &commandStatus{status}
			}
			return err
		},
	}
	t.register(cmd)
	f := cmd.Flags()
	f.SetInterspersed(false) // the words after IMAGE belong to the command
	f.StringArrayVar(&stores, "store", nil, "a store's directory: the same as --origin DIR")
	f.StringArrayVar(&binds, "bind", nil, "SRC:DST[:ro], a file or directory that the command sees at DST; may be repeated")
	f.StringArrayVar(&r.Env, "env", nil, "NAME=VALUE, added to the image's environment; may be repeated")
	f.StringVar(&r.Workdir, "workdir", "", "working directory (default: the image's)")
	f.StringVar(&r.User, "user", "", "USER[:GROUP], names or numbers (default: the image's)")
	f.StringVar(&r.Network, "network", bundle.NetworkHost, "host or none")
	f.StringVar(&r.Scratch, "scratch", "", "directory on a disk for files that the command writes in the root (default: memory)")
	return cmd
}

// attachImage mounts the record and the root of an image.
func (a *app) attachImage(ref tree.Ref, t *treeFlags, r *bundle.Request) error {
	ctx, done := storeContext()
	defer done()
	record, err := a.mounted(ctx, t, image.RecordRef(ref), "")
	if err != nil {
		return err
	}
	if r.Image, err = image.Open(record.Dir); err != nil {
		return err
	}
	root, err := a.attached(ctx, t.root(tree.Ref{Name: ref.Name, Digest: r.Image.Root}))
	if err != nil {
		return err
	}
	r.Root = root.Dir
	return nil
}

// parseBinds reads SRC:DST[:ro].
func parseBinds(list []string) ([]bundle.Bind, error) {
	var binds []bundle.Bind
	for _, text := range list {
		parts := strings.Split(text, ":")
		wrong := &usageError{fmt.Errorf("--bind %s is not SRC:DST[:ro]", text), "as in --bind $PWD:/data or --bind /ref:/ref:ro"}
		if len(parts) < 2 || len(parts) > 3 || slices.Contains(parts, "") || len(parts) == 3 && parts[2] != "ro" && parts[2] != "rw" {
			return nil, wrong
		}
		if !filepath.IsAbs(parts[1]) {
			return nil, &usageError{errors.New("--bind " + text + ": DST is not absolute"), wrong.hint}
		}
		source, err := filepath.Abs(parts[0])
		if err == nil {
			source, err = filepath.EvalSymlinks(source)
		}
		if err != nil {
			return nil, &usageError{fmt.Errorf("--bind %s: %w", text, err), "SRC must exist"}
		}
		binds = append(binds, bundle.Bind{Source: source, Target: filepath.Clean(parts[1]), ReadOnly: len(parts) == 3 && parts[2] == "ro"})
	}
	return binds, nil
}
