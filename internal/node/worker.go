package node

import (
	"errors"
	"os"
	"os/signal"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/store/cache"
)

// slack is the size of memory that is allocated but never touched, so that it takes
// none. The garbage collector, which waits until the heap has doubled, then runs less
// often. A worker has a small heap and allocates much: without slack, a quarter of its
// own processor time in a sequential read was spent on tracing. GOGC would have the
// same effect, but would take a multiple of the memory of trees with millions of
// chunks, instead of some 35 MB once.
const slack = 32 << 20

// runWorker is the main function of a worker. It returns only with an error.
func runWorker(version string) error {
	l, err := openLink(os.NewFile(linkFD, "link"))
	if err != nil {
		return err
	}
	in, err := inherit(l)
	if err != nil {
		return err
	}
	held := make([]byte, slack)
	defer runtime.KeepAlive(held)
	t := in.supervisorConn
	t.log = newLog(os.Stderr, "worker")
	d := newDaemon(t, in.deaths, version)
	t.onEnd = func() { d.terminate() }
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT)
	signal.Ignore(unix.SIGHUP)
	go func() {
		<-signals
		d.terminate()
	}()
	// Writing to a link whose other end is gone must not end this process.
	signal.Ignore(unix.SIGPIPE)
	go t.run()
	if err := d.begin(in.kept); err != nil {
		var known *Error
		if err = explain(err); errors.As(err, &known) {
			t.say(message{Op: opFailed, Err: known})
		}
		return err
	}
	if err := d.serveMetrics(); err != nil {
		d.log.Error("metrics are not served", "error", err)
	}
	go d.retry()
	go d.keepRecordings()
	t.say(message{Op: opReady})
	d.log.Info("the worker serves", "version", version, "mounts", len(d.mounts))
	return d.serve()
}

// begin restores the state of the mounts.
func (d *daemon) begin(left map[string]kept) error {
	err := makeDir(d.config.Dir)
	if err != nil {
		return err
	}
	if d.cache, err = openCache(d.config); err != nil {
		return err
	}
	d.openNeighbours()
	return d.restore(left)
}

// openCache opens the cache. The process that had it open may not have ended
// completely.
func openCache(c Config) (*cache.Cache, error) {
	for started := time.Now(); ; {
		ch, err := cache.Open(c.Cache, cache.Options{
			Quota: c.Quota, Floor: c.Floor, RAMDir: c.RAM, RAMQuota: c.RAMQuota, VerifyAlways: c.Verify, Timeout: c.Timeout,
		})
		var used *cache.InUseError
		if !errors.As(err, &used) || time.Since(started) > 10*time.Second {
			return ch, err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// shut unmounts everything and closes the cache. Without lazy it returns an error if a
// mount is in use, and the node continues.
func (d *daemon) shut(lazy bool) error {
	d.mu.Lock()
	was := d.ending
	d.ending = true
	d.mu.Unlock()
	if was {
		return &Error{Kind: KindUnavailable, Message: "the node is ending already", HintText: "wait until it has ended"}
	}
	if _, err := d.umountAll(lazy); err != nil {
		d.mu.Lock()
		d.ending = false
		d.mu.Unlock()
		return err
	}
	return nil
}

// terminate ends the node because of a signal, which cannot be refused: mounts that are
// in use disappear.
func (d *daemon) terminate() {
	if err := d.shut(true); err != nil {
		d.log.Error("unmount", "error", err)
		return
	}
	d.exit()
}

// exit ends the node after everything was unmounted.
func (d *daemon) exit() {
	d.end()
	if err := d.cache.Close(); err != nil {
		d.log.Error("close the cache", "error", err)
	}
	for _, path := range []string{socketPath(d.config.Dir), statePath(d.config.Dir)} {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			d.log.Error("clean up", "error", err)
		}
	}
	d.log.Info("the node ends")
	d.supervisorConn.say(message{Op: opStop})
	os.Exit(0)
}

// restart ends this worker so that another takes over. Pending reads are delivered to
// the new worker, so nothing has to be finished here.
func (d *daemon) restart(exe string) {
	d.saveRecordings()
	d.supervisorConn.say(message{Op: opRestart, Exe: exe})
	os.Exit(0)
}
