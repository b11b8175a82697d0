package mountinfo

import (
	"slices"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	list, err := Parse(`21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 21 0:40 / /run/premix/node/trees/x/image ro - fuse.premix premix:a:1 ro
31 21 0:41 / /run/premix/node/trees/x/tree ro,noatime shared:2 master:3 - erofs /run/premix/node/trees/x/image/image ro
32 21 0:41 / /mnt/a\040b\011c\134 ro - erofs src rw
33 21 0:42 /sub /mnt/a\040b\011c\134 ro - tmpfs none rw
34 21 0:43 / /sys/fs/cgroup/cpu rw - cgroup  rw,cpu,cpuacct
`)
	if err != nil || len(list) != 6 {
		t.Fatalf("%+v, %v", list, err)
	}
	if m := list[2]; m.ID != 31 || m.Dev != "0:41" || m.Type != "erofs" || m.Source != "/run/premix/node/trees/x/image/image" {
		t.Errorf("%+v", m)
	}
	if m := Top(list, "/mnt/a b\tc\\"); m == nil || m.ID != 33 || m.Root != "/sub" {
		t.Errorf("the upper one is %+v", m)
	}
	if m := list[5]; m.Source != "" || !m.Cgroup() || !slices.Equal(m.Options, []string{"rw", "cpu", "cpuacct"}) {
		t.Errorf("%+v", m)
	}
	long := strings.Repeat("/layer:", 1<<18)
	if list, err := Parse("21 1 0:1 / / rw - overlay overlay rw,lowerdir=" + long + "\n"); err != nil || len(list) != 1 || list[0].Options[1] != "lowerdir="+long {
		t.Errorf("a long line: %v", err)
	}
	if m := Top(list, "/mnt"); m != nil {
		t.Errorf("%+v is mounted at /mnt", m)
	}
	under := Under(list, "/run/premix/node/trees/x")
	if len(under) != 2 || under[0].ID != 31 || under[1].ID != 30 {
		t.Errorf("%+v", under)
	}
	if under := Under(list, "/run/premix/node/trees"); len(under) != 2 {
		t.Errorf("%+v", under)
	}
	for _, line := range []string{"x", "a b c d e f - g h", "1 2 3 4 5 6"} {
		list, err := Parse(line + "\n21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n")
		if err == nil || len(list) != 1 {
			t.Errorf("%q was read as %v", line, list)
		}
	}
}

func TestRead(t *testing.T) {
	list, err := Read()
	if err != nil || Top(list, "/proc") == nil {
		t.Errorf("%d mounts without /proc, %v", len(list), err)
	}
}
