package policy

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"premix/internal/files"
	"premix/internal/files/content"
	"premix/internal/kit/beneath"
)

// A premigrated file is unchanged in its pool, and has a copy in [content.Copies] of the
// pool to which a rule would move it. The name of the copy identifies the state of the file:
// the pool, the inode, the size, and the times of modification and status change. So a
// changed file has no copy. Before a copy becomes the file, the action compares it with the
// file, byte by byte; the name only finds it.
//
// A copy belongs to the user that premix runs as, with mode 0600, and has no attributes:
// the file may lose rights after it was copied. A copy gets the owner, mode, times and
// attributes when it becomes the file.

// copyPrefix is the prefix of the names of copies.
const copyPrefix = ownPrefix + "copy-"

// fileState identifies a file and its content in a pool, as a scan has them.
type fileState struct{ inode, size, modified, changed int64 }

func (a *Action) state() fileState { return fileState{a.Inode, a.Size, a.Modified, a.Changed} }

// poolMark returns the part of the names of copies that stands for a pool.
func poolMark(dir string) string {
	sum := sha256.Sum256([]byte(dir))
	return fmt.Sprintf("%x", sum[:8])
}

const stateFormat = "-%x-%x-%x-%x"

// copyName returns the name of the copy of a file of a pool.
func copyName(mark string, s fileState) string {
	return copyPrefix + mark + fmt.Sprintf(stateFormat, uint64(s.inode), uint64(s.size), uint64(s.modified), uint64(s.changed))
}

// parseCopy returns the parts of the name of a copy.
func parseCopy(name string) (mark string, s fileState, ok bool) {
	mark, rest, _ := strings.Cut(strings.TrimPrefix(name, copyPrefix), "-")
	var v [4]uint64
	_, err := fmt.Sscanf("-"+rest, stateFormat, &v[0], &v[1], &v[2], &v[3])
	s = fileState{int64(v[0]), int64(v[1]), int64(v[2]), int64(v[3])}
	return mark, s, err == nil && copyName(mark, s) == name
}

// AheadPlan is the part of a plan that belongs to PREMIGRATE.
type AheadPlan struct {
	// Taken are the files that would be copied.
	Taken Amount `json:"taken"`
	// Copied are the files that the rule would move or copy, and that have a copy.
	Copied Amount `json:"copied"`
	// Stale are the copies that would be removed, of files that have changed or are gone.
	Stale   Amount   `json:"stale"`
	Samples []Sample `json:"samples,omitempty"`

	candidates []candidate // the files that would be copied, the heaviest first
	stale      []Action
}

// spare is a copy of a premigrated file.
type spare struct {
	name  string
	mark  string
	state fileState
	st    unix.Stat_t
	live  bool // the scan has the file in this state
}

// spares are the copies in a pool, by name.
type spares map[string]*spare

// findCopies finds the copies to which rules with PREMIGRATE refer, and those among them
// that are stale.
func (m *maker) findCopies(ctx context.Context) error {
	m.spares = make(map[string]spares)
	byInode := make(map[int64][]*spare)
	for i := range m.rules.Rules {
		rule := &m.rules.Rules[i]
		if rule.Ahead == rule.Low || m.spares[rule.To] != nil {
			continue
		}
		pool := m.rules.Pool(rule.To)
		list, err := listCopies(pool.Dir)
		if err != nil {
			return &PoolError{*pool, err}
		}
		m.spares[rule.To] = list
		for _, c := range list {
			byInode[c.state.inode] = append(byInode[c.state.inode], c)
		}
	}
	if len(byInode) == 0 {
		return nil
	}
	marks := make(map[string]int)
	for i := range m.Pools {
		marks[poolMark(m.Pools[i].Dir)] = i
	}
	var mu sync.Mutex
	err := eachGroup(ctx, m.table, m.options.Workers, func() func(*files.Group, int) error {
		return func(g *files.Group, _ int) error {
			inodes, err := g.Ints(files.ColumnInode)
			if err != nil {
				return err
			}
			for row, n := range inodes {
				if byInode[n] == nil {
					continue
				}
				var e files.Entry
				if err := g.Entry(int32(row), &e); err != nil {
					return err
				}
				mu.Lock()
				for _, c := range byInode[n] {
					if i, ok := marks[c.mark]; ok && c.state == stateOf(&e) && within(e.Path(), m.Pools[i].Dir) {
						c.live = true
					}
				}
				mu.Unlock()
			}
			return nil
		}
	})
	if err != nil {
		return err
	}
	taken := make(map[*spare]bool)
	for _, p := range m.Rules {
		if p.Ahead == nil {
			continue
		}
		from, to := m.rules.Pool(p.From), m.rules.Pool(p.To)
		if !slices.ContainsFunc(m.table.Roots, func(root string) bool { return within(from.Dir, root) }) {
			continue // the scan cannot show that a file has changed
		}
		for _, c := range m.spares[p.To] {
			if c.live || taken[c] || c.mark != poolMark(from.Dir) || c.st.Ctim.Nano() >= m.table.Started.UnixNano() {
				continue
			}
			taken[c] = true
			p.Ahead.stale = append(p.Ahead.stale, Action{
				Rule: p.Name, Verb: Delete, Path: Path(filepath.Join(to.Dir, content.Copies, c.name)), Size: c.st.Size, Allocated: c.st.Blocks * 512,
				Device: int64(c.st.Dev), Inode: int64(c.st.Ino), Modified: c.st.Mtim.Nano(), Changed: c.st.Ctim.Nano(),
			})
			p.Ahead.Stale.add(c.st.Size, c.st.Blocks*512)
		}
		slices.SortFunc(p.Ahead.stale, func(a, b Action) int { return strings.Compare(string(a.Path), string(b.Path)) })
		m.Pools[m.pool(p.To)].After -= p.Ahead.Stale.Allocated
	}
	return nil
}

func stateOf(e *files.Entry) fileState { return fileState{e.Inode, e.Size, e.Modified, e.Changed} }

func (a *Amount) add(bytes, allocated int64) {
	a.Count++
	a.Bytes += bytes
	a.Allocated += allocated
}

// listCopies lists the copies in a pool.
func listCopies(pool string) (spares, error) {
	list := make(spares)
	top, err := unix.Open(pool, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(top)
	fd, err := openCopies(top, false)
	if isNone(err) {
		return list, nil
	}
	if err != nil {
		return nil, err
	}
	dir := os.NewFile(uintptr(fd), content.Copies)
	defer dir.Close() // a close after reading cannot lose data
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		mark, state, ok := parseCopy(name)
		if !ok {
			continue
		}
		st, err := statAt(fd, name)
		if isNone(err) || err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
			continue
		}
		if err != nil {
			return nil, err
		}
		list[name] = &spare{name: name, mark: mark, state: state, st: st}
	}
	return list, nil
}

// errForeignCopies is returned for a directory of copies in which other users could write.
var errForeignCopies = errors.New(content.Copies + " in it belongs to another user, or others may write there")

// openCopies opens the directory of copies of a pool. With make it creates the directory if
// it does not exist.
func openCopies(pool int, make bool) (int, error) {
	fd, err := openDir(pool, content.Copies)
	if isNone(err) && make {
		if err = unix.Mkdirat(pool, content.Copies, 0o700); err == nil || errors.Is(err, unix.EEXIST) {
			fd, err = openDir(pool, content.Copies)
		}
		if err == nil {
			err = unix.Fsync(pool)
		}
	}
	var st unix.Stat_t
	if err == nil {
		err = unix.Fstat(fd, &st)
	}
	if err == nil && (int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0) {
		err = errForeignCopies
	}
	if err != nil && fd >= 0 {
		unix.Close(fd)
		fd = -1
	}
	if errors.Is(err, fs.ErrPermission) {
		err = errForeignCopies
	}
	return fd, err
}

// copyDirs returns the directories of copies that the pools have.
func (m *maker) copyDirs() map[string]bool {
	list := make(map[string]bool)
	for _, p := range m.Pools {
		dir := filepath.Join(p.Dir, content.Copies)
		if st, err := os.Lstat(dir); err == nil && st.IsDir() {
			list[dir] = true
		}
	}
	return list
}

// withoutCopies separates rows of copies and of their directories, to which no rule
// applies, from others.
func (m *maker) withoutCopies(b *batch, rows []int32) (kept, copies []int32, err error) {
	if len(m.copies) == 0 {
		return rows, nil, nil
	}
	dirs, err := b.g.Texts(files.ColumnDir)
	if err != nil {
		return rows, nil, err
	}
	const (
		outside = iota
		above   // the pool itself
		inside
	)
	of, some := make([]int, dirs.Values()), false
	for n := range of {
		switch dir := string(dirs.Value(n)); {
		case m.copies[dir]:
			of[n] = inside
		case m.copies[filepath.Join(dir, content.Copies)]:
			of[n] = above
		}
		some = some || of[n] != outside
	}
	if !some {
		return rows, nil, nil
	}
	names, err := b.g.Texts(files.ColumnName)
	if err != nil {
		return rows, nil, err
	}
	kept = rows[:0]
	for _, row := range rows {
		if at := of[dirs.Number(row)]; at == inside || at == above && string(names.Row(row)) == content.Copies {
			copies = append(copies, row)
			continue
		}
		kept = append(kept, row)
	}
	return kept, copies, nil
}

// ahead selects the files to premigrate: next are the candidates behind the files that the rule
// moves.
func (m *maker) ahead(p *RulePlan, next []candidate) error {
	have, err := m.copied(p, slices.Concat(p.ordered, next))
	if err != nil {
		return err
	}
	for _, c := range p.ordered {
		if have[c.ref] {
			p.copied += c.allocated
			p.Ahead.Copied.add(c.size, c.allocated)
		}
	}
	for _, c := range next {
		if have[c.ref] {
			p.Ahead.Copied.add(c.size, c.allocated)
			continue
		}
		p.Ahead.candidates = append(p.Ahead.candidates, c)
		p.Ahead.Taken.add(c.size, c.allocated)
	}
	m.Pools[m.pool(p.To)].After += p.Ahead.Taken.Allocated
	sorted := p.Ahead.candidates
	if m.options.Count {
		sorted = foremost(sorted, m.options.Samples)
	}
	slices.SortFunc(sorted, candidate.order)
	return nil
}

// copied returns the candidates of a rule that have a copy.
func (m *maker) copied(p *RulePlan, list []candidate) (map[ref]bool, error) {
	have := make(map[ref]bool)
	if len(m.spares[p.To]) == 0 {
		return have, nil
	}
	slices.SortFunc(list, func(a, b candidate) int { return a.compare(b.ref) })
	g, group, mark := m.table.NewGroup(), int32(-1), poolMark(m.rules.Pool(p.From).Dir)
	var e files.Entry
	for _, c := range list {
		if c.group != group {
			g.Reset(int(c.group))
			group = c.group
		}
		if err := g.Entry(c.row, &e); err != nil {
			return nil, err
		}
		if m.spares[p.To][copyName(mark, stateOf(&e))] != nil {
			have[c.ref] = true
		}
	}
	return have, nil
}

// refs returns the files that would be copied, in order.
func (a *AheadPlan) refs() []ref {
	list := make([]ref, len(a.candidates))
	for i := range list {
		list[i] = a.candidates[i].ref
	}
	return list
}

// copyPath returns the path of the copy of a file that a rule premigrates.
func (r *Rules) copyPath(rule *Rule, s fileState) string {
	return filepath.Join(r.Pool(rule.To).Dir, content.Copies, copyName(poolMark(r.Pool(rule.From).Dir), s))
}

// copies opens the directory of copies of the pool to which an action copies or moves.
func (x *runner) copies(a *Action, make bool) (int, error) {
	dir := x.rules.Pool(x.ruleOf(a).To).Dir
	top, _, err := x.tops.top(filepath.Join(dir, content.Copies))
	if err != nil {
		return -1, err
	}
	return openCopies(top, make)
}

// takeCopy gives the copy of a premigrated file the temporary name of the action, if the
// copy is equal to the file. Otherwise it returns nil.
func (x *runner) takeCopy(r *ready, pace func(int) error) (*os.File, error) {
	from := poolOf(x.rules.Pools, string(r.a.Path))
	if from == nil {
		return nil, nil
	}
	dir, err := x.copies(r.a, false)
	if err != nil {
		return nil, nil // there are no copies, or they belong to another user
	}
	defer unix.Close(dir)
	name, tmp := copyName(poolMark(from.Dir), r.a.state()), r.a.own(x.h.runName(), "")
	st, err := statAt(dir, name)
	if err != nil || st.Mode&^0o700 != unix.S_IFREG || int(st.Uid) != os.Geteuid() || st.Nlink != 1 || st.Size != r.a.Size {
		return nil, nil
	}
	if unix.Renameat2(dir, name, r.to, tmp, unix.RENAME_NOREPLACE) != nil {
		return nil, nil // another file system is mounted between them
	}
	same := false
	fd, err := beneath.OpenAt(r.to, tmp, unix.O_RDWR|unix.O_NONBLOCK, 0)
	if err == nil {
		dst := os.NewFile(uintptr(fd), tmp)
		var now unix.Stat_t
		if err = unix.Fstat(fd, &now); err == nil && now.Ino == st.Ino && now.Dev == st.Dev {
			same, err = content.Equal(dst, r.src, r.a.Size, pace)
		}
		if same {
			return dst, nil
		}
		dst.Close() // nothing was written
	}
	return nil, errors.Join(reason(err), unix.Unlinkat(r.to, tmp, 0))
}

// keep gives the copy of a premigrated file its name.
func (r *ready) keep(run string) error {
	tmp := r.a.own(run, "")
	if err := r.unchanged(true); err != nil {
		return errors.Join(err, unix.Unlinkat(r.to, tmp, 0))
	}
	if err := unix.Renameat2(r.to, tmp, r.to, r.as, unix.RENAME_NOREPLACE); err != nil {
		if errors.Is(err, unix.EEXIST) { // another policy has made it
			err = nil
		}
		return errors.Join(err, unix.Unlinkat(r.to, tmp, 0))
	}
	return unix.Fsync(r.to)
}
