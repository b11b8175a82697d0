package testbed

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"premix/internal/kit/units"
	"premix/internal/record"
	"premix/internal/transfer"
	"premix/internal/transfer/capture"
	"premix/internal/transfer/link"
	"premix/internal/transfer/peer"
)

// copy makes and measures one copy. An error means that further copies are pointless; the
// row may still be valid.
func (b *Bench) copy(ctx context.Context, it item, round int) (*transfer.Copy, error) {
	now := time.Now()
	h, m, s := now.Clock()
	c := &transfer.Copy{
		ID:   fmt.Sprintf("%s-%04d", now.UTC().Format("20060102T150405.000"), b.order),
		Link: b.l.Name, Protocol: it.protocol.Name, Direction: it.way, Size: it.source.data.Size, Files: it.source.data.Files,
		Round: round, Order: b.order, Period: b.l.Period(now), Host: b.host, Here: b.here.String(), Peer: b.addr.String(),
		Started: now.UTC(), Hour: float64(h) + float64(m)/60 + float64(s)/3600, SHA256: it.source.digest,
		Capture: b.o.Capture, Interface: b.device, MTU: capture.MTU(b.device), Offload: capture.Offload(b.device), PremixBuild: b.o.Version,
	}
	fail := func(cause string, err error) {
		if c.Cause == "" {
			c.Cause, c.Error = cause, err.Error()
		}
	}
	id := fmt.Sprintf("%d-%s", os.Getpid(), c.ID)
	tree := it.source.data.Files > 1
	at := link.Places{
		Local: filepath.Join(b.local, "data", it.source.name()), Remote: path.Join(b.remote, "data", it.source.name()), RemoteRoot: path.Join(b.remote, "data"),
		Temp: filepath.Join(b.local, "temp", it.protocol.Name), RemoteTemp: path.Join(b.remote, "temp", it.protocol.Name),
		Address: b.addr.String(), Premix: b.o.Premix, Put: it.way == transfer.Put,
	}
	// The copy and its source have different names, because both may be on this machine.
	if it.way == transfer.Get {
		at.Local = filepath.Join(b.local, "copy")
	} else {
		at.Remote = path.Join(at.RemoteRoot, "copy")
	}
	defer os.RemoveAll(filepath.Join(b.local, "copy"))
	if err := os.MkdirAll(at.Temp, 0o700); err != nil {
		return nil, err
	}
	script := it.protocol.Script(it.way, tree)
	c.Command = strings.TrimSpace(script)

	err := b.serve(ctx, it.protocol, at, id)
	var broken *peer.UnreachableError
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case errors.As(err, &broken):
		fail(transfer.CausePeer, err)
		return c, err
	default:
		fail(transfer.CauseServer, err)
		return c, nil
	}
	if v := b.servers[it.protocol.Name]; v != nil {
		c.Setup = v.setup
	}
	before, err := b.ask(ctx, it.protocol)
	if err != nil {
		return b.lost(ctx, c, err)
	}
	if err := b.watch(ctx, c); err != nil {
		return nil, err
	}
	source, begin, err := b.startCapture(c.ID)
	if err != nil {
		fail(transfer.CauseCapture, err)
		return c, err
	}
	carried, _ := capture.InterfaceBytes(b.device) // 0 if it is not known: watch has reported that
	var seen sync.Map
	watched, unwatch := b.p.Watch(ctx)
	defer unwatch()
	ran := Run(watched, b.l.Variables(it.protocol, at)+script, id, "", Limits{b.l.Timeout, b.l.StallOf(it.protocol)}, func(int) {
		if name := capture.Congestion(b.addr, b.p.Port()); name != "" {
			seen.Store(name, true)
		}
	})
	seen.Range(func(k, _ any) bool {
		if c.CongestionSocket == "" || len(k.(string)) > len(c.CongestionSocket) {
			c.CongestionSocket = k.(string)
		}
		return true
	})
	c.Started, c.Seconds, c.CPU, c.Exit = ran.Begin.UTC(), ran.Seconds, ran.CPU, ran.Exit
	c.Cause, c.Error = ran.Cause, ran.Error
	c.Speed = float64(c.Size) / c.Seconds
	if source != nil {
		totals, err := source.Stop()
		if err != nil {
			fail(transfer.CauseCapture, err)
		}
		if totals != nil {
			after, _ := capture.InterfaceBytes(b.device)
			b.fill(c, totals, begin, ran, after-carried)
			if err := b.packets(c, totals, begin, ran.Begin); err != nil {
				fail(transfer.CauseCapture, err)
			}
		}
	}
	if c.Cause == transfer.CauseInterrupt {
		return c, context.Cause(ctx)
	}
	var gone *peer.UnreachableError
	if errors.As(context.Cause(watched), &gone) {
		return b.lost(ctx, c, gone)
	}
	after, err := b.ask(ctx, it.protocol)
	if err != nil {
		return b.lost(ctx, c, err)
	}
	c.Congestion, c.CongestionPeer = congestionHere(), after.congestion
	if before.source == after.source && after.cpu >= before.cpu {
		c.CPUPeer, c.CPUPeerSource = after.cpu-before.cpu, after.source
	}
	if it.protocol.Expect == "udp" && c.UDP == 0 {
		fail(transfer.CauseWire, errors.New("not one UDP packet was seen: the program has silently used something else"))
	}
	if c.Cause == "" {
		if err := b.verify(ctx, it, at); err != nil {
			var broken *peer.UnreachableError
			if errors.As(err, &broken) {
				return b.lost(ctx, c, err)
			}
			fail(transfer.CauseContent, err)
		}
	}
	c.OK = c.Cause == ""
	if it.way == transfer.Put {
		if _, err := b.p.Run(ctx, "rm -rf "+link.Quote(at.Remote)); err != nil {
			return b.lost(ctx, c, err)
		}
	}
	return c, nil
}

// lost handles a peer that does not answer any more: nothing more can be measured.
func (b *Bench) lost(ctx context.Context, c *transfer.Copy, err error) (*transfer.Copy, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	c.OK = false
	if c.Cause == "" {
		c.Cause, c.Error = transfer.CausePeer, err.Error()
	}
	return c, err
}

// serve starts the protocol's server, unless it runs.
func (b *Bench) serve(ctx context.Context, p *link.Protocol, at link.Places, id string) error {
	if p.Server == "" {
		return nil
	}
	v := b.servers[p.Name]
	if v == nil {
		v = &server{}
		b.servers[p.Name] = v
	}
	if v.v != nil {
		if alive, _, err := v.v.Alive(ctx); err != nil || alive && v.ready {
			return err
		}
	}
	q := link.Quote(at.RemoteTemp)
	if _, err := b.p.Run(ctx, "rm -rf "+q+" && mkdir -m 700 "+q); err != nil {
		return err
	}
	var err error
	v.ready = false
	begin := time.Now()
	v.v, err = Serve(ctx, b.p, b.l, p, at, b.addr, path.Join(b.remote, "temp", p.Name+".log"), id)
	v.ready, v.setup = err == nil, time.Since(begin).Seconds()
	return err
}

// Serve starts a protocol's server at the peer, waits until it answers, and runs the
// protocol's preparation here. The caller must stop the server even after an error.
func Serve(ctx context.Context, s *peer.Session, l *link.Link, p *link.Protocol, at link.Places, addr netip.Addr, log, id string) (*peer.Server, error) {
	v, err := s.Serve(ctx, l.Variables(p, at)+p.Server, log)
	if err != nil {
		return nil, err
	}
	port := p.Settings["server_port"]
	for deadline := time.Now().Add(30 * time.Second); port != ""; time.Sleep(20 * time.Millisecond) {
		if ctx.Err() != nil {
			return v, context.Cause(ctx)
		}
		conn, err := net.DialTimeout("tcp", net.JoinHostPort(addr.String(), port), 5*time.Second)
		if err == nil {
			conn.Close()
			break
		}
		alive, stderr, aerr := v.Alive(ctx)
		if aerr != nil {
			return v, aerr
		}
		if !alive {
			return v, fmt.Errorf("the server of %s ended: %s", p.Name, lastLine(stderr))
		}
		if time.Now().After(deadline) {
			return v, fmt.Errorf("the server of %s does not answer at port %s: %w", p.Name, port, err)
		}
	}
	if p.Prepare != "" {
		if r := Run(ctx, l.Variables(p, at)+p.Prepare, id+"-prepare", "", Limits{Time: time.Minute}, nil); r.Cause != "" {
			return v, fmt.Errorf("prepare %s: %s", p.Name, r.Error)
		}
	}
	return v, nil
}

// asked holds the values that the peer reports before and after a copy.
type asked struct {
	cpu        float64
	source     string
	congestion string
}

func (b *Bench) ask(ctx context.Context, p *link.Protocol) (a asked, err error) {
	if a.cpu, a.source, err = b.p.CPU(ctx); err != nil {
		return a, soft(err)
	}
	if v := b.servers[p.Name]; v != nil && v.v != nil && a.source == "server" {
		more, err := v.v.CPU(ctx)
		if err != nil {
			return a, soft(err)
		}
		a.cpu += more
	}
	text, err := b.p.Run(ctx, "cat /proc/sys/net/ipv4/tcp_congestion_control")
	a.congestion = strings.TrimSpace(text)
	return a, soft(err)
}

// soft ignores errors of a peer that cannot report a value (it does not run Linux).
func soft(err error) error {
	var status *peer.ScriptError
	if errors.As(err, &status) {
		return nil
	}
	return err
}

func congestionHere() string {
	text, err := os.ReadFile("/proc/sys/net/ipv4/tcp_congestion_control")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// watch checks whether the link is quiet.
func (b *Bench) watch(ctx context.Context, c *transfer.Copy) error {
	first, err := capture.InterfaceBytes(b.device)
	if err != nil {
		b.note("cannot check whether the link is quiet: %v", err)
		return nil
	}
	begin := time.Now()
	select {
	case <-time.After(b.l.Quiet.For):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	second, err := capture.InterfaceBytes(b.device)
	if err != nil {
		return err
	}
	c.Background = float64(second-first) / time.Since(begin).Seconds()
	if c.Background > float64(b.l.Quiet.Rate) {
		c.Disturbed = fmt.Sprintf("the link carried %s before the copy began", units.Rate(c.Background))
	}
	return nil
}

// The fractions of the carried bytes between which the rate counts as steady.
const (
	steadyFrom = 0.25
	steadyTo   = 0.95
)

// fill sets the fields that come from the capture. carried is the number of bytes of all
// traffic on the interface in that time.
func (b *Bench) fill(c *transfer.Copy, t *capture.Totals, begin time.Time, ran *Execution, carried int64) {
	c.BytesDown, c.BytesUp = t.Down.Bytes, t.Up.Bytes
	c.PacketsDown, c.PacketsUp = t.Down.Packets, t.Up.Packets
	c.PayloadDown, c.PayloadUp = t.Down.Payload, t.Up.Payload
	c.RetransmitsDown, c.RetransmitsUp = t.Down.Retransmits, t.Up.Retransmits
	c.TCP, c.UDP, c.Histogram, c.Connections, c.Oversize, c.Drops = t.TCP, t.UDP, t.Histogram, t.Connections, t.Oversize, t.Drops
	c.Ratio = float64(c.Bytes()) / float64(c.Size)
	times := t.DownTimes
	if c.Direction == transfer.Put {
		times = t.UpTimes
	}
	since := func(at time.Time) float64 {
		if at.IsZero() {
			return 0
		}
		return max(at.Sub(ran.Begin).Seconds(), 0)
	}
	c.First, c.Flowing = since(times.First), since(times.Flowing)
	c.Steady = steady(t.Series, c.Direction)
	// The capture shows joined packets without the headers of all but the first.
	c.Others = max(carried-c.Bytes(), 0)
	allowed := max(256<<10, c.Bytes()/50)
	if c.Oversize > 0 {
		allowed += c.Bytes() / 12
	}
	var why []string
	if c.Disturbed != "" {
		why = append(why, c.Disturbed)
	}
	if c.Others > allowed {
		why = append(why, fmt.Sprintf("the interface carried %s of other traffic", units.Size(c.Others)))
	}
	if c.Drops > 0 {
		why = append(why, fmt.Sprintf("%d packets escaped the capture", c.Drops))
	}
	c.Disturbed = strings.Join(why, "; ")
}

// steady returns the rate between two fractions of the carried bytes, or 0 if that took
// less than 50 ms.
func steady(series []capture.TickBytes, way transfer.Direction) float64 {
	of := func(s capture.TickBytes) int64 {
		if way == transfer.Put {
			return s.Up
		}
		return s.Down
	}
	var all, sum int64
	for _, s := range series {
		all += of(s)
	}
	from, to := -1, -1
	var low, high int64
	for i, s := range series {
		sum += of(s)
		if from < 0 && float64(sum) >= steadyFrom*float64(all) {
			from, low = i, sum
		}
		if to < 0 && float64(sum) >= steadyTo*float64(all) {
			to, high = i, sum
		}
	}
	took := time.Duration(to-from) * capture.Tick
	if from < 0 || took < 50*time.Millisecond {
		return 0
	}
	return float64(high-low) / took.Seconds()
}

// packets writes the table of all packets.
func (b *Bench) packets(c *transfer.Copy, t *capture.Totals, begin, started time.Time) error {
	if !b.o.Packets {
		return nil
	}
	c.Packets = filepath.Join("packets", c.ID+".parquet")
	file := filepath.Join(b.o.Out, c.Packets)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	shift := started.Sub(begin)
	return record.ToParquet(file, iter.Seq2[*transfer.Packet, error](func(yield func(*transfer.Packet, error) bool) {
		for _, p := range t.Packets {
			row := transfer.Packet{Time: (p.At - shift).Seconds(), Down: p.Down, Size: int32(p.Size), Payload: int32(p.Payload), TCP: p.TCP, Port: int32(p.Port)}
			if !yield(&row, nil) {
				return
			}
		}
	}))
}

// verify compares the copy with the source.
func (b *Bench) verify(ctx context.Context, it item, at link.Places) error {
	var sum string
	var err error
	if it.way == transfer.Get {
		sum, err = Digest(ctx, at.Local)
	} else {
		sum, err = DigestAt(ctx, b.p, at.Remote, it.source.data.Files > 1)
	}
	if err != nil {
		return fmt.Errorf("the copy can't be read: %w", err)
	}
	if sum != it.source.digest {
		return errors.New("the copy differs from the source by its SHA-256")
	}
	return nil
}
