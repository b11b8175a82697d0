package policy

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// A user who can write to a pool can replace a copy before it has its final name. The source then
// stays.
func TestAttackSwappedCopy(t *testing.T) {
	dir, text := pair(t, []file{{"flash/one", 5000, 10}})
	table := scanned(t, filepath.Join(dir, "flash"), filepath.Join(dir, "disk"))
	r, err := Parse("rules.sql", text+moveAll, nil)
	if err != nil {
		t.Fatal(err)
	}
	p, err := r.Plan(context.Background(), table, Options{Now: now})
	if err != nil {
		t.Fatal(err)
	}
	x := &runner{h: planHeader{Now: now}, rules: r, tops: tops{fds: make(map[string]int)}}
	defer x.tops.close()
	for _, pool := range r.Pools {
		x.tops.dirs = append(x.tops.dirs, pool.Dir)
	}
	n := 0
	err = p.each(false, func(a *Action) error {
		n++
		ready, err := x.prepare(context.Background(), a)
		if err != nil {
			return err
		}
		defer ready.close()
		copied := filepath.Join(dir, "disk", a.own(x.h.runName(), ""))
		if err := errors.Join(os.Rename(copied, copied+".moved"), os.WriteFile(copied, []byte("other"), 0o644)); err != nil {
			return err
		}
		if err := x.finish(ready); err == nil {
			t.Error("it is done")
		}
		return nil
	})
	if err != nil || n != 1 {
		t.Fatal(err, n)
	}
	if info, err := os.Lstat(filepath.Join(dir, "flash/one")); err != nil || info.Size() != 5000 {
		t.Errorf("the source: %v, %v", info, err)
	}
}
