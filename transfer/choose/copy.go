package choose

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"premix/transfer"
	"premix/transfer/link"
	"premix/transfer/peer"
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
	SHA256   string     `json:"sha256"`
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

// Run makes the copy.
func (j *Job) Run(ctx context.Context) (*Done, error) {
	s, err := peer.Open(ctx, j.Link)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	d := &Done{}
	if err := j.look(ctx, s, d); err != nil {
		return nil, err
	}
	copies, err := j.Known.Measurements()
	if err != nil {
		return nil, err
	}
	d.Order = Order(j.Link, copies, Task{j.Direction, d.Size, d.Files, j.Open})
	local, remote := j.Local, j.Remote
	part := &local
	if j.Direction == transfer.Put {
		part = &remote
	}
	final := *part
	*part += partSuffix
	begin := time.Now()
	for _, e := range d.Order {
		if e.Left || j.Protocol != "" && e.Protocol != j.Protocol {
			continue
		}
		p := j.protocol(e.Protocol)
		if missing := j.missing(ctx, s, p); missing != "" {
			d.Failed = append(d.Failed, e.Protocol+": "+missing+" is not at the peer")
			continue
		}
		j.note("by %s: %s", e.Protocol, e.Why)
		err := j.try(ctx, s, p, local, remote, d)
		if err == nil {
			if err := j.rename(ctx, s, *part, final); err != nil {
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

func (j *Job) missing(ctx context.Context, s *peer.Session, p *link.Protocol) string {
	for _, n := range p.NeedsPeer {
		if _, err := s.Run(ctx, "PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin command -v "+link.Quote(n)); err != nil {
			return n
		}
	}
	return ""
}

// look finds out how much there is to copy, and that there is room for it.
func (j *Job) look(ctx context.Context, s *peer.Session, d *Done) error {
	const count = `[ -r %[1]s ] || { [ -e %[1]s ] && echo unreadable || echo missing; exit 0; }
if [ -d %[1]s ]; then
  bad=$(find %[1]s ! -readable 2>/dev/null | head -n 1); [ -z "$bad" ] || { echo "unreadable $bad"; exit 0; }
  find %[1]s -type f -printf '%%s\n' | awk '{ n++; s += $1 } END { printf "tree %%d %%.0f\n", n, s }'
else wc -c <%[1]s | awk '{ printf "file 1 %%.0f\n", $1 }'; fi`
	if j.Direction == transfer.Get {
		text, err := s.Run(ctx, fmt.Sprintf(count, link.Quote(j.Remote)))
		if err != nil {
			return err
		}
		f := strings.Fields(text)
		if len(f) != 3 || f[0] != "tree" && f[0] != "file" {
			return &SourceError{fmt.Sprintf("%s at %s is %s", j.Remote, j.Link.Peer(), strings.TrimSpace(text))}
		}
		n, err1 := strconv.Atoi(f[1])
		d.Size, err = strconv.ParseInt(f[2], 10, 64)
		if err := errors.Join(err, err1); err != nil {
			return err
		}
		if d.Files = 1; f[0] == "tree" {
			d.Files = max(2, n) // a tree of one file is copied as trees are
		}
	} else if err := lookHere(j.Local, d); err != nil {
		return err
	}
	return j.room(ctx, s, d)
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

// room looks whether the destination has some, before anything is sent.
func (j *Job) room(ctx context.Context, s *peer.Session, d *Done) error {
	var free int64
	if j.Direction == transfer.Get {
		dir := filepath.Dir(j.Local)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return &TargetError{err.Error()}
		}
		if _, err := os.Lstat(j.Local); err == nil {
			return &TargetError{j.Local + " is there already"}
		}
		have := onDisk(j.Local + partSuffix)
		free = freeSpace(dir) + have
	} else {
		q := link.Quote(j.Remote)
		text, err := s.Run(ctx, fmt.Sprintf("[ ! -e %[1]s ] || { echo there; exit 0; }; mkdir -p %[2]s && df -Pk %[2]s | awk 'END { print $4 }'; du -sk %[3]s 2>/dev/null | awk '{ print $1 }'",
			q, link.Quote(path.Dir(j.Remote)), link.Quote(j.Remote+partSuffix)))
		if err != nil {
			return &TargetError{err.Error()}
		}
		if strings.TrimSpace(text) == "there" {
			return &TargetError{j.Remote + " is at the peer already"}
		}
		for _, f := range strings.Fields(text) {
			n, err := strconv.ParseInt(f, 10, 64)
			if err != nil {
				return fmt.Errorf("df at the peer says %q", text)
			}
			free += n << 10
		}
	}
	if free < d.Size+minRoom {
		return &TargetError{fmt.Sprintf("there is no space for %s at the destination: %s are free", transfer.Short(d.Size), transfer.Short(free))}
	}
	return nil
}

// try makes the copy by one protocol, and compares it.
func (j *Job) try(ctx context.Context, s *peer.Session, p *link.Protocol, local, remote string, d *Done) error {
	here, err := os.MkdirTemp("", "premix-transfer-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(here)
	text, err := s.Run(ctx, "umask 077; mktemp -d")
	if err != nil {
		return err
	}
	there := strings.TrimSpace(text)
	defer func() { _, _ = s.Run(context.WithoutCancel(ctx), "rm -rf "+link.Quote(there)) }() // a peer that is gone keeps it
	put := j.Direction == transfer.Put
	// What another protocol has left is in the way of one that doesn't go on with it.
	if !p.Resumes {
		if put {
			_, err = s.Run(ctx, "rm -rf "+link.Quote(remote))
		} else {
			err = os.RemoveAll(local)
		}
		if err != nil {
			return err
		}
	}
	addr, err := testbed.Resolve(ctx, j.Link.Host)
	if err != nil {
		return err
	}
	at := link.Places{Local: local, Remote: remote, Temp: here, RemoteTemp: there, Address: addr.String(), Premix: j.Premix, Put: put}
	id := fmt.Sprintf("%d-%d", os.Getpid(), time.Now().UnixNano())
	if p.Server != "" {
		v, err := testbed.Serve(ctx, s, j.Link, p, at, addr, path.Join(there, "log"), id)
		if v != nil {
			defer func() { _ = v.Stop(context.WithoutCancel(ctx)) }() // it ends with the session at the latest
		}
		if err != nil {
			return err
		}
	}
	ran := testbed.Run(ctx, j.Link.Variables(p, at)+p.Script(j.Direction, d.Files > 1), id, j.Link.Timeout, func(int) {
		if j.Progress != nil && !put {
			j.Progress(onDisk(local), d.Size)
		}
	})
	if ran.Cause != "" {
		if !put && freeSpace(filepath.Dir(local)) < minRoom {
			return &TargetError{"the disk of the destination is full"}
		}
		return errors.New(ran.Error)
	}
	return j.verify(ctx, s, local, remote, d)
}

// verify compares both ends.
func (j *Job) verify(ctx context.Context, s *peer.Session, local, remote string, d *Done) error {
	tree := d.Files > 1
	type answer struct {
		sum string
		err error
	}
	there := make(chan answer, 1)
	go func() {
		sum, err := testbed.DigestAt(ctx, s, remote, tree)
		there <- answer{sum, err}
	}()
	sum, err := testbed.Digest(local)
	a := <-there
	if err := errors.Join(err, a.err); err != nil {
		return err
	}
	if sum != a.sum {
		return errors.New("what arrived is not what was sent: its SHA-256 differs")
	}
	d.SHA256 = sum
	return nil
}

func (j *Job) rename(ctx context.Context, s *peer.Session, part, final string) error {
	if j.Direction == transfer.Get {
		return os.Rename(part, final)
	}
	_, err := s.Run(ctx, fmt.Sprintf("mv -T %s %s", link.Quote(part), link.Quote(final)))
	return err
}

// onDisk is how much of a file or tree has arrived.
func onDisk(at string) (n int64) {
	_ = filepath.WalkDir(at, func(_ string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			if i, err := e.Info(); err == nil {
				n += i.Size()
			}
		}
		return nil // what goes meanwhile doesn't count
	})
	return n
}
