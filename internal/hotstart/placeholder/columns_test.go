package placeholder

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestColumns makes placeholders of tables. Each has the names of the columns where the table has
// them, and other rows.
func TestColumns(t *testing.T) {
	for name, test := range map[string]struct{ header, rows string }{
		"counts":          {"gene\tS1\tS2\n", lines("BRCA%d\t1\t2.5\n", 30)},
		"names of rows":   {"S1 S2\n", lines("BRCA%d 10 20\n", 30)},
		"CSV":             {"sample,fastq_1,strandedness\n", lines("S%d,S1_1.fq.gz,auto\n", 5)},
		"after a comment": {"# made by hand\ngene;count\n", lines("g%d;1\n", 9)},
		"one column":      {"sample\n", lines("S%d\n", 9)},
		"quoted":          {"\"gene\",\"count\"\r\n", lines("\"g%d\",1\r\n", 9)},
		"two lines":       {"gene count\n", "g1 3\n"},
		"no end":          {"gene count\n", "g1 3\ng2 4"},
		"BED":             {"", lines("chr%d\t10\t20\n", 30)},
		"numbers":         {"", lines("%d 1\n", 30)},
		"words":           {"", "alpha beta\ngamma delta\nepsilon zeta\n"},
		"equal names":     {"", "a a\n" + lines("%d 1\n", 30)},
		"ragged":          {"", "gene count\n" + lines("g%d 1 2 3\n", 30)},
		"GTF":             {"#!genome\n", lines("1\thavana\texon\t%d\t20\n", 30)},
	} {
		t.Run(name, func(t *testing.T) {
			for _, pack := range []bool{false, true} {
				content := test.header + test.rows
				if pack {
					content = zipped(t, content)
				}
				real := filepath.Join(t.TempDir(), "table.txt")
				if err := os.WriteFile(real, []byte(content), 0o644); err != nil {
					t.Fatal(err)
				}
				var parts [2]string
				for number := range parts {
					to := filepath.Join(t.TempDir(), "part")
					cut, err := Make(real, to, number, true)
					if err != nil || !cut {
						t.Fatalf("cut %v, %v", cut, err)
					}
					b, err := os.ReadFile(to)
					if err != nil {
						t.Fatal(err)
					}
					rest, ok := strings.CutPrefix(string(b), test.header)
					if parts[number] = rest; !ok {
						t.Errorf("placeholder %d begins with %.40q, want %q", number, b, test.header)
					}
					for _, line := range strings.Split(strings.TrimSpace(rest), "\n") {
						if !strings.Contains(test.header+test.rows, strings.TrimSpace(line)) {
							t.Errorf("placeholder %d has the line %q", number, line)
						}
					}
				}
				if parts[0] == parts[1] || test.header != "" && strings.HasPrefix(parts[0], test.header) {
					t.Errorf("placeholders %.60q and %.60q", parts[0], parts[1])
				}
			}
		})
	}
}
