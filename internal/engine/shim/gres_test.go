package shim

import (
	"strings"
	"testing"
)

// TestResourcesForSlurm checks the resources that premix requests from Slurm and the resources that
// tasks hold.
func TestResourcesForSlurm(t *testing.T) {
	for _, c := range []struct{ args, gres, held string }{
		{"--gres=gpu:2", "gpu:2", "gpu=2"},
		{"--gres=GPU", "gpu:1", "gpu=1"},
		{"--gres=gpu:a100:2", "gpu:a100:2", "gpu=2"},
		{"--gres=gpu:a100:1,gpu:v100:2", "gpu:a100:1,gpu:v100:2", "gpu=3"},
		{"--gres=tmpspace:10G,gpu:1", "tmpspace:10G,gpu:1", "gpu=1,tmpspace=10"},
		{"--gres=tmpspace:500M", "tmpspace:500M", "tmpspace=1"},
		{"--gres=gpu:0", "", ""},
		{"--gres=none", "", ""},
		{"-G 2", "gpu:2", "gpu=2"},
		{"--gpus=volta:2", "gpu:volta:2", "gpu=2"},
		{"--gpus-per-node=2 --gres=gpu:a100:2", "gpu:a100:2", "gpu=2"},
		{"-n 3 --gpus-per-task=2", "gpu:6", "gpu=6"},
		{"-n 2 --gpus-per-task=a:1,b:2", "gpu:a:2,gpu:b:4", "gpu=6"},
		{"-n 2 --tres-per-task=gres/gpu:2", "gpu:4", "gpu=4"},
		{"-n 2 --tres-per-task=cpu=2,gres/gpu:a100=1,gres/tmpspace:5G", "tmpspace:10G,gpu:a100:2", "gpu=2,tmpspace=10"},
		{"-G a:2 --gres=gpu:b:2", "!--gpus and --gres do not agree", ""},
		{"-G 1 --gres=gpu:2", "!--gpus and --gres do not agree", ""},
		{"--gres=gpu:a;b:2", "!Invalid generic resource", ""},
		{"--gpus=a:1K", "!1K is not a number of GPUs", ""},
		{"--tres-per-task=mem:1G", "!invalid TRES", ""},
		{"--tres-per-task=license/x:1", "!it takes cpu and gres/NAME", ""},
		{"--tres-per-task=gres/gpu:1 --gpus-per-task=2", "!--tres-per-task and --gpus-per-task do not agree: they are 1 and 2", ""},
		{"--tres-per-task=cpu:2 -c 3", "!--tres-per-task and --cpus-per-task do not agree", ""},
	} {
		s, _, err := parseSbatch(append(strings.Fields(c.args), "--wrap=true"))
		if err == nil {
			err = s.generic(&gres{remote: true})
		}
		if want, refused := strings.CutPrefix(c.gres, "!"); refused {
			if err == nil || !strings.Contains(string(fail("sbatch", 1, err).Stderr), want) {
				t.Errorf("%s: %v", c.args, err)
			}
			continue
		}
		if err != nil || s.Gres != c.gres || s.resourceText != c.held {
			t.Errorf("%s: %v, asks for %q and holds %q, want %q and %q", c.args, err, s.Gres, s.resourceText, c.gres, c.held)
		}
	}
}

// --tres-per-task counts the cores and the resources of each task.
func TestCoresPerTask(t *testing.T) {
	s, _, err := parseSbatch([]string{"-n", "3", "--tres-per-task=cpu:2,gres/gpu:1,gres/tmpspace:10G", "--wrap=true"})
	if err != nil {
		t.Fatal(err)
	}
	g, err := parseGres([]string{"gpu=4", "tmpspace=100G"})
	if err == nil {
		err = s.generic(g)
	}
	if err == nil {
		err = s.resources(8, 1<<30)
	}
	if err != nil || s.Cores != 6 || s.PerTask != 2 || s.Ntasks != 3 || s.Gres != "gpu:3,tmpspace:30G" {
		t.Errorf("%v: %d tasks, %d cores each, %d together, %s", err, s.Ntasks, s.PerTask, s.Cores, s.Gres)
	}
}
