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

	"premix/internal/beneath"
	"premix/transfer/link"
)

// Parts is the directory of records of copies that are not whole, see package beneath.
func (h Home) Parts() string { return filepath.Join(h.Dir, "transfer", "parts") }

// stage opens the private directory in which what is fetched is made.
func (j *Job) stage() (*beneath.Stage, error) {
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

// forScripts is the path at which a script writes to a stage: it leads to the directory that
// this process holds open, whatever another user renames.
func forScripts(s *beneath.Stage) string {
	return fmt.Sprintf("/proc/%d/fd/%d/%s", os.Getpid(), s.Dir().Fd(), s.Name)
}

// remoteStage is the private directory at the peer in which what is put is made, by the
// protocols that write by path.
type remoteStage struct {
	final  string // destination
	dir    string // the private directory
	record string // file with a remoteRecord; empty: there is none
}

// remoteRecord says which directory at a peer belongs to a destination.
type remoteRecord struct {
	Peer      string `json:"peer"` // for people
	Directory string `json:"directory"`
	Identity  string `json:"identity"` // what identify prints
}

// A directory at the peer is recognised by device, inode, time of birth, owner and mode.
// Scripts of sh: $d is the directory of the destination. Root does not write by path where
// another user can rename the directories of that path.
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
	// Set-user-ID, set-group-ID and sticky bits do not travel. Directories keep a
	// set-group-ID bit that they have from the one that they are in.
	commitRemote = `s=%[1]s; f=%[2]s
find "$s"/* ! -type d ! -type l -perm /7000 -exec chmod u-s,g-s,-t {} + || exit 1
find "$s"/* -type d -perm /5000 -exec chmod u-s,-t {} + || exit 1
[ -g "$s" ] || find "$s"/* -type d -perm /2000 -exec chmod g-s {} + || exit 1
if [ -e "$f" ] || [ -L "$f" ]; then echo there; exit 0; fi
mv -T "$s"/%[3]s "$f" && rmdir "$s"
`
)

// known reads the record of the destination. file is empty where there can be none.
func (r *run) known() (known remoteRecord, file string) {
	if r.Parts == "" || os.MkdirAll(r.Parts, 0o700) != nil {
		return known, ""
	}
	sum := sha256.Sum256([]byte(r.Link.Peer() + "\n" + r.remote))
	file = filepath.Join(r.Parts, "put-"+hex.EncodeToString(sum[:16])+".json")
	text, err := os.ReadFile(file)
	// One that is damaged, or of another directory, is as if it were not there.
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

// path is where the protocols write.
func (st *remoteStage) path() string { return path.Join(st.dir, path.Base(st.final)) }

// commit gives what was put its name.
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
