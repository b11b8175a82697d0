package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"premix/internal/cvmfs"
	"premix/internal/node"
	"premix/internal/store"
	"premix/internal/store/trust"
)

// cvmfsFlags locate a repository.
type cvmfsFlags struct {
	config    string
	servers   []string
	proxy     string
	keys      []string
	variables []string
	rollback  bool
	constant  bool // variables have no values
}

// cvmfsConfig is the directory of the configuration of CVMFS's client.
const cvmfsConfig = "/etc/cvmfs"

func (f *cvmfsFlags) register(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringVar(&f.config, "config", cvmfsConfig, "directory `DIR` of the client's configuration")
	fl.StringArrayVar(&f.servers, "server", nil, "`URL` of a server, with @fqrn@ for the repository; several are tried in order")
	fl.StringVar(&f.proxy, "http-proxy", "", "list of `PROXIES`, as in CVMFS_HTTP_PROXY: http://a:3128|http://b:3128;DIRECT")
	fl.StringArrayVar(&f.keys, "master-key", nil, "`FILE` with a master key, or a directory of files NAME.pub; may be repeated")
}

// options returns the options for a repository, and the configuration. Flags replace the
// configuration.
func (f *cvmfsFlags) options(name string) (cvmfs.Options, *cvmfs.Config, error) {
	o := cvmfs.Options{Name: name, Servers: f.servers, Keys: f.keys, AllowRollback: f.rollback}
	seen, err := trust.Dir(store.Home())
	if err != nil {
		return o, nil, err
	}
	o.Seen = filepath.Join(seen, "cvmfs")
	c, err := cvmfs.ReadConfig(f.config, name)
	if err != nil {
		return o, nil, err
	}
	if len(o.Servers) == 0 {
		o.Servers = c.Servers
	}
	if len(o.Keys) == 0 {
		o.Keys = c.Keys
	}
	o.Proxies, o.GeoAPI = c.Proxies, c.GeoAPI
	if f.proxy != "" {
		o.Proxies, err = cvmfs.ParseProxies(f.proxy)
	}
	return o, c, err
}

// mounted adds the flags that only a mount has.
func (f *cvmfsFlags) mounted(cmd *cobra.Command) {
	f.register(cmd)
	cmd.Flags().StringArrayVar(&f.variables, "variable", nil, "value `NAME=VALUE` for $(NAME) in symlinks of the repository; NAME alone takes it from the environment")
}

// of makes a request one for a mount of a repository. profile is the value of --profile.
func (f *cvmfsFlags) of(url, profile string, r *node.MountRequest) error {
	name, path, err := cvmfs.ParseURL(url)
	if err != nil {
		return err
	}
	o, c, err := f.options(name)
	if err != nil {
		return err
	}
	variables := c.Variables()
	if f.constant {
		variables = nil
	}
	for _, v := range f.variables {
		name, value, found := strings.Cut(v, "=")
		if !found {
			if value, found = os.LookupEnv(name); !found {
				return &usageError{fmt.Errorf("--variable: the environment has no %q", name), "write it as in --variable NAME=VALUE"}
			}
		}
		variables[name] = value
	}
	r.Ref = "cvmfs://" + name + path
	r.CVMFS = &node.Repository{Name: name, Path: path, Servers: o.Servers, Proxies: o.Proxies, Keys: o.Keys, GeoAPI: o.GeoAPI, Variables: variables}
	switch {
	case profile != "" && profile != "none":
		r.CVMFS.Profiles = []string{profile}
	case profile == "" && r.Record == "": // a recording must not depend on an earlier profile
		r.CVMFS.Profiles = c.Profiles
	}
	return nil
}

// refuse returns an error if a flag for repositories, or one of more flags, was given for
// something else.
func (f *cvmfsFlags) refuse(cmd *cobra.Command, more ...string) error {
	for _, name := range append([]string{"config", "server", "http-proxy", "master-key", "variable"}, more...) {
		if cmd.Flags().Changed(name) {
			return &usageError{fmt.Errorf("--%s is only for cvmfs://", name), "leave it out, or name a repository as in cvmfs://data.galaxyproject.org/byhand"}
		}
	}
	return nil
}
