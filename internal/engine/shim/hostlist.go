package shim

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"premix/internal/kit/hostlist"
)

// ranges writes sorted numbers as Slurm does: 1,3-5, and 0-8:2 for even steps of three or
// more.
func ranges(list []int) string {
	var parts []string
	for i := 0; i < len(list); {
		k := i + 1
		for k < len(list) && list[k] == list[k-1]+1 {
			k++
		}
		if k == i+1 && i+2 < len(list) && list[i+1]-list[i] == list[i+2]-list[i+1] {
			step := list[i+1] - list[i]
			for k = i + 2; k < len(list) && list[k]-list[k-1] == step; k++ {
			}
			parts = append(parts, fmt.Sprintf("%d-%d:%d", list[i], list[k-1], step))
			i = k
			continue
		}
		switch k - i {
		case 1:
			parts = append(parts, strconv.Itoa(list[i]))
		default:
			parts = append(parts, fmt.Sprintf("%d-%d", list[i], list[k-1]))
		}
		i = k
	}
	return strings.Join(parts, ",")
}

// maxHosts is how many names a list of hosts may have.
const maxHosts = 1 << 16

// hostnames expands a list of hosts as in n1,m[01-03,7]-ib.
func hostnames(list string) ([]string, error) {
	all, err := hostlist.Expand(list, maxHosts)
	var wrong *hostlist.Error
	if !errors.As(err, &wrong) {
		return all, err
	}
	hint := "write it as in n1,n[3-5]"
	if wrong.Most > 0 {
		hint = fmt.Sprintf("it may have %d names", wrong.Most)
	}
	return nil, &optionError{fmt.Sprintf("Invalid hostlist: %s", list), hint}
}

// joined joins names of hosts to a list with ranges.
func joined(names []string, sortedOnce bool) string {
	type host struct {
		prefix string
		number int // -1: none
		width  int
	}
	var hosts []host
	for _, name := range names {
		digits := len(name) - len(strings.TrimRight(name, "0123456789"))
		h := host{prefix: name, number: -1}
		if n, err := strconv.Atoi(name[len(name)-digits:]); err == nil && digits < 10 {
			h = host{name[:len(name)-digits], n, digits}
		}
		hosts = append(hosts, h)
	}
	if sortedOnce {
		slices.SortStableFunc(hosts, func(a, b host) int {
			if c := strings.Compare(a.prefix, b.prefix); c != 0 {
				return c
			}
			return a.number - b.number
		})
		hosts = slices.Compact(hosts)
	}
	var parts []string
	for i := 0; i < len(hosts); {
		h := hosts[i]
		k := i + 1
		var inner []string
		for start := i; h.number >= 0; start = k - 1 {
			for k < len(hosts) && hosts[k].prefix == h.prefix && hosts[k].width == h.width && hosts[k].number == hosts[k-1].number+1 {
				k++
			}
			text := fmt.Sprintf("%0*d", h.width, hosts[start].number)
			if k-1 > start {
				text += fmt.Sprintf("-%0*d", h.width, hosts[k-1].number)
			}
			inner = append(inner, text)
			if k == len(hosts) || hosts[k].prefix != h.prefix || hosts[k].width != h.width || hosts[k].number < 0 {
				break
			}
			k++
		}
		switch {
		case h.number < 0:
			parts = append(parts, h.prefix)
		case len(inner) == 1 && !strings.Contains(inner[0], "-"):
			parts = append(parts, h.prefix+inner[0])
		default:
			parts = append(parts, h.prefix+"["+strings.Join(inner, ",")+"]")
		}
		i = k
	}
	return strings.Join(parts, ",")
}

// hostsIn returns the names in an argument of scontrol show hostnames or hostlist: a list, or
// the path of a file of names.
func hostsIn(list string) ([]string, error) {
	if strings.HasPrefix(list, "/") {
		text, err := os.ReadFile(list)
		if err != nil {
			return nil, &optionError{fmt.Sprintf("Unable to open file %s", list), "name a file of host names, or a list as in n[1-3]"}
		}
		list = strings.Join(strings.Fields(string(text)), ",")
	}
	return hostnames(list)
}
