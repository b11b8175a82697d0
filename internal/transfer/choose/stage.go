package choose

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"premix/internal/kit/beneath"
	"premix/internal/transfer/link"
)

// Parts returns the directory of records of incomplete copies, see package beneath.
func (h Home) Parts() string { return filepath.Join(h.Dir, "transfer", "parts") }

// stage opens the private directory to which a get writes.
func (j *Copy) stage() (*beneath.Stage, error) {
	dir, err := beneath.Open(filepath.Dir(j.Local))
	if err != nil {
		return nil, &TargetError{err.Error()}
	}
	s, err := dir.Stage(j.Parts, filepath.Base(j.Local))
	if err != nil {
		return nil, errors.Join(&TargetError{err.Error()}, dir.Close())
	}
	return s, nil
}

// forScripts returns the path by which a script writes to a stage. It refers to the
// directory that this process holds open, even if another user renames it.
func forScripts(s *beneath.Stage) string {
	return fmt.Sprintf("/proc/%d/fd/%d/%s", os.Getpid(), s.Dir().Fd(), s.Name)
}

// remoteStage is the private directory at the peer to which protocols that write by path
// copy a put.
type remoteStage struct {
	final  string // destination
	dir    string // the private directory
	record string // file with a remoteRecord; empty: none
}

// remoteRecord stores which directory at a peer belongs to a destination.
type remoteRecord struct {
	Peer      string `json:"peer"` // for people
	Directory string `json:"directory"`
	Identity  string `json:"identity"` // the output of identify
}

// A directory at the peer is identified by device, inode, time of birth, owner and mode.
// These are scripts of sh; $d is the directory of the destination. Root does not write by
// path if another user can rename a directory on that path.
const (
	identify   = `stat -c %%d:%%i:%%W:%%u:%%a "$s"`
	openRemote = `d=%[1]s; s=%[2]s
if [ "$(id -u)" = 0 ]; then
  p=$(cd -P "$d" && pwd) || exit 1
  while :; do
    set -- $(stat -c '%%u %%a' "$p"); m=$((0$2))
    if [ "$1" != 0 ] || [ $((m & 022)) != 0 ] && [ $((m & 01000)) = 0 ]; then echo "unsafe $p"; exit 0; fi
    [ "$p" != / ] || break
    p=$(dirname "$p")
  done
fi
if [ -z "$s" ] || [ -L "$s" ] || [ ! -d "$s" ] || [ "$(` + identify + `)" != %[3]s ]; then s=$(mktemp -d "$d/` + beneath.Prefix + `XXXXXXXXXXXX") || exit 1; fi
echo "stage $(` + identify + `) $s"
`
	// Set-user-ID, set-group-ID and sticky bits are not copied. Directories keep a
	// set-group-ID bit that they inherited from their parent.
	commitRemote = `s=%[1]s; f=%[2]s
find "$s"/* ! -type d ! -type l -perm /7000 -exec chmod u-s,g-s,-t {} + || exit 1
find "$s"/* -type d -perm /5000 -exec chmod u-s,-t {} + || exit 1
[ -g "$s" ] || find "$s"/* -type d -perm /2000 -exec chmod g-s {} + || exit 1
if [ -e "$f" ] || [ -L "$f" ]; then echo there; exit 0; fi
mv -T "$s"/%[3]s "$f" && rmdir "$s"
`
)

// known reads the record of the destination. file is empty if there cannot be one.
func (r *run) known() (known remoteRecord, file string) {
	if r.Parts == "" || os.MkdirAll(r.Parts, 0o700) != nil {
		return known, ""
	}
	sum := sha256.Sum256([]byte(r.Link.Peer() + "\n" + r.remote))
	file = filepath.Join(r.Parts, "put-"+hex.EncodeToString(sum[:16])+".json")
	text, err := os.ReadFile(file)
	// A damaged record, or one of another directory, is ignored.
	if err != nil || json.Unmarshal(text, &known) != nil || path.Dir(known.Directory) != path.Dir(r.remote) {
		known = remoteRecord{}
	}
	return known, file
}

// stageRemote opens the private directory at the peer.
func (r *run) stageRemote(ctx context.Context) (*remoteStage, error) {
	st := &remoteStage{final: r.remote}
	known, record := r.known()
	st.record = record
	text, err := r.s.Run(ctx, fmt.Sprintf(openRemote, link.Quote(path.Dir(r.remote)), link.Quote(known.Directory), link.Quote(known.Identity)))
	if err != nil {
		return nil, &TargetError{err.Error()}
	}
	word, rest, _ := strings.Cut(strings.TrimSpace(text), " ")
	switch word {
	case "unsafe":
		return nil, fmt.Errorf("root at the peer would write below %s, which other users may change", rest)
	case "stage":
	default:
		return nil, fmt.Errorf("the peer says %q", text)
	}
	known.Peer = r.Link.Peer()
	known.Identity, known.Directory, _ = strings.Cut(rest, " ")
	st.dir = known.Directory
	if st.record != "" {
		text, err := json.Marshal(known)
		if err != nil {
			return nil, err
		}
		if err := beneath.Replace(st.record, 0o600, beneath.Volatile, append(text, '\n')); err != nil {
			return nil, err
		}
	}
	return st, nil
}

// path returns the path to which the protocols write.
func (st *remoteStage) path() string { return path.Join(st.dir, path.Base(st.final)) }

// commit renames a put to its destination.
func (st *remoteStage) commit(ctx context.Context, r *run) error {
	text, err := r.s.Run(ctx, fmt.Sprintf(commitRemote, link.Quote(st.dir), link.Quote(st.final), link.Quote(path.Base(st.final))))
	if err != nil {
		return err
	}
	if strings.TrimSpace(text) == "there" {
		return &TargetError{st.final + " is at the peer already"}
	}
	return st.forget()
}

// forget removes the record.
func (st *remoteStage) forget() error {
	if st.record == "" {
		return nil
	}
	return os.Remove(st.record)
}
