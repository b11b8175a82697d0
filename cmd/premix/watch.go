package main

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"premix/internal/engine"
	"premix/internal/kit/access"
	"premix/internal/watch"
	"premix/internal/watch/alert"
	"premix/internal/watch/collect"
	"premix/internal/watch/relay"
	"premix/internal/watch/series"
	"premix/internal/watch/web"
)

// watchFlags are the options of watch.
type watchFlags struct {
	reach               accessFlags
	data, config, rules string
	interval            durationFlag
	runs                []string
	processes           bool
	remote, remoteToken string
	send, sendToken     string
	sendBuffer          memoryFlag
	receive             string
	keep                struct{ raw, minute, hour, tasks durationFlag }
	pages               web.Pages
}

func (a *app) watchCommand() *cobra.Command {
	var o watchFlags
	cmd := &cobra.Command{
		Use:   "watch --data DIR",
		Short: "Watch this machine: every layer on one time line",
		Long: `Sample this machine once a second: processors, memory, disks, network, file systems,
tasks and their cgroups, the store, Slurm, and the output of scripts. All samples are
kept in DIR, in Parquet files. Tasks of premix are recorded with their start and end,
however short they are.

There is a dashboard at /, a REST interface (described in /openapi.json), and metrics
for Prometheus at /metrics. Other users of this machine need the token in DIR/token.

  premix watch --listen 127.0.0.1:8090 --data ./metrics
  curl '127.0.0.1:8090/api/v1/series?name=disk.read_bytes'`,
		Args: arguments(),
		RunE: func(*cobra.Command, []string) error {
			if o.interval > 0 && time.Duration(o.interval) < collect.MinInterval {
				return &usageError{fmt.Errorf("--interval is less than %v", collect.MinInterval), "1s is usual"}
			}
			if o.data == "" {
				return &usageError{errors.New("--data is missing"), "name the directory for the samples: --data DIR"}
			}
			return a.watch(&o)
		},
	}
	f := cmd.Flags()
	o.reach.register(f, "127.0.0.1:8090", "file of tokens, one on each line: requests must have one (default: if other users of this machine can reach the address, the file token in --data, which premix makes; you and root need no token)")
	f.StringVar(&o.data, "data", "", "directory of the samples")
	f.StringVar(&o.config, "config", "", "YAML file of collectors and scripts")
	f.StringVar(&o.rules, "rules", "", "YAML file of alert rules and the receivers of their messages")
	f.Var(&o.interval, "interval", "time between samples (default 1s)")
	f.StringArrayVar(&o.runs, "run", nil, "run directory to follow, besides those of this machine; may be repeated")
	f.BoolVar(&o.processes, "processes", false, "also record processes of other programs, when they end (root)")
	f.StringVar(&o.remote, "remote-write", "", "address of a receiver of Prometheus' remote write, to send all samples to")
	f.StringVar(&o.remoteToken, "remote-write-token-file", "", "file with the token for it")
	f.StringVar(&o.send, "send", "", "address of the premix watch of another machine, to send everything to")
	f.StringVar(&o.sendToken, "send-token-file", "", "file with the token for it")
	f.Var(&o.sendBuffer, "send-buffer", "bytes that may wait on the disk for it (default 4G); then the oldest are dropped")
	f.StringVar(&o.receive, "receive", "", "file of tokens, one on each line, or a machine and its token: other machines with one of them may send data here")
	f.Var(&o.keep.raw, "keep", "time for which samples are kept, as in 400d (default: without limit)")
	f.Var(&o.keep.minute, "keep-minutes", "time for which means over a minute are kept")
	f.Var(&o.keep.hour, "keep-hours", "time for which means over an hour are kept")
	f.Var(&o.keep.tasks, "keep-tasks", "time for which tasks and events are kept")
	f.StringArrayVar(&o.pages.Transfers, "transfers", nil, "directory of results of transfers to show; may be repeated")
	f.StringArrayVar(&o.pages.Replays, "replays", nil, "directory of tables of replays to show; may be repeated")
	cmd.AddCommand(a.watchAdvise(), a.watchRules())
	return cmd
}

// watch watches until it is interrupted.
func (a *app) watch(o *watchFlags) (err error) {
	config := &collect.Config{}
	if o.config != "" {
		if config, err = collect.ReadConfig(o.config); err != nil {
			return err
		}
	}
	var rules *alert.Rules
	if o.rules != "" {
		if rules, err = alert.ReadRules(o.rules, knownSeries()); err != nil {
			return err
		}
	}
	remoteToken := ""
	if o.remoteToken != "" {
		if remoteToken, err = access.ReadToken(o.remoteToken); err != nil {
			return secretError(err)
		}
	}
	sendToken := ""
	if o.sendToken != "" {
		if sendToken, err = access.ReadToken(o.sendToken); err != nil {
			return secretError(err)
		}
	}
	var receiveTokens *access.Tokens
	if o.receive != "" {
		if receiveTokens, err = readTokens(o.receive); err != nil {
			return err
		}
	}
	tokens, err := o.reach.read()
	if err != nil {
		return err
	}
	reach := o.reach.options(tokens)
	// Tasks and directories of the machine's users are private, but every user can connect
	// to a TCP address, even on loopback.
	own := tokens == nil && !o.reach.open && !strings.HasPrefix(o.reach.listen, access.UnixPrefix) && access.Check(reach) == nil
	reach.Secret = reach.Secret || own
	runs := make([]string, len(o.runs))
	for i, dir := range o.runs {
		if runs[i], err = filepath.Abs(dir); err != nil {
			return err
		}
	}
	ctx, done := storeContext()
	defer done()
	listener, err := access.Listen(ctx, reach)
	if err != nil {
		return err
	}
	defer listener.Close()
	name, err := config.Name()
	if err != nil {
		return err
	}
	db, err := series.Open(o.data, series.Options{Node: name, Keep: series.Keep{Raw: time.Duration(o.keep.raw), Minute: time.Duration(o.keep.minute),
		Hour: time.Duration(o.keep.hour), Tasks: time.Duration(o.keep.tasks)}})
	if err != nil {
		return engine.DirectoryError(o.data, err)
	}
	secret := o.reach.tokens
	if own {
		secret = filepath.Join(o.data, "token")
		if tokens, err = access.MakeToken(secret); err != nil {
			return errors.Join(secretError(err), db.Close())
		}
	}
	var sink watch.Sink = db
	var sender *relay.Sender
	if o.send != "" {
		spool, err := relay.OpenSpool(filepath.Join(o.data, "send"), int64(cmp.Or(o.sendBuffer, 4<<30)))
		if err == nil {
			defer spool.Close()
			sender, err = relay.NewSender(spool, relay.SendOptions{URL: o.send, Token: sendToken, Node: name, Note: db.Event})
		}
		if err != nil {
			return errors.Join(err, db.Close())
		}
		sink = relay.Tee{spool, db}
	}
	var receive *web.Receive
	if receiveTokens != nil {
		receiver, err := relay.NewReceiver(db, name, filepath.Join(o.data, "receive"))
		if err != nil {
			return errors.Join(err, db.Close())
		}
		defer receiver.Close()
		receive = &web.Receive{From: receiver, Tokens: receiveTokens, Units: knownSeries()}
		sink = relay.Keep{Sink: sink, Own: name}
	}
	watcher, err := collect.New(collect.Options{Sink: sink, Config: config, Interval: time.Duration(o.interval), Runs: runs,
		Place: engine.AnnouncementDir(), State: filepath.Join(o.data, "collect"), Processes: o.processes})
	if err != nil {
		return errors.Join(err, db.Close())
	}
	var alerts *alert.Engine
	c := web.Config{Receive: receive, DB: db, Node: name, Version: version, Tokens: tokens, Owner: own, Pages: o.pages,
		Status: func() []web.CollectorStatus { return statusOf(watcher) }}
	if sender != nil {
		c.Sending = sender.State
	}
	if rules != nil {
		if alerts, err = alert.New(ctx, alert.Options{Rules: rules, From: db, Node: name, Dir: filepath.Join(o.data, "alerts")}); err != nil {
			return errors.Join(err, db.Close())
		}
		c.Alerts = alerts.Answer
	}
	server, err := web.New(c)
	if err != nil {
		return errors.Join(err, db.Close())
	}
	var remote *web.RemoteWrite
	if o.remote != "" {
		if remote, err = web.NewRemoteWrite(db, web.RemoteOptions{URL: o.remote, Token: remoteToken}); err != nil {
			return errors.Join(err, db.Close())
		}
	}
	var all sync.WaitGroup
	if remote != nil {
		all.Go(func() { remote.Run(ctx) })
	}
	if alerts != nil {
		all.Go(func() { alerts.Run(ctx) })
	}
	if sender != nil {
		all.Go(func() { sender.Run(ctx) })
	}
	all.Go(func() { watcher.Run(ctx) })
	sink.Event(watch.Event{Time: time.Now(), Node: name, Layer: watch.LayerNode, Kind: "watch_started", Text: "premix watch began to watch " + name + "."})
	address := listener.URL()
	if own && isTerminal(a.stdout) {
		token, err := access.ReadToken(secret)
		if err != nil {
			return errors.Join(secretError(err), db.Close(), watcher.Close())
		}
		address += "#token=" + token // a browser does not send a fragment to a server
	}
	fmt.Fprintf(a.stdout, "watching %s: %s\n", name, address)
	if own {
		fmt.Fprintf(a.stdout, "other users need the token in %s\n", secret)
	}
	err = server.Serve(ctx, listener)
	done() // ends the other tasks if the server failed
	all.Wait()
	// The watcher saves its position in runs, so it is closed after their tasks are on disk.
	return errors.Join(err, db.Close(), watcher.Close())
}

func statusOf(w *collect.Watcher) []web.CollectorStatus {
	list := []web.CollectorStatus{}
	for _, s := range w.Status() {
		list = append(list, web.CollectorStatus{Name: s.Name, Last: s.Last, Error: s.Error, Seconds: s.Seconds, Skipped: s.Skipped})
	}
	return list
}
