package files

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"
)

func usage(t *testing.T, top int, roots ...string) *Usage {
	t.Helper()
	sum, _ := scanned(t, Options{Roots: roots})
	u, err := opened(t, sum.Table).Usage(top)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func TestUsage(t *testing.T) {
	root := t.TempDir()
	// Sizes 1 to 20, and 20 empty files: half of 40 files.
	for i := range 20 {
		write(t, fmt.Sprintf("%s/a/%d.txt.gz", root, i), int64(i+1))
		write(t, fmt.Sprintf("%s/b/%d", root, i), 0)
	}
	for i, size := range []int64{10, 11, 1000, 1001, 5e9} {
		write(t, fmt.Sprintf("%s/c/%d.BAM", root, i), size)
	}
	if err := os.Link(root+"/c/2.BAM", root+"/c/again.BAM"); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(root+"/hollow", 0o755); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	for name, age := range map[string]time.Duration{"a/0.txt.gz": 36 * time.Hour, "a/1.txt.gz": 100 * 24 * time.Hour, "a/2.txt.gz": 7 * 365 * 24 * time.Hour, "a/3.txt.gz": -time.Hour} {
		if err := os.Chtimes(filepath.Join(root, name), now.Add(-age), now.Add(-age)); err != nil {
			t.Fatal(err)
		}
	}
	write(t, root+"/d/e/f/only", 0)
	u := usage(t, 4, root)
	const bytes = 210 + 10 + 11 + 1000 + 1001 + 5e9
	if u.Files.Count != 46 || u.Files.Bytes != bytes || u.Files.Zero != 21 || u.Linked != 1 || u.Median != 2 || u.Files.Allocated > 1<<20 {
		t.Errorf("%+v, %d linked, median %d", u.Files, u.Linked, u.Median)
	}
	if want := map[string]int64{"f": 47, "d": 8}; !reflect.DeepEqual(u.Types, want) {
		t.Errorf("%v", u.Types)
	}
	counts := func(list []Class) map[string]int64 {
		m := map[string]int64{}
		for _, c := range list {
			if c.Count > 0 {
				m[c.Name] = c.Count
			}
		}
		return m
	}
	if got, want := counts(u.Sizes), map[string]int64{"0": 21, "1-10 B": 11, "11-100 B": 11, "101 B-1 KB": 1, "1-10 KB": 1, "1-10 GB": 1}; !reflect.DeepEqual(got, want) {
		t.Errorf("sizes %v", got)
	}
	if got, want := counts(u.Modified), map[string]int64{"1 day": 42, "1 week": 1, "6 months": 1, "over 5 years": 1, "in the future": 1}; !reflect.DeepEqual(got, want) {
		t.Errorf("modified %v", got)
	}
	if got, want := counts(u.Suffixes), map[string]int64{".txt.gz": 20, "": 21, ".BAM": 5}; !reflect.DeepEqual(got, want) || u.Suffixes[0].Name != "" {
		t.Errorf("suffixes %v", got)
	}
	if len(u.Owners) != 1 || u.Owners[0].Amount != u.Files || u.Owners[0].Median != 2 {
		t.Errorf("owners %+v", u.Owners)
	}
	d := u.Directories
	if d.Count != 8 || d.Empty != 1 || d.One != 3 || d.Large != 0 || d.Median != 1 {
		t.Errorf("%+v", d)
	}
	if want := []Directory{{root + "/a", 20}, {root + "/b", 20}, {root + "/c", 6}, {root, 5}}; !slices.Equal(d.Largest[2:], want[2:]) || d.Largest[0].Entries != 20 || len(d.Largest) != 4 {
		t.Errorf("largest %+v", d.Largest)
	}
}

func TestDeciles(t *testing.T) {
	for _, c := range []struct {
		sizes []int64
		want  string
	}{
		{nil, "[]"},
		{[]int64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, "[{10 1 1} {20 2 2} {30 3 3} {40 4 4} {50 5 5} {60 6 6} {70 7 7} {80 8 8} {90 9 9} {100 10 10}]"},
		// One file of 100 bytes is divided into ten parts.
		{[]int64{100}, "[{10 100 10} {20 100 10} {30 100 10} {40 100 10} {50 100 10} {60 100 10} {70 100 10} {80 100 10} {90 100 10} {100 100 10}]"},
		{[]int64{0, 0, 0, 0, 0, 0, 0, 0, 5, 1 << 20}, "[{10 0 0} {20 0 0} {30 0 0} {40 0 0} {50 0 0} {60 0 0} {70 0 0} {80 0 0} {90 5 5} {100 1048576 1048576}]"},
	} {
		s := sizes{}
		for _, n := range c.sizes {
			s.add(n)
		}
		if got := fmt.Sprint(s.deciles()); got != c.want {
			t.Errorf("%v: %s, want %s", c.sizes, got, c.want)
		}
	}
	s := sizes{}
	s.add(1<<40 + 12345)
	if got := s.quantile(0.5); got != 1<<40 {
		t.Errorf("a large size is kept as %d", got)
	}
}

func TestSuffixes(t *testing.T) {
	for name, want := range map[string]string{
		"reads.fastq.gz": ".fastq.gz", "x.bam": ".bam", "x.bam.bai": ".bai", ".hidden": "", "none": "", "dot.": "", "v1.2-alpha-long": "", ".tar.gz": "", "a.gz": ".gz",
	} {
		if got := suffixOf(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

func TestCompare(t *testing.T) {
	root := t.TempDir()
	for i := range 200 {
		write(t, fmt.Sprintf("%s/run%d/%d", root, i%4, i), 100)
	}
	write(t, root+"/top", 7)
	before, _ := scanned(t, Options{Roots: []string{root}})
	for i := range 10 {
		if err := os.Remove(fmt.Sprintf("%s/run0/%d", root, 4*i)); err != nil {
			t.Fatal(err)
		}
		write(t, fmt.Sprintf("%s/run1/new%d", root, i), 50)
	}
	write(t, root+"/run2/2", 5000) // the size was 100
	if err := os.Chmod(root+"/run3/3", 0o600); err != nil {
		t.Fatal(err)
	}
	write(t, root+"/run4/deep/file", 9)
	if err := os.Remove(root + "/top"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("x", root+"/top"); err != nil {
		t.Fatal(err)
	}
	after, _ := scanned(t, Options{Roots: []string{root}})
	for _, most := range []int64{passEntries, 7} {
		d, err := compare(opened(t, before.Table), opened(t, after.Table), 5, most)
		if err != nil {
			t.Fatal(err)
		}
		if d.Added != (Change{13, 509}) || d.Removed != (Change{10, -1000}) || d.Changed != (Change{3, 4893}) || d.Same != 193 {
			t.Errorf("at most %d: %+v", most, d)
		}
		growth := []Growth{{root + "/run2", Change{1, 4900}}, {root + "/run0", Change{10, -1000}}, {root + "/run1", Change{10, 500}}, {root + "/run4", Change{2, 9}}, {root, Change{2, -7}}}
		if !slices.Equal(d.Growth, growth) {
			t.Errorf("at most %d: %+v", most, d.Growth)
		}
		if len(d.Owners) != 1 || d.Owners[0].Change != (Change{26, 4402}) {
			t.Errorf("%+v", d.Owners)
		}
		if d.Largest[0] != (Changed{root + "/run2/2", "changed", 4900}) || d.Largest[1].Bytes != -100 || d.Largest[1].How != "removed" || len(d.Largest) != 5 {
			t.Errorf("%+v", d.Largest)
		}
	}
	same, err := Compare(opened(t, after.Table), opened(t, after.Table), 5)
	if err != nil || same.Added.Count+same.Removed.Count+same.Changed.Count != 0 || same.Same != after.Entries {
		t.Errorf("%+v, %v", same, err)
	}
}
