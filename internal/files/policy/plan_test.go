package policy

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/files"
	"premix/internal/kit/exit"
)

// now is the time of all plans in these tests.
var now = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)

// file describes a file for a test. Its content is one byte repeated.
type file struct {
	path string
	size int64
	age  int // days since the last access and change
}

// lay makes files below a directory.
func lay(t *testing.T, dir string, list []file) {
	t.Helper()
	for _, f := range list {
		path := filepath.Join(dir, f.path)
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(strings.Repeat("x", int(f.size))), 0o644); err != nil {
			t.Fatal(err)
		}
		at := now.Add(-time.Duration(f.age) * 24 * time.Hour)
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
	}
}

func scanned(t *testing.T, roots ...string) *files.Table {
	t.Helper()
	path := filepath.Join(t.TempDir(), "scan.parquet")
	if _, err := files.Scan(context.Background(), files.Options{Roots: roots, Table: path, Workers: 3}); err != nil {
		t.Fatal(err)
	}
	table, err := files.OpenTable(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { table.Close() })
	return table
}

func planned(t *testing.T, table *files.Table, text string) *Plan {
	t.Helper()
	r, err := Parse("rules.sql", text, nil)
	if err != nil {
		t.Fatal(err)
	}
	p, err := r.Plan(context.Background(), table, Options{Now: now, Samples: 1000})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// names lists the files that a rule takes, relative to a directory.
func names(p *RulePlan, dir string) string {
	var list []string
	for _, s := range p.Samples {
		list = append(list, strings.TrimPrefix(s.Path, dir+"/"))
	}
	return strings.Join(list, " ")
}

// Conditions match the right files.
func TestConditions(t *testing.T) {
	dir := t.TempDir()
	lay(t, dir, []file{
		{"a/one.bam", 100, 10}, {"a/one.bam.bai", 5, 10}, {"a/two.BAM", 2000, 200}, {"a/b/three.fastq.gz", 3000, 400},
		{"a/b/empty", 0, 1}, {"a/100%", 1, 0}, {"c/héllo_x", 7, 50},
	})
	if err := os.Chmod(filepath.Join(dir, "a/b/empty"), 0o606); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("one.bam", filepath.Join(dir, "a/link.bam")); err != nil {
		t.Fatal(err)
	}
	table := scanned(t, dir)
	const every = "a/100% a/b/empty a/b/three.fastq.gz a/one.bam a/one.bam.bai a/two.BAM c/héllo_x"
	for where, want := range map[string]string{
		"TRUE":                                   every,
		"FALSE":                                  "",
		"NOT FALSE AND size>=0":                  every,
		"size > 1 KB":                            "a/b/three.fastq.gz a/two.BAM",
		"size = 2_000":                           "a/two.BAM",
		"2 KB <= size":                           "a/b/three.fastq.gz a/two.BAM",
		"size <> 0 AND size != 1 AND size < 100": "a/one.bam.bai c/héllo_x",
		"size BETWEEN 5 AND 100":                 "a/one.bam a/one.bam.bai c/héllo_x",
		"size NOT BETWEEN 1 AND 2999":            "a/b/empty a/b/three.fastq.gz",
		"size IN (5, 7, 2 + 1 * 3000 - 2)":       "a/b/three.fastq.gz a/one.bam.bai c/héllo_x",
		"size % 1000 = 0 AND size / 1000 >= 2":   "a/b/three.fastq.gz a/two.BAM",
		"-size < -1 KB":                          "a/b/three.fastq.gz a/two.BAM",
		"size > 1 KiB OR name LIKE '%.bai' OR size = 0":       "a/b/empty a/b/three.fastq.gz a/one.bam.bai a/two.BAM",
		"NOT (size > 1 KiB OR name LIKE '%.bai' OR size = 0)": "a/100% a/one.bam c/héllo_x",
		"path LIKE '%.bam'":                                           "a/one.bam",
		"path ILIKE '%.bam'":                                          "a/one.bam a/two.BAM",
		"path NOT LIKE '%/a/%'":                                       "c/héllo_x",
		"path LIKE '%/b/%' AND name NOT LIKE 'e%'":                    "a/b/three.fastq.gz",
		`name LIKE '%\%' ESCAPE '\'`:                                  "a/100%",
		"name LIKE 'h_llo\\_x' ESCAPE '\\'":                           "c/héllo_x",
		"name GLOB '*.b[a-c]m'":                                       "a/one.bam",
		"path REGEXP '/[ab]/t[^/]*$'":                                 "a/b/three.fastq.gz a/two.BAM",
		"suffix = '.fastq.gz' OR suffix IN ('.BAM')":                  "a/b/three.fastq.gz a/two.BAM",
		"lower(name) = 'two.bam' OR upper(name) = 'EMPTY'":            "a/b/empty a/two.BAM",
		"length(name) = 7":                                            "a/one.bam a/two.BAM c/héllo_x",
		"name = 'one' || '.bam' OR dir || '/' || name LIKE '%a/100%'": "a/100% a/one.bam",
		"name < 'b'":                            "a/100%",
		"'b' > name":                            "a/100%",
		"name = name AND dir < name":            every,
		"accessed < now() - INTERVAL 90 DAYS":   "a/b/three.fastq.gz a/two.BAM",
		"now() - accessed > INTERVAL '90 days'": "a/b/three.fastq.gz a/two.BAM",
		"now() - mtime >= 200 days AND now() - mtime <= 200 days":                           "a/two.BAM",
		"INTERVAL 1 WEEK * 2 > now() - modified AND now() - modified > 48h":                 "a/one.bam a/one.bam.bai",
		"modified >= '2026-05-31T12:00:00Z'":                                                "a/100% a/b/empty",
		"modified BETWEEN TIMESTAMP '2025-04-01T00:00:00Z' AND '2025-12-31'":                "a/b/three.fastq.gz a/two.BAM",
		"accessed - modified = 0 seconds":                                                   every,
		"mode & 0o002 <> 0":                                                                 "a/b/empty",
		"mode = 0o606":                                                                      "a/b/empty",
		"links > 1 OR uid <> " + fmt.Sprint(os.Getuid()):                                    "",
		"owner = '" + fmt.Sprint(os.Getuid()) + "' OR uid = " + fmt.Sprint(os.Getuid()):     every,
		"type = 'f' AND pool = ''":                                                          every,
		"CASE WHEN size > 1 KB THEN 1 WHEN size > 10 THEN 2 ELSE 3 END = 2":                 "a/one.bam",
		"CASE WHEN name LIKE 'a%' THEN modified ELSE now() END < now() OR allocated < 0":    "",
		"size = size + 0 AND size * 2 > size AND entries = -1 AND 1 < 2":                    "a/100% a/b/three.fastq.gz a/one.bam a/one.bam.bai a/two.BAM c/héllo_x",
		"(size > 1 KB AND (name LIKE '%.gz' OR name LIKE 't%')) AND NOT name LIKE 'three%'": "a/two.BAM",
	} {
		where = strings.Replace(where, "48h", "48 hours", 1)
		p := planned(t, table, "RULE 'x' DELETE WHERE "+where)
		got := strings.Fields(names(p.Rules[0], dir))
		slices.Sort(got)
		if strings.Join(got, " ") != want {
			t.Errorf("%s\n got %s\nwant %s", where, strings.Join(got, " "), want)
		}
		if n := p.Rules[0].Taken.Count; n != int64(len(got)) {
			t.Errorf("%s: %d files are counted, and %d named", where, n, len(got))
		}
	}
}

// An entry belongs to the first rule that it matches.
func TestFirstRule(t *testing.T) {
	dir := t.TempDir()
	lay(t, dir, []file{{"refs/a", 10, 400}, {"refs/b.tmp", 10, 400}, {"run/c.tmp", 10, 400}, {"run/d", 10, 1}})
	p := planned(t, scanned(t, dir), `
RULE 'references stay' EXCLUDE WHERE path LIKE '%/refs/%';
RULE 'temporary' DELETE WHERE name LIKE '%.tmp';
RULE 'old' DELETE WHERE modified < now() - 30 days;
RULE 'all' DELETE WHERE TRUE`)
	for i, want := range []string{"", "run/c.tmp", "", "run/d"} {
		if got := names(p.Rules[i], dir); got != want {
			t.Errorf("rule %d takes %s, not %s", i, got, want)
		}
	}
	if p.Rules[0].Matched.Count != 2 || p.Rules[0].Taken.Count != 0 || p.Unmatched != 3 {
		t.Errorf("%+v, %d entries of no rule", p.Rules[0], p.Unmatched)
	}
}

// A rule with a threshold acts above the upper mark, takes the files with the greatest weights, and
// stops at the lower mark. Space that earlier rules free counts.
func TestThreshold(t *testing.T) {
	dir := t.TempDir()
	flash, disk := filepath.Join(dir, "flash"), filepath.Join(dir, "disk")
	var list []file
	for i := range 10 {
		list = append(list, file{fmt.Sprintf("flash/%d", i), 40_000, i})
	}
	lay(t, dir, list)
	if err := os.Mkdir(disk, 0o777); err != nil {
		t.Fatal(err)
	}
	table := scanned(t, dir)
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(flash, "0"), &st); err != nil {
		t.Fatal(err)
	}
	each := st.Blocks * 512
	text := func(capacity int64, rules string) string {
		return fmt.Sprintf("CREATE POOL flash AT '%s' CAPACITY %d; CREATE POOL disk AT '%s' CAPACITY 1 TB; %s", flash, capacity, disk, rules)
	}
	const move = "RULE 'old' MIGRATE FROM POOL flash THRESHOLD 80 TO 70 WEIGHT now() - modified TO POOL disk WHERE size > 1 KB;"
	for _, c := range []struct {
		name     string
		capacity int64
		rules    string
		rule     int
		want     string
		why      string
	}{
		{"full", 10*each + 4096, move, 0, "9 8 7", "above 80 %"},
		{"half full", 20 * each, move, 0, "", "nothing to do"},
		{"not above", 10 * each / 8 * 10, move, 0, "", "nothing to do"},
		{"too little", 4 * each, move, 0, "9 8 7 6 5 4 3 2", ""},
		{"usual weight", 10*each + 4096, strings.Replace(move, "WEIGHT now() - modified", "", 1), 0, "9 8 7", ""},
		{"other weight", 10*each + 4096, strings.Replace(move, "now() - modified", "CASE WHEN name = '0' THEN 3 WHEN name = '1' THEN 2 WHEN name = '2' THEN 1 ELSE 0 END", 1), 0, "0 1 2", ""},
		{"freed before", 10*each + 4096, "RULE 'first' DELETE WHERE name IN ('9', '0');" + move, 1, "8", "after the rules before"},
		{"enough freed before", 10*each + 4096, "RULE 'first' DELETE WHERE name < '4';" + move, 1, "", ""},
		{"fed before", 10*each + 4096, "RULE 'first' EXCLUDE WHERE name = '8';" + move, 1, "9 7 6", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := planned(t, table, text(c.capacity, c.rules))
			r := p.Rules[c.rule]
			if got := names(r, flash); c.name != "too little" && got != c.want {
				t.Errorf("takes %s, not %s (%s)", got, c.want, r.Why)
			}
			if !strings.Contains(r.Why, c.why) {
				t.Errorf("why: %s", r.Why)
			}
			if c.name == "too little" && r.Taken.Count != 8 && r.Taken.Count != 7 {
				t.Errorf("takes %d files: %s", r.Taken.Count, r.Why)
			}
			if p.Pools[1].After != p.Pools[1].Used+r.Taken.Allocated {
				t.Errorf("disk: %+v, moved %d", p.Pools[1], r.Taken.Allocated)
			}
			if want := r.Samples; len(want) > 0 && want[0].To != filepath.Join(disk, strings.TrimPrefix(want[0].Path, flash)) {
				t.Errorf("to %s", want[0].To)
			}
		})
	}
}

// The number of candidates is limited by the bytes that are needed, and the result is the same as
// without a limit.
func TestPruning(t *testing.T) {
	p := &RulePlan{weight: &number{}, bound: 10_000, floor: -1 << 63}
	m := &maker{}
	for i := range int64(300_000) {
		w := i * 7919 % 300_000
		p.keep(m, candidate{ref: ref{row: int32(i)}, weight: w, allocated: 10})
	}
	if len(p.ordered) > 4*pruneAt {
		t.Errorf("%d candidates are held", len(p.ordered))
	}
	if freed := p.prune(10_000); freed != 10_000 || len(p.ordered) != 1000 {
		t.Fatalf("%d bytes in %d files", freed, len(p.ordered))
	}
	p.sort(&Options{})
	for i, c := range p.ordered {
		if c.weight != int64(299_999-i) {
			t.Fatalf("number %d has the weight %d", i, c.weight)
		}
	}
}

// heaviest and foremost return the same entries as sorting the whole list.
func TestHeaviest(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for trial := range 300 {
		list := make([]candidate, r.IntN(1000))
		weights, sum := 1+r.Int64N(2000), int64(0)
		for i := range list {
			list[i] = candidate{ref: ref{int32(i / 100), int32(i % 100)}, weight: r.Int64N(weights), allocated: r.Int64N(4)}
			sum += list[i].allocated
		}
		want := slices.SortedFunc(slices.Values(list), candidate.order)
		bytes := r.Int64N(sum + 10)
		n, freed := heaviest(list, bytes)
		least, reached := 0, int64(0)
		for ; least < len(want) && reached < bytes; least++ {
			reached += want[least].allocated
		}
		if n != least || freed != reached {
			t.Fatalf("trial %d: the first %d of %d free %d, want the first %d, and %d", trial, n, len(list), freed, least, reached)
		}
		if got := slices.SortedFunc(slices.Values(list[:n]), candidate.order); !slices.Equal(got, want[:n]) {
			t.Fatalf("trial %d: the first %d are not the heaviest", trial, n)
		}
		k := r.IntN(len(list) + 2)
		if got := slices.SortedFunc(slices.Values(foremost(list, k)), candidate.order); !slices.Equal(got, want[:min(k, len(want))]) {
			t.Fatalf("trial %d: not the foremost %d", trial, k)
		}
	}
}

// A file with several names is moved with all of them, or not at all.
func TestHardLinks(t *testing.T) {
	dir := t.TempDir()
	lay(t, dir, []file{{"flash/a", 10, 1}, {"flash/c", 10, 1}})
	for from, to := range map[string]string{"flash/a": "flash/b", "flash/c": "c"} {
		if err := os.Link(filepath.Join(dir, from), filepath.Join(dir, to)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "disk"), 0o777); err != nil {
		t.Fatal(err)
	}
	p := planned(t, scanned(t, dir), fmt.Sprintf("CREATE POOL flash AT '%s/flash'; CREATE POOL disk AT '%s/disk'; RULE 'x' MIGRATE FROM POOL flash TO POOL disk", dir, dir))
	r := p.Rules[0]
	if got := names(r, dir); got != "flash/a" && got != "flash/b" || r.Taken.Count != 1 || r.Left[leftNames] != 1 || r.Taken.Bytes != 10 {
		t.Errorf("takes %s, %+v", got, r)
	}
}

// PACK takes the outermost directory, and no directory with an entry that belongs to an earlier
// rule.
func TestPackPlan(t *testing.T) {
	dir := t.TempDir()
	var list []file
	for i := range 20 {
		list = append(list, file{fmt.Sprintf("log/a/%d", i), 3, i}, file{fmt.Sprintf("log/b/deep/%d", i), 3, i}, file{fmt.Sprintf("kept/%d", i), 3, i})
	}
	lay(t, dir, append(list, file{"kept/reference", 3, 1}, file{"few/1", 3, 1}))
	table := scanned(t, dir)
	p := planned(t, table, `
RULE 'references stay' EXCLUDE WHERE name = 'reference';
RULE 'pack' PACK INTO STORE '/srv/store' WHERE files >= 20 AND largest < 1 KB AND newest <= now();
RULE 'rest' DELETE WHERE TRUE`)
	if got := names(p.Rules[1], dir); got != "log" {
		t.Errorf("packs %s", got)
	}
	if r := p.Rules[1]; r.Taken.Count != 1 || r.Taken.Bytes != 120 || r.Left[leftEarlier] != 1 || r.Left[leftWithin] != 3 {
		t.Errorf("%+v %v", r.Taken, r.Left)
	}
	// Files in a directory that PACK matches belong to PACK, whether it is packed or not.
	if got := p.Rules[2].Taken.Count; got != 1 {
		t.Errorf("the rest is %d files", got)
	}
}

// PLACE takes files in another pool, and no files outside of all pools.
func TestPlacePlan(t *testing.T) {
	dir := t.TempDir()
	lay(t, dir, []file{{"flash/a.tmp", 1, 1}, {"disk/b.tmp", 1, 1}, {"other/c.tmp", 1, 1}})
	p := planned(t, scanned(t, dir), fmt.Sprintf("CREATE POOL flash AT '%s/flash'; CREATE POOL disk AT '%s/disk'; RULE 'x' PLACE IN POOL flash WHERE name LIKE '%%.tmp'", dir, dir))
	if got := names(p.Rules[0], dir); got != "disk/b.tmp" || p.Rules[0].Samples[0].To != filepath.Join(dir, "flash/b.tmp") {
		t.Errorf("takes %s", got)
	}
}

func TestPlanErrors(t *testing.T) {
	dir := t.TempDir()
	lay(t, dir, []file{{"a/x", 1, 1}, {"b/y", 1, 1}})
	table := scanned(t, filepath.Join(dir, "a"))
	plan := func(text string) error {
		r, err := Parse("rules.sql", text, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, err = r.Plan(context.Background(), table, Options{})
		return err
	}
	if err := plan(fmt.Sprintf("CREATE POOL b AT '%s/b' CAPACITY 1 GB; RULE 'x' DELETE FROM POOL b THRESHOLD 1 WHERE TRUE", dir)); exit.Of(err) != exit.Usage || !strings.Contains(err.Error(), "does not cover pool b") {
		t.Error(err)
	}
	var pool *PoolError
	if err := plan(fmt.Sprintf("CREATE POOL b AT '%s/none'; RULE 'x' DELETE FROM POOL b WHERE TRUE", dir)); !errors.As(err, &pool) {
		t.Error(err)
	}
}

func TestReadPools(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "tiers.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	write("pools:\n  - {name: flash, dir: flash, capacity: 10 TB}\n  - {name: disk, dir: /disk}\npolicy: rules.sql\n")
	pools, err := ReadPools(path)
	if err != nil || len(pools) != 2 || pools[0].Dir != filepath.Join(dir, "flash") || pools[0].Capacity != 10e12 {
		t.Fatalf("%+v, %v", pools, err)
	}
	for text, want := range map[string]string{
		"":                          ":1:1: there are no pools",
		"pools: []":                 ":1:8: there are no pools",
		"pools:\n  - {name: flash}": ":2:5: a pool needs a name and a dir",
		"pools:\n  - {name: a, dir: /a, capacity: much}": ":2:5: pool a: ",
	} {
		write(text)
		if _, err := ReadPools(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestFilesets: a rule applies below the directories of its filesets only, whose names may be
// the beginning of others.
func TestFilesets(t *testing.T) {
	dir := t.TempDir()
	lay(t, dir, []file{{"anna/a", 1, 1}, {"anna/sub/b", 1, 1}, {"anna2/c", 1, 1}, {"ben/d", 1, 1}, {"eve/e", 1, 1}, {"f", 1, 1}})
	table := scanned(t, dir)
	sets := "CREATE FILESET anna AT '" + dir + "/anna'; CREATE FILESET ben AT '" + dir + "/ben/'; CREATE FILESET sub AT '" + dir + "/anna/sub';"
	for clause, want := range map[string]string{
		"FOR FILESET anna":              "anna/a anna/sub/b",
		"FOR FILESET (sub, ben)":        "anna/sub/b ben/d",
		"FOR FILESET anna, sub":         "anna/a anna/sub/b",
		"":                              "anna/a anna/sub/b anna2/c ben/d eve/e f",
		"FOR FILESET (ben) FROM POOL p": "ben/d",
	} {
		p := planned(t, table, sets+"CREATE POOL p AT '"+dir+"'; RULE 'r' DELETE "+clause+" WHERE TRUE;")
		got := strings.Fields(names(p.Rules[0], dir))
		slices.Sort(got)
		if strings.Join(got, " ") != want {
			t.Errorf("%s takes %s, want %s", clause, got, want)
		}
	}
	for text, want := range map[string]string{
		sets + "RULE 'r' EXCLUDE FOR FILESET ana;":                     "unknown fileset ana",
		"RULE 'r' EXCLUDE FOR FILESET x;":                              "unknown fileset x",
		sets + "CREATE FILESET ben AT '/b'; RULE 'r' EXCLUDE;":         "fileset ben is declared twice",
		sets + "RULE 'r' EXCLUDE FOR FILESET (anna;":                   ") is missing before ;",
		sets + "RULE 'r' EXCLUDE FOR POOL anna;":                       "FILESET is missing before POOL",
		sets + "RULE 'r' EXCLUDE FOR FILESET anna FOR FILESET ben;":    "has FOR twice",
		"CREATE FILESET anna; RULE 'r' EXCLUDE;":                       "AT is missing before ;",
		"CREATE FILESET anna AT 5; RULE 'r' EXCLUDE FOR FILESET anna;": "the directory of fileset anna is missing",
	} {
		if _, err := Parse("rules.sql", text, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}
