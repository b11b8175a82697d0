package examples

import (
	"os"
	"path/filepath"
	"testing"
)

// Programs that submit jobs to Slurm run unmodified through the programs of a shim directory.
func TestSlurmClients(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
		want string
		soak bool
	}{
		{"submitit", []string{"submitit_jobs.py"}, "one job: 12\nan array: [11, 22, 33]\na failure: True\n", false},
		{"psij", []string{"psij_jobs.py"}, "one job: COMPLETED hello\na failure: FAILED\ntwo tasks: COMPLETED 2\ncancelled: CANCELED\n", true},
		{"parsl, simple", []string{"parsl_apps.py", "simple"}, "squares: [0, 1, 4, 9, 16]\n", true},
		{"parsl, srun", []string{"parsl_apps.py", "srun"}, "squares: [0, 1, 4, 9, 16]\n", true},
		{"dask", []string{"dask_cluster.py"}, "sum: 5050\n", true},
		{"toil", []string{"toil_workflow.py"}, "sum of squares: 14\n", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.soak && !soak {
				t.Skip("PREMIX_SOAK is not set")
			}
			cache, err := os.UserCacheDir()
			if err != nil {
				t.Fatal(err)
			}
			environment := "slurm-clients"
			if c.name == "toil" {
				environment = "toil"
			}
			found, err := filepath.Glob(filepath.Join(cache, "premix", environment, "*/bin"))
			if err != nil || len(found) == 0 {
				t.Skipf("the clients are not here (%v): scripts/setup.sh ecosystem installs them, and submitit alone scripts/setup.sh test", err)
			}
			script, err := filepath.Abs(filepath.Join("slurm-clients", c.args[0]))
			if err != nil {
				t.Fatal(err)
			}
			s := newScene(t)
			s.bin = append(found, s.bin...)
			s.shim()
			s.must("sh", append([]string{"-c", `exec "$0" "$@" >out 2>err || { cat out err; exit 1; }`, "python", script}, c.args[1:]...)...)
			if got := s.read("out"); got != c.want {
				t.Errorf("%s prints %q, not %q\n%s", c.args[0], got, c.want, s.read("err"))
			}
		})
	}
}
