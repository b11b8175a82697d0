package choose

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/kit/beneath"
	"premix/internal/kit/exit"
	"premix/internal/transfer"
	"premix/internal/transfer/link"
	"premix/internal/transfer/peer"
	"premix/internal/transfer/stream"
	"premix/internal/transfer/testbed"
)

// Copy is one copy to or from a peer.
type Copy struct {
	Link      *link.Link
	Known     *Known
	Direction transfer.Direction
	Remote    string // path at the peer
	Local     string
	Open      bool   // permit open protocols
	Protocol  string // only this one; empty: choose
	Premix    string // path of this program
	Parts     string // directory of records of incomplete copies; empty: none
	Keep      stream.Keep
	Have      string // path at the receiver that may contain much of the data; empty: none
	// Server is the address of a standing server, and Key gives access to it. The server
	// then makes the copy, and no protocol is chosen: Link, Known, Open, Protocol and
	// Premix are ignored.
	Server string
	Key    *stream.Key
	// Note is called with messages for people. It may be nil.
	Note func(string)
	// Progress is called now and then with the number of bytes that have arrived. It may be
	// nil.
	Progress func(done, all int64)
}

// Result describes a completed copy.
type Result struct {
	Protocol string     `json:"protocol"`
	Size     int64      `json:"size"`
	Files    int        `json:"files"`
	Seconds  float64    `json:"seconds"`
	Verified string     `json:"verified"`         // by which method
	SHA256   string     `json:"sha256,omitempty"` // of both ends, if that is the method
	Order    []Estimate `json:"order"`
	Failed   []string   `json:"failed"` // PROTOCOL: reason, for the protocols tried before
	// Lost lists the files of a tree that could not be read and are missing in the copy;
	// More is the number of those that are not in the list.
	Lost []stream.Failure `json:"lost,omitempty"`
	More int              `json:"more_lost,omitempty"`
}

// SourceError is returned if the source does not exist, or must not be read.
type SourceError struct{ Reason string }

func (e *SourceError) Error() string { return e.Reason }

// ExitCode implements exit.Coded.
func (*SourceError) ExitCode() exit.Code { return exit.Usage }

// Hint describes a valid source.
func (e *SourceError) Hint() string { return "name a file or a directory that you can read" }

// TargetError is returned if the copy cannot be written to the destination.
type TargetError struct{ Reason string }

func (e *TargetError) Error() string { return e.Reason }

// ExitCode implements exit.Coded.
func (*TargetError) ExitCode() exit.Code { return exit.Directory }

// Hint returns the ways to resolve the error.
func (e *TargetError) Hint() string { return "free some space, or give another destination" }

// FailedError is returned if no protocol could make the copy.
type FailedError struct {
	Failed []string
	Part   string
}

func (e *FailedError) Error() string {
	if len(e.Failed) == 0 {
		return "no protocol can make this copy"
	}
	return "every protocol failed: " + strings.Join(e.Failed, "; ")
}

// ExitCode implements exit.Coded.
func (*FailedError) ExitCode() exit.Code { return exit.Failed }

// Hint returns the command to continue with.
func (e *FailedError) Hint() string {
	if e.Part == "" {
		return "premix transfer why PEER lists the protocols left out, with reasons"
	}
	return "run the same command again: it continues with the part that has arrived: " + e.Part
}

// minRoom is the space that must be free in addition to the size, in bytes.
const minRoom = 1 << 20

// longestSocket is the longest path of a socket that ssh can use: of the 107 bytes
// (unix(7)), ssh needs 17 for a suffix while it creates the socket.
const longestSocket = 90

// run is a running copy.
type run struct {
	*Copy
	s             *peer.Session
	temp          string         // directory here; at the peer, the session has one
	local, remote string         // a get writes to its stage
	stage         *beneath.Stage // for a get
	there         *remoteStage   // for a put; nil: no protocol has needed it yet
	unreadable    string         // a file of the source that cannot be read; empty: none
	missing       map[string]bool
	d             *Result
	source        *digest // of the source, once it was requested
}

// Run makes the copy.
func (j *Copy) Run(ctx context.Context) (*Result, error) {
	if j.Server != "" {
		return j.stand(ctx)
	}
	begin := time.Now()
	copies, err := j.Known.Measurements()
	if err != nil {
		return nil, err
	}
	d := &Result{}
	if useOther, ok := j.surely(copies); ok {
		done, final, err := j.direct(ctx, copies, useOther)
		if final {
			return done, err
		}
		var gone *stream.PeerError
		if !errors.Is(err, errElsewhere) && (!errors.As(err, &gone) || gone.Met) {
			d.Failed = append(d.Failed, own+": "+err.Error())
			j.note("%s failed: %v", own, err)
		}
	}
	temp, err := os.MkdirTemp("", "premix-transfer-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(temp)
	// All commands through ssh share one connection, so that only the first one waits for
	// the key exchange.
	l := *j.Link
	if l.Control = filepath.Join(temp, "ssh"); len(l.Control) > longestSocket {
		l.Control = ""
	}
	j.Link = &l
	r := &run{Copy: j, temp: temp, local: j.Local, remote: j.Remote, d: d}
	if err := r.look(ctx); err != nil {
		return nil, err
	}
	defer func() {
		if ctx.Err() != nil {
			r.s.Hurry()
		}
		r.s.Close()
	}()
	d.Order = Order(j.Link, copies, Task{j.Direction, d.Size, d.Files, j.Open, j.Have != ""})
	if r.stage != nil {
		defer r.stage.Close() // an incomplete copy is kept
	}
	defer r.forget(ctx)
	for _, e := range d.Order {
		if e.Left || j.Protocol != "" && e.Protocol != j.Protocol || len(d.Failed) > 0 && e.Protocol == own {
			continue // failed protocols were tried by direct
		}
		p := j.protocol(e.Protocol)
		if lacks := r.cannot(p); lacks != "" {
			if e.Protocol == j.Protocol {
				d.Failed = append(d.Failed, e.Protocol+": "+lacks)
			}
			continue
		}
		if missing := r.lacks(p); missing != "" {
			d.Failed = append(d.Failed, e.Protocol+": "+missing+" is not at the peer")
			// If the best protocol is not available, the user should know.
			if e.Seconds > 0 || e.Protocol == own {
				j.note("%s is left out: %s is not installed at the peer", e.Protocol, missing)
			}
			continue
		}
		j.note("by %s: %s", e.Protocol, e.Why)
		err := r.try(ctx, p)
		if err == nil {
			if err := r.commit(ctx, p); err != nil {
				return nil, err
			}
			d.Protocol, d.Seconds = e.Protocol, time.Since(begin).Seconds()
			return d, nil
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		var gone *peer.UnreachableError
		var target *TargetError
		var source *SourceError
		if errors.As(err, &gone) || errors.As(err, &target) || errors.As(err, &source) {
			return nil, err
		}
		d.Failed = append(d.Failed, e.Protocol+": "+err.Error())
		j.note("%s failed: %v", e.Protocol, err)
	}
	if r.unreadable != "" && len(d.Failed) == 0 {
		return nil, &SourceError{fmt.Sprintf("%s is unreadable, and premix's own protocol, which leaves it out, cannot be used", r.unreadable)}
	}
	left := ""
	if len(d.Failed) > 0 {
		left = r.left()
	}
	return nil, &FailedError{d.Failed, left}
}

func (j *Copy) note(format string, args ...any) {
	if j.Note != nil {
		j.Note(fmt.Sprintf(format, args...))
	}
}

func (j *Copy) protocol(name string) *link.Protocol {
	for i := range j.Link.Protocols {
		if p := &j.Link.Protocols[i]; p.Name == name {
			return p
		}
	}
	return nil // an order has only protocols of the link
}

// cannot returns why a protocol cannot make this copy as requested, or "" if it can.
func (r *run) cannot(p *link.Protocol) string {
	switch {
	case r.ownShipped(p):
	case r.Keep != stream.Keep{}:
		return "owners, hard links, attributes and ACLs are kept by premix's own protocol alone"
	case r.unreadable != "":
		return r.unreadable + " is unreadable"
	}
	return ""
}

// lacks returns a program that a protocol needs and that the peer does not have.
func (r *run) lacks(p *link.Protocol) string {
	for _, n := range p.AtPeer() {
		if r.missing[n] {
			return n
		}
	}
	return ""
}

// Scripts that query the peer. They print lines of a keyword and its value.
const (
	findPrograms = `; for n in %s; do command -v "$n" >/dev/null 2>&1 || echo "missing $n"; done
`
	countSource = `[ -r %[1]s ] || { [ -e %[1]s ] && echo unreadable || echo absent; exit 0; }
if [ -d %[1]s ]; then
  bad=$(find %[1]s ! -readable 2>/dev/null | head -n 1); [ -z "$bad" ] || echo "without $bad"
  find %[1]s -type f -printf '%%s\n' 2>/dev/null | awk '{ n++; s += $1 } END { printf "tree %%d %%.0f\n", n, s }'
else wc -c <%[1]s | awk '{ printf "file 1 %%.0f\n", $1 }'; fi
`
	findRoom = `[ ! -e %[1]s ] || { echo there; exit 0; }
mkdir -p %[2]s && df -Pk %[2]s | awk 'END { print "free", $4 }'; du -sk %[3]s 2>/dev/null | awk '{ print "free", $1 }'
`
)

// look connects to the peer. With the same command it determines the size of the source,
// the free space at the destination, and which programs the peer has.
func (r *run) look(ctx context.Context) (failed error) {
	var needs []string
	for i := range r.Link.Protocols {
		for _, n := range r.Link.Protocols[i].AtPeer() {
			needs = append(needs, link.Quote(n))
		}
	}
	slices.Sort(needs)
	script := testbed.Path + fmt.Sprintf(findPrograms, strings.Join(append(slices.Compact(needs), "sh"), " "))
	q := link.Quote(r.remote)
	if r.Direction == transfer.Get {
		script += fmt.Sprintf(countSource, q)
	} else {
		var err error
		if r.unreadable, err = lookHere(ctx, r.local, r.d); err != nil {
			return err
		}
		script += fmt.Sprintf(findRoom, q, link.Quote(path.Dir(r.remote)), link.Quote(r.began()))
	}
	s, text, err := peer.Ask(ctx, r.Link, script)
	if s == nil {
		return err
	}
	// A function that returns an error returns no session.
	if r.s = s; err != nil {
		s.Close()
		if r.Direction == transfer.Put {
			return &TargetError{err.Error()}
		}
		return err
	}
	defer func() {
		if failed != nil {
			s.Close()
		}
	}()
	if s.Temp() == "" {
		return &TargetError{"the peer can make no directory for temporary files"}
	}
	r.missing = map[string]bool{}
	free, counted := int64(0), false
	for line := range strings.Lines(text) {
		word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		number := func(s string) (n int64) {
			n, e := strconv.ParseInt(s, 10, 64)
			if e != nil {
				err = fmt.Errorf("the peer says %q", line)
			}
			return n
		}
		switch word {
		case "missing":
			r.missing[rest] = true
		case "absent":
			return &SourceError{fmt.Sprintf("%s at %s is missing", r.remote, r.Link.Peer())}
		case "without":
			r.unreadable = rest
		case "unreadable":
			return &SourceError{fmt.Sprintf("%s at %s is unreadable", cmp.Or(rest, r.remote), r.Link.Peer())}
		case "file", "tree":
			files, size, _ := strings.Cut(rest, " ")
			r.d.Files, r.d.Size, counted = int(number(files)), number(size), true
			if word == "tree" {
				r.d.Files = max(2, r.d.Files) // a tree with one file is copied like other trees
			}
		case "there":
			return &TargetError{r.remote + " is at the peer already"}
		case "free":
			free, counted = free+number(rest)<<10, true
		}
	}
	if err != nil {
		return err
	}
	if !counted {
		return fmt.Errorf("the peer returned no size: %q", text)
	}
	if r.Direction == transfer.Get {
		if err := r.makeWay(); err != nil {
			return err
		}
		if r.stage, err = r.Copy.stage(); err != nil {
			return err
		}
		r.local = r.stage.Path()
		return room(r.local, r.d.Size)
	}
	if free < r.d.Size+minRoom {
		return noRoom(r.d.Size, free)
	}
	return nil
}

// lookHere counts the data of a put. unreadable is a file of a tree that cannot be read, or
// "".
func lookHere(ctx context.Context, at string, d *Result) (unreadable string, err error) {
	info, err := os.Stat(at)
	if err != nil {
		return "", &SourceError{err.Error()}
	}
	readable := func(p string) bool { return unix.Faccessat(unix.AT_FDCWD, p, unix.R_OK, unix.AT_EACCESS) == nil }
	if !info.IsDir() {
		f, err := os.Open(at)
		if err != nil {
			return "", &SourceError{err.Error()}
		}
		d.Size, d.Files = info.Size(), 1
		return "", f.Close()
	}
	n := 0
	err = filepath.WalkDir(at, func(p string, e fs.DirEntry, err error) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			if p == at {
				return err
			}
			unreadable = p
			return nil
		}
		if !e.Type().IsRegular() {
			return nil
		}
		i, err := e.Info()
		if err != nil || !readable(p) {
			unreadable = p
			return nil
		}
		n++
		d.Size += i.Size()
		return nil
	})
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	if d.Files = max(2, n); err != nil {
		return "", &SourceError{err.Error()}
	}
	return unreadable, nil
}

// try makes the copy by one protocol, and verifies it.
func (r *run) try(ctx context.Context, p *link.Protocol) error {
	outer := ctx
	ctx, done := r.s.Watch(ctx)
	defer done()
	put := r.Direction == transfer.Put
	local, remote, in := r.local, r.remote, ""
	if !put {
		local, in = forScripts(r.stage), r.stage.Dir().Path()
	} else if !p.Stages {
		if r.there == nil {
			var err error
			if r.there, err = r.stageRemote(ctx); err != nil {
				return err
			}
		}
		remote = r.there.path()
	}
	there := path.Join(r.s.Temp(), p.Name)
	here := filepath.Join(r.temp, p.Name)
	if err := os.MkdirAll(here, 0o700); err != nil {
		return err
	}
	clear := "mkdir -p " + link.Quote(there)
	// Remove the part that another protocol has left, unless this one can continue with it.
	if !p.Resumes {
		if put {
			if !p.Stages {
				clear += "; rm -rf " + link.Quote(remote)
			}
		} else if err := os.RemoveAll(r.local); err != nil {
			return err
		}
	}
	if p.Server != "" {
		// In the same round trip.
		with := *p
		with.Server = "mkdir -p " + link.Quote(there) + "\n" + p.Server
		p = &with
	}
	if put && !p.Resumes {
		if _, err := r.s.Run(ctx, clear); err != nil {
			return err
		}
	}
	addr, err := testbed.Resolve(ctx, r.Link.Host)
	if err != nil {
		// The server's name may be one of ssh's configuration: use the address of the
		// session.
		var serr error
		if addr, serr = netip.ParseAddr(r.s.Address()); serr != nil {
			return err
		}
	}
	at := link.Places{Local: local, Remote: remote, Temp: here, RemoteTemp: there, Address: addr.String(), Premix: r.Premix, Have: r.Have, Put: put}
	if r.ownShipped(p) {
		return r.tryOwn(ctx, p, addr.String())
	}
	id := fmt.Sprintf("%d-%d", os.Getpid(), time.Now().UnixNano())
	if p.Server != "" {
		v, err := testbed.Serve(ctx, r.s, r.Link, p, at, addr, path.Join(r.s.Temp(), p.Name+".log"), id)
		if v != nil {
			defer func() { r.stop(outer, v) }()
		}
		if err != nil {
			return err
		}
	}
	var target *digest
	if !p.Verifies {
		if target, err = r.watch(ctx); err != nil {
			return err
		}
		defer func() { r.drop(outer, target) }()
	}
	ran := testbed.Run(ctx, r.Link.Variables(p, at)+p.Script(r.Direction, r.d.Files > 1), id, in, testbed.Limits{Time: r.Link.Timeout, Stall: r.Link.StallOf(p)}, func(int) {
		if r.Progress != nil && !put {
			r.Progress(onDisk(r.local), r.d.Size)
		}
	})
	if ran.Exit == sshFailed {
		// The session on the same connection reports its end in a moment.
		select {
		case <-ctx.Done():
		case <-time.After(sessionTime):
		}
	}
	var gone *peer.UnreachableError
	if errors.As(context.Cause(ctx), &gone) {
		return gone
	}
	if ran.Cause != "" {
		if !put && freeSpace(filepath.Dir(r.local)) < minRoom {
			return &TargetError{"the disk of the destination is full"}
		}
		return errors.New(ran.Error)
	}
	if p.Verifies {
		r.d.Verified = "by " + p.Name
		if ran.Stderr != "" {
			r.note("%s", ran.Stderr)
		}
		return nil
	}
	return r.verify(ctx, target)
}

// sessionTime is the time in which a session whose connection has ended reports it.
const sessionTime = 2 * time.Second

// tidyTime is the time that a server at the peer may take to end.
const tidyTime = 10 * time.Second

// stop ends a server, unless the copy was interrupted: a server ends no later than its
// session.
func (r *run) stop(ctx context.Context, v *peer.Server) {
	if ctx.Err() != nil {
		return
	}
	ctx, done := context.WithTimeout(ctx, tidyTime)
	defer done()
	_ = v.Stop(ctx)
}

// commit renames a complete copy to its name. First it clears set-user-ID, set-group-ID and
// sticky bits that a protocol has copied: they would give away the rights of the receiver.
func (r *run) commit(ctx context.Context, p *link.Protocol) error {
	if r.Direction == transfer.Put {
		if p.Stages {
			return nil
		}
		return r.there.commit(ctx, r)
	}
	var err error
	if !r.ownShipped(p) { // it keeps them only together with the owners
		err = r.stage.Plain()
	}
	if err == nil {
		err = r.stage.Commit()
	}
	if err != nil {
		return &TargetError{err.Error()}
	}
	return nil
}

// began returns the path at the peer where an earlier call may have begun the copy: its
// size reduces the space needed.
func (r *run) began() string {
	if known, _ := r.known(); known.Directory != "" {
		return known.Directory
	}
	return path.Join(r.remote, "none") // the destination does not exist, nor does this file
}

// left returns the place of the part of a failed copy.
func (r *run) left() string {
	switch {
	case r.stage != nil:
		return r.stage.Shown()
	case r.there != nil:
		return r.there.path()
	}
	return r.remote
}

// onDisk returns the number of bytes of a file or tree that have arrived.
func onDisk(at string) (n int64) {
	_ = filepath.WalkDir(at, func(_ string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			if i, err := e.Info(); err == nil {
				n += i.Size()
				// If the end of a file was written before its middle, count the allocated
				// blocks.
				if st, ok := i.Sys().(*syscall.Stat_t); ok {
					n -= max(0, i.Size()-st.Blocks*512)
				}
			}
		}
		return nil // files that are removed during the walk do not count
	})
	return n
}
