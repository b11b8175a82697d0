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

	"premix/internal/kit/exit"
	"premix/internal/kit/owner"
	"premix/internal/record"
	"premix/internal/transfer"
	"premix/internal/transfer/capture"
	"premix/internal/transfer/link"
	"premix/internal/transfer/peer"
)

// Path is a line of sh that extends PATH at the peer. Daemons are in directories that not
// every user's PATH has, and the PATH that ssh sets lacks the directories where users
// install programs.
const Path = "PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin:$HOME/.local/bin:$HOME/bin"

// The ways to capture.
const (
	CapturePacket  = "packet"
	CaptureTcpdump = "tcpdump"
	CaptureNone    = "none"
)

// Options are the settings of a bench.
type Options struct {
	Out     string // directory of results; it may contain earlier ones
	Repeat  int    // rounds; 0: the number in the link file
	Packets bool   // keep a table of all packets
	Pcap    bool   // keep pcap files
	Capture string // one of the ways to capture; empty: packet
	Only    []string
	Premix  string // path of this program
	Version string // version of this program
	// Report is called after each copy. It may be nil.
	Report func(*transfer.Copy, Progress)
	// Note is called for each protocol left out, with the reason. It may be nil.
	Note func(string)
}

// Progress is the progress of a run in copies.
type Progress struct{ Done, All int }

// item is a planned copy.
type item struct {
	protocol *link.Protocol
	way      transfer.Direction
	source   *source
}

// Bench measures the protocols of a link.
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

	interrupted bool // premix was asked to end: Close must not wait for the peer
}

// server is the running server of a protocol.
type server struct {
	v     *peer.Server
	ready bool
	setup float64 // duration of its start, seconds
}

// New connects to the peer, creates the data to copy, and leaves out protocols that cannot
// be measured. The caller must call Close, even after an error of Run.
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
		return nil, exit.Errorf(exit.Directory, "give host: a name that can be resolved, or an address", "the peer has no address: %w", err)
	}
	device, here, err := capture.Route(b.addr)
	if err != nil {
		return nil, exit.Errorf(exit.Directory, "name the interface: in the link file", "there is no way to the peer: %w", err)
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
		return nil, exit.Errorf(exit.Directory, "give a directory that you can write to with --out", "the results can't be written: %w", err)
	}
	return b, nil
}

// Resolve returns the address of a host.
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

// tryCapture checks before the first copy that capturing is possible.
func (b *Bench) tryCapture() error {
	s, _, err := b.startCapture("")
	if err != nil || s == nil {
		return err
	}
	_, err = s.Stop()
	return err
}

// startCapture starts a capture. It returns nil if captures are off.
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
	if err := owner.MkdirAll(b.l.Directory, 0o755); err != nil {
		return exit.Errorf(exit.Directory, "give another directory:", "the directory here can't be made: %w", err)
	}
	if b.local, err = os.MkdirTemp(b.l.Directory, "premix-bench-"); err != nil {
		return exit.Errorf(exit.Directory, "give another directory:", "the directory here can't be written: %w", err)
	}
	q := link.Quote(b.l.PeerDirectory)
	// Servers that drop their rights must still be able to read the data.
	text, err := b.p.Run(ctx, "umask 022; mkdir -p "+q+" && d=$(mktemp -d "+q+"/premix-bench-XXXXXX) && chmod 755 \"$d\" && mkdir \"$d/data\" \"$d/temp\" && chmod 711 \"$d/temp\" && echo \"$d\"")
	if err != nil {
		return exit.Errorf(exit.Directory, "give another peer_directory:", "the directory at the peer can't be written: %w", err)
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

// makePlan lists the copies to measure and creates the data for them.
func (b *Bench) makePlan(ctx context.Context) error {
	for _, name := range b.o.Only {
		if !slices.ContainsFunc(b.l.Protocols, func(p link.Protocol) bool { return p.Name == name }) {
			return exit.Errorf(exit.Directory, "see its list of protocols:", "the link file has no protocol %s", name)
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
			b.note("%s is left out: only a capture can show that it uses UDP", p.Name)
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
			b.note("%s is left out: it can copy none of the data in the link file", p.Name)
		}
	}
	if len(b.plan) == 0 {
		return exit.Errorf(exit.Directory, "install the programs that the protocols need; see what was left out", "there is nothing to measure")
	}
	for s := range here {
		if err := s.make(ctx, filepath.Join(b.local, "data", s.name())); err != nil {
			return exit.Errorf(exit.Directory, "free some space, or give another directory:", "the data can't be made here: %w", err)
		}
	}
	for s := range there {
		at := path.Join(b.remote, "data", s.name())
		if err := s.makeAt(ctx, b.p, b.l, at, b.upload); err != nil {
			return exit.Errorf(exit.Directory, "free some space, or give another peer_directory:", "the data can't be made at the peer: %w", err)
		}
	}
	return nil
}

// missing returns a program that a protocol needs and that is not installed.
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

// upload sends a stream to a file at the peer through a separate connection.
func (b *Bench) upload(ctx context.Context, in io.Reader, to string) error {
	words := append(b.l.SSH(), b.l.Peer(), "set -C; cat >"+link.Quote(to))
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.Stdin = in
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w", lastLine(string(out)), err)
	}
	return nil
}

// Summary counts the copies of a run.
type Summary struct{ Copies, Failed, Disturbed int }

// Run runs all rounds. It returns an error if it cannot continue; failed copies are only
// counted.
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
					return sum, exit.Errorf(exit.Directory, "free some space; the rows written so far are kept", "the results can't be written: %w", werr)
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

// Close ends servers and the session, and removes the data.
func (b *Bench) Close() error {
	var errs []error
	if b.p != nil {
		// The caller's context may be done, but the cleaning up must still happen.
		ctx, done := context.WithTimeout(context.Background(), time.Minute)
		defer done()
		if b.interrupted {
			b.p.Hurry() // the end of the session does all of that
		}
		for _, name := range slices.Sorted(maps.Keys(b.servers)) {
			if v := b.servers[name].v; v != nil && !b.interrupted {
				_ = v.Stop(ctx) // if the session is gone, it has ended the server
			}
		}
		if b.remote != "" && !b.interrupted {
			// If the session has ended, the peer removes it as soon as it notices.
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
