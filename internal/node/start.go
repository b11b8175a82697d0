package node

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"premix/internal/kit/cgroup"
)

// startWithin bounds the wait for a starting node, which mounts again the mounts of an
// earlier one.
const startWithin = time.Minute

// Start returns a client of this user's node. If none is running, Start starts one, in
// a new session, which inherits only the environment, and reports that in started.
func Start(ctx context.Context, c Config) (client *Client, started bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	for {
		client := NewClient(c.Dir)
		err := client.ping(ctx)
		if err == nil {
			return client, started, nil
		}
		if !IsKind(err, KindNotRunning) {
			return nil, false, err
		}
		switch err := startSupervisor(ctx, c); {
		case err == nil:
			started = true
		case errors.Is(err, errLocked):
			// Another process has just started it, or a worker is replacing its
			// supervisor.
			select {
			case <-ctx.Done():
				return nil, false, &Error{Kind: KindInternal, Message: fmt.Sprintf("a node holds %s/lock and does not answer", c.Dir), HintText: "see its log " + logPath(c.Dir)}
			case <-time.After(20 * time.Millisecond):
			}
		default:
			return nil, false, err
		}
	}
}

// started is the report of a supervisor that was started by a client: a line of JSON on
// statusFD. Such a supervisor reads its configuration from standard input.
type started struct {
	Error  *Error `json:"error,omitempty"`
	Locked bool   `json:"locked,omitempty"`
}

func startSupervisor(ctx context.Context, c Config) error {
	if err := makeDir(c.Dir); err != nil {
		return err
	}
	config, err := json.Marshal(c)
	if err != nil {
		return err
	}
	log, err := openLog(c.Dir)
	if err != nil {
		return dirError(c.Dir, err)
	}
	defer log.Close()
	status, theirs, err := os.Pipe()
	if err != nil {
		return err
	}
	defer status.Close()
	in, feed, err := os.Pipe()
	if err != nil {
		theirs.Close()
		return err
	}
	defer feed.Close()
	cmd := exec.Command(self)
	cmd.Args = []string{"premix", SupervisorArg, c.Dir}
	cmd.Dir = "/"
	cmd.Stdin, cmd.Stderr = in, log
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	theirs.Close()
	in.Close()
	if err != nil {
		return fmt.Errorf("start a node: %w", err)
	}
	// Where it cannot leave a task, it ends with it; the next client starts another.
	_ = cgroup.Leave(cmd.Process.Pid)
	go func() {
		_ = cmd.Wait() // so that it does not stay a zombie of a long-lived client
	}()
	if _, err := feed.Write(config); err != nil {
		return fmt.Errorf("start a node: %w", err)
	}
	feed.Close()
	answer := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(status).ReadString('\n') // "" if it died
		answer <- line
	}()
	var line string
	select {
	case <-ctx.Done():
		return &Error{Kind: KindInternal, Message: "the node does not become ready", HintText: "see its log " + logPath(c.Dir)}
	case line = <-answer:
	}
	var s started
	if err := json.Unmarshal([]byte(line), &s); err != nil {
		return &Error{Kind: KindInternal, Message: "the node ended while it was starting", HintText: "see its log " + logPath(c.Dir)}
	}
	switch {
	case s.Locked:
		return errLocked
	case s.Error != nil:
		return s.Error
	}
	return nil
}

// background is the main function of a supervisor that a client has started.
func background() error {
	out := os.NewFile(statusFD, "status")
	tell := func(err error) {
		s := started{Locked: errors.Is(err, errLocked)}
		var known *Error
		if errors.As(err, &known) {
			s.Error = known
		} else if err != nil {
			s.Error = &Error{Kind: KindInternal, Message: err.Error()}
		}
		_ = json.NewEncoder(out).Encode(s) // the client may be gone
		out.Close()
	}
	var c Config
	content, err := io.ReadAll(os.Stdin)
	if err == nil {
		err = json.NewDecoder(strings.NewReader(string(content))).Decode(&c)
	}
	if err != nil {
		tell(err)
		return err
	}
	s, err := newSupervisor(&c, os.Stderr)
	if err != nil {
		tell(err)
		if errors.Is(err, errLocked) {
			return nil // the node that holds the lock is as good
		}
		return err
	}
	s.ready = tell
	err = s.supervise(nil)
	if s.ready != nil {
		s.ready(err)
	}
	return err
}
