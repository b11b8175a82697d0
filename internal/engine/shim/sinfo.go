package shim

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// nodeState is the load of the one node.
type nodeState struct {
	used, cores        int
	usedMemory, memory int64 // bytes
	state              string
	gres, usedGres     string
}

// nodeFields are the fields of sinfo, with the titles of Slurm 22.05.
var nodeFields = sync.OnceValue(func() []nodeField {
	always := func(v string) func(*nodeState) string { return func(*nodeState) string { return v } }
	node := func(*nodeState) string { return nodeName() }
	short := func(n *nodeState) string {
		return map[string]string{"idle": "idle", "mixed": "mix", "allocated": "alloc"}[n.state]
	}
	long := func(n *nodeState) string { return n.state }
	list := []nodeField{
		{'P', "partition", "PARTITION", always(defaultPartition + "*")},
		{'R', "partitionname", "PARTITION", always(defaultPartition)},
		{'a', "available", "AVAIL", always("up")},
		{'l', "time", "TIMELIMIT", always("infinite")},
		{'L', "defaulttime", "DEFAULTTIME", always("n/a")},
		{'D', "nodes", "NODES", always("1")},
		{'A', "nodeai", "NODES(A/I)", func(n *nodeState) string { return fmt.Sprintf("%d/%d", boolInt(n.used > 0), boolInt(n.used == 0)) }},
		{'F', "nodeaiot", "NODES(A/I/O/T)", func(n *nodeState) string { return fmt.Sprintf("%d/%d/0/1", boolInt(n.used > 0), boolInt(n.used == 0)) }},
		{'t', "statecompact", "STATE", short},
		{'T', "statelong", "STATE", long},
		{0, "statecomplete", "STATECOMPLETE", long},
		{'N', "nodelist", "NODELIST", node},
		{'n', "nodehost", "HOSTNAMES", node},
		{'o', "nodeaddr", "NODE_ADDR", node},
		{'c', "cpus", "CPUS", func(n *nodeState) string { return strconv.Itoa(n.cores) }},
		{'Y', "cores", "CORES", func(n *nodeState) string { return strconv.Itoa(n.cores) }},
		{'z', "socketcorethread", "S:C:T", func(n *nodeState) string { return fmt.Sprintf("1:%d:1", n.cores) }},
		{'m', "memory", "MEMORY", func(n *nodeState) string { return strconv.FormatInt(n.memory>>20, 10) }},
		{'e', "freemem", "FREE_MEM", always("N/A")},
		{0, "allocmem", "ALLOCMEM", func(n *nodeState) string { return strconv.FormatInt(n.usedMemory>>20, 10) }},
		{'C', "cpusstate", "CPUS(A/I/O/T)", func(n *nodeState) string { return fmt.Sprintf("%d/%d/0/%d", n.used, max(0, n.cores-n.used), n.cores) }},
		{'G', "gres", "GRES", func(n *nodeState) string { return orNull(n.gres) }},
		{0, "gresused", "GRES_USED", func(n *nodeState) string { return orNull(n.usedGres) }},
		{'v', "version", "VERSION", always(strings.TrimPrefix(slurmVersion, "slurm "))},
		{'V', "cluster", "CLUSTER", always(clusterName)},
	}
	for _, text := range []string{
		"f features AVAIL_FEATURES (null)", "b features_act ACTIVE_FEATURES (null)", "O cpusload CPU_LOAD N/A", "d disk TMP_DISK 0", "w weight WEIGHT 1", "g groups GROUPS all",
		"s size JOB_SIZE 1-infinite", "X sockets SOCKETS 1", "Z threads THREADS 1", "E reason REASON none", "r root ROOT no", "S allocnodes ALLOCNODES all", "h oversubscribe OVERSUBSCRIBE NO",
		"p prioritytier PRIO_TIER 1", "B maxcpuspernode MAX_CPUS_PER_NODE UNLIMITED", "H timestamp TIMESTAMP Unknown", "I priorityjobfactor PRIO_JOB_FACTOR 1", "M preemptmode PREEMPT_MODE OFF",
		"u user USER Unknown", "U userlong USER Unknown", ". comment COMMENT (null)", ". extra EXTRA (null)", ". port PORT 0",
	} {
		f := strings.SplitN(text, " ", 4)
		letter := f[0][0]
		if letter == '.' {
			letter = 0
		}
		list = append(list, nodeField{letter, f[1], f[2], always(f[3])})
	}
	return list
})

// sinfoFormat returns the format that options of sinfo stand for, as in Slurm 22.05.
func sinfoFormat(a *arguments) string {
	long, width := a.has("long"), max(9, len(nodeName()))
	switch {
	case a.has("summarize"):
		return "%9P %.5a %.10l %.16F %N"
	case a.has("Node") && long:
		return fmt.Sprintf("%%%dN ", width) + "%.6D %.9P %.11T %.4c %.8z %.6m %.8d %.6w %.8f %20E"
	case a.has("Node"):
		return fmt.Sprintf("%%%dN ", width) + "%.6D %.9P %6t"
	case a.has("list-reasons") && long:
		return "%20E %12U %19H %6t %N"
	case a.has("list-reasons"):
		return "%20E %9u %19H %N"
	case long:
		return "%9P %.5a %.10l %.10s %.4r %.8h %.10g %.6D %.11T %N"
	}
	return "%9P %.5a %.10l %.6D %.6t %N"
}

func (w *worker) sinfo(args []string) (string, error) {
	a, err := parse("sinfo", sinfoOptions(), args, false)
	if err == nil {
		err = a.none("sinfo has options alone")
	}
	if err != nil {
		return "", err
	}
	w.mu.Lock()
	n := w.node()
	w.mu.Unlock()
	if a.has("json", "yaml") {
		return document(a, "nodes", only(n.json()))
	}
	if a.has("reservation") {
		return "No reservations in the system\n", nil
	}
	shown, format := true, sinfoFormat(a)
	for _, g := range a.list {
		switch list := strings.Split(g.value, ","); g.name {
		case "list-reasons", "dead": // no node is down
			shown = false
		case "partition":
			shown = shown && slices.Contains(list, defaultPartition)
		case "states":
			shown = shown && (strings.EqualFold(g.value, "all") || slices.ContainsFunc(list, func(s string) bool {
				return s != "" && strings.HasPrefix(n.state, strings.ToLower(s))
			}))
		case "nodes":
			names, err := hostnames(g.value)
			if err != nil {
				return "", err
			}
			shown = shown && slices.Contains(names, nodeName())
		}
	}
	var rows []nodeState
	if shown {
		rows = []nodeState{*n}
	}
	return show(a, nodeFields(), format, rows)
}
