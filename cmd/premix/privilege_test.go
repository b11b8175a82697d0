package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// These users have no accounts.
const (
	attacker   = 61001
	victimUser = 61002
)

// attack describes an action of one user against the premix of another.
type attack struct {
	name string // the action and its target

	// All three are scripts for sh(1), see [ward.sh]. The victim runs before, then the attacker
	// runs plant, then the victim runs run.
	before, plant, run string
	// rootPlant is like plant, but root runs it. It sets up states that an attacker can reach only
	// under a kernel with loose settings or from another machine of a shared disk.
	rootPlant string
	// root makes root the victim; otherwise the victim is an ordinary user.
	root bool
	// stderr matches the output of run. If it is empty, premix may refuse or do its work without
	// harm.
	stderr string
	// done is a script for sh that the victim runs after run. It fails if the attack has succeeded.
	// [ward.intact] checks in addition the files that every attack must leave alone.
	done string
}

// ward is a set of directories with an attacker and a victim.
type ward struct {
	t    *testing.T
	dir  string
	root bool // the victim is root
}

func newWard(t *testing.T, root bool) *ward {
	t.Helper()
	dir, err := os.MkdirTemp("", "premix-ward-")
	if err != nil {
		t.Fatal(err)
	}
	w := &ward{t, dir, root}
	t.Cleanup(func() {
		w.sh(w.victim(), "premix node stop --lazy >/dev/null 2>&1; PREMIX_NODE_DIR=$TMPDIR/node premix node stop --lazy >/dev/null 2>&1; true")
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, uid := range map[string]int{"attacker": attacker, "victim": w.victim(), "tmp": 0} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.Mkdir(path, 0o755), os.Lchown(path, uid, uid)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(dir, "tmp"), 0o777|os.ModeSticky); err != nil {
		t.Fatal(err)
	}
	w.must(w.victim(), "mkdir nest; echo loot >loot; chmod 644 loot")
	return w
}

func (w *ward) victim() int {
	if w.root {
		return 0
	}
	return victimUser
}

// sh runs a script as a user, in the user's own directory. It kills a script that hangs and treats
// it as failed. The environment contains
//
//	A, V      the directories of attacker and victim
//	TMPDIR    a directory like /tmp
//	U         the user ID of the victim
//	LOOT      a file of the victim that the attacker wants to change
//	NEST      an empty directory of the victim in which the attacker wants a file
//	HOME, PATH
func (w *ward) sh(uid int, text string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	home := filepath.Join(w.dir, "victim")
	if uid == attacker {
		home = filepath.Join(w.dir, "attacker")
	}
	cmd := exec.CommandContext(ctx, "sh", "-c", text)
	cmd.Dir = home
	cmd.Env = []string{
		"A=" + filepath.Join(w.dir, "attacker"), "V=" + filepath.Join(w.dir, "victim"), "U=" + strconv.Itoa(w.victim()),
		"LOOT=" + filepath.Join(w.dir, "victim/loot"), "NEST=" + filepath.Join(w.dir, "victim/nest"),
		"HOME=" + home, "TMPDIR=" + filepath.Join(w.dir, "tmp"), "PATH=" + filepath.Dir(binary) + ":" + os.Getenv("PATH"),
	}
	if w.root {
		// By default root would use the machine's own directories.
		cmd.Env = append(cmd.Env, "PREMIX_NODE_DIR="+filepath.Join(w.dir, "victim/node"), "XDG_CACHE_HOME="+filepath.Join(w.dir, "victim/cache"))
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	if ctx.Err() != nil {
		err = fmt.Errorf("it hangs: %w", err)
	}
	return out.String(), err
}

func (w *ward) must(uid int, text string) {
	w.t.Helper()
	if out, err := w.sh(uid, text); err != nil {
		w.t.Fatalf("user %d: %s: %v\n%s", uid, text, err, out)
	}
}

// intact checks that an attack has changed no files of the victim.
func (w *ward) intact() {
	w.t.Helper()
	text, err := os.ReadFile(filepath.Join(w.dir, "victim/loot"))
	if err != nil || string(text) != "loot\n" {
		w.t.Errorf("the victim's file has %q, %v", text, err)
	}
	info, err := os.Lstat(filepath.Join(w.dir, "victim/loot"))
	if err != nil || info.Mode() != 0o644 {
		w.t.Errorf("the victim's file is %v, %v", info.Mode(), err)
	}
	list, err := os.ReadDir(filepath.Join(w.dir, "victim/nest"))
	if err != nil || len(list) > 0 {
		w.t.Errorf("the victim's directory has %v, %v", list, err)
	}
	info, err = os.Lstat(filepath.Join(w.dir, "victim/nest"))
	if err != nil || info.Mode() != 0o755|os.ModeDir {
		w.t.Errorf("the victim's directory is %v, %v", info, err)
	}
}

func needUsers(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can act as several users")
	}
}

// TestPrivilege makes each attack of a list. premix must refuse it, or it must do no harm.
func TestPrivilege(t *testing.T) {
	needUsers(t)
	names := make(map[string]bool)
	for _, a := range attacks() {
		if names[a.name] {
			t.Errorf("two attacks are called %s", a.name)
		}
		names[a.name] = true
		t.Run(a.name, func(t *testing.T) {
			t.Parallel()
			w := newWard(t, a.root)
			if a.before != "" {
				w.must(w.victim(), a.before)
			}
			if a.plant != "" {
				w.must(attacker, a.plant)
			}
			if a.rootPlant != "" {
				w.must(0, a.rootPlant)
			}
			out, err := w.sh(w.victim(), a.run)
			if err != nil && strings.HasPrefix(err.Error(), "it hangs") {
				t.Errorf("premix hangs\n%s", out)
			}
			if a.stderr != "" {
				if err == nil {
					t.Errorf("it is not refused\n%s", out)
				}
				if !regexp.MustCompile(a.stderr).MatchString(out) {
					t.Errorf("premix says\n%s\nwant %s", out, a.stderr)
				}
			}
			if a.done != "" {
				if out, err := w.sh(w.victim(), a.done); err != nil {
					t.Errorf("%s: %v\n%s", a.done, err, out)
				}
			}
			w.intact()
		})
	}
}

// These patterns match messages of premix.
const (
	saysForeign = `is not a page that premix wrote|belongs to user 61001|symbolic link of another user .61001.`
	saysLink    = `is a symbolic link|belongs to user 61001`
	saysWorld   = `can be written to by`
	saysNames   = `has another name`
)

// tasksOf makes a task directory with one finished task and one waiting task, which would make a
// file in the victim's nest. premix makes the directory, so it is complete.
const tasksOf = `echo 'true' >cmds; premix task run cmds --out q --quiet; echo "touch $NEST/pwned" >cmds; premix task submit cmds --out q >/dev/null; `

// runOf makes a run directory in which all tasks are done.
const runOf = `printf 'name: cat\ncommand: cat ${r1}\ninputs: [r1]\noutputs: {stdout: "${sample}.txt"}\n' >r.yaml; printf 'sample,r1\na,a.in\n' >s.csv; echo a >a.in; ` +
	`premix run r.yaml s.csv --out out --start cold >/dev/null; `

// recipeOf makes the files that a run needs.
const recipeOf = `printf 'name: cat\ncommand: cat ${r1}\ninputs: [r1]\noutputs: {stdout: "${sample}.txt"}\n' >r.yaml; printf 'sample,r1\na,a.in\n' >s.csv; echo a >a.in; `

// transferLink makes a link file whose peer does not answer.
const transferLink = `printf 'name: peer\nhost: 127.0.0.1\nport: 1\ndirectory: %s\npeer_directory: %s\nsizes: [1K]\nprotocols: [scp]\n' $V/dir $V/there >link.yaml; `

// filesRule makes a table of a scan, and a rule that matches no file.
const filesRule = `mkdir f; premix files scan f -o scan.parquet >/dev/null; echo "RULE 'old' DELETE WHERE size > 1" >rules.sql; `

func attacks() []attack {
	list := []attack{
		// The node.
		{name: "node: the directory is a link to one of the victim's",
			plant: `mkdir $TMPDIR/premix-$U; chmod 777 $TMPDIR/premix-$U; ln -s $NEST $TMPDIR/premix-$U/node`, run: `premix node start`, stderr: saysLink},
		{name: "node: the directory above belongs to the attacker",
			plant: `mkdir -m 777 $TMPDIR/premix-$U`, run: `premix node start`, stderr: saysForeign, done: `test ! -e $TMPDIR/premix-$U/node`},
		{name: "node: the directory above is a link to one of the victim's",
			plant: `ln -s $NEST $TMPDIR/premix-$U`, run: `premix node start`, stderr: saysLink},
		{name: "node: the directory belongs to the attacker, and a client only asks",
			plant: `mkdir -m 755 $TMPDIR/premix-$U $TMPDIR/premix-$U/node`, run: `premix umount nest`, stderr: saysForeign},
		{name: "node: a journal of the attacker names mounts to be ended",
			plant: `mkdir -m 777 $TMPDIR/premix-$U $TMPDIR/premix-$U/node; printf '{"version":1,"mounts":[{"id":"a","ref":"x:y","dir":"%s","base":"b","in_use":"fuse","step":"mounted"}]}' $NEST >$TMPDIR/premix-$U/node/state.json`,
			run:   `premix umount nest`, stderr: saysForeign},
		{name: "node: the lock in a directory to which all can write is a link", root: true,
			before: `mkdir -m 777 node`, plant: `ln -s $LOOT $V/node/lock`, run: `premix node start`, stderr: saysWorld},
		{name: "node: root is given a directory of the attacker's", root: true,
			plant: `mkdir -m 755 n`, run: `PREMIX_NODE_DIR=$A/n premix node start`, stderr: saysForeign},
		{name: "node: PREMIX_HOME of root belongs to the attacker and has run in it", root: true,
			plant: `mkdir -p h/run`, run: `unset PREMIX_NODE_DIR; PREMIX_HOME=$A/h premix node start`, stderr: saysForeign},
		{name: "node: XDG_RUNTIME_DIR is still the attacker's after su",
			plant: `mkdir -m 777 run`, run: `XDG_RUNTIME_DIR=$A/run premix node start && premix node status`, done: `test ! -e $A/run/premix`},
		{name: "node: the settings belong to the attacker", root: true,
			before: `mkdir -p h; chmod 777 h`, plant: `echo 'metrics_listen: 127.0.0.1:1' >$V/h/node.yaml`, run: `PREMIX_HOME=$V/h premix node start`, stderr: saysForeign + "|" + saysWorld},
		{name: "node: all users can write to the settings",
			before: `mkdir -p .config/premix; echo 'verify: true' >.config/premix/node.yaml; chmod 666 .config/premix/node.yaml`, run: `premix node start`, stderr: saysWorld},
		{name: "node: the settings are a FIFO",
			before: `mkdir -p .config/premix; mkfifo .config/premix/node.yaml`, run: `premix node start`, stderr: `not a regular file`},
		{name: "node: the attacker asks root's node to stop", root: true,
			before: `PREMIX_NODE_DIR=$TMPDIR/node premix node start`,
			plant:  `export PREMIX_NODE_DIR=$TMPDIR/node; for v in "node status" "node stop" "node stop --lazy" "node restart" "node metrics" "umount --all" "cache status" "cache drop --all"; do premix $v >said 2>&1 && exit 1; grep -q 'another user' said || { cat said; exit 1; }; done; true`,
			run:    `PREMIX_NODE_DIR=$TMPDIR/node premix node status`, done: `PREMIX_NODE_DIR=$TMPDIR/node premix node status`},
		{name: "node: the attacker asks the victim's node, whose directory and socket are open to all",
			before:    `PREMIX_NODE_DIR=$TMPDIR/node premix node start`,
			rootPlant: `chmod 755 $TMPDIR/node; chmod 777 $TMPDIR/node/socket`,
			run:       `true`, done: `PREMIX_NODE_DIR=$TMPDIR/node premix node status`},

		// The cache of trees.
		{name: "cache: the directory belongs to the attacker", root: true,
			before: `mkdir h`, plant: `mkdir -m 777 c`, run: `echo "cache: $A/c" >h/node.yaml; PREMIX_HOME=$V/h premix node start; PREMIX_HOME=$V/h premix cache status`, done: `test -z "$(ls $A/c)"; r=$?; PREMIX_HOME=$V/h premix node stop; exit $r`},
		{name: "cache: the group can write to the directory", root: true,
			before: `mkdir h; mkdir -m 775 c; chgrp 61001 c`, run: `echo "cache: $V/c" >h/node.yaml; PREMIX_HOME=$V/h premix node start; PREMIX_HOME=$V/h premix cache status`, done: `test -z "$(ls $V/c)"; r=$?; PREMIX_HOME=$V/h premix node stop; exit $r`},

		// Announcements.
		{name: "watch: the place of announcements is a link to a directory of the victim's",
			plant: `mkdir -p -m 777 $TMPDIR/premix-$U/watch; ln -s $NEST $TMPDIR/premix-$U/watch/runs`, run: `echo true >cmds; premix task run cmds --out q --quiet`},
		{name: "watch: the place of announcements belongs to the attacker",
			plant: `mkdir -p -m 777 $TMPDIR/premix-$U/watch/runs; chmod 777 $TMPDIR/premix-$U/watch/runs $TMPDIR/premix-$U/watch`, run: `echo true >cmds; premix task run cmds --out q --quiet`, done: `test -z "$(ls $TMPDIR/premix-$U/watch/runs)"`},

		// Task directories of the attacker.
		{name: "task: root runs the commands of a directory of the attacker's", root: true, plant: tasksOf, run: `premix task run --out $A/q`, stderr: saysForeign},
		{name: "task: the victim runs the commands of a directory of the attacker's", plant: tasksOf + `chmod -R a+rwX q`, run: `premix task run --out $A/q`, stderr: saysForeign},
		{name: "task: root submits to a directory of the attacker's", root: true, plant: tasksOf, run: `echo true >cmds; premix task submit cmds --out $A/q`, stderr: saysForeign},
		{name: "task: intermediates of the attacker's tasks are directories of the victim's", root: true,
			before: `mkdir keep; echo x >keep/x`,
			plant:  `printf '{"command":"true","intermediates":["%s"]}\n' $V/keep >t.jsonl; premix task run t.jsonl --out q --quiet; premix task run t.jsonl --out q --quiet`,
			run:    `premix task prune $A/q`, stderr: saysForeign,
			// The task directory of root's own has the same intermediates: prune removes them.
			done: `test -e keep/x && cp -r $A/q own && premix task prune own && test ! -e keep`},
		{name: "task: the state directory in a directory of all users is the attacker's",
			before: `mkdir -m 777 shared`, plant: tasksOf + `cp -r q/.premix $V/shared/`, run: `premix task run --out shared`, stderr: saysForeign},
		{name: "task: the state directory is a link to one of the victim's",
			before: `mkdir -m 777 shared; echo "touch $NEST/pwned" >cmds; premix task submit cmds --out q`, plant: `ln -s $V/q/.premix $V/shared/.premix`, run: `premix task run --out shared`, stderr: saysLink},
		{name: "task: all users can write to the commands",
			before: `echo true >cmds; premix task submit cmds --out q; chmod 666 q/.premix/queue/tasks.jsonl`, plant: `sed -i "s#true#touch $NEST/pwned#" $V/q/.premix/queue/tasks.jsonl 2>/dev/null || { sed "s#true#touch $NEST/p#" $V/q/.premix/queue/tasks.jsonl >t; cat t >$V/q/.premix/queue/tasks.jsonl; }`,
			run: `premix task run --out q`, stderr: saysWorld},
		{name: "task: the attacker reads what was submitted through the shim",
			before: `premix slurm-shim --dir shim >/dev/null`, plant: `! ls $V/shim/.premix 2>/dev/null`, run: `true`},

		// Run directories of the attacker.
		{name: "run: root resumes a run of the attacker's", root: true, plant: runOf, run: recipeOf + `premix run r.yaml s.csv --out $A/out --resume --start cold`, stderr: saysForeign},
		{name: "run: root begins a run in an empty directory of the attacker's", root: true, plant: `mkdir out`, run: recipeOf + `premix run r.yaml s.csv --out $A/out --start cold`, stderr: saysForeign},
		{name: "run: the state directory is a link to a directory of the victim's",
			before: `mkdir -m 777 out`, plant: `ln -s $NEST $V/out/.premix`, run: recipeOf + `premix run r.yaml s.csv --out out --start cold`, stderr: saysLink},
		{name: "run: the lock is a link to a file of the victim's",
			before: recipeOf + `premix run r.yaml s.csv --out out --start cold; chmod 777 out/.premix; rm out/.premix/lock`, plant: `ln -s $LOOT $V/out/.premix/lock`,
			run: `premix run r.yaml s.csv --out out --start cold --resume`, stderr: saysWorld + "|" + saysLink},
		{name: "run: in a directory of a group the lock is a link to a file of the victim's",
			before: recipeOf + `premix run r.yaml s.csv --out out --start cold; rm out/.premix/lock`, rootPlant: `ln -s $LOOT $V/out/.premix/lock; chmod 775 $V/out/.premix; chgrp 61001 $V/out/.premix`,
			run: `premix run r.yaml s.csv --out out --start cold --resume`, stderr: saysLink},
		{name: "run: in a directory of a group the log is a link to a file of the victim's",
			before: recipeOf + `premix run r.yaml s.csv --out out --start cold; rm out/.premix/stderr.log`, rootPlant: `ln -s $LOOT $V/out/.premix/stderr.log; chmod 775 $V/out/.premix; chgrp 61001 $V/out/.premix`,
			run: `premix run r.yaml s.csv --out out --start cold --resume`, stderr: saysLink},
		{name: "run: in a directory of a group the half written plan is a link to a file of the victim's",
			before: recipeOf + `mkdir -p out/.premix`, rootPlant: `ln -s $LOOT $V/out/.premix/plan.jsonl.tmp; chmod 775 $V/out/.premix; chgrp 61001 $V/out/.premix`,
			run: `premix run r.yaml s.csv --out out --start cold`},
		{name: "run: in a directory of a group the half written table is a link to a file of the victim's",
			before: recipeOf + `mkdir -p out/.premix`, rootPlant: `ln -s $LOOT $V/out/.premix/tasks.parquet.tmp; chmod 775 $V/out/.premix; chgrp 61001 $V/out/.premix`,
			run: `premix run r.yaml s.csv --out out --start cold`},
		{name: "run: in a directory of a group the plan is a FIFO",
			before: recipeOf + `premix run r.yaml s.csv --out out --start cold`, rootPlant: `chmod 775 $V/out/.premix; chgrp 61001 $V/out/.premix; rm $V/out/.premix/plan.jsonl; mkfifo $V/out/.premix/plan.jsonl`,
			run: `premix run r.yaml s.csv --out out --start cold --resume`, stderr: `not a regular file`},

		// Hard links, which the attacker can make where fs.protected_hardlinks is 0.
		{name: "run: in a directory of a group the lock is another name of a file of the victim's",
			before: recipeOf + `premix run r.yaml s.csv --out out --start cold; rm out/.premix/lock`, rootPlant: `ln $LOOT $V/out/.premix/lock; chmod 775 $V/out/.premix; chgrp 61001 $V/out/.premix`,
			run: `premix run r.yaml s.csv --out out --start cold --resume`, stderr: saysNames},
		{name: "run: in a directory of a group the log is another name of a file of the victim's",
			before: recipeOf + `premix run r.yaml s.csv --out out --start cold; rm out/.premix/stderr.log`, rootPlant: `ln $LOOT $V/out/.premix/stderr.log; chmod 775 $V/out/.premix; chgrp 61001 $V/out/.premix`,
			run: `premix run r.yaml s.csv --out out --start cold --resume; true`},
		{name: "run: in a directory of a group a journal is another name of a file of the victim's",
			before: recipeOf + `premix run r.yaml s.csv --out out --start cold`, rootPlant: `rm -f $V/out/.premix/journal-*; for n in 1 2 3; do ln $LOOT $V/out/.premix/journal-000$n.jsonl; done; chmod 775 $V/out/.premix; chgrp 61001 $V/out/.premix`,
			run: `premix run r.yaml s.csv --out out --start cold --resume; true`},
		{name: "run: in a directory of a group an output is another name of a file of the victim's",
			before: recipeOf, rootPlant: `mkdir -p $V/out/.premix; for f in a.txt .a.txt out.txt tasks.jsonl tasks.parquet report.html; do ln $LOOT $V/out/$f; ln $LOOT $V/out/.premix/$f; done; chown -R 61002 $V/out; chmod 775 $V/out $V/out/.premix; chgrp 61001 $V/out $V/out/.premix; chown 61002 $LOOT`,
			run: `premix run r.yaml s.csv --out out --start cold; premix report out --html out/report.html; true`},
		{name: "node: the lock in a directory to which all can write is another name of a file of the victim's", root: true,
			before: `mkdir -m 777 node`, rootPlant: `ln $LOOT $V/node/lock`, run: `premix node start`, stderr: saysWorld},
		{name: "task: every file in a directory of a group is another name of a file of the victim's",
			before: `echo true >cmds; premix task run cmds --out q --quiet; premix task submit cmds --out q`, rootPlant: `cd $V/q/.premix/queue; for f in * work-0.lock work-1.lock board-0 board-1 submit.lock journal-0002.jsonl log-0-1.out; do rm -rf $f; ln $LOOT $f; done; chgrp 61001 . ..; chmod 775 . ..`,
			run: `premix task ls q; premix task run --out q --quiet; premix task submit cmds --out q; premix task retry q; premix task prune q --output; premix task cancel q; true`},
		{name: "files: the table is another name of a file of the victim's", rootPlant: `ln $LOOT $TMPDIR/scan.parquet; ln $LOOT $TMPDIR/scan.parquet.tmp`, run: `premix files scan nest -o $TMPDIR/scan.parquet`, stderr: `is not a table that premix wrote`},

		// Reports.
		{name: "report: the page of the attacker's run is a link to a file of root's", root: true, plant: runOf + `rm -f out/report.html; ln -s $LOOT out/report.html`, run: `premix report $A/out`, stderr: saysForeign},
		{name: "report: the page of the attacker's tasks is a link to a file of root's", root: true, plant: tasksOf + `rm -f q/report.html; ln -s $LOOT q/report.html`, run: `premix report $A/q`},
		{name: "report: the page of the attacker's run is a FIFO", root: true, plant: runOf + `rm -f out/report.html; mkfifo out/report.html`, run: `premix report $A/out`, stderr: saysForeign},
		{name: "report: the page of the attacker's run is a device", root: true, plant: runOf + `rm -f out/report.html`, rootPlant: `mknod $A/out/report.html c 1 7; chown 61001 $A/out/report.html`, run: `premix report $A/out`, stderr: saysForeign, done: `test -c $A/out/report.html`},
		{name: "report: a page among files of all users is a link to a file of the victim's", before: recipeOf + `premix run r.yaml s.csv --out out --start cold`,
			plant: `ln -s $LOOT $TMPDIR/page.html`, run: `premix report out --html $TMPDIR/page.html`, stderr: saysForeign},
		{name: "report: a page among files of all users is a FIFO of the attacker's", before: recipeOf + `premix run r.yaml s.csv --out out --start cold`,
			plant: `mkfifo $TMPDIR/page.html; chmod 666 $TMPDIR/page.html`, run: `premix report out --html $TMPDIR/page.html`, stderr: saysForeign},
		{name: "report: a record of the attacker's names a log outside of the run", plant: runOf + `chmod -R a+rX .; sed -i '2s#"exit"#"stderr_length":5,"log":"x/../../../../victim/loot","exit"#' out/.premix/journal-0001.jsonl`,
			run: `premix report $A/out --html page.html; ! grep -q loot page.html`, done: `! grep -q loot page.html`},

		// Snapshots.
		{name: "snapshots: the store belongs to the attacker", root: true, plant: `mkdir -m 755 store`, run: recipeOf + `premix run r.yaml s.csv --out out --store $A/store`, stderr: saysForeign},
		{name: "snapshots: all users can write to the store", root: true, before: `mkdir -m 777 store`, run: recipeOf + `premix run r.yaml s.csv --out out --store store`, stderr: saysWorld},

		// Stores of trees.
		{name: "store: root publishes to a store of the attacker's", root: true, before: `mkdir tree; echo x >tree/x`,
			plant: `premix store init $A/s >/dev/null; mkdir tree; echo y >tree/y; premix store publish --store $A/s tree t:1; find s/tags -name '*history*' -exec rm {} \; -exec ln -s $LOOT {} \;; cp .config/premix/keys/* key; chmod 644 key`,
			run:   `cp $A/key key; chmod 600 key; premix store publish --store $A/s --key key tree t:1`, stderr: saysForeign},
		{name: "store: root collects the garbage of a store of the attacker's", root: true, plant: `premix store init $A/s >/dev/null; rm -rf s/work/locks; mkdir s/work/locks; ln -s $NEST/made s/work/locks/gc`, run: `premix store gc --store $A/s`, stderr: saysForeign},
		{name: "store: all users can write to the locks", before: `premix store init $V/s >/dev/null; chmod 755 s/work; chmod 777 s/work/locks; rm -f s/work/locks/gc`, plant: `ln -s $NEST/made $V/s/work/locks/gc`, run: `premix store gc --store s`, stderr: saysWorld},
		{name: "store: others can read the private key", before: `premix store init $V/s >/dev/null; mkdir tree; chmod 644 .config/premix/keys/*`, run: `premix store publish --store s tree t:1`, stderr: `can be read or written by other users`},
		{name: "store: the private key is a FIFO", before: `premix store init $V/s >/dev/null; mkdir tree; mkfifo -m 600 k`, run: `premix store publish --store s --key k tree t:1`, stderr: `not a regular file`},
		{name: "store: others can read the tokens of a server", before: `premix store init $V/s >/dev/null; echo secret >tokens; chmod 640 tokens`, run: `premix store serve --store s --listen 127.0.0.1:0 --token-file tokens`, stderr: `can be read or written by other users`},
		{name: "store: the tokens of a server are a FIFO", before: `premix store init $V/s >/dev/null; mkfifo -m 600 tokens`, run: `premix store serve --store s --listen 127.0.0.1:0 --token-file tokens`, stderr: `not a regular file`},
		{name: "store: the tokens of a server belong to the attacker", root: true, before: `premix store init $V/s >/dev/null`, plant: `echo secret >tokens; chmod 600 tokens`, run: `premix store serve --store s --listen 127.0.0.1:0 --token-file $A/tokens`, stderr: saysForeign},
		{name: "store: the access log among files of all users is a link to a file of the victim's", before: `premix store init $V/s >/dev/null`, plant: `ln -s $LOOT $TMPDIR/log`, run: `timeout 100 premix store serve --store s --listen 127.0.0.1:0 --access-log $TMPDIR/log`, stderr: saysForeign},
		{name: "mount: the credentials belong to the attacker", root: true, plant: `echo 'machine localhost token x' >t; chmod 600 t`, run: `mkdir m; premix mount --origin http://localhost:1/ --token-file $A/t r:1 m; e=$?; premix node stop; exit $e`, stderr: saysForeign},
		{name: "mount: others can read the credentials", before: `echo 'machine localhost token x' >t; chmod 644 t`, run: `mkdir m; premix mount --origin http://localhost:1/ --token-file t r:1 m; e=$?; premix node stop; exit $e`, stderr: `can be read or written by other users`},
		{name: "trust: all users can write to the known keys", before: `premix store init $V/s >/dev/null; mkdir tree; premix store publish --store s tree t:1; mkdir -p h/trust; chmod 777 h/trust`, run: `PREMIX_HOME=$V/h premix store pull t:1 --origin $V/s --store m`, stderr: saysWorld},

		// Directories of services and of results.
		{name: "watch: the samples of root lie in a directory of the attacker's", root: true, plant: `mkdir w; ln -s $NEST/made w/lock`,
			run: `timeout 20 premix watch --listen unix:$V/s --data $A/w`, stderr: saysForeign},
		{name: "watch: all users can write to the directory of root's samples", root: true, before: `mkdir -m 777 w`, plant: `ln -s $NEST/made $V/w/lock`,
			run: `timeout 20 premix watch --listen unix:$V/s --data w`, stderr: saysWorld},
		{name: "watch: in a directory of a group the lock is a link", before: `mkdir w`, rootPlant: `chmod 775 $V/w; chgrp 61001 $V/w; ln -s $NEST/made $V/w/lock`,
			run: `timeout 20 premix watch --listen unix:$V/s --data w`, stderr: saysLink},
		{name: "blast serve: the searches of root's service lie in a directory of the attacker's", root: true, plant: `mkdir b; ln -s $NEST/made b/lock; ln -s $NEST b/results`,
			run: `timeout 20 premix blast serve --listen unix:$V/s --dir $A/b`, stderr: saysForeign},
		{name: "blast serve: in a directory of a group the lock is a link", before: `mkdir b`, rootPlant: `chmod 775 $V/b; chgrp 61001 $V/b; ln -s $NEST/made $V/b/lock`,
			run: `timeout 20 premix blast serve --listen unix:$V/s --dir b`, stderr: saysLink},
		{name: "replay: root's tables go into a directory of the attacker's", root: true, before: `printf '; MaxProcs: 4\n1 0 0 10 1 -1 -1 1 10 -1 1 1 1 1 1 1 -1 -1\n' >t.swf`, plant: `mkdir p`,
			run: `premix replay t.swf --parquet $A/p`, stderr: saysForeign},
		{name: "transfer: root's measurements go into a directory of the attacker's", root: true, before: transferLink, plant: `mkdir t; ln -s $LOOT t/schedule.json; ln -s $NEST t/pcap`,
			run: `timeout 20 premix transfer bench link.yaml --out $A/t --capture none --at 03:00 --for 1s`, stderr: saysForeign},
		{name: "transfer: root's report goes into a directory of the attacker's", root: true,
			before: `mkdir t; printf '{"table":"transfer","format":1}\n{"id":"a","link":"l","protocol":"scp","direction":"get","size":1,"files":1,"seconds":1,"speed":1,"ok":true}\n' >t/transfers-0001.jsonl; premix transfer report t >/dev/null`,
			plant:  `cp -r $V/t t; rm -r t/figures; ln -s $NEST t/figures`, run: `premix transfer report $A/t`, stderr: saysForeign},
		{name: "snapshotter: the records go into a directory of the attacker's", root: true, before: `mkdir root`, plant: `mkdir r`,
			run: `timeout 20 premix snapshotter --root $V/root --address $V/s.sock --origin $V --record $A/r`, stderr: saysForeign},
		{name: "files: in a directory of a group the lock of a policy's journal is a link", before: filesRule + `mkdir j`, rootPlant: `chmod 775 $V/j; chgrp 61001 $V/j; ln -s $NEST/made $V/j/lock`,
			run: `premix files policy rules.sql scan.parquet --apply --journal j`, stderr: saysLink},
		{name: "files: in a directory of a group the audit of a policy is a link", before: filesRule + `mkdir j`, rootPlant: `chmod 775 $V/j; chgrp 61001 $V/j; ln -s $LOOT $V/j/audit.jsonl`,
			run: `premix files policy rules.sql scan.parquet --apply --journal j`, stderr: saysLink},

		// PREMIX_HOME is still the attacker's after su.
		{name: "home: the attacker's link file has a command as protocol", root: true,
			plant: `mkdir -p h/transfer/links; printf 'name: peer\nhost: 127.0.0.1\ndirectory: /tmp\npeer_directory: /tmp\nsizes: [1K]\nprotocols:\n  - name: mine\n    about: mine\n    get: touch %s/pwned\n' $NEST >link.yaml; printf '{"name":"peer","host":"127.0.0.1","file":"%s/link.yaml"}' $A >h/transfer/links/peer.json; chmod -R a+rX h`,
			run:   `PREMIX_HOME=$A/h timeout 20 premix transfer get peer:/etc/hostname copy --protocol mine`, stderr: saysForeign},
		{name: "home: the attacker's directory remembers root's link", root: true, before: transferLink, plant: `mkdir -p h/transfer; ln -s $NEST h/transfer/links`,
			run: `PREMIX_HOME=$A/h timeout 20 premix transfer bench link.yaml --out t --capture none --repeat 1`, stderr: saysForeign},
		{name: "home: the attacker knows another key of a store", root: true, before: `premix store init $V/s >/dev/null; mkdir tree; premix store publish --store s tree t:1`, plant: `mkdir -p h/trust`,
			run: `PREMIX_HOME=$A/h premix store pull t:1 --origin $V/s --store m`, stderr: saysForeign},
		{name: "home: the attacker's directory has databases", root: true, plant: `mkdir -p h; premix blast db ls >/dev/null 2>&1; ln -s $NEST h/blast`,
			run: `PREMIX_HOME=$A/h premix blast db rm x; PREMIX_HOME=$A/h premix blast warm x; printf '>a\nACGTACGTACGT\n' >x.fa; PREMIX_HOME=$A/h premix blast db add x.fa --name x --type nucl`, stderr: saysForeign},
		{name: "home: the attacker's directory has snapshots", root: true, plant: `mkdir -p h; ln -s $NEST h/snapshots; ln -s $NEST h/calls; ln -s $NEST h/inplace`,
			run: recipeOf + `PREMIX_HOME=$A/h premix run r.yaml s.csv --out out --start hot`, stderr: saysForeign + "|" + saysLink},
		{name: "home: the attacker's directory has calls of premix hot", root: true, plant: `mkdir -p h; ln -s $NEST h/calls; ln -s $NEST h/inplace`,
			run: recipeOf + `for i in 1 2 3; do PREMIX_HOME=$A/h premix hot -- cat a.in >o || exit 9; cmp a.in o || exit 9; done`},

		// Files in the place of temporary files.
		{name: "files: the half written table is a link to a file of the victim's", plant: `ln -s $LOOT $TMPDIR/scan.parquet.tmp`, run: `premix files scan nest -o $TMPDIR/scan.parquet`},
		{name: "files: in a directory of the attacker's the half written table is a link", root: true, plant: `ln -s $LOOT scan.parquet.tmp`, run: `premix files scan nest -o $A/scan.parquet`},

		// The programs of Slurm.
		{name: "shim: the directory belongs to the attacker", plant: `premix slurm-shim --dir shim >/dev/null; chmod -R a+rwX shim`, run: `$A/shim/bin/squeue`, stderr: saysForeign},
		{name: "shim: root submits to a directory of the attacker's", root: true, plant: `premix slurm-shim --dir shim >/dev/null`, run: `$A/shim/bin/sbatch --wrap "touch $NEST/pwned"`, stderr: saysForeign},
		{name: "shim: root makes its programs in a directory of the attacker's", root: true, plant: `premix slurm-shim --dir shim >/dev/null; rm -r shim/bin; ln -s $NEST shim/bin`, run: `premix slurm-shim --dir $A/shim`, stderr: saysForeign},
		{name: "shim: the programs' directory is a link to one of the victim's", before: `premix slurm-shim --dir shim >/dev/null; chmod 777 shim; rm -r shim/bin`, plant: `ln -s $NEST $V/shim/bin`, run: `premix slurm-shim --dir shim`, stderr: saysLink},

		// The snapshotter.
		{name: "snapshotter: the root belongs to the attacker", root: true, plant: `mkdir root`, run: `timeout 100 premix snapshotter --root $A/root --address $V/s.sock --origin $V`, stderr: saysForeign},
		{name: "snapshotter: all users can write to the root", root: true, before: `mkdir -m 777 root`, run: `timeout 100 premix snapshotter --root $V/root --address $V/s.sock --origin $V`, stderr: saysWorld},

		// The binary, and the environment of the caller.
		{name: "setuid: premix is set-user-ID root", rootPlant: `cp $(command -v premix) $TMPDIR/setuid-premix; chmod 4755 $TMPDIR/setuid-premix`, run: `$TMPDIR/setuid-premix version; e=$?; exit $e`, stderr: `set-user-ID`},
		{name: "setgid: premix is set-group-ID root", rootPlant: `cp $(command -v premix) $TMPDIR/setgid-premix; chmod 2755 $TMPDIR/setgid-premix`, run: `$TMPDIR/setgid-premix version; e=$?; exit $e`, stderr: `set-group-ID`},
		{name: "environment: PATH has the working directory, which is the attacker's", root: true,
			plant: `for p in criu runc fusermount3 squeue sinfo ssh tcpdump sshd mount; do printf '#!/bin/sh\ntouch %s/pwned\n' $NEST >$p; chmod 755 $p; done`,
			run:   `cd $A; for p in ".:$PATH" ":$PATH" "$PATH:"; do PATH=$p premix doctor; PATH=$p premix exec --store s x:1 -- true; done; true`},
		{name: "environment: LD_LIBRARY_PATH has the working directory, which is the attacker's", root: true,
			before: `mkdir bin; for p in ssh runc squeue sinfo sbatch tcpdump; do printf '#!/bin/sh\necho "$0 $LD_LIBRARY_PATH" >>%s/env\nexit 255\n' $V >bin/$p; chmod 755 bin/$p; done`,
			plant:  `mkdir lib`,
			run:    `cd $A; PATH=$V/bin:$PATH LD_LIBRARY_PATH=:/opt/lib:lib premix transfer get peer.invalid:/x $V/x; PATH=$V/bin:$PATH LD_LIBRARY_PATH=:/opt/lib:lib premix doctor; true`,
			done:   `grep -q 'ssh /opt/lib$' env && ! grep -v ' /opt/lib$' env`},
		{name: "environment: SUDO_UID makes an ordinary user trust the attacker", plant: tasksOf + `chmod -R a+rwX q`, run: `SUDO_UID=61001 premix task run --out $A/q`, stderr: saysForeign},
	}
	// Replace every file of a task directory.
	for _, kind := range []struct{ name, how string }{
		{"a link to a file of root's", `ln -s $LOOT`},
		{"a link to where there is no file", `ln -s $NEST/made`},
		{"a FIFO", `mkfifo`},
		{"a link to a device", `ln -s /dev/full`},
	} {
		list = append(list, attack{name: "task: each file of the attacker's directory is " + kind.name, root: true,
			plant: tasksOf + `cd q/.premix/queue; for f in *; do rm -rf $f; ` + kind.how + ` $f; done; cd ../../..; cp -r q q2; rm -f q2/.premix/queue/tasks.jsonl; echo >q2/.premix/queue/tasks.jsonl; chmod -R a+rX q2`,
			run:   `for d in q q2; do premix task ls $A/$d; premix task why $A/$d 1; premix task tail $A/$d 1; premix task cancel $A/$d; premix task retry $A/$d; premix task prune $A/$d; premix report $A/$d; premix task run --out $A/$d; done; true`})
		// Replace one file at a time, so that an error in the first does not hide an error in a
		// later one.
		for _, file := range []string{"orders.jsonl", "tasks.jsonl", "index-*", "lock", "journal-0001.jsonl", "log-0-0.out", "board-0", "work-0.lock", "submit.lock"} {
			list = append(list, attack{name: fmt.Sprintf("task: %s of the attacker's directory is %s", strings.TrimSuffix(file, "-*"), kind.name), root: true,
				plant: tasksOf + `cd q/.premix/queue; for f in ` + file + `; do rm -f $f; ` + kind.how + ` $f; done`,
				run:   `premix task ls $A/q; premix task why $A/q 1; premix task tail $A/q 1; premix task cancel $A/q; premix task retry $A/q; premix task prune $A/q --output; premix report $A/q; premix task run --out $A/q; true`})
		}
	}
	// Replace every file that a run reads.
	for _, file := range []string{"plan.jsonl", "journal-0001.jsonl", "stderr.log", "tasks.parquet", "lock"} {
		list = append(list, attack{name: "report: " + file + " of the attacker's run is a FIFO", plant: runOf + `chmod -R a+rX out; cd out/.premix; rm -f ` + file + `; mkfifo -m 644 ` + file,
			run: `premix report $A/out --html page.html; true`})
	}
	return list
}

// TestForeignSocket puts a control socket of the attacker where the victim's premix looks for the
// node. The attacker must not receive requests.
func TestForeignSocket(t *testing.T) {
	needUsers(t)
	for _, c := range []struct{ name, dir string }{
		{"in a directory of the attacker's", ""},
		{"in a directory of the victim's", "node"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWard(t, false)
			dir := filepath.Join(w.dir, "tmp", "premix-"+strconv.Itoa(victimUser), "node")
			env := ""
			if c.dir != "" {
				dir = filepath.Join(w.dir, "victim", c.dir)
				w.must(victimUser, "mkdir -m 777 node")
				env = "PREMIX_NODE_DIR=" + dir + " "
			} else {
				w.must(attacker, "mkdir -p -m 755 "+dir)
			}
			var got atomic.Int64
			l := listenAs(t, attacker, filepath.Join(dir, "socket"))
			go func() {
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					go func() {
						defer c.Close()
						buf := make([]byte, 1024)
						if n, _ := c.Read(buf); n > 0 {
							got.Add(1)
							text := `{"version":1,"premix":"attacker","worker":1}`
							fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(text), text)
						}
					}()
				}
			}()
			for _, verb := range []string{"node status", "node stop", "umount nest", "umount --all", "cache status", "cache drop --all", "node metrics", "mount --store nest x:1 m", "node start", "node restart"} {
				out, err := w.sh(victimUser, env+"premix "+verb)
				if err == nil || strings.Contains(out, "attacker") {
					t.Errorf("%s: %v\n%s", verb, err, out)
				}
			}
			if n := got.Load(); n > 0 {
				t.Errorf("the attacker was asked %d times", n)
			}
			w.intact()
		})
	}
}

// listenAs makes a socket that belongs to a user, also according to the kernel's peer credentials.
func listenAs(t *testing.T, uid int, path string) net.Listener {
	t.Helper()
	type made struct {
		l   net.Listener
		err error
	}
	c := make(chan made)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0)); e != 0 {
			c <- made{nil, e}
			return
		}
		// Root made the attacker's directory; everything else belongs to the attacker.
		l, err := net.Listen("unix", path)
		c <- made{l, err}
	}()
	m := <-c
	if m.err != nil {
		t.Fatal(m.err)
	}
	if err := os.Chmod(path, 0o777); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.l.Close() })
	return m.l
}

// TestOpenSocket lets the attacker connect to sockets of the victim whose modes allow everything.
// The servers must refuse because of the peer credentials from the kernel.
func TestOpenSocket(t *testing.T) {
	needUsers(t)
	for _, c := range []struct{ name, begin, end, socket, request string }{
		{"node", "premix node start", "premix node stop", "tmp/premix-" + strconv.Itoa(victimUser) + "/node/socket", "POST /v1/stop HTTP/1.1\r\nHost: node\r\nContent-Length: 2\r\n\r\n{}"},
		{"shim", "premix slurm-shim --dir shim >/dev/null && shim/bin/squeue", "true", "victim/shim/.premix/slurm/socket", `{"format":1,"program":"sbatch","args":["LS13cmFw","dG91Y2ggL3RtcC9wd25lZA=="]}` + "\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWard(t, false)
			w.must(victimUser, c.begin)
			socket := filepath.Join(w.dir, c.socket)
			for dir := filepath.Dir(socket); dir != w.dir; dir = filepath.Dir(dir) {
				if dir != filepath.Join(w.dir, "tmp") {
					if err := os.Chmod(dir, 0o755); err != nil {
						t.Fatal(err)
					}
				}
			}
			if err := os.Chmod(socket, 0o777); err != nil {
				t.Fatal(err)
			}
			answer := make(chan string, 1)
			go func() {
				runtime.LockOSThread()
				_, _, e := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), attacker, ^uintptr(0))
				if e != 0 {
					answer <- e.Error()
					return
				}
				conn, err := net.Dial("unix", socket)
				if err != nil {
					answer <- "cannot connect: " + err.Error()
					return
				}
				defer conn.Close()
				_ = conn.SetDeadline(time.Now().Add(patience))
				_, _ = io.WriteString(conn, c.request) // the server may have closed it
				text, _ := io.ReadAll(conn)
				answer <- string(text)
			}()
			if text := <-answer; text != "" {
				t.Errorf("the attacker is answered %q", text)
			}
			w.must(victimUser, c.end)
		})
	}
}

// A user's directory is mounted into a container. Root of the container is root of this machine:
// premix refuses and leaves no files. premix works with the user's ID or in a namespace of the
// user.
func TestDirectoryInAContainer(t *testing.T) {
	needUsers(t)
	w := newWard(t, false)
	w.must(victimUser, recipeOf)
	const run = "premix run r.yaml s.csv --quiet --out "
	out, err := w.sh(0, run+"root")
	var finished *exec.ExitError
	if !errors.As(err, &finished) || finished.ExitCode() != 4 || !strings.Contains(out, "--user UID:GID") {
		t.Errorf("root in a container: %v\n%s", err, out)
	}
	if _, err := os.Lstat(filepath.Join(w.dir, "victim/root")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("root in a container has left a directory: %v", err)
	}
	// A container that is started with a user ID has no account and no home directory for it.
	w.must(victimUser, "export HOME=/; "+run+"user && cmp a.in user/a.txt")
	if out, err := w.sh(victimUser, "unshare -Ur true"); err != nil {
		t.Skipf("this machine gives users no namespaces: %v\n%s", err, out)
	}
	w.must(victimUser, "unshare -Ur sh -c '"+run+"namespace && cmp a.in namespace/a.txt'")
	w.intact()
}

// TestSecretsOfProcesses looks for a token in the data of a process that all users can read.
func TestSecretsOfProcesses(t *testing.T) {
	needUsers(t)
	w := newWard(t, false)
	const secret = "token-that-is-nobodys-business"
	w.must(victimUser, "premix store init $V/s >/dev/null; echo "+secret+" >tokens; chmod 600 tokens; echo 'sleep 100' >cmds")
	for _, c := range []struct{ name, line string }{
		{"store serve", "exec premix store serve --store s --listen 127.0.0.1:0 --token-file tokens"},
		{"task run", "SECRET=" + secret + " exec premix task run cmds --out q --quiet"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cmd := exec.Command("sh", "-c", c.line)
			cmd.Dir = filepath.Join(w.dir, "victim")
			cmd.Env = []string{"HOME=" + cmd.Dir, "TMPDIR=" + filepath.Join(w.dir, "tmp"), "PATH=" + filepath.Dir(binary) + ":" + os.Getenv("PATH")}
			cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: &syscall.Credential{Uid: victimUser, Gid: victimUser}}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() {
				_ = unix.Kill(-cmd.Process.Pid, unix.SIGTERM)
				_ = cmd.Wait() // the signal ended it
			}()
			if !comes(func() bool {
				exe, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", cmd.Process.Pid))
				return exe == binary
			}) {
				t.Fatal("premix does not start")
			}
			// The pattern does not contain the secret, so that grep does not find itself.
			out, err := w.sh(attacker, `for p in /proc/[0-9]*; do tr '\0' ' ' <$p/cmdline; tr '\0' ' ' <$p/environ; done 2>/dev/null | grep -c '[`+secret[:1]+`]`+secret[1:]+`'; true`)
			if err != nil || strings.TrimSpace(out) != "0" {
				t.Errorf("others see the secret: %s, %v", out, err)
			}
			line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", cmd.Process.Pid))
			if err != nil || bytes.Contains(line, []byte(secret)) {
				t.Errorf("the command line is %q, %v", line, err)
			}
		})
	}
	out, err := w.sh(attacker, "cat $V/q/.premix/queue/*")
	if strings.Contains(out, secret) {
		t.Errorf("the environment of the victim is written down where all can read it: %v", err)
	}
}
