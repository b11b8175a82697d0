package policy

import (
	"errors"
	"strings"
	"testing"

	"premix/internal/kit/problem"
)

const pools = "CREATE POOL flash AT '/flash'; CREATE POOL disk AT '/disk' CAPACITY 10 TB;\n"

func TestParse(t *testing.T) {
	r, err := Parse("/etc/rules.sql", pools+`
-- the example of the documentation
RULE 'old scratch' MIGRATE FROM POOL flash THRESHOLD 80 TO 70 WEIGHT (now() - atime) TO POOL disk
  WHERE size > 1 MB AND owner = 'root' AND path LIKE '%.bam'; /* and
  more */
RULE 'it''s' EXCLUDE;
rule 'place' place in pool flash where name glob '*.tmp';
RULE 'pack' PACK INTO STORE 'store' AS 'packed/logs' WHERE files > 1_000 AND largest < 1 MiB
`, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Rules) != 4 || len(r.Pools) != 2 || r.Pools[1].Capacity != 10e12 {
		t.Fatalf("%+v", r)
	}
	m := r.Rules[0]
	if m.Verb != Migrate || m.From != "flash" || m.To != "disk" || m.High != 80 || m.Low != 70 || m.Line != 4 {
		t.Errorf("%+v", m)
	}
	if r.Rules[1].Name != "it's" || r.Rules[2].To != "flash" || r.Rules[3].Store != "/etc/store" || r.Rules[3].As != "packed/logs" {
		t.Errorf("%+v", r.Rules[1:])
	}
}

// Each error is reported with its position and a hint.
func TestMistakes(t *testing.T) {
	for _, c := range []struct{ text, message, hint string }{
		{"RULE 'x' MIGRATE FROM POOL flahs TO POOL disk;", "2:28: unknown pool flahs", "did you mean flash?"},
		{"RULE 'x' MIGRATE FROM POOL flash TO POOL flash;", "2:42: rule 'x' moves from pool flash to itself", "name two pools"},
		{"RULE 'x' EXCLUDE WHERE sise > 1;", "2:24: unknown column sise", "did you mean size?"},
		{"RULE 'x' EXCLUDE WHERE born > now();", "2:24: unknown column born", "not every file system records it"},
		{"RULE 'x' EXCLUDE WHERE files > 1;", "2:24: the column files is only for PACK", "with all below it"},
		{"RULE 'x' EXCLUDE WHERE size > '1 MB';", "2:31: a number is compared with a text", "no quotes"},
		{"RULE 'x' EXCLUDE WHERE size;", "2:24: WHERE needs a condition, and this is a number", "WHERE size > 1 MB"},
		{"RULE 'x' EXCLUDE WHERE size AND uid;", "2:24: AND joins conditions", ""},
		{"RULE 'x' EXCLUDE WHERE accessed < 30 days;", "2:35: a time is compared with a span of time", "now() - INTERVAL 90 DAYS"},
		{"RULE 'x' EXCLUDE WHERE accessed < 'yesterday';", "2:35: 'yesterday' is not a time", "2026-01-31"},
		{"RULE 'x' EXCLUDE WHERE accessed + accessed > 1;", "2:33: a time and a time cannot be joined with +", ""},
		{"RULE 'x' EXCLUDE WHERE size / links > 1;", "2:31: the divisor has to be a constant other than 0", "could not say"},
		{"RULE 'x' EXCLUDE WHERE size / 0 > 1;", "2:31: the divisor has to be a constant other than 0", ""},
		{"RULE 'x' EXCLUDE WHERE owner = 'nobody-such';", "2:32: unknown user nobody-such", "uid = 1000"},
		{"RULE 'x' EXCLUDE WHERE NOT type = 'file';", "2:35: unknown type 'file'", "f(ile)"},
		{"RULE 'x' EXCLUDE WHERE pool IN ('flash', 'dsik');", "2:42: unknown pool dsik", "did you mean disk?"},
		{"RULE 'x' EXCLUDE WHERE name IS NULL;", "2:29: IS is not supported", ""},
		{"RULE 'x' EXCLUDE WHERE name LIKE name;", "2:34: LIKE needs a pattern in quotes, not NAME", ""},
		{"RULE 'x' EXCLUDE WHERE name GLOB '[';", "2:34: '[' is not a pattern", ""},
		{"RULE 'x' EXCLUDE WHERE name REGEXP '(';", "2:36: '(' is not a regular expression", ""},
		{"RULE 'x' EXCLUDE WHERE size > 0755;", "2:31: 0755 is not a number", "0o755"},
		{"RULE 'x' EXCLUDE WHERE size > 1.5;", "2:31: 1.5 is not a whole number", "1.5 GB is allowed"},
		{"RULE 'x' EXCLUDE WHERE size > 10_000_000 TB;", "2:31: 10000000 is too large", ""},
		{"RULE 'x' EXCLUDE WHERE (size > 1;", "2:33: ) is missing before ;", ""},
		{"RULE 'x' EXCLUDE WHERE length(size) > 1;", "2:24: length() takes one text", ""},
		{"RULE 'x' EXCLUDE WHERE CASE WHEN size > 1 THEN 1 END > 0;", "2:50: ELSE is missing before END", "CASE WHEN"},
		{"RULE 'x' DELETE;", "2:10: rule 'x' would delete everything", "WHERE TRUE"},
		{"RULE 'x' DELETE TO POOL disk WHERE TRUE;", "2:17: DELETE cannot have TO", "it can have FROM POOL, FOR FILESET, THRESHOLD, WEIGHT, WHERE"},
		{"RULE 'x' DELETE THRESHOLD 80 WHERE TRUE;", "2:10: rule 'x' has a threshold, but no pool", "FROM POOL"},
		{"RULE 'x' DELETE FROM POOL flash THRESHOLD 70 TO 80 WHERE TRUE;", "2:33: a threshold must be from 70 to 80 percent", ""},
		{"RULE 'x' DELETE FROM POOL flash THRESHOLD most WHERE TRUE;", "2:43: a threshold must be a whole number of percents", ""},
		{"RULE 'x' MIGRATE FROM POOL flash TO POOL disk THRESHOLD 80 TO 70 PREMIGRATE 70;", "2:66: files are premigrated below the lower mark of 70 percent, not to 70", "90 TO 80 PREMIGRATE 60"},
		{"RULE 'x' MIGRATE FROM POOL flash TO POOL disk THRESHOLD 80 PREMIGRATE 81;", "2:60: files are premigrated below the lower mark of 80 percent, not to 81", ""},
		{"RULE 'x' MIGRATE FROM POOL flash TO POOL disk THRESHOLD 80 TO 70 PREMIGRATE;", "2:76: a threshold must be a whole number of percents", ""},
		{"RULE 'x' MIGRATE FROM POOL flash TO POOL disk PREMIGRATE 60;", "2:47: PREMIGRATE is not expected here", "only MIGRATE copies files ahead, as in THRESHOLD 90"},
		{"RULE 'x' MIGRATE THRESHOLD 80 TO 70 PREMIGRATE 60 TO POOL disk;", "2:10: rule 'x' has a threshold, but no pool", "FROM POOL"},
		{"RULE 'x' DELETE FROM POOL flash THRESHOLD 80 TO 70 PREMIGRATE 60 WHERE TRUE;", "2:52: DELETE cannot have PREMIGRATE", "only MIGRATE"},
		{"RULE 'x' EXEC '/bin/true' PREMIGRATE 60 WHERE TRUE;", "2:27: PREMIGRATE is not expected here", "only MIGRATE"},
		{"RULE 'x' PREMIGRATE TO POOL disk;", "2:10: unknown word PREMIGRATE", "MIGRATE"},
		{"RULE 'x' DELETE WHERE TRUE WHERE TRUE;", "2:28: rule 'x' has WHERE twice", ""},
		{"RULE 'x' PACK WHERE files > 1;", "2:10: rule 'x' has no store", "INTO STORE"},
		{"RULE 'x' MIGRATE WHERE size > 1;", "2:10: rule 'x' has no destination", "TO POOL"},
		{"RULE 'x' MIGRATE TO POOL disk WEIGHT name;", "2:38: WEIGHT needs a number", ""},
		{"RULE 'x' PLCAE IN POOL disk;", "2:10: unknown word PLCAE", "did you mean PLACE?"},
		{"RULE 'x' EXCLUDE; RULE 'x' EXCLUDE;", "2:24: rule 'x' is declared twice", ""},
		{"RULE x EXCLUDE;", "2:6: a rule begins with its name in quotes", ""},
		{"RULE 'x' EXCLUDE RULE 'y' EXCLUDE;", "2:18: RULE is not expected here", "end the statement before it with ;"},
		{"DROP POOL disk;", "2:1: DROP cannot begin a statement", "CREATE POOL, CREATE FILESET or RULE"},
		{"CREATE POOL disk AT '/other';", "2:13: pool disk is declared twice", ""},
		{"CREATE POOL third AT '/disk/third';", "2:13: the pools disk and third overlap", "must not contain each other"},
		{"CREATE POOL third AT '/x' CAPACITY 'much';", "2:36: a capacity is a number of bytes", "10 TB"},
		{"RULE 'x", "2:6: a quoted text does not end", ""},
		{"/* RULE", "2:1: a comment does not end", ""},
		{"RULE 'x' EXCLUDE WHERE size ? 1;", `2:29: "?" has no meaning here`, "premix help files-policy"},
	} {
		_, err := Parse("rules.sql", pools+c.text, nil)
		var list problem.List
		if !errors.As(err, &list) {
			t.Errorf("%s: %v", c.text, err)
			continue
		}
		if !strings.HasPrefix(list[0].Place()+": "+list[0].Message, "rules.sql:"+c.message) || !strings.Contains(list[0].Hint, c.hint) {
			t.Errorf("%s\n got %s (%s)\nwant %s (%s)", c.text, list[0].Place()+": "+list[0].Message, list[0].Hint, c.message, c.hint)
		}
	}
}

// A file without rules and pools is an error, even if pools are known already. A file with pools
// only is valid: its plan shows how full they are.
func TestNoRules(t *testing.T) {
	known := []Pool{{Name: "disk", Dir: "/disk"}}
	for _, text := range []string{"", "\n", "-- RULE 'x' EXCLUDE;\n", "/* */ ;;"} {
		_, err := Parse("rules.sql", text, known)
		const want = "rules.sql: the file has no rules\n  hint: write a rule, as in RULE 'references stay' EXCLUDE WHERE path LIKE '%/references/%';"
		if err == nil || err.Error() != want {
			t.Errorf("%q gives\n%v\nwant\n%s", text, err, want)
		}
	}
	if _, err := Parse("rules.sql", pools, nil); err != nil {
		t.Errorf("pools alone: %v", err)
	}
}

// All errors of a file are reported at once.
func TestAllMistakes(t *testing.T) {
	_, err := Parse("rules.sql", "RULE 'a' DELETE;\nRULE 'b' EXCLUDE WHERE sise > 1;\nFOO;\nRULE 'c' EXCLUDE;", nil)
	var list problem.List
	if !errors.As(err, &list) || len(list) != 3 || list[0].Line != 1 || list[1].Line != 2 || list[2].Line != 3 {
		t.Fatal(err)
	}
}

func TestLike(t *testing.T) {
	for _, c := range []struct {
		pattern, text string
		fold, want    bool
	}{
		{"%.bam", "a.bam", false, true},
		{"%.bam", ".bam", false, true},
		{"%.bam", "a.bam.bai", false, false},
		{"a%b%c", "aXbYbZc", false, true},
		{"a%b%c", "ac", false, false},
		{"a%a", "a", false, false},
		{"%a%a%", "xa", false, false},
		{"a_c", "aéc", false, true},
		{"a_c", "ac", false, false},
		{"%_.gz", ".gz", false, false},
		{"%_.gz", "x.gz", false, true},
		{"_%_", "ab", false, true},
		{"_%_", "a", false, false},
		{"", "", false, true},
		{"%", "", false, true},
		{"%%", "x", false, true},
		{"A.B%", "a.bcd", true, true},
		{"A.B%", "a.bcd", false, false},
		{`50\%%`, "50% done", false, true},
		{`50\%%`, "500", false, false},
		{"a%", "a\xff", false, true},
		{"a_", "a\xff", false, true},
		{"%b%_", "abbc", false, true},
	} {
		match, ok := like(c.pattern, '\\', c.fold)
		if !ok || match([]byte(c.text)) != c.want {
			t.Errorf("%q LIKE %q: not %v", c.text, c.pattern, c.want)
		}
	}
	if _, ok := like(`a\`, '\\', false); ok {
		t.Error("an escape before nothing is taken")
	}
}

func TestCalculate(t *testing.T) {
	const least, most = -1 << 63, 1<<63 - 1
	for _, c := range []struct {
		o          op
		a, b, want int64
	}{
		{opAdd, most, 1, most}, {opAdd, least, -1, least}, {opAdd, 2, 3, 5}, {opAdd, -2, 0, -2},
		{opSubtract, least, 1, least}, {opSubtract, most, -1, most}, {opSubtract, 2, 3, -1}, {opSubtract, 0, least, most},
		{opMultiply, most, 2, most}, {opMultiply, most, -2, least}, {opMultiply, least, -1, most}, {opMultiply, -3, 4, -12},
		{opDivide, least, -1, most}, {opDivide, 7, 2, 3}, {opRest, least, -1, 0}, {opRest, 7, 4, 3}, {opBits, 0o755, 0o022, 0},
	} {
		if got := calculate(c.o, c.a, c.b); got != c.want {
			t.Errorf("%d %d %d = %d, not %d", c.o, c.a, c.b, got, c.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("RULE 'x' MIGRATE FROM POOL flash THRESHOLD 80 TO 70 WEIGHT now() - atime TO POOL disk WHERE size > 1 MB AND NOT name IN ('a','b');")
	f.Add("RULE 'x' EXCLUDE WHERE CASE WHEN size BETWEEN 1 AND 2 THEN 1 ELSE 2 END = -1 OR name LIKE 'a\\%' ESCAPE '\\'")
	f.Fuzz(func(t *testing.T, text string) {
		r, err := Parse("rules.sql", text, nil)
		if err != nil {
			return
		}
		for _, rule := range r.Rules {
			if rule.where != nil {
				compileCondition(bind(rule.where, 1))
			}
		}
	})
}
