package collect

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"premix/internal/watch"
)

// beegfs is the collector of BeeGFS, as servers count the requests of this machine: the
// command beegfs-ctl --clientstats of versions up to 7.
type beegfs struct {
	*machine
	b         batch
	run       func(ctx context.Context, stdin, program string, args ...string) (string, error)
	find      func(program string) (path string, err error)
	addresses func() []string // and names of this machine
	services  map[string]*beegfsService
}

type beegfsService struct {
	read, written, requests *counter
	calls                   kept[counter]
}

func newBeeGFS(m *machine) *beegfs {
	return &beegfs{machine: m, run: runProgram, find: exec.LookPath, addresses: ownAddresses, services: make(map[string]*beegfsService)}
}

// Name returns "beegfs".
func (c *beegfs) Name() string { return "beegfs" }

func (c *beegfs) present() bool {
	_, err := c.find("beegfs-ctl")
	return err == nil && c.there("proc/fs/beegfs") // the directory of the client's module
}

// ownAddresses returns the host name and the addresses of this machine.
func ownAddresses() []string {
	var list []string
	if name, err := os.Hostname(); err == nil {
		short, _, _ := strings.Cut(name, ".")
		list = append(list, name, short)
	}
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return list
	}
	for _, a := range addresses {
		if ip, ok := a.(*net.IPNet); ok {
			list = append(list, ip.IP.String())
		}
	}
	return list
}

// parseBeeGFS parses the output of beegfs-ctl --clientstats: a line for each client, with
// pairs of a number and a name in brackets. It returns the pairs by client.
//
//	23.174.134.23        61957 [sum]  20 [sChDrct]  22385 [ops-rd]  313.54 [MiB-rd]
func parseBeeGFS(text string) map[string]map[string]float64 {
	clients := make(map[string]map[string]float64)
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 3 || !strings.HasPrefix(f[2], "[") {
			continue
		}
		values := make(map[string]float64)
		for i := 1; i+1 < len(f); i += 2 {
			if name, ok := strings.CutPrefix(f[i+1], "["); ok {
				if v := known(f[i]); v >= 0 {
					values[strings.TrimSuffix(name, "]")] = v
				}
			}
		}
		clients[strings.TrimSuffix(f[0], ":")] = values
	}
	return clients
}

// Collect asks the servers of metadata and of storage once each.
func (c *beegfs) Collect(ctx context.Context, now time.Time, to watch.Sink) error {
	c.b.begin(now, c.now())
	program, err := c.find("beegfs-ctl")
	if err != nil {
		return err
	}
	own := c.addresses()
	var errs []error
	for _, service := range []string{"meta", "storage"} {
		// With an interval of 0 it prints the sums since the servers started, and ends.
		out, err := c.run(ctx, "", program, "--clientstats", "--nodetype="+service, "--interval=0", "--perinterval")
		if err != nil {
			errs = append(errs, err)
			continue
		}
		s := c.services[service]
		if s == nil {
			s = &beegfsService{read: c.counter("mount.beegfs_read_bytes"), written: c.counter("mount.beegfs_written_bytes"), requests: c.counter("mount.beegfs_requests", service)}
			c.services[service] = s
		}
		sums := make(map[string]float64)
		for client, values := range parseBeeGFS(out) {
			if slices.Contains(own, client) { // one for each network that it uses
				for name, v := range values {
					sums[name] += v
				}
			}
		}
		for name, v := range sums {
			switch name {
			case "sum":
				c.b.rate(s.requests, v, 1)
			case "MiB-rd":
				c.b.rate(s.read, v, mebi)
			case "MiB-wr":
				c.b.rate(s.written, v, mebi)
			default:
				call := s.calls.get(name, func() *counter { return c.counter("mount.beegfs_calls", name, service) })
				if delta, seconds, ok := call.step(v, c.b.read); ok && (delta > 0 || v > 0) {
					c.b.level(&call.gauge, round(delta/seconds))
				}
			}
		}
		s.calls.sweep(nil)
	}
	to.Samples(c.b.samples)
	return errors.Join(errs...)
}
