package criu

import (
	"fmt"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/fdinfo"
	"google.golang.org/protobuf/proto"
)

// Relocate makes the images in dir, which Convert wrote for a page file at from,
// map the page file at to. Both are absolute paths.
func Relocate(dir, from, to string) error {
	files, err := readImage(dir, "files.img")
	if err != nil {
		return err
	}
	found := false
	for i := range files.entries {
		var e fdinfo.FileEntry
		if err := files.decode(i, &e); err != nil {
			return err
		}
		if e.Reg == nil || e.Reg.GetName() != from {
			continue
		}
		found = true
		e.Reg.Name = proto.String(to)
		// Of a file that is mapped, CRIU would compare what these say.
		e.Reg.Size, e.Reg.Mode, e.Reg.BuildId, e.Reg.Checksum = nil, nil, nil, nil
		if err := files.set(i, &e); err != nil {
			return err
		}
	}
	if !found {
		return fmt.Errorf("%s: nothing maps %s", files.name, from)
	}
	return files.write(dir)
}
