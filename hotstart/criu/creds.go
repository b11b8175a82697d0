package criu

import (
	"path/filepath"

	criu_core "github.com/checkpoint-restore/go-criu/v8/crit/images/criu-core"
	"google.golang.org/protobuf/proto"
)

// Capabilities are sets as capset(2) takes them.
type Capabilities struct {
	Inheritable, Permitted, Effective, Bounding uint64
}

// Empower reads the images in dir and writes to out, an existing directory, those
// that differ when the processes are restored with more capabilities: permitted,
// effective and in the bounding set. It returns their names and the capabilities of
// the images' first process as they are.
func Empower(dir, out string, more uint64) (names []string, was Capabilities, err error) {
	paths, err := filepath.Glob(filepath.Join(dir, "core-*.img"))
	if err != nil {
		return nil, was, err
	}
	for _, path := range paths {
		name := filepath.Base(path)
		img, err := readImage(dir, name)
		if err != nil {
			return nil, was, err
		}
		var core criu_core.CoreEntry
		if err := img.decode(0, &core); err != nil {
			return nil, was, err
		}
		creds := core.GetThreadCore().GetCreds()
		if creds == nil {
			continue
		}
		if len(names) == 0 {
			was = Capabilities{set(creds.CapInh), set(creds.CapPrm), set(creds.CapEff), set(creds.CapBnd)}
		}
		for _, words := range []*[]uint32{&creds.CapPrm, &creds.CapEff, &creds.CapBnd} {
			all := set(*words) | more
			*words = []uint32{uint32(all), uint32(all >> 32)}
		}
		if err := img.set(0, proto.Message(&core)); err != nil {
			return nil, was, err
		}
		if err := img.write(out); err != nil {
			return nil, was, err
		}
		names = append(names, name)
	}
	return names, was, nil
}

// set joins the words of a capability set.
func set(words []uint32) uint64 {
	var all uint64
	for i, w := range words[:min(len(words), 2)] {
		all |= uint64(w) << (32 * i)
	}
	return all
}
