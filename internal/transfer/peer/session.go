package peer

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/kit/exit"
	"premix/internal/kit/owner"
	"premix/internal/transfer/link"
)

// UnreachableError is returned if a session could not be opened, or if its connection
// broke.
type UnreachableError struct {
	Peer   string
	Stderr string // last line of ssh's messages
	Err    error
}

func (e *UnreachableError) Error() string {
	if e.Stderr != "" {
		return fmt.Sprintf("%s cannot be reached: %s", e.Peer, e.Stderr)
	}
	return fmt.Sprintf("%s cannot be reached: %v", e.Peer, e.Err)
}

// ExitCode implements exit.Coded.
func (*UnreachableError) ExitCode() exit.Code { return exit.Origin }
func (e *UnreachableError) Unwrap() error     { return e.Err }

// Hint returns a command to check the connection.
func (e *UnreachableError) Hint() string {
	return "check that ssh " + e.Peer + " true works without a question: host key, private key or agent, address and port"
}

// ScriptError is returned for a script that ended with a status other than 0.
type ScriptError struct {
	Status int
	Output string
}

func (e *ScriptError) Error() string {
	last := strings.TrimSpace(e.Output)
	if i := strings.LastIndexByte(last, '\n'); i >= 0 {
		last = last[i+1:]
	}
	return fmt.Sprintf("status %d at the peer: %s", e.Status, last)
}

// beginTime is the time limit for opening a session. ssh limits the time of its connection,
// but not the time until the shell runs.
const beginTime = 45 * time.Second

// maxOutput is the number of bytes of a script's output that are kept.
const maxOutput = 16 << 20

// Session is a shell at a peer, through ssh.
type Session struct {
	link *link.Link
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	// finished is closed when ssh has ended, and lost if it ended without being asked to.
	finished, lost chan struct{}
	closing        atomic.Bool
	hurry          atomic.Bool
	started        *time.Timer // kills a session that does not begin in time; stopped by the first line
	stderr         *lockedBuffer
	mark           string
	port           uint16
	at             string // see Address
	temp           string // see Temp

	mu   sync.Mutex
	dead error
}

// lockedBuffer keeps the beginning of ssh's messages.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.b.Len() < 8<<10 {
		l.b.Write(p)
	}
	return len(p), nil
}

// String returns the last line.
func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	lines := strings.Split(strings.TrimSpace(l.b.String()), "\n")
	return strings.TrimSpace(lines[len(lines)-1])
}

// begin sets up the shell of a session, so that everything it starts ends with it. There is
// no -- before a process group, because dash does not support it.
const begin = `servers=; temp=
stop() { for s in $servers; do
    kill -TERM "-$s" 2>/dev/null || continue
    (sleep 2; kill -KILL "-$s") >/dev/null 2>&1 </dev/null &
    late=$!; wait "$s" 2>/dev/null; kill -KILL "-$s" 2>/dev/null; kill "$late" 2>/dev/null; wait "$late" 2>/dev/null
  done; servers=; }
trap 'stop; [ -z "$temp$*" ] || rm -rf ${temp:+"$temp"} "$@"' EXIT; trap 'exit 1' HUP TERM INT; set +m
`

// Open opens a session with a peer. If the link has a socket for sharing a connection, the
// session creates it.
func Open(ctx context.Context, l *link.Link) (*Session, error) {
	s, _, err := Ask(ctx, l, ":")
	return s, err
}

// Ask opens a session and runs a script in the same round trip. If the error is a
// *ScriptError, the session is open.
func Ask(ctx context.Context, l *link.Link, script string) (*Session, string, error) {
	words := l.SSH()
	// The shell is sh, whatever the user's login shell is.
	if l.Control != "" {
		words = append(words, "-o", "ControlMaster=yes", "-o", "ControlPersist=no")
	}
	words = append(words, l.Peer(), "exec sh")
	s := &Session{link: l, cmd: exec.Command(words[0], words[1:]...), stderr: &lockedBuffer{}, mark: "premix-" + rand.Text(),
		finished: make(chan struct{}), lost: make(chan struct{})}
	// Do not pass on Ctrl-C: the session is needed to clean up.
	s.cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	s.cmd.Env = owner.Environ()
	s.cmd.Stderr = s.stderr
	var err error
	if s.in, err = s.cmd.StdinPipe(); err != nil {
		return nil, "", err
	}
	// Not StdoutPipe, because the output may be read after Wait.
	out, w, err := os.Pipe()
	if err != nil {
		return nil, "", err
	}
	s.cmd.Stdout = w
	s.out = bufio.NewReader(out)
	err = s.cmd.Start()
	w.Close()
	if err != nil {
		out.Close()
		return nil, "", &UnreachableError{Peer: l.Peer(), Err: err}
	}
	s.started = time.AfterFunc(beginTime, s.kill)
	go func() {
		_ = s.cmd.Wait() // its output has the better reason
		s.started.Stop()
		if !s.closing.Load() {
			close(s.lost)
		}
		close(s.finished)
	}()
	text, err := s.do(ctx, begin, `temp=$(umask 077; mktemp -d 2>/dev/null); echo "$temp"; echo "$SSH_CONNECTION"; `+shell(script))
	var status *ScriptError
	if err != nil && !errors.As(err, &status) {
		s.Close()
		return nil, "", err
	}
	s.temp, text, _ = strings.Cut(text, "\n")
	at, text, _ := strings.Cut(text, "\n")
	if f := strings.Fields(at); len(f) == 4 {
		s.at = f[2]
		if p, err := strconv.ParseUint(f[1], 10, 16); err == nil {
			s.port = uint16(p)
		}
	}
	return s, text, err
}

// shell returns a line that executes a script in a shell of its own.
func shell(script string) string { return "sh -c " + link.Quote(script) + " </dev/null 2>&1" }

// Port returns the local port of the session's connection, or 0 if it is not known.
func (s *Session) Port() uint16 { return s.port }

// Address returns the address of the peer as the session sees it, or "" if it is not known.
func (s *Session) Address() string { return s.at }

// Temp returns a directory at the peer that no other user may read. It is removed at the
// end of the session. Temp returns "" if the peer could not create one.
func (s *Session) Temp() string { return s.temp }

// Remove makes the peer remove a path at the end of the session, however the session ends.
func (s *Session) Remove(ctx context.Context, path string) error {
	_, err := s.do(ctx, "", `set -- "$@" `+link.Quote(path))
	return err
}

// Run executes a script in a shell of its own and returns its output, including standard
// error. If the script ends with a status other than 0, the error is a *ScriptError.
func (s *Session) Run(ctx context.Context, script string) (string, error) {
	return s.do(ctx, "", shell(script))
}

// do executes a line in the session's own shell.
func (s *Session) do(ctx context.Context, before, line string) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dead != nil {
		return "", s.dead
	}
	// Without its answer being read, the session cannot be used again.
	stop := context.AfterFunc(ctx, s.kill)
	defer stop()
	if _, err := io.WriteString(s.in, before+line+"\nprintf '\\n%s %d\\n' "+s.mark+" $?\n"); err != nil {
		return "", s.broke(ctx, err)
	}
	var b strings.Builder
	for {
		l, err := s.out.ReadString('\n')
		if err != nil {
			return "", s.broke(ctx, err)
		}
		s.started.Stop()
		if status, ok := strings.CutPrefix(l, s.mark+" "); ok {
			text := strings.TrimSuffix(b.String(), "\n")
			if n, err := strconv.Atoi(strings.TrimSpace(status)); err != nil || n != 0 {
				return text, &ScriptError{Status: n, Output: text}
			}
			return text, nil
		}
		if b.Len() < maxOutput {
			b.WriteString(l)
		}
	}
}

func (s *Session) broke(ctx context.Context, err error) error {
	// ssh's messages may arrive after the end of its output.
	s.await(2 * time.Second)
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	s.dead = &UnreachableError{Peer: s.link.Peer(), Stderr: s.stderr.String(), Err: err}
	if ctx.Err() != nil {
		s.dead = err
	}
	return s.dead
}

// Server is a script that runs in the background.
type Server struct {
	s   *Session
	pid int
	log string
}

// Serve starts a server whose output goes to the file log at the peer.
func (s *Session) Serve(ctx context.Context, script, log string) (*Server, error) {
	text, err := s.do(ctx, "", "setsid sh -c "+link.Quote(script)+" </dev/null >"+link.Quote(log)+" 2>&1 & servers=\"$servers $!\"; echo $!")
	if err != nil {
		return nil, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil {
		return nil, fmt.Errorf("the peer's shell says %q", text)
	}
	return &Server{s: s, pid: pid, log: log}, nil
}

// Alive reports whether the server runs. If not, it also returns the end of its output.
func (v *Server) Alive(ctx context.Context) (bool, string, error) {
	_, err := v.s.do(ctx, "", fmt.Sprintf("kill -0 %d 2>/dev/null", v.pid))
	var status *ScriptError
	if err == nil || !errors.As(err, &status) {
		return err == nil, "", err
	}
	text, err := v.s.Run(ctx, "tail -n 3 "+link.Quote(v.log))
	return false, text, err
}

// Wait waits until the script ends, and returns its output. The session cannot do anything
// else during that time.
func (v *Server) Wait(ctx context.Context) (string, error) {
	return v.s.do(ctx, "", fmt.Sprintf("wait %d; s=$?; cat %s; (exit $s)", v.pid, link.Quote(v.log)))
}

// CPU returns the processor time in seconds of the server and its children so far.
func (v *Server) CPU(ctx context.Context) (float64, error) {
	// Add up all processes of its session; each includes its ended children.
	text, err := v.s.Run(ctx, fmt.Sprintf(`getconf CLK_TCK; cat /proc/[0-9]*/stat 2>/dev/null | sed 's/.*) //' | awk '$4 == %d { t += $12 + $13 + $14 + $15 } END { print t + 0 }'`, v.pid))
	if err != nil {
		return 0, err
	}
	return ticks(text)
}

// ticks parses two lines: ticks a second, and ticks.
func ticks(text string) (float64, error) {
	f := strings.Fields(text)
	if len(f) != 2 {
		return 0, fmt.Errorf("the peer says %q", text)
	}
	hz, err1 := strconv.ParseFloat(f[0], 64)
	n, err2 := strconv.ParseFloat(f[1], 64)
	if err := errors.Join(err1, err2); err != nil || hz <= 0 {
		return 0, fmt.Errorf("the peer says %q", text)
	}
	return n / hz, nil
}

// CPU returns the processor time of the programs that ssh has started, counted when they
// end; source is server. If no sshd process stays (systemd starts one for each connection),
// it returns the time of all programs at the peer, and source is machine.
func (s *Session) CPU(ctx context.Context) (seconds float64, source string, err error) {
	// Walk up the shell's ancestors to the sshd that does not belong to this connection:
	// the second one named sshd whose parent has another name.
	text, err := s.Run(ctx, `p=$PPID; listener=
while [ "$p" -gt 1 ] 2>/dev/null; do
  s=$(cat /proc/$p/stat 2>/dev/null) || break
  case $s in *"(sshd)"*|*"(sshd:"*|*"(sshd-"*) listener=$p ;; *) [ -z "$listener" ] || break ;; esac
  r=${s##*) }; r=${r#* }; p=${r%% *}
done
getconf CLK_TCK
if [ -n "$listener" ] && tr '\0' ' ' </proc/$listener/cmdline | grep -qE 'listener|sshd.* -D|/sshd -f|^/usr/sbin/sshd'; then
  sed 's/.*) //' /proc/$listener/stat | awk '{ print $12 + $13 + $14 + $15 }'; echo server
else
  awk '/^cpu / { print $2 + $3 + $4 + $7 + $8 + $9 }' /proc/stat; echo machine
fi`)
	if err != nil {
		return 0, "", err
	}
	text, source = cutLast(text)
	seconds, err = ticks(text)
	return seconds, source, err
}

func cutLast(text string) (rest, last string) {
	text = strings.TrimSpace(text)
	i := strings.LastIndexByte(text, '\n')
	if i < 0 {
		return "", text
	}
	return text[:i], text[i+1:]
}

// Stop ends a server with all its children.
func (v *Server) Stop(ctx context.Context) error {
	_, err := v.s.do(ctx, "", fmt.Sprintf(`servers_all=$servers; servers=%d; stop; for s in $servers_all; do [ "$s" = %d ] || servers="$servers $s"; done; true`, v.pid, v.pid))
	return err
}

// Close ends the session and its servers.
func (s *Session) Close() {
	s.closing.Store(true)
	s.in.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dead != nil {
		return
	}
	s.dead = errors.New("the session was closed")
	// The peer ends servers and removes temporary files when its input ends. Do not wait
	// for that: a peer that is gone would not answer.
	go func() { _, _ = io.Copy(io.Discard, s.out) }()
	s.await(s.patience())
}

// Hurry makes Close return without waiting, because premix was asked to end.
func (s *Session) Hurry() { s.hurry.Store(true) }

// patience returns how long Close waits for the peer.
func (s *Session) patience() time.Duration {
	if s.hurry.Load() {
		return time.Second
	}
	return 10 * time.Second
}

// kill ends ssh at once.
func (s *Session) kill() {
	select {
	case <-s.finished: // its process id may be in use again
	default:
		_ = unix.Kill(-s.cmd.Process.Pid, unix.SIGKILL)
	}
}

// await waits for the end of ssh, and kills it after patience.
func (s *Session) await(patience time.Duration) {
	select {
	case <-s.finished:
	case <-time.After(patience):
		s.kill()
		<-s.finished
	}
}

// Watch returns a context that is done when the session is lost, which it is after
// [transfer.Silence] without a sign of the peer. The cause is then an *UnreachableError.
func (s *Session) Watch(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-s.lost:
			cancel(&UnreachableError{Peer: s.link.Peer(), Stderr: s.stderr.String(), Err: errors.New("the connection has ended")})
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(context.Canceled) }
}
