package examples

import (
	"path/filepath"
	"strings"
	"testing"
)

// The Python package passes its own tests, which also run the examples of its page, and its
// types are consistent. Its wheel is the same each time it is built, and installs premix
// into an empty environment.
func TestPython(t *testing.T) {
	s := newScene(t)
	s.ecosystem("python")
	source, err := filepath.Abs("../dist/python")
	if err != nil {
		t.Fatal(err)
	}
	wheel, err := filepath.Abs("../scripts/wheel.sh")
	if err != nil {
		t.Fatal(err)
	}
	python := func(line string) string {
		return s.must("env", "PREMIX="+binary, "PYTHONDONTWRITEBYTECODE=1", "PYTHONPATH="+source+"/src", "sh", "-c", line)
	}
	t.Log(python("cd " + source + " && mypy --cache-dir " + s.path("mypy")))
	t.Log(python("cd " + source + " && python -m pytest -q -rs --durations=3 -p no:cacheprovider --basetemp=" + s.path("pytest")))

	s.must(wheel, "python", filepath.Dir(binary), "first")
	s.must(wheel, "python", filepath.Dir(binary), "second")
	s.must("sh", "-c", "cmp first/*.whl second/*.whl")
	s.must("python", "-m", "venv", "venv")
	s.must("sh", "-c", "venv/bin/pip install -q --no-index --disable-pip-version-check first/*.whl")
	if got, want := s.must("env", "PATH=/usr/bin:/bin", "venv/bin/premix", "--version"), s.must("premix", "--version"); got != want {
		t.Errorf("premix of the wheel prints %q, want %q", got, want)
	}
	got := s.must("env", "PATH=/usr/bin:/bin", "venv/bin/python", "-c", "import premix\nwith premix.Queue('tasks') as q: print(q.submit('echo it runs').result().stdout.decode())")
	if !strings.HasPrefix(got, "it runs\n") {
		t.Errorf("a task of the wheel prints %q", got)
	}
}
