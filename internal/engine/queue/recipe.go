package queue

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"premix/internal/engine"
	"premix/internal/engine/spawn"
	"premix/internal/hotstart"
	"premix/internal/recipe"
	"premix/internal/record"
)

// A run directory has the same journals and the same orders as a task directory. Its tasks
// are the tasks of its plan.

// command returns the command that runs the tasks of the directory.
func (q *Queue) command() string {
	if q.run == nil {
		return "premix task run --out " + q.Dir
	}
	return fmt.Sprintf("premix run %s %s --out %s", Quote(q.run.RecipeFile), Quote(q.run.SheetFile), Quote(q.Dir))
}

// parse reads a line of tasks.jsonl, or of the plan of a run.
func (q *Queue) parse(line []byte) (*Spec, error) {
	if q.run == nil {
		return parseSpec(line)
	}
	s := &Spec{Recipe: &engine.Task{}}
	err := json.Unmarshal(line, s.Recipe)
	s.Name = s.Recipe.Sample
	s.Argv = hotstart.Command(q.run.Frozen.Argv, s.Name)
	return s, err
}

// workDirs calls f for each work directory of a try that runs.
func (q *Queue) workDirs(f func(task, try int, path string)) {
	entries, err := os.ReadDir(q.base)
	if err != nil {
		return // nothing is known to run
	}
	for _, e := range entries {
		switch worker, spread := strings.CutPrefix(e.Name(), engine.TasksDir+"-"); {
		case !e.IsDir():
			continue
		case e.Name() == engine.TasksDir && q.HasWorker():
		case spread && isLocked(q.workLock(worker)):
		default:
			continue // of another purpose, or of a premix that was killed
		}
		tries, err := os.ReadDir(q.path(e.Name()))
		if err != nil {
			continue // it has ended
		}
		for _, t := range tries {
			task, try, _ := strings.Cut(t.Name(), ".")
			a, aerr := strconv.Atoi(task)
			b, berr := strconv.Atoi(try)
			if aerr == nil && berr == nil {
				f(a, b, filepath.Join(q.path(e.Name()), t.Name()))
			}
		}
	}
}

// runningHot lists the tries of a run that run now.
func (q *Queue) runningHot() (list []spawn.Running) {
	q.workDirs(func(task, try int, path string) {
		var st unix.Statx_t
		if unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BTIME|unix.STATX_MTIME, &st) != nil {
			return // it has ended
		}
		started := st.Mtime
		if st.Mask&unix.STATX_BTIME != 0 {
			started = st.Btime
		}
		list = append(list, spawn.Running{ID: spawn.TryID(task, try), Started: time.Unix(started.Sec, int64(started.Nsec))})
	})
	return list
}

// recorded returns the extent with the output of a failed try of a run, or its standard error.
func recorded(dir string, rec *record.Task, stderr bool) extent {
	if !stderr {
		return extent{try: rec.Try} // nothing of it is kept
	}
	return extent{path: engine.StderrLog(dir, rec.Log), offset: rec.StderrOffset, length: rec.StderrLength, try: rec.Try}
}

// extentOfRun finds the output of a task of a run: of its last try, or of the running one.
func (q *Queue) extentOfRun(s *Spec, rec *record.Task, stderr bool) (p extent, err error) {
	name, to := hotstart.StderrName, ""
	if !stderr {
		for _, o := range s.Recipe.Outputs {
			if o.From == hotstart.StdoutName || o.From == recipe.PipeStdoutName {
				name, to = o.From, filepath.Join(q.Dir, filepath.FromSlash(o.To))
			}
		}
		if to == "" {
			return p, &InputError{Reason: fmt.Sprintf("recipe %s keeps no standard output", q.run.Recipe), HintText: "--stderr prints its standard error; its outputs are in " + q.Dir}
		}
	}
	q.workDirs(func(task, try int, path string) {
		if task == s.Recipe.Task {
			p = extent{path: filepath.Join(path, name), length: -1, try: try}
		}
	})
	switch {
	case p.path != "" || rec == nil:
	case stderr || !rec.OK():
		p = recorded(q.Dir, rec, stderr)
	default:
		p = extent{path: to, length: -1, try: rec.Try}
	}
	return p, nil
}

// Recipe returns the name of the recipe of a run; "" for tasks without a recipe.
func (q *Queue) Recipe() string {
	if q.run == nil {
		return ""
	}
	return q.run.Recipe
}
