package lazyfs

import (
	"strings"
	"testing"
)

func TestParseMounts(t *testing.T) {
	list, err := parseMounts(strings.NewReader(`21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 21 0:40 / /run/premix/node/trees/x/image ro - fuse.premix premix:a:1 ro
31 21 0:41 / /run/premix/node/trees/x/tree ro,noatime shared:2 master:3 - erofs /run/premix/node/trees/x/image/image ro
32 21 0:41 / /mnt/a\040b\011c\134 ro - erofs src rw
33 21 0:42 /sub /mnt/a\040b\011c\134 ro - tmpfs none rw
`))
	if err != nil || len(list) != 5 {
		t.Fatalf("%+v, %v", list, err)
	}
	if m := list[2]; m.ID != 31 || m.Dev != "0:41" || m.Type != "erofs" || m.Source != "/run/premix/node/trees/x/image/image" {
		t.Errorf("%+v", m)
	}
	if m := Top(list, "/mnt/a b\tc\\"); m == nil || m.ID != 33 || m.Root != "/sub" {
		t.Errorf("the upper one is %+v", m)
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
		if _, err := parseMounts(strings.NewReader(line)); err == nil {
			t.Errorf("%q was read", line)
		}
	}
}

func TestMounts(t *testing.T) {
	list, err := Mounts()
	if err != nil || Top(list, "/proc") == nil {
		t.Errorf("%d mounts without /proc, %v", len(list), err)
	}
}
