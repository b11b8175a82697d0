package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"github.com/spf13/cobra"

	"premix/internal/kit/exit"
	"premix/internal/store"
	"premix/internal/store/tree"
)

// storeFlags are the common options of all verbs of a store in a directory.
type storeFlags struct {
	dir string
	key string
}

func (a *app) storeCommand() *cobra.Command {
	o := &storeFlags{}
	cmd := group(&cobra.Command{
		Use:   "store",
		Short: "Publish directories as trees, and manage them",
		Long: `A store is a directory that holds trees: published directories, cut into objects that are
named by their content. Any web server can serve it.

  premix store init /srv/store
  premix store publish --store /srv/store ./genomes refs/bacteria:2026
  premix store serve --store /srv/store --listen 127.0.0.1:8400`,
	})
	cmd.PersistentFlags().StringVar(&o.dir, "store", "", "the store's directory (default: $PREMIX_STORE)")
	cmd.PersistentFlags().StringVar(&o.key, "key", "", "file of the private key (default: $PREMIX_HOME/keys/ID.key)")
	cmd.AddCommand(
		a.storeInit(o),
		a.storePublish(o),
		a.storeImport(o),
		a.storeLs(o),
		a.storeRm(o),
		a.storeVerify(o),
		a.storeGC(o),
		a.storeDiff(o),
		a.storeProfile(o),
		a.storeKey(o),
		a.storeServe(o),
		a.storePush(o),
		a.storePull(o),
	)
	return cmd
}

// open opens the store.
func (o *storeFlags) open() (*store.Store, error) {
	return o.openWith(store.Options{Home: store.Home()})
}

func (o *storeFlags) openWith(opt store.Options) (*store.Store, error) {
	dir, err := o.directory()
	if err != nil {
		return nil, err
	}
	return store.Open(dir, opt)
}

// directory returns the directory of the store, from the option or from $PREMIX_STORE.
func (o *storeFlags) directory() (string, error) {
	dir := o.dir
	if dir == "" {
		dir = os.Getenv("PREMIX_STORE")
	}
	if dir == "" {
		return "", &usageError{errors.New("--store is missing"), "name the store's directory: --store DIR, or set PREMIX_STORE"}
	}
	return dir, nil
}

// storeInterrupted is the end of a verb of the store by a signal.
type storeInterrupted struct{ signal syscall.Signal }

func (e *storeInterrupted) Error() string { return fmt.Sprintf("interrupted (%v)", e.signal) }

// ExitCode implements exit.Coded.
func (e *storeInterrupted) ExitCode() exit.Code { return exit.Signal(e.signal) }
func (e *storeInterrupted) Hint() string        { return "the same command continues from there" }

// storeContext ends with the first signal that asks premix to end, or with done.
// The second one ends premix at once, which a store survives at any moment.
func storeContext() (ctx context.Context, done func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	go func() {
		select {
		case first := <-signals:
			// Notify delivers the signals of package syscall on this system.
			number, _ := first.(syscall.Signal)
			signal.Reset()
			cancel(&storeInterrupted{number})
		case <-ctx.Done():
		}
	}()
	return ctx, func() { signal.Stop(signals); cancel(context.Canceled) }
}

// reference reads a reference on the command line.
func reference(s string) (tree.Ref, error) {
	ref, err := tree.ParseRef(s)
	if err != nil {
		return ref, &usageError{err, "write NAME:TAG, as in refs/bacteria:2026, or NAME@DIGEST"}
	}
	return ref, nil
}

// resolve looks a reference on the command line up in a store.
func resolve(s *store.Store, text string) (*tree.TagRecord, error) {
	ref, err := reference(text)
	if err != nil {
		return nil, err
	}
	return s.Resolve(ref)
}

// shown returns a path of a tree in a form that fits on one line: the path may contain
// any byte.
func shown(path string) string {
	if q := strconv.Quote(path); q != `"`+path+`"` {
		return q
	}
	return path
}
