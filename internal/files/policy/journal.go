package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/kit/exit"
	"premix/internal/kit/lines"
	"premix/internal/kit/lock"
	"premix/internal/kit/owner"
)

// The journal is a directory:
//
//	lock         locked (flock(2)) by the premix that applies the plan
//	plan.jsonl   a planHeader, then an Action a line; written once, atomically
//	list.jsonl   the entries of rules with LIST, a line each, written before the plan
//	output.txt   the output of the programs of rules with EXEC
//	audit.jsonl  an Event a line, only ever appended to
//
// An action is done in this order, many at a time: its copy is written beside its
// destination under a temporary name and synced; an event with the result "copied" is
// synced; the copy is renamed; the source is removed; an event with the final result is
// written. If a later call finds "copied" without a final result, it looks at the inode in
// the event, and completes or reverts the action. An event with the result "running" is
// synced before a program of a rule with EXEC may run. A later call runs the program again
// if there is no final result, and the file is still the same.
const (
	lockFile  = "lock"
	planFile  = "plan.jsonl"
	auditFile = "audit.jsonl"
	listFile  = "list.jsonl"
)

// Event is a line of the audit.
type Event struct {
	Time   time.Time `json:"time"`
	User   string    `json:"user"`
	For    string    `json:"for,omitempty"` // the user who became that user with sudo
	ID     int64     `json:"id,omitempty"`
	Rule   string    `json:"rule,omitempty"`
	Verb   Verb      `json:"verb,omitempty"`
	Path   Path      `json:"path,omitempty"`
	To     Path      `json:"to,omitempty"`
	Size   int64     `json:"size,omitempty"` // bytes
	Result string    `json:"result"`         // begun, copied, running, done, skipped, failed, ended
	Why    string    `json:"why,omitempty"`
	// For copied: the place of the copy.
	Device int64 `json:"device,omitempty"`
	Inode  int64 `json:"inode,omitempty"`
	// For begun: the present text of the rules.
	Rules string `json:"rules_file,omitempty"`
	// For failed: the exit status of a program, or -1 if a signal ended it.
	Status int `json:"exit_status,omitempty"`
	// For a packed directory.
	Tree string `json:"tree,omitempty"`
}

// Results of events.
const (
	Started  = "begun"
	Copied   = "copied"
	Running  = "running"
	Done     = "done"
	Skipped  = "skipped"
	Failed   = "failed"
	Finished = "ended"
)

// journal is a journal open for writing.
type journal struct {
	dir   string
	lock  *os.File
	audit *os.File
	user  string
	sudo  string
	buf   bytes.Buffer
}

// journalPlace returns an error if the rules would act on a journal in dir: they would move
// or delete it with the next scan, or pack it while it is written.
func journalPlace(dir string, r *Rules, roots []string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return exit.Errorf(exit.Directory, "name a directory that you can write to: --journal DIR", "the journal %s cannot be found: %w", dir, err)
	}
	if _, err := os.Stat(filepath.Join(dir, planFile)); err == nil {
		return nil // a journal that is resumed was made after its scan
	}
	const hint = "name a directory outside of what the rules act on: --journal DIR"
	path, pool, scanned := resolved(dir), "", ""
	for _, p := range r.Pools {
		switch at := resolved(p.Dir); {
		case path == at:
			return exit.Errorf(exit.Directory, hint, "the journal %s is the pool %s", dir, p.Name)
		case within(path, at):
			pool = p.Name
		}
	}
	for _, root := range roots {
		if within(path, resolved(root)) {
			scanned = root
		}
	}
	for i := range r.Rules {
		rule := &r.Rules[i]
		switch {
		case !rule.actsOn(pool):
		case pool != "":
			return exit.Errorf(exit.Directory, hint, "the journal %s lies in the pool %s, where the rule %q (%s) could take it", dir, pool, rule.Name, rule.Verb)
		case scanned != "":
			return exit.Errorf(exit.Directory, hint, "the journal %s lies in %s, where the rule %q (%s) could take it", dir, scanned, rule.Name, rule.Verb)
		}
	}
	return nil
}

// resolved returns a path without symbolic links, as far as it exists.
func resolved(path string) string {
	for at, rest := path, ""; ; at, rest = filepath.Dir(at), filepath.Join(filepath.Base(at), rest) {
		if real, err := filepath.EvalSymlinks(at); err == nil {
			return filepath.Join(real, rest)
		}
		if at == filepath.Dir(at) {
			return path
		}
	}
}

// foreign returns the name of a file in a directory that does not belong to a journal, or
// "" if there is none.
func foreign(dir string) (string, error) {
	list, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return "", nil // creating the directory will report what is wrong
	}
	if err != nil {
		return "", err
	}
	other, audited := "", false
	for _, e := range list {
		switch e.Name() {
		case auditFile:
			audited = true
		case lockFile, planFile, planFile + ".tmp", listFile, listFile + ".tmp", outputFile:
		default:
			other = e.Name()
		}
	}
	if audited { // a user may have put notes beside it
		return "", nil
	}
	return other, nil
}

func openJournal(dir string) (j *journal, err error) {
	bad := func(reason string, err error) error {
		return exit.Errorf(exit.Directory, "name a directory that you can write to: --journal DIR", "the journal %s %s: %w", dir, reason, err)
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, bad("cannot be found", err)
	}
	switch other, err := foreign(dir); {
	case err != nil:
		return nil, bad("cannot be read", err)
	case other != "":
		return nil, exit.Errorf(exit.Directory, "name an empty directory, or one that does not exist yet: --journal DIR", "the journal %s is a directory with something else in it (%s)", dir, other)
	}
	var foreign *owner.Error
	if err := owner.MkdirAll(dir, 0o777); errors.As(err, &foreign) {
		return nil, exit.Errorf(exit.Directory, "name a directory that only root can change: --journal DIR", "the journal %s cannot be used: %w", dir, err)
	} else if err != nil {
		return nil, bad("cannot be made", err)
	}
	j = &journal{dir: dir, user: strconv.Itoa(os.Geteuid()), sudo: os.Getenv("SUDO_USER")}
	if u, err := user.Current(); err == nil {
		j.user = u.Username
	}
	if j.lock, err = owner.OpenFile(filepath.Join(dir, lockFile), os.O_RDWR|os.O_CREATE, 0o664); err != nil {
		return nil, bad("cannot be written", err)
	}
	if err := lock.Take(j.lock, lock.Exclusive); err != nil {
		j.lock.Close()
		return nil, exit.Errorf(exit.Directory, "wait until it has ended", "the journal %s is in use by another premix", dir)
	}
	if j.audit, err = owner.OpenFile(filepath.Join(dir, auditFile), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o664); err != nil {
		j.lock.Close()
		return nil, bad("cannot be written", err)
	}
	return j, nil
}

func (j *journal) close() error { return errors.Join(j.audit.Close(), j.lock.Close()) }

// events calls f with all events. An incomplete last line was not synced when premix was
// killed; events ends it, so that the next event begins a new line.
func (j *journal) events(f func(*Event)) error {
	text, err := os.Open(j.audit.Name())
	if err != nil {
		return err
	}
	defer text.Close()
	end, err := lines.Read(text, 0, func(line []byte, _ int64) error {
		var e Event
		if json.Unmarshal(line, &e) == nil {
			f(&e)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if info, err := text.Stat(); err != nil {
		return err
	} else if info.Size() > end {
		if _, err := j.audit.WriteString("\n"); err != nil {
			return err
		}
	}
	return nil
}

// note adds an event of an action. Call write to put it on the disk.
func (j *journal) note(a *Action, e Event) {
	e.Time, e.User, e.For = time.Now(), j.user, j.sudo
	if a != nil {
		e.ID, e.Rule, e.Verb, e.Path, e.To, e.Size = a.ID, a.Rule, a.Verb, a.Path, a.To, a.Size
	}
	// An Event can always be encoded as JSON.
	b, _ := json.Marshal(e)
	j.buf.Write(append(b, '\n'))
}

// write writes the added events and syncs them.
func (j *journal) write() error {
	if j.buf.Len() == 0 {
		return nil
	}
	_, err := j.audit.Write(j.buf.Bytes())
	j.buf.Reset()
	if err == nil {
		err = unix.Fdatasync(int(j.audit.Fd()))
	}
	if err != nil {
		return exit.Errorf(exit.Directory, "free space on its disk, and run the same command again: it resumes", "the journal %s cannot be written: %w", j.dir, err)
	}
	return nil
}

// matches reports whether a plan on disk belongs to the rules and the scan.
func (h *planHeader) matches(r *Rules, table string, started time.Time) bool {
	if h.Rules != r.Text || h.Table != table || !h.Started.Equal(started) || len(h.Pools) != len(r.Pools) {
		return false
	}
	for i := range h.Pools {
		if h.Pools[i] != r.Pools[i] {
			return false
		}
	}
	return true
}

// own returns the temporary name for a file of an action.
func (a *Action) own(run, what string) string {
	return ownPrefix + run + "-" + strconv.FormatInt(a.ID, 10) + what
}

// ownPrefix is the prefix of the names that premix creates in pools.
const ownPrefix = ".premix-"

// runName returns a short name of a journal's run, which distinguishes its files from those
// of other runs.
func (h *planHeader) runName() string {
	return strings.ToLower(strconv.FormatInt(h.Now.UnixNano(), 36))
}
