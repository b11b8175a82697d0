package testbed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"premix/internal/exit"
	"premix/record"
	"premix/transfer"
	"premix/transfer/capture"
	"premix/transfer/link"
	"premix/transfer/peer"
)

// Path is a line of sh: where programs at the peer are looked for. Daemons are in
// directories that not every user's PATH has, and what users install themselves is
// not in the one that ssh gives.
const Path = "PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin:$HOME/.local/bin:$HOME/bin"

// Ways to capture.
const (
	CapturePacket  = "packet"
	CaptureTcpdump = "tcpdump"
	CaptureNone    = "none"
)

// Options of a bench.
type Options struct {
	Out     string // directory of results; it may have some
	Repeat  int    // rounds; 0: as the link says
	Packets bool   // keep a table of all packets
	Pcap    bool   // keep pcap files
	Capture string // one of the ways; empty: packet
	Only    []string
	Premix  string // path of this program
	Version string // of it
	// Report is called for each copy that was done. It may be nil.
	Report func(*transfer.Copy, Progress)
	// Note is called for what is left out and why. It may be nil.
	Note func(string)
}

// Progress of a run.
type Progress struct{ Done, All int }

// SetupError tells that a bench can't begin.
type SetupError struct {
	Reason string
	Way    string
	Err    error
}

func (e *SetupError) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("%s: %v", e.Reason, e.Err)
	}
	return e.Reason
}

// ExitCode implements exit.Coded.
func (*SetupError) ExitCode() exit.Code { return exit.Directory }
func (e *SetupError) Unwrap() error     { return e.Err }

// Hint names the way out.
func (e *SetupError) Hint() string { return e.Way }

// item is a copy that is planned.
type item struct {
	protocol *link.Protocol
	way      transfer.Direction
	source   *source
}

// Bench measures a link.
type Bench struct {
	l       *link.Link
	o       Options
	p       *peer.Session
	addr    netip.Addr // of the peer
	here    netip.Addr
	device  string
	host    string
	local   string // work directory here
	remote  string // at the peer
	plan    []item
	servers map[string]*server
	out     *record.Writer
	order   int

	interrupted bool // premix was asked to end: Close does not wait for the peer
}

// server of a protocol.
type server struct {
	v     *peer.Server
	ready bool
	setup float64 // what its start took, seconds
}

// New reaches the peer, makes what is to be copied, and leaves out what can't be
// measured. The caller must call Close, also after an error of Run.
func New(ctx context.Context, l *link.Link, o Options) (_ *Bench, err error) {
	b := &Bench{l: l, o: o, servers: map[string]*server{}}
	defer func() {
		if err != nil {
			b.interrupted = ctx.Err() != nil
			b.Close()
		}
	}()
	if o.Capture == "" {
		b.o.Capture = CapturePacket
	}
	if b.host, err = os.Hostname(); err != nil {
		return nil, err
	}
	if b.p, err = peer.Open(ctx, l); err != nil {
		return nil, err
	}
	if b.addr, err = Resolve(ctx, l.Host); err != nil {
		return nil, &SetupError{"the peer has no address", "give host: a name that can be resolved, or an address", err}
	}
	device, here, err := capture.Route(b.addr)
	if err != nil {
		return nil, &SetupError{"there is no way to the peer", "name the interface: in the link file", err}
	}
	b.device, b.here = device, here
	if l.Interface != "" {
		b.device = l.Interface
	}
	if err := b.tryCapture(); err != nil {
		return nil, err
	}
	if err := b.directories(ctx); err != nil {
		return nil, err
	}
	if err := b.makePlan(ctx); err != nil {
		return nil, err
	}
	if b.out, err = transfer.Create(o.Out, record.Header{Premix: o.Version, Host: b.host, PID: os.Getpid(), Created: time.Now().UTC()}); err != nil {
		return nil, &SetupError{"the results can't be written", "give a directory that you may write with --out", err}
	}
	return b, nil
}

// Resolve is the address of a host.
func Resolve(ctx context.Context, host string) (netip.Addr, error) {
	if a, err := netip.ParseAddr(host); err == nil {
		return a, nil
	}
	list, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return netip.Addr{}, err
	}
	return list[0].Unmap(), nil
}

// tryCapture finds out before anything is copied that a capture is not possible.
func (b *Bench) tryCapture() error {
	s, _, err := b.startCapture("")
	if err != nil || s == nil {
		return err
	}
	_, err = s.Stop()
	return err
}

// startCapture returns nil where nothing is captured.
func (b *Bench) startCapture(id string) (s capture.Source, begin time.Time, err error) {
	o := capture.Options{Interface: b.device, Here: b.here, Peer: b.addr, ExceptPort: b.p.Port(), MTU: capture.MTU(b.device), Packets: b.o.Packets && id != ""}
	if b.o.Pcap && id != "" {
		dir := filepath.Join(b.o.Out, "pcap")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, begin, err
		}
		o.Pcap = filepath.Join(dir, id+".pcap")
	}
	switch b.o.Capture {
	case CaptureNone:
		return nil, begin, nil
	case CaptureTcpdump:
		d, err := capture.OpenTcpdump(o, nil)
		if err != nil {
			return nil, begin, err
		}
		return d, d.Begin(), nil
	}
	c, err := capture.Open(o)
	if err != nil {
		return nil, begin, err
	}
	return c, c.Begin(), nil
}

func (b *Bench) directories(ctx context.Context) (err error) {
	if err := os.MkdirAll(b.l.Directory, 0o755); err != nil {
		return &SetupError{"the directory here can't be made", "give another directory:", err}
	}
	if b.local, err = os.MkdirTemp(b.l.Directory, "premix-bench-"); err != nil {
		return &SetupError{"the directory here can't be written", "give another directory:", err}
	}
	q := link.Quote(b.l.PeerDirectory)
	// Servers that give up their rights must be able to read what they serve.
	text, err := b.p.Run(ctx, "umask 022; mkdir -p "+q+" && d=$(mktemp -d "+q+"/premix-bench-XXXXXX) && chmod 755 \"$d\" && mkdir \"$d/data\" \"$d/temp\" && chmod 711 \"$d/temp\" && echo \"$d\"")
	if err != nil {
		return &SetupError{"the directory at the peer can't be written", "give another peer_directory:", err}
	}
	b.remote = strings.TrimSpace(text)
	if err := b.p.Remove(ctx, b.remote); err != nil {
		return err
	}
	for _, dir := range []string{"data", "temp"} {
		if err := os.Mkdir(filepath.Join(b.local, dir), 0o755); err != nil {
			return err
		}
	}
	return nil
}

func (b *Bench) note(format string, args ...any) {
	if b.o.Note != nil {
		b.o.Note(fmt.Sprintf(format, args...))
	}
}

// makePlan lists what can be measured and makes the sources for it.
func (b *Bench) makePlan(ctx context.Context) error {
	for _, name := range b.o.Only {
		if !slices.ContainsFunc(b.l.Protocols, func(p link.Protocol) bool { return p.Name == name }) {
			return &SetupError{Reason: fmt.Sprintf("the link file has no protocol %s", name), Way: "see its list of protocols:"}
		}
	}
	here, there := map[*source]bool{}, map[*source]bool{}
	var sources []*source
	for _, d := range b.l.Data {
		sources = append(sources, newSource(d, b.l.Seed))
	}
	for i := range b.l.Protocols {
		p := &b.l.Protocols[i]
		if len(b.o.Only) > 0 && !slices.Contains(b.o.Only, p.Name) {
			continue
		}
		if missing, where, err := b.missing(ctx, p); err != nil {
			return err
		} else if missing != "" {
			b.note("%s is left out: %s is not %s", p.Name, missing, where)
			continue
		}
		if p.Expect != "" && b.o.Capture == CaptureNone {
			b.note("%s is left out: only a capture can tell that it is what it should be", p.Name)
			continue
		}
		planned := 0
		for _, way := range b.l.Ways {
			for _, s := range sources {
				if p.Script(way, s.data.Files > 1) == "" {
					continue
				}
				planned++
				b.plan = append(b.plan, item{p, way, s})
				if way == transfer.Get {
					there[s] = true
				} else {
					here[s] = true
				}
			}
		}
		if planned == 0 {
			b.note("%s is left out: it can copy nothing of what the link file lists", p.Name)
		}
	}
	if len(b.plan) == 0 {
		return &SetupError{Reason: "there is nothing to measure", Way: "install the programs that the protocols need; see what was left out"}
	}
	for s := range here {
		if err := s.make(ctx, filepath.Join(b.local, "data", s.name())); err != nil {
			return &SetupError{"the data can't be made here", "make room, or give another directory:", err}
		}
	}
	for s := range there {
		at := path.Join(b.remote, "data", s.name())
		if err := s.makeAt(ctx, b.p, b.l, at, b.upload); err != nil {
			return &SetupError{"the data can't be made at the peer", "make room, or give another peer_directory:", err}
		}
	}
	return nil
}

// missing is a program that a protocol lacks.
func (b *Bench) missing(ctx context.Context, p *link.Protocol) (program, where string, err error) {
	for _, n := range p.Needs {
		if _, err := exec.LookPath(n); err != nil {
			return n, "here", nil
		}
	}
	for _, n := range p.AtPeer() {
		_, err := b.p.Run(ctx, Path+"; command -v "+link.Quote(n))
		var status *peer.ScriptError
		if errors.As(err, &status) {
			return n, "at the peer", nil
		}
		if err != nil {
			return "", "", err
		}
	}
	return "", "", nil
}

// upload sends a stream to a file at the peer by a connection of its own.
func (b *Bench) upload(ctx context.Context, in io.Reader, to string) error {
	words := append(b.l.SSH(), b.l.Peer(), "set -C; cat >"+link.Quote(to))
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.Stdin = in
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w", lastLine(string(out)), err)
	}
	return nil
}

// Planned is the number of copies of a round.
func (b *Bench) Planned() int { return len(b.plan) }

// Summary of a run.
type Summary struct{ Copies, Failed, Disturbed int }

// Run does all rounds. Its error tells that it could not go on; copies that fail
// are counted.
func (b *Bench) Run(ctx context.Context) (Summary, error) {
	var sum Summary
	defer func() { b.interrupted = ctx.Err() != nil }()
	rounds := b.l.Repeat
	if b.o.Repeat > 0 {
		rounds = b.o.Repeat
	}
	for round := 1; round <= rounds; round++ {
		plan := slices.Clone(b.plan)
		r := rand.New(rand.NewPCG(b.l.Seed, uint64(round)))
		r.Shuffle(len(plan), func(i, j int) { plan[i], plan[j] = plan[j], plan[i] })
		for _, it := range plan {
			if ctx.Err() != nil {
				return sum, context.Cause(ctx)
			}
			b.order++
			c, err := b.copy(ctx, it, round)
			if c != nil {
				if werr := b.out.Commit(c); werr != nil {
					return sum, &SetupError{"the results can't be written", "make room; what was measured is kept", werr}
				}
				sum.Copies++
				if !c.OK {
					sum.Failed++
				}
				if c.Disturbed != "" {
					sum.Disturbed++
				}
				if b.o.Report != nil {
					b.o.Report(c, Progress{b.order, rounds * len(b.plan)})
				}
			}
			if err != nil {
				return sum, err
			}
		}
	}
	return sum, nil
}

// Close ends servers and session and removes what was made.
func (b *Bench) Close() error {
	var errs []error
	if b.p != nil {
		// The caller's context may be done, and cleaning up must still happen.
		ctx, done := context.WithTimeout(context.Background(), time.Minute)
		defer done()
		if b.interrupted {
			b.p.Hurry() // at its end the session does all that
		}
		for _, name := range slices.Sorted(maps.Keys(b.servers)) {
			if v := b.servers[name].v; v != nil && !b.interrupted {
				_ = v.Stop(ctx) // a session that is gone has ended it
			}
		}
		if b.remote != "" && !b.interrupted {
			// A session that has ended has the peer do so too, as soon as it notices.
			if _, err := b.p.Run(ctx, "rm -rf "+link.Quote(b.remote)); err != nil && ctx.Err() == nil {
				b.note("%s may stay at the peer: %v", b.remote, err)
			}
		}
		b.p.Close()
	}
	if b.local != "" {
		errs = append(errs, os.RemoveAll(b.local))
	}
	if b.out != nil {
		errs = append(errs, b.out.Close())
	}
	return errors.Join(errs...)
}
