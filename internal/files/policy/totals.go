package policy

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"

	"premix/internal/files"
)

// total sums up the regular files in a directory and in all below it. Each name counts.
type total struct {
	files, bytes, allocated int64
	largest                 int64 // size of a file
	newest                  int64 // time of modification, nanoseconds since 1970
	own                     bool  // the directory was listed
}

func (t *total) add(o *total) {
	t.files += o.files
	t.bytes += o.bytes
	t.allocated += o.allocated
	t.largest = max(t.largest, o.largest)
	t.newest = max(t.newest, o.newest)
}

func (t *total) get(m made) int64 {
	switch m {
	case madeFiles:
		return t.files
	case madeBytes:
		return t.bytes
	case madeLargest:
		return t.largest
	}
	return t.newest
}

// totals are the totals of directories, by path.
type totals map[string]*total

var nothing total

func (t totals) of(path []byte) *total {
	if v := t[string(path)]; v != nil {
		return v
	}
	return &nothing
}

// sumUp computes the totals of all directories in a scan. Its memory use is proportional to
// the names of directories.
func sumUp(ctx context.Context, t *files.Table, workers int) (totals, error) {
	sums := make(totals)
	var mu sync.Mutex
	err := eachGroup(ctx, t, workers, func() func(g *files.Group, n int) error {
		return func(g *files.Group, _ int) error {
			dirs, err := g.Texts(files.ColumnDir)
			if err != nil {
				return err
			}
			types, err := g.Texts(files.ColumnType)
			if err != nil {
				return err
			}
			var values [3][]int64
			for i, c := range []files.Column{files.ColumnSize, files.ColumnModified, files.ColumnAllocated} {
				if values[i], err = g.Ints(c); err != nil {
					return err
				}
			}
			here := make([]total, dirs.Values())
			for row := range int32(g.Rows()) {
				h := &here[dirs.Number(row)]
				h.own = true
				if types.Row(row)[0] != 'f' {
					continue
				}
				h.files++
				h.bytes += values[0][row]
				h.largest = max(h.largest, values[0][row])
				h.newest = max(h.newest, values[1][row])
				h.allocated += values[2][row]
			}
			mu.Lock()
			defer mu.Unlock()
			for n := range here {
				if !here[n].own {
					continue
				}
				sum := sums[string(dirs.Value(n))]
				if sum == nil {
					sum = new(total)
					sums[string(dirs.Value(n))] = sum
				}
				sum.add(&here[n])
			}
			return nil
		}
	})
	if err != nil {
		return nil, err
	}
	// Each directory that is not empty is the dir of some row, as are all directories above
	// it.
	deepest := slices.SortedFunc(maps.Keys(sums), func(a, b string) int {
		return cmp.Or(cmp.Compare(strings.Count(b, "/"), strings.Count(a, "/")), cmp.Compare(len(b), len(a)))
	})
	for _, dir := range deepest {
		if at := strings.LastIndexByte(dir, '/'); at > 0 || dir != "/" {
			if above := sums[dir[:max(at, 1)]]; above != nil {
				above.add(sums[dir])
			}
		}
	}
	return sums, nil
}

// eachGroup calls the function that begin returns for each row group, several at a time. It
// calls begin once for each goroutine.
func eachGroup(ctx context.Context, t *files.Table, workers int, begin func() func(g *files.Group, n int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var (
		all  sync.WaitGroup
		mu   sync.Mutex
		next int
	)
	for range min(workers, t.Groups()) {
		f, g := begin(), t.NewGroup()
		all.Go(func() {
			for ctx.Err() == nil {
				mu.Lock()
				n := next
				next++
				mu.Unlock()
				if n >= t.Groups() {
					return
				}
				g.Reset(n)
				if err := f(g, n); err != nil {
					cancel(err)
				}
			}
		})
	}
	all.Wait()
	return context.Cause(ctx)
}
