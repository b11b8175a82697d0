package dropin

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"gopkg.in/yaml.v3"

	"premix/internal/kit/exit"
	"premix/internal/kit/owner"
	"premix/internal/kit/problem"
	"premix/internal/kit/units"
)

// Settings are the user's settings for hot starts of commands.
type Settings struct {
	Quota int64         // largest sum of the sizes of all snapshots, bytes
	Worth time.Duration // least loading time of a tool whose snapshot is kept
}

// ReadSettings returns the settings in $PREMIX_HOT_QUOTA and $PREMIX_HOT_WORTH. If one is
// not set, it uses quota or worth in hot.yaml in the user's configuration, or else the
// default. A mistake in the file is a problem.List.
func ReadSettings() (Settings, error) {
	s := Settings{Quota: 32 << 30, Worth: 50 * time.Millisecond}
	if dir, err := os.UserConfigDir(); err == nil { // without a home directory only the environment counts
		file := filepath.Join(dir, "premix", "hot.yaml")
		text, err := owner.ReadConfig(file)
		if err == nil {
			err = s.read(file, text)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return s, err
		}
	}
	for key, name := range map[string]string{"quota": "PREMIX_HOT_QUOTA", "worth": "PREMIX_HOT_WORTH"} {
		if text := os.Getenv(name); text != "" {
			if hint, err := s.set(key, text); err != nil {
				return s, exit.Errorf(exit.Usage, hint, "%s: %w", name, err)
			}
		}
	}
	return s, nil
}

// read reads hot.yaml.
func (s *Settings) read(file string, text []byte) error {
	c := &problem.Collector{File: file}
	if root := c.YAML(text, problem.Document{Name: "configuration of hot starts", Form: "write lines such as quota: 50G", Void: true}); root != nil {
		c.Mapping(root, "the configuration", []string{"quota", "worth"}, func(key string, v *yaml.Node) {
			if text, ok := c.Text(v, key); ok {
				if hint, err := s.set(key, text); err != nil {
					c.Add(v.Line, hint, "%v", err)
				}
			}
		})
	}
	return c.Err()
}

func (s *Settings) set(key, text string) (hint string, err error) {
	if key == "quota" {
		s.Quota, err = units.ParseMemory(text)
		return units.SizeHint, err
	}
	s.Worth, err = units.ParseDuration(text)
	return units.TimeHint, err
}
