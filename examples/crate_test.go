package examples

import (
	"os"
	"strings"
	"testing"
	"time"
)

// The Python library of RO-Crate can read the description of a run, and each digest in it
// is equal to the digest that Python computes. A sample or an output that has changed after
// the run has no digest.
func TestCrate(t *testing.T) {
	s := newScene(t)
	s.ecosystem("python")
	s.write("data/words", "b\n")
	s.write("a.txt", "a\n")
	s.write("odd name.txt", "c\n")
	s.write("samples.csv", "sample,text\nA,a.txt\nB,odd name.txt\nbad,a.txt\n")
	s.write("recipe.yaml", `name: join
command: sh -c 'cat ${data.words}/words ${text}; test ${sample} != bad'
data:    {words: ./data}
inputs:  [text]
outputs: {stdout: '${sample}.out'}
env:     {COLOUR: green}
`)
	if out, err := s.run("premix", "run", "recipe.yaml", "samples.csv", "--out", "run", "--start", "cold"); err == nil {
		t.Fatalf("the third task succeeds: %s", out)
	}
	s.must("premix", "report", "run", "--ro-crate")
	s.write("check.py", `
import hashlib, sys, urllib.parse
from rocrate.rocrate import ROCrate
crate = ROCrate("run")
actions = sorted((e for e in crate.get_entities() if e.type == "CreateAction"), key=lambda a: a.id)
print([a["name"] + " " + a["actionStatus"].rsplit("/")[-1] for a in actions])
print(actions[0]["environment"]["name"], actions[0]["environment"]["value"], actions[0]["instrument"]["name"])
assert hashlib.sha256(actions[0]["description"].encode()).hexdigest() == actions[0]["identifier"].split(":")[1]
checked, without = [], []
for e in crate.get_entities():
    types = e.type if isinstance(e.type, list) else [e.type]
    if "File" not in types or e.id == "ro-crate-metadata.json":
        continue
    path = urllib.parse.unquote(e.id.removeprefix("file://")) if e.id.startswith("file:") else "run/" + urllib.parse.unquote(e.id)
    name = path.rsplit("/")[-1]
    if e.get("sha256") is None:
        without.append(name)
        assert "no digest" in e["description"], e["description"]
        continue
    assert hashlib.sha256(open(path, "rb").read()).hexdigest() == e["sha256"], path
    checked.append(name)
print(sorted(set(checked) - {"sh", "dash"}), without)
assert set(checked) & {"sh", "dash"}
`)
	for _, want := range []string{
		"['join of A CompletedActionStatus', 'join of B CompletedActionStatus', 'join of bad FailedActionStatus']\n",
		"COLOUR green sh\n",
		"['A.out', 'B.out', 'a.txt', 'odd name.txt', 'recipe.yaml', 'samples.csv', 'words'] []\n",
	} {
		if got := s.must("python", "check.py"); !strings.Contains(got, want) {
			t.Errorf("the description has\n%s\nwant\n%s", got, want)
		}
	}

	s.write("data/words", "B\n")
	if err := os.Chtimes(s.path("data/words"), time.Unix(0, 0), time.Unix(0, 0)); err != nil {
		t.Fatal(err) // a time that is set back does not hide the change
	}
	s.write("run/B.out", "B\nC\n")
	s.must("premix", "report", "run", "--ro-crate")
	if got, want := s.must("python", "check.py"), "['A.out', 'a.txt', 'odd name.txt', 'recipe.yaml', 'samples.csv'] ['words', 'B.out']\n"; !strings.HasSuffix(got, want) {
		t.Errorf("after a change the description has\n%s\nwant\n%s", got, want)
	}

	// A report replaces its own description, and no other file.
	s.write("run/ro-crate-metadata.json", `{"@graph": []}`)
	if out, err := s.run("premix", "report", "run", "--ro-crate"); err == nil || !strings.Contains(out, "is not a description of a run that premix wrote") {
		t.Errorf("a description of others is replaced: %v, %s", err, out)
	}
	s.write("tasks.txt", "true\n")
	s.must("premix", "task", "run", "tasks.txt", "--out", "tasks")
	if out, err := s.run("premix", "report", "tasks", "--ro-crate"); err == nil || !strings.Contains(out, "has tasks without a recipe") {
		t.Errorf("tasks without a recipe are described: %v, %s", err, out)
	}
}
