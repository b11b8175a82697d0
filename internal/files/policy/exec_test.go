package policy

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"premix/internal/kit/owner"
)

// script writes a program and returns its path.
func script(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// A program runs once for each file, with its path and its content. The audit has its exit
// status. A file that changed since the scan is left out.
func TestExec(t *testing.T) {
	dir, rules := pair(t, []file{{"flash/ok", 10, 9}, {"flash/bad", 20, 9}, {"flash/killed", 30, 9}, {"flash/changed", 40, 9}, {"disk/other", 50, 9}})
	seen := filepath.Join(t.TempDir(), "seen")
	program := script(t, fmt.Sprintf(`echo "$PREMIX_RULE $(basename "$1") $(wc -c) $PREMIX_AGAIN" >>%s
echo "said of $1"
case $1 in
*/bad) exit 3 ;;
*/killed) kill -9 $$ ;;
esac
`, seen))
	table := scanned(t, dir)
	if err := os.WriteFile(filepath.Join(dir, "flash/changed"), nil, 0o666); err != nil {
		t.Fatal(err)
	}
	journal := filepath.Join(t.TempDir(), "journal")
	text := rules + fmt.Sprintf("RULE 'run' EXEC '%s' FROM POOL flash WEIGHT size WHERE TRUE; RULE 'rest' DELETE WHERE TRUE", program)
	for range 2 { // the second call does nothing
		rep := applied(t, table, text, journal)
		if rep.Actions != 5 || rep.Done != 2 || rep.Skipped != 1 || rep.Failed != 2 {
			t.Errorf("%+v", rep)
		}
	}
	got, err := os.ReadFile(seen)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(string(got), "\n"), "\n")
	slices.Sort(lines)
	if want := []string{"run bad 20 ", "run killed 30 ", "run ok 10 "}; !slices.Equal(lines, want) {
		t.Errorf("the program ran for %q, want %q", lines, want)
	}
	want := map[string]string{
		"ok":      "done 0 ",
		"bad":     "failed 3 its program: exit status 3",
		"killed":  "failed -1 its program: signal: killed",
		"changed": "skipped 0 " + string(skipChanged),
		"other":   "done 0 ",
	}
	for _, e := range events(t, journal) {
		name := filepath.Base(string(e.Path))
		if e.Result == Running || e.Result == Copied || e.ID == 0 {
			continue
		}
		if got := fmt.Sprint(e.Result, " ", e.Status, " ", e.Why); got != want[name] {
			t.Errorf("%s: %s, want %s", name, got, want[name])
		}
		delete(want, name)
	}
	if len(want) > 0 {
		t.Errorf("the audit lacks %v", want)
	}
	output, err := os.ReadFile(filepath.Join(journal, outputFile))
	if err != nil || strings.Count(string(output), "said of ") != 3 {
		t.Errorf("output %q, %v", output, err)
	}
}

// After a kill, a program that may have run is run again, and told so, if the file is still
// the file of the scan.
func TestExecAgain(t *testing.T) {
	dir, rules := pair(t, []file{{"flash/a", 10, 9}, {"flash/b", 20, 9}, {"flash/c", 30, 9}})
	seen := filepath.Join(t.TempDir(), "seen")
	program := script(t, fmt.Sprintf(`echo "$(basename "$1") $PREMIX_AGAIN" >>%s`, seen))
	table := scanned(t, dir)
	journal := filepath.Join(t.TempDir(), "journal")
	text := rules + fmt.Sprintf("RULE 'run' EXEC '%s' WHERE TRUE", program)
	applied(t, table, text, journal)
	// A premix that was killed leaves an audit that ends earlier: a has its result, and b and
	// c have none.
	var kept []string
	audit := filepath.Join(journal, auditFile)
	b, err := os.ReadFile(audit)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if strings.Contains(line, `"running"`) || strings.Contains(line, `"done"`) && strings.Contains(line, "/flash/a") {
			kept = append(kept, line)
		}
	}
	if len(kept) != 4 {
		t.Fatalf("the audit has %q", kept)
	}
	if err := errors.Join(os.WriteFile(audit, []byte(strings.Join(kept, "")), 0o664), os.Remove(seen), os.Remove(filepath.Join(dir, "flash/c"))); err != nil {
		t.Fatal(err)
	}
	rep := applied(t, table, text, journal)
	if rep.Done != 2 || rep.Skipped != 1 || rep.Why[string(skipEnded)] != 1 {
		t.Errorf("%+v", rep)
	}
	if got, err := os.ReadFile(seen); err != nil || string(got) != "b 1\n" {
		t.Errorf("the program ran for %q, %v", got, err)
	}
}

// Root does not run a program that others can change.
func TestExecOfOthers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("the check is for root")
	}
	program := script(t, "true")
	if err := os.Chmod(program, 0o777); err != nil {
		t.Fatal(err)
	}
	dir, rules := pair(t, []file{{"flash/a", 10, 9}})
	journal := filepath.Join(t.TempDir(), "journal")
	rep := applied(t, scanned(t, dir), rules+fmt.Sprintf("RULE 'run' EXEC '%s' WHERE TRUE", program), journal)
	if rep.Failed != 1 {
		t.Errorf("%+v", rep)
	}
	r := &Rule{Program: program}
	_, err := programOf(r)
	var foreign *owner.Error
	if !errors.As(err, &foreign) {
		t.Errorf("error %v", err)
	}
}
