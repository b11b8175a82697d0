package main

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync/atomic"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"premix/internal/kit/exit"
	"premix/internal/kit/units"
	"premix/internal/transfer"
	"premix/internal/transfer/choose"
	"premix/internal/transfer/link"
	"premix/internal/transfer/stream"
)

// transferHome returns the directory for the state of links.
func transferHome() (choose.Home, error) {
	dir := os.Getenv("PREMIX_HOME")
	if dir == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return choose.Home{}, &usageError{err, "set PREMIX_HOME"}
		}
		dir = filepath.Join(home, ".premix")
	}
	return choose.Home{Dir: dir}, nil
}

// transferParts returns the directory for records of incomplete copies; "": none are kept.
func transferParts() string {
	home, err := transferHome()
	if err != nil {
		return ""
	}
	return home.Parts()
}

const (
	// serverScheme begins the URL of a standing server.
	serverScheme = "premix://"
	// serverPort is the port for a URL without one.
	serverPort = "8470"
)

// serverPath splits premix://HOST:PORT/PATH.
func serverPath(s string) (server, at string, err error) {
	u, err := url.Parse(s)
	if err != nil || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return "", "", &usageError{fmt.Errorf("%q names no path at a server", s), "write premix://HOST:PORT/PATH, as in premix://peer:8470/run7"}
	}
	return net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), serverPort)), cmp.Or(strings.Trim(u.Path, "/"), "."), nil
}

// peerPath splits PEER:PATH.
func peerPath(s string) (name, at string, err error) {
	name, at, ok := strings.Cut(s, ":")
	if !ok || name == "" || at == "" {
		return "", "", &usageError{fmt.Errorf("%q names no path at a peer", s), "write PEER:PATH, as in peer:/data/run7"}
	}
	if !path.IsAbs(at) {
		return "", "", &usageError{fmt.Errorf("%q is not an absolute path", at), "begin it with /"}
	}
	return name, path.Clean(at), nil
}

func (a *app) transferGet() *cobra.Command { return a.transferCopy(transfer.Get) }
func (a *app) transferPut() *cobra.Command { return a.transferCopy(transfer.Put) }

// peerPremix sets the path of premix at the peer, unless it is empty.
func peerPremix(l *link.Link, path string) {
	for _, p := range l.Protocols {
		if _, ok := p.Settings["premix_peer"]; ok && path != "" {
			p.Settings["premix_peer"] = path
		}
	}
}

func (a *app) transferCopy(way transfer.Direction) *cobra.Command {
	var premix, key string
	j := choose.Copy{Direction: way}
	use, short, names := "get PEER:PATH DST", "Copy from a peer by the fastest protocol", []string{"PEER:PATH", "DST"}
	if way == transfer.Put {
		use, short, names = "put SRC PEER:PATH", "Copy to a peer by the fastest protocol", []string{"SRC", "PEER:PATH"}
	}
	cmd := &cobra.Command{
		Use:   use,
		Short: short,
		Long: short + `: of those that can make the copy, the one with the
least expected time by measurements of the link. PEER is the name of a measured link, or
[USER@]HOST as ssh knows it. The copy is compared by SHA-256 and then renamed;
if a protocol fails, the next one continues.

  premix transfer get peer:/data/run7/ ./run7
  premix transfer put ./run7 me@peer:/data/run7

premix://HOST:PORT/PATH names a path at a standing server (premix transfer serve --help),
which is reached with its key; no other protocol is tried.

An existing destination is not changed. A source that is a directory becomes DST. Files
of a directory that cannot be read are left out and listed, and the exit code is 1.

Owners, hard links, extended attributes and access control lists are kept with their
flags, and only by premix's own protocol.`,
		Args: arguments(names...),
		RunE: func(_ *cobra.Command, args []string) error {
			from, to := args[0], args[1]
			if way == transfer.Put {
				from, to = to, from
			}
			home, err := transferHome()
			if err != nil {
				return err
			}
			if strings.HasPrefix(from, serverScheme) {
				if j.Server, j.Remote, err = serverPath(from); err != nil {
					return err
				}
				if j.Key, err = stream.LoadKey(cmp.Or(key, home.Key(j.Server))); err != nil {
					return secretError(err)
				}
			} else {
				name, at, err := peerPath(from)
				if err != nil {
					return err
				}
				if j.Link, j.Known, err = home.Find(name); err != nil {
					return nameError(err)
				}
				peerPremix(j.Link, premix)
				j.Remote = at
			}
			j.Parts = home.Parts()
			if j.Local, err = filepath.Abs(to); err != nil {
				return err
			}
			if j.Premix, err = os.Executable(); err != nil {
				return err
			}
			if j.Have != "" && way == transfer.Get {
				if j.Have, err = filepath.Abs(j.Have); err != nil {
					return err
				}
			}
			if !a.json {
				j.Note = func(text string) { fmt.Fprintln(a.notes(), text) }
			}
			var done, all atomic.Int64
			j.Progress = func(d, n int64) { done.Store(d); all.Store(n) }
			stop := a.bar(func() string {
				d, n := done.Load(), all.Load()
				return fmt.Sprintf("%s %s of %s", share(d, n), units.Size(d), units.Size(n))
			})
			ctx, end := storeContext()
			defer end()
			d, err := j.Run(ctx)
			stop()
			if err != nil {
				return err
			}
			if a.json {
				err = a.printJSON(d)
			} else {
				_, err = fmt.Fprintf(a.stdout, "%s in %.2f s by %s (%s with verification)\n", transfer.DataName(d.Size, d.Files), d.Seconds, d.Protocol, units.Rate(float64(d.Size)/d.Seconds))
			}
			return errors.Join(err, a.lost(d.Lost, d.More))
		},
	}
	cmd.Flags().BoolVar(&j.Open, "allow-open", false, "choose also protocols without encryption, or with a port that is open to all")
	keepFlags(cmd.Flags(), &j.Keep)
	cmd.Flags().StringVar(&j.Have, "have", "", "file, directory or store at the destination with parts of the data: only the rest is sent")
	cmd.Flags().StringVar(&premix, "peer-premix", "", "path of premix at the peer, if it is not on its PATH")
	cmd.Flags().StringVar(&key, "key", "", "key of a standing server (default: ~/.premix/transfer/servers/HOST:PORT.key)")
	cmd.Flags().StringVar(&j.Protocol, "protocol", "", "use this protocol of the link, and no other")
	return cmd
}

// keepFlags adds the options for attributes that a copy keeps.
func keepFlags(f *pflag.FlagSet, k *stream.Keep) {
	f.BoolVar(&k.Owners, "owners", false, "keep users and groups, by number, and set-user-ID, set-group-ID and sticky bits: the receiver must be root")
	f.BoolVar(&k.HardLinks, "hard-links", false, "keep hard links")
	f.BoolVar(&k.Attributes, "xattrs", false, "keep extended attributes of users; with --owners also capabilities and trusted ones")
	f.BoolVar(&k.ACLs, "acls", false, "keep access control lists")
}

// lostError reports a copy without the files that could not be read.
type lostError struct{ n int }

func (e *lostError) Error() string {
	if e.n == 1 {
		return "one file or directory could not be read: the rest is copied"
	}
	return fmt.Sprintf("%d files or directories could not be read: the rest is copied", e.n)
}

// ExitCode implements exit.Coded.
func (*lostError) ExitCode() exit.Code { return exit.Failed }

// Hint returns the advice for the user.
func (e *lostError) Hint() string {
	return "copy them as a user who may read them, while no program changes them, to another destination"
}

// lost prints the files that a copy leaves out, and returns a *lostError for them.
func (a *app) lost(list []stream.Failure, more int) error {
	if len(list) == 0 {
		return nil
	}
	if !a.json {
		for _, l := range list {
			fmt.Fprintf(a.stderr, "left out: %q: %s\n", l.Path, l.Reason)
		}
		if more > 0 {
			fmt.Fprintf(a.stderr, "left out: %d more\n", more)
		}
	}
	return &lostError{len(list) + more}
}

// nameError returns the error for an invalid name of a peer.
func nameError(err error) error {
	if exit.Of(err) != exit.Internal {
		return err
	}
	return &usageError{err, "name a measured link, or [USER@]HOST"}
}
