package policy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"gopkg.in/yaml.v3"

	"premix/internal/kit/problem"
	"premix/internal/kit/units"
)

// ReadPools reads pools from a YAML file, for rules that do not declare them:
//
//	pools:
//	  - {name: flash, dir: /flash, capacity: 10 TB}
//	  - {name: disk, dir: /disk}
//
// Relative directories are relative to the directory of the file. Other keys are ignored.
// A mistake in the file is a [problem.List].
func ReadPools(path string) ([]Pool, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, cannotRead(path, err)
	}
	var file struct {
		Pools yaml.Node `yaml:"pools"`
	}
	if err := yaml.NewDecoder(bytes.NewReader(text)).Decode(&file); err != nil && !errors.Is(err, io.EOF) {
		return nil, cannotRead(path, err)
	}
	const hint = "write pools: [{name: flash, dir: /flash, capacity: 10 TB}]"
	wrong := func(n *yaml.Node, format string, args ...any) error {
		return problem.List{{File: path, Line: max(1, n.Line), Column: max(1, n.Column), Message: fmt.Sprintf(format, args...), Hint: hint}}
	}
	if file.Pools.Kind != yaml.SequenceNode || len(file.Pools.Content) == 0 {
		return nil, wrong(&file.Pools, "there are no pools")
	}
	base, err := filepath.Abs(filepath.Dir(path))
	if err != nil {
		return nil, cannotRead(path, err)
	}
	var pools []Pool
	for _, n := range file.Pools.Content {
		var p struct {
			Name     string `yaml:"name"`
			Dir      string `yaml:"dir"`
			Capacity string `yaml:"capacity"`
		}
		if err := n.Decode(&p); err != nil || p.Name == "" || p.Dir == "" {
			return nil, wrong(n, "a pool needs a name and a dir")
		}
		pool := Pool{Name: p.Name, Dir: p.Dir}
		if !filepath.IsAbs(pool.Dir) {
			pool.Dir = filepath.Join(base, pool.Dir)
		}
		pool.Dir = filepath.Clean(pool.Dir)
		if p.Capacity != "" {
			if pool.Capacity, err = units.ParseSize(p.Capacity); err != nil {
				return nil, wrong(n, "pool %s: %v", p.Name, err)
			}
		}
		pools = append(pools, pool)
	}
	return pools, nil
}
