package explain

import (
	"testing"

	"premix/internal/watch"
)

func TestUsual(t *testing.T) {
	tests := []struct {
		low, high float64
		unit      watch.Unit
		want      string
	}{
		{0, 4, watch.Count, "0–4"},
		{3, 3, watch.Count, "3"},
		{1.2e7, 3e7, watch.BytesPerSecond, "12–30 MB/s"},
		{9e5, 3e7, watch.BytesPerSecond, "900 kB/s–30 MB/s"},
		{0.0001, 0.015, watch.Seconds, "0–15 ms"},
		{0.5, 0.75, watch.Ratio, "50–75 %"},
		{44.5, 303, watch.PerSecond, "44.5–303/s"},
		{-5, 5, watch.Count, "-5–5"},
		{60, 200, watch.Seconds, "60 s–3m20s"},
	}
	for _, tt := range tests {
		if got := usual([2]float64{tt.low, tt.high}, tt.unit); got != tt.want {
			t.Errorf("%v–%v %s: %s, want %s", tt.low, tt.high, tt.unit, got, tt.want)
		}
	}
}

func TestWords(t *testing.T) {
	tests := []struct {
		id              watch.ID
		thing, quantity string
	}{
		{watch.NewID("disk.in_flight", "node", "n1", "device", "sdb"), "disk sdb", "requests in flight"},
		{watch.NewID("node.pressure", "kind", "some", "resource", "io"), "machine", "time waiting for disks"},
		{watch.NewID("node.pressure", "kind", "full", "resource", "cpu"), "machine", "time waiting for a processor (all of them)"},
		{watch.NewID("task.memory", "run", "/project/runs/bwa"), "tasks of run bwa", "memory"},
		{watch.NewID("mount.nfs_time", "mount", "/home", "operation", "READ"), "file system /home", "time per request (READ)"},
		{watch.NewID("vendor.fan_speed", "script", "ipmi", "fan", "3"), "vendor ipmi", "fan speed (3)"},
		{watch.NewID("task.running", "step", "call"), "tasks of step call", "number running"},
	}
	for _, tt := range tests {
		if thing, quantity := words(tt.id); thing != tt.thing || quantity != tt.quantity {
			t.Errorf("%s: %q, %q", tt.id, thing, quantity)
		}
	}
}
