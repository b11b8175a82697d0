package spare

import "testing"

func TestMemory(t *testing.T) {
	available, total, err := Memory()
	if err != nil || available <= 0 || available > total {
		t.Errorf("%d of %d bytes are available, %v", available, total, err)
	}
	if room, ok := Cgroup(); ok && room < 0 {
		t.Errorf("the cgroups leave %d bytes", room)
	}
	if n := meminfo("MemTotal: 7 kB\nMemAvailable:    3 kB\n", "MemAvailable"); n != 3<<10 {
		t.Errorf("MemAvailable is %d", n)
	}
}
