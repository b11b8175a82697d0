package node

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"premix/internal/kit/access"
	"premix/internal/kit/owner"
	"premix/internal/kit/problem"
	"premix/internal/kit/units"
	"premix/internal/store/trust"
)

// Config configures a node. It does not change after the node starts.
type Config struct {
	Dir   string `json:"dir"`   // the node's directory, absolute
	Cache string `json:"cache"` // directory of the cache, absolute

	Quota    int64  `json:"quota"`     // of the cache, bytes; 0: limited by Floor only
	Floor    int64  `json:"floor"`     // bytes to leave free on the cache's partition; 0: the default of the cache
	RAM      string `json:"ram"`       // directory on a tmpfs for trees pinned with --ram; "" for none
	RAMQuota int64  `json:"ram_quota"` // bytes
	Verify   bool   `json:"verify"`    // verify cached chunks on every read

	Origins []string `json:"origins"` // of mounts without origins
	Proxies []string `json:"proxies"`

	// Timeout bounds the fetch of one object with all retries, and so the time that a
	// reader waits when no origin answers.
	Timeout time.Duration `json:"timeout"`

	Trust         string `json:"trust"`          // directory of package trust, absolute
	MetricsListen string `json:"metrics_listen"` // HOST:PORT or unix:PATH for Prometheus; "" for none
	// MetricsTokens is a file of tokens, one of which Prometheus must send; "" for
	// none.
	MetricsTokens string   `json:"metrics_token_file,omitempty"`
	MetricsOpen   bool     `json:"metrics_open,omitempty"` // answer all clients of MetricsListen
	MetricsHosts  []string `json:"metrics_hosts,omitempty"`

	// Neighbours are nodes that are asked before the origins: HOST:PORT,HOST:PORT or
	// dns:NAME:PORT. At NeighboursListen, HOST:PORT, they ask this one. Both need the file
	// of a token, the same on all nodes.
	Neighbours       string `json:"neighbours,omitempty"`
	NeighboursListen string `json:"neighbours_listen,omitempty"`
	NeighboursToken  string `json:"neighbours_token_file,omitempty"`
	NeighboursRate   int64  `json:"neighbours_rate,omitempty"` // bytes for them in a second; 0: no limit

	MaxDeaths int `json:"max_deaths"` // of workers within ten seconds, after which the supervisor gives up

	// BlastWarm asks the command that starts the node to load the BLAST databases that
	// were in memory before; the node itself does not use it.
	BlastWarm bool `json:"blast_warm,omitempty"`
}

// maxTimeout is less than the minute for which internal/lazyfs/fuse lets a reader wait, so that
// the reader gets the error of the origins.
const maxTimeout = 45 * time.Second

// ConfigFile returns the path of the file that [ReadConfig] reads.
func ConfigFile() string {
	if home := os.Getenv("PREMIX_HOME"); home != "" {
		return filepath.Join(absolute(home), "node.yaml")
	}
	if os.Geteuid() == 0 {
		return "/etc/premix/node.yaml"
	}
	if dir, err := os.UserConfigDir(); err == nil {
		return filepath.Join(dir, "premix", "node.yaml")
	}
	return ""
}

// file is the form of the configuration file; docs/node.md describes it.
type file struct {
	Cache     string        `yaml:"cache"`
	Quota     size          `yaml:"quota"`
	Floor     size          `yaml:"floor"`
	RAM       string        `yaml:"ram"`
	RAMQuota  size          `yaml:"ram_quota"`
	Verify    bool          `yaml:"verify"`
	Origins   []string      `yaml:"origins"`
	Proxies   []string      `yaml:"proxies"`
	Timeout   time.Duration `yaml:"fetch_timeout"`
	Metrics   string        `yaml:"metrics_listen"`
	Tokens    string        `yaml:"metrics_token_file"`
	Open      bool          `yaml:"metrics_open"`
	Hosts     []string      `yaml:"metrics_hosts"`
	Near      string        `yaml:"neighbours"`
	NearOwn   string        `yaml:"neighbours_listen"`
	NearToken string        `yaml:"neighbours_token_file"`
	NearRate  size          `yaml:"neighbours_rate"`
	MaxDeaths int           `yaml:"max_deaths"`
	BlastWarm bool          `yaml:"blast_warm"`
}

// size is a number of bytes; see package units for its form.
type size int64

// UnmarshalYAML parses a size.
func (n *size) UnmarshalYAML(v *yaml.Node) error {
	parsed, err := units.ParseSize(v.Value)
	if err != nil {
		return fmt.Errorf("line %d: %w: %s", v.Line, err, units.SizeHint)
	}
	*n = size(parsed)
	return nil
}

// ReadConfig returns the configuration of this user's node: from the file, with
// defaults for the rest.
func ReadConfig() (Config, error) {
	path := ConfigFile()
	var f file
	content, err := owner.ReadConfig(path)
	var foreign *owner.Error
	if errors.As(err, &foreign) {
		return Config{}, usage("chown it to this user, and remove the write permission of others (chmod go-w "+path+")", "the configuration is not used: %v", err)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Config{}, err
	}
	d := yaml.NewDecoder(bytes.NewReader(content))
	d.KnownFields(true)
	if err := d.Decode(&f); err != nil && !errors.Is(err, io.EOF) {
		return Config{}, &Error{Kind: KindUsage, Message: fmt.Sprintf("%s: %s", path, problem.Words(err)), HintText: "premix help node describes the file"}
	}
	c := Config{
		Dir: Dir(), Cache: f.Cache, Quota: int64(f.Quota), Floor: int64(f.Floor), RAM: f.RAM, RAMQuota: int64(f.RAMQuota), Verify: f.Verify,
		Origins: f.Origins, Proxies: f.Proxies, Timeout: f.Timeout, MetricsListen: f.Metrics, MetricsTokens: f.Tokens, MetricsOpen: f.Open, MetricsHosts: f.Hosts,
		Neighbours: f.Near, NeighboursListen: f.NearOwn, NeighboursToken: f.NearToken, NeighboursRate: int64(f.NearRate), MaxDeaths: f.MaxDeaths, BlastWarm: f.BlastWarm,
	}
	for _, dir := range []string{f.Cache, f.RAM} {
		if dir != "" && !filepath.IsAbs(dir) {
			return Config{}, &Error{Kind: KindUsage, Message: fmt.Sprintf("%s: the directory %q is not absolute", path, dir), HintText: "write the whole path, from / on"}
		}
	}
	for _, name := range []string{f.Tokens, f.NearToken} {
		if name != "" && !filepath.IsAbs(name) {
			return Config{}, &Error{Kind: KindUsage, Message: fmt.Sprintf("%s: the file %q is not absolute", path, name), HintText: "write the whole path, from / on"}
		}
	}
	if c.Trust, err = trust.Dir(os.Getenv("PREMIX_HOME")); err != nil {
		return Config{}, usage("set PREMIX_HOME to a directory of your own", "no directory for the keys of stores: %v", err)
	}
	c.Trust = absolute(c.Trust)
	if c.Cache == "" {
		if c.Cache, err = CacheDir(); err != nil {
			return Config{}, err
		}
	}
	return c, nil
}

// check validates the configuration and sets defaults.
func (c *Config) check() error {
	if !filepath.IsAbs(c.Dir) || !filepath.IsAbs(c.Cache) || !filepath.IsAbs(c.Trust) {
		return fmt.Errorf("the directories %q, %q and %q of a node must be absolute", c.Dir, c.Cache, c.Trust)
	}
	if c.MaxDeaths <= 0 {
		c.MaxDeaths = 5
	}
	if c.Timeout <= 0 || c.Timeout > maxTimeout {
		c.Timeout = maxTimeout
	}
	if err := c.checkNeighbours(); err != nil {
		return err
	}
	if c.MetricsListen != "" {
		if path, ok := strings.CutPrefix(c.MetricsListen, access.UnixPrefix); ok && !filepath.IsAbs(path) {
			return usage("write the whole path, from / on", "the socket %q for metrics is not absolute", path)
		}
		if _, err := c.metricsTokens(); err != nil {
			return metricsError(err)
		}
		return metricsError(access.Check(c.metrics()))
	}
	return nil
}

// metrics returns the options of the server of metrics.
func (c *Config) metrics() access.Options {
	return access.Options{Address: c.MetricsListen, Secret: c.MetricsTokens != "", Open: c.MetricsOpen, Hosts: c.MetricsHosts}
}

// metricsTokens reads the tokens for metrics, nil if none are required.
func (c *Config) metricsTokens() (*access.Tokens, error) {
	if c.MetricsTokens == "" {
		return nil, nil
	}
	return access.ReadTokens(c.MetricsTokens)
}

// metricsError converts the error of an address for metrics, or of its tokens.
func metricsError(err error) error {
	if err == nil {
		return nil
	}
	var exposed *access.ExposedError
	if errors.As(err, &exposed) {
		return usage("listen on 127.0.0.1 or on unix:PATH; or name a file of tokens with metrics_token_file; or set metrics_open: true", "%v", exposed)
	}
	var hint interface{ Hint() string }
	if errors.As(err, &hint) {
		return usage(hint.Hint(), "%v", err)
	}
	return usage("set metrics_listen to an address, and metrics_token_file to a readable file", "%v", err)
}
