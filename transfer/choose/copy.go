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

	"premix/transfer"
	"premix/transfer/link"
	"premix/transfer/peer"
	"premix/transfer/stream"
	"premix/transfer/testbed"
)

// Job is one get or put.
type Job struct {
	Link      *link.Link
	Known     *Known
	Direction transfer.Direction
	Remote    string // path at the peer
	Local     string
	Open      bool   // allow open protocols
	Protocol  string // only this one; empty: choose
	Premix    string // path of this program
	Have      string // what the receiver has that may hold much of it; empty: nothing
	// Server is the address of a standing server, and Key lets in there: the copy is
	// made by it, and nothing is chosen. Link, Known, Open, Protocol and Premix are not
	// looked at then.
	Server string
	Key    *stream.Key
	// Note is called with what happens, for people. It may be nil.
	Note func(string)
	// Progress is called now and then with the bytes that have arrived. It may be nil.
	Progress func(done, all int64)
}

// Done tells of a copy.
type Done struct {
	Protocol string     `json:"protocol"`
	Size     int64      `json:"size"`
	Files    int        `json:"files"`
	Seconds  float64    `json:"seconds"`
	Verified string     `json:"verified"`         // how
	SHA256   string     `json:"sha256,omitempty"` // of both ends, where that is how
	Order    []Estimate `json:"order"`
	Failed   []string   `json:"failed"` // PROTOCOL: why, of those that were tried before
}

// SourceError tells that there is nothing to copy, or that it may not be read.
type SourceError struct{ Reason string }

func (e *SourceError) Error() string { return e.Reason }

// Hint names the way out.
func (e *SourceError) Hint() string { return "name a file or a directory that you may read" }

// TargetError tells that the destination can't take the copy.
type TargetError struct{ Reason string }

func (e *TargetError) Error() string { return e.Reason }

// Hint names the way out.
func (e *TargetError) Hint() string { return "make room, or give another destination" }

// FailedError tells that no protocol has made the copy.
type FailedError struct {
	Failed []string
	Part   string
}

func (e *FailedError) Error() string {
	if len(e.Failed) == 0 {
		return "there is no protocol that can make this copy"
	}
	return "every protocol failed: " + strings.Join(e.Failed, "; ")
}

// Hint names the way out.
func (e *FailedError) Hint() string {
	if e.Part == "" {
		return "premix transfer why PEER tells what is left out and why"
	}
	return "the same command goes on with what has arrived: " + e.Part
}

// partSuffix is of what is not whole yet.
const partSuffix = ".premix-part"

// minRoom is how much must be free beyond the size, bytes.
const minRoom = 1 << 20

// longestSocket is the longest path for a socket that ssh can use: it adds 17 bytes
// of its own while it makes it, of the 107 that there are (unix(7)).
const longestSocket = 90

// run is a copy under way.
type run struct {
	*Job
	s             *peer.Session
	temp          string // directory here; at the peer the session has one
	local, remote string // what is written has its suffix already
	missing       map[string]bool
	d             *Done
	source        *digest // of the source, once it was needed
}

// Run makes the copy.
func (j *Job) Run(ctx context.Context) (*Done, error) {
	if j.Server != "" {
		return j.stand(ctx)
	}
	begin := time.Now()
	copies, err := j.Known.Measurements()
	if err != nil {
		return nil, err
	}
	d := &Done{}
	if elsewhere, ok := j.surely(copies); ok {
		done, final, err := j.direct(ctx, copies, elsewhere)
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
	// All that goes through ssh shares one connection, of which only the first command
	// waits for keys to be exchanged.
	l := *j.Link
	if l.Control = filepath.Join(temp, "ssh"); len(l.Control) > longestSocket {
		l.Control = ""
	}
	j.Link = &l
	r := &run{Job: j, temp: temp, local: j.Local, remote: j.Remote, d: d}
	if err := r.look(ctx); err != nil {
		return nil, err
	}
	defer r.s.Close()
	d.Order = Order(j.Link, copies, Task{j.Direction, d.Size, d.Files, j.Open, j.Have != ""})
	part := &r.local
	if j.Direction == transfer.Put {
		part = &r.remote
	}
	final := *part
	*part += partSuffix
	defer r.forget(ctx)
	for _, e := range d.Order {
		if e.Left || j.Protocol != "" && e.Protocol != j.Protocol || len(d.Failed) > 0 && e.Protocol == own {
			continue // failed is what was tried without a question
		}
		p := j.protocol(e.Protocol)
		if missing := r.lacks(p); missing != "" {
			d.Failed = append(d.Failed, e.Protocol+": "+missing+" is not at the peer")
			// Where the best is not to be had people want to know it.
			if e.Seconds > 0 || e.Protocol == own {
				j.note("%s is left out: %s is not installed at the peer", e.Protocol, missing)
			}
			continue
		}
		j.note("by %s: %s", e.Protocol, e.Why)
		err := r.try(ctx, p)
		if err == nil {
			if err := r.rename(ctx, *part, final); err != nil {
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
		if errors.As(err, &gone) || errors.As(err, &target) {
			return nil, err
		}
		d.Failed = append(d.Failed, e.Protocol+": "+err.Error())
		j.note("%s failed: %v", e.Protocol, err)
	}
	left := ""
	if len(d.Failed) > 0 {
		left = *part
	}
	return nil, &FailedError{d.Failed, left}
}

func (j *Job) note(format string, args ...any) {
	if j.Note != nil {
		j.Note(fmt.Sprintf(format, args...))
	}
}

func (j *Job) protocol(name string) *link.Protocol {
	for i := range j.Link.Protocols {
		if p := &j.Link.Protocols[i]; p.Name == name {
			return p
		}
	}
	return nil // an order names protocols of the link alone
}

// lacks is a program that the peer has not, of those that a protocol needs there.
func (r *run) lacks(p *link.Protocol) string {
	for _, n := range p.AtPeer() {
		if r.missing[n] {
			return n
		}
	}
	return ""
}

// Scripts that tell of the peer, in lines of a word and what belongs to it.
const (
	findPrograms = `; for n in %s; do command -v "$n" >/dev/null 2>&1 || echo "missing $n"; done
`
	countSource = `[ -r %[1]s ] || { [ -e %[1]s ] && echo unreadable || echo absent; exit 0; }
if [ -d %[1]s ]; then
  bad=$(find %[1]s ! -readable 2>/dev/null | head -n 1); [ -z "$bad" ] || { echo "unreadable $bad"; exit 0; }
  find %[1]s -type f -printf '%%s\n' | awk '{ n++; s += $1 } END { printf "tree %%d %%.0f\n", n, s }'
else wc -c <%[1]s | awk '{ printf "file 1 %%.0f\n", $1 }'; fi
`
	findRoom = `[ ! -e %[1]s ] || { echo there; exit 0; }
mkdir -p %[2]s && df -Pk %[2]s | awk 'END { print "free", $4 }'; du -sk %[3]s 2>/dev/null | awk '{ print "free", $1 }'
`
)

// look reaches the peer, and finds out in the same question how much there is to copy, that there
// is room for it, and which programs the peer has.
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
		if err := lookHere(r.local, r.d); err != nil {
			return err
		}
		script += fmt.Sprintf(findRoom, q, link.Quote(path.Dir(r.remote)), link.Quote(r.remote+partSuffix))
	}
	s, text, err := peer.Ask(ctx, r.Link, script)
	if s == nil {
		return err
	}
	// Whoever returns an error has not got the session.
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
		case "unreadable":
			return &SourceError{fmt.Sprintf("%s at %s is unreadable", cmp.Or(rest, r.remote), r.Link.Peer())}
		case "file", "tree":
			files, size, _ := strings.Cut(rest, " ")
			r.d.Files, r.d.Size, counted = int(number(files)), number(size), true
			if word == "tree" {
				r.d.Files = max(2, r.d.Files) // a tree of one file is copied as trees are
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
		return fmt.Errorf("the peer does not say how much there is: %q", text)
	}
	if r.Direction == transfer.Get {
		if err := r.makeWay(); err != nil {
			return err
		}
		return room(r.local+partSuffix, r.d.Size)
	}
	if free < r.d.Size+minRoom {
		return noRoom(r.d.Size, free)
	}
	return nil
}

func lookHere(at string, d *Done) error {
	info, err := os.Stat(at)
	if err != nil {
		return &SourceError{err.Error()}
	}
	if !info.IsDir() {
		f, err := os.Open(at)
		if err != nil {
			return &SourceError{err.Error()}
		}
		d.Size, d.Files = info.Size(), 1
		return f.Close()
	}
	n := 0
	err = filepath.WalkDir(at, func(p string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		i, err := e.Info()
		if err != nil {
			return err
		}
		f, err := os.Open(p)
		if err != nil {
			return err
		}
		n++
		d.Size += i.Size()
		return f.Close()
	})
	if d.Files = max(2, n); err != nil {
		return &SourceError{err.Error()}
	}
	return nil
}

// try makes the copy by one protocol, and compares it.
func (r *run) try(ctx context.Context, p *link.Protocol) error {
	put := r.Direction == transfer.Put
	there := path.Join(r.s.Temp(), p.Name)
	here := filepath.Join(r.temp, p.Name)
	if err := os.MkdirAll(here, 0o700); err != nil {
		return err
	}
	clear := "mkdir -p " + link.Quote(there)
	// What another protocol has left is in the way of one that doesn't go on with it.
	if !p.Resumes {
		if put {
			clear += "; rm -rf " + link.Quote(r.remote)
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
		// A name of ssh's own: the session has reached it.
		var serr error
		if addr, serr = netip.ParseAddr(r.s.Address()); serr != nil {
			return err
		}
	}
	at := link.Places{Local: r.local, Remote: r.remote, Temp: here, RemoteTemp: there, Address: addr.String(), Premix: r.Premix, Have: r.Have, Put: put}
	id := fmt.Sprintf("%d-%d", os.Getpid(), time.Now().UnixNano())
	if p.Server != "" {
		v, err := testbed.Serve(ctx, r.s, r.Link, p, at, addr, path.Join(r.s.Temp(), p.Name+".log"), id)
		if v != nil {
			defer func() { _ = v.Stop(context.WithoutCancel(ctx)) }() // it ends with the session at the latest
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
		defer target.forget(ctx)
	}
	ran := testbed.Run(ctx, r.Link.Variables(p, at)+p.Script(r.Direction, r.d.Files > 1), id, r.Link.Timeout, func(int) {
		if r.Progress != nil && !put {
			r.Progress(onDisk(r.local), r.d.Size)
		}
	})
	if ran.Cause != "" {
		if !put && freeSpace(filepath.Dir(r.local)) < minRoom {
			return &TargetError{"the disk of the destination is full"}
		}
		return errors.New(ran.Error)
	}
	if p.Verifies {
		r.d.Verified = "by " + p.Name
		if ran.Said != "" {
			r.note("%s", ran.Said)
		}
		return nil
	}
	return r.verify(ctx, target)
}

func (r *run) rename(ctx context.Context, part, final string) error {
	if r.Direction == transfer.Get {
		return os.Rename(part, final)
	}
	_, err := r.s.Run(ctx, fmt.Sprintf("mv -T %s %s", link.Quote(part), link.Quote(final)))
	return err
}

// onDisk is how much of a file or tree has arrived.
func onDisk(at string) (n int64) {
	_ = filepath.WalkDir(at, func(_ string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			if i, err := e.Info(); err == nil {
				n += i.Size()
				// Of a file whose end came before its middle, what is there.
				if st, ok := i.Sys().(*syscall.Stat_t); ok {
					n -= max(0, i.Size()-st.Blocks*512)
				}
			}
		}
		return nil // what goes meanwhile doesn't count
	})
	return n
}
