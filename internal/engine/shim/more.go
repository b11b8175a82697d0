package shim

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// sprio shows the priorities of waiting jobs, which are those of --priority and --nice.
func (w *worker) sprio(args []string) (string, error) {
	a, err := parse("sprio", sprioOptions(), args, false)
	if err == nil {
		err = a.jobList()
	}
	if err == nil && a.has("format", "sort", "weights") {
		err = &optionError{"premix has no weights of priorities", "squeue -o '%i %Q' shows the priorities of jobs"}
	}
	if err != nil {
		return "", err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	f, err := w.filter(a)
	if err != nil {
		return "", err
	}
	if f.jobs != nil && len(f.jobs) == 0 {
		return "", &optionError{"Invalid job id specified", "squeue lists the jobs"}
	}
	f.states = map[state]bool{pending: true}
	var b strings.Builder
	if !a.has("noheader") {
		if fmt.Fprintf(&b, "%15s %-9s ", "JOBID", "PARTITION"); a.has("long") {
			fmt.Fprintf(&b, "%8s %10s %10s %10s %10s %10s %10s %10s %10s %11s %20s\n", "USER", "PRIORITY", "SITE", "AGE", "ASSOC", "FAIRSHARE", "JOBSIZE", "PARTITION", "QOS", "NICE", "TRES")
		} else {
			fmt.Fprintf(&b, "%10s %10s\n", "PRIORITY", "SITE")
		}
	}
	for _, r := range w.rows(f, true) {
		if fmt.Fprintf(&b, "%15s %-9s ", r.display(), r.Partition); a.has("long") { // the priority has no other parts
			fmt.Fprintf(&b, "%8s %10d %10d %10d %10d %10d %10d %10d %10d %11d %20s\n", userName(), r.Priority, 0, 0, 0, 0, 0, 0, 0, 0, "")
		} else {
			fmt.Fprintf(&b, "%10d %10d\n", r.Priority, 0)
		}
	}
	return b.String(), nil
}

// fixedColumn is a column of sshare or sacctmgr, which has the same value in each row.
type fixedColumn struct {
	name  string // as in format=
	title string
	width int // negative: to the left
	value string
}

// fixedColumns parses columns: each is NAME:WIDTH, or NAME:TITLE:WIDTH with _ for blanks in the title.
func fixedColumns(text string, values map[string]string) (list []fixedColumn) {
	for word := range strings.FieldsSeq(text) {
		f := strings.Split(word, ":")
		width, err := strconv.Atoi(f[len(f)-1])
		if err != nil {
			panic(word)
		}
		c := fixedColumn{strings.ToLower(f[0]), strings.ReplaceAll(f[len(f)-2], "_", " "), width, values[f[0]]}
		list = append(list, c)
	}
	return list
}

// findColumn returns the column with a name, else the first that begins with it; nil if there is none.
func findColumn(columns []fixedColumn, name string) *fixedColumn {
	i := slices.IndexFunc(columns, func(c fixedColumn) bool { return c.name == name })
	if i < 0 && name != "" {
		i = slices.IndexFunc(columns, func(c fixedColumn) bool { return strings.HasPrefix(c.name, name) })
	}
	if i < 0 {
		return nil
	}
	return &columns[i]
}

// fixed prints a table of sshare or sacctmgr. list names columns, "" all.
func fixed(a *arguments, program, list string, columns []fixedColumn, rows int) (string, error) {
	values := make(map[string]string)
	if list == "" {
		var all []string
		for _, c := range columns {
			all = append(all, c.name)
		}
		list = strings.Join(all, ",")
	}
	names, cells, err := columnNames(program, list, func(name string) (string, cell, bool) {
		c := findColumn(columns, name)
		if c == nil {
			return "", cell{}, false
		}
		values[c.name] = c.value
		return c.name, cell{c.title, c.width}, true
	})
	if err != nil {
		return "", err
	}
	p := newPrinter(a, cells)
	line := make([]string, len(names))
	for range rows {
		for i, name := range names {
			line[i] = values[name]
		}
		p.line(line)
	}
	return p.b.String(), nil
}

// sshare shows the one user, who has all shares.
func (w *worker) sshare(args []string) (string, error) {
	a, err := parse("sshare", sshareOptions(), args, false)
	if err != nil {
		return "", err
	}
	columns := fixedColumns("Account:-20 User:10 RawShares:10 NormShares:11 RawUsage:11 NormUsage:11 EffectvUsage:13 FairShare:10 LevelFS:10 GrpTRESMins:30 TRESRunMins:30 Cluster:10 Partition:12",
		map[string]string{"User": userName(), "RawShares": "1", "NormShares": "1.000000", "RawUsage": "0", "NormUsage": "0.000000", "EffectvUsage": "0.000000", "FairShare": "1.000000",
			"LevelFS": "inf", "Cluster": clusterName, "Partition": defaultPartition})
	format := "account,user,rawshares,normshares,rawusage,effectvusage,fairshare"
	if a.has("long") {
		format = "account,user,rawshares,normshares,rawusage,normusage,effectvusage,fairshare,levelfs,grptresmins,tresrunmins"
	}
	return fixed(a, "sshare", a.get("format", format), columns, 1)
}

// entity is a kind of things that sacctmgr shows.
type entity struct {
	name string
	rows int
	// columns are the columns of Slurm 22.05, as fixedColumns parses them; more are columns that
	// only format= shows.
	columns, more string
	values        map[string]string
}

// entities returns what sacctmgr shows.
func (w *worker) entities() []entity {
	const limits = "GrpJobs:7 GrpTRES:13 GrpSubmit:9 GrpWall:11 GrpTRESMins:13 MaxJobs:7 MaxTRES:13 MaxTRESPerNode:14 MaxSubmit:9 MaxWall:11 MaxTRESMins:13 QOS:20 DefaultQOS:Def_QOS:9 GrpTRESRunMins:13"
	return []entity{
		{"users", 1, "User:10 DefaultAccount:Def_Acct:10 AdminLevel:Admin:9", "DefaultWCKey:Def_WCKey:10 Account:10 Cluster:10 Partition:10 Share:9 QOS:20 DefaultQOS:Def_QOS:9",
			map[string]string{"User": userName(), "AdminLevel": "None", "Cluster": clusterName, "Share": "1", "QOS": "normal", "DefaultQOS": "normal"}},
		{"accounts", 0, "Account:10 Description:Descr:20 Organization:Org:20", "Cluster:10 ParentName:Par_Name:10 User:10 Share:9", nil},
		{"associations", 1, "Cluster:10 Account:10 User:10 Partition:10 Share:9 Priority:10 " + limits, "ID:6 LFT:6 RGT:6 ParentName:Par_Name:10 MaxNodes:8 MaxCPUs:8 MaxCPUMins:11 GrpCPUs:8 GrpNodes:8 GrpMem:7",
			map[string]string{"Cluster": clusterName, "User": userName(), "Share": "1", "QOS": "normal", "DefaultQOS": "normal"}},
		{"clusters", 1, "Cluster:10 ControlHost:15 ControlPort:12 RPC:5 Share:9 GrpJobs:7 GrpTRES:13 GrpSubmit:9 MaxJobs:7 MaxTRES:13 MaxSubmit:9 MaxWall:11 QOS:20 DefaultQOS:Def_QOS:9", "TRES:20 Classification:14 Flags:20 NodeCount:9 NodeNames:20 PluginIDSelect:14",
			map[string]string{"Cluster": clusterName, "ControlHost": nodeName(), "ControlPort": "0", "RPC": "0", "Share": "1", "QOS": "normal", "DefaultQOS": "normal", "TRES": "cpu=" + strconv.Itoa(w.cores), "NodeCount": "1", "NodeNames": nodeName()}},
		{"qos", 1, "Name:10 Priority:10 GraceTime:10 Preempt:10 PreemptExemptTime:19 PreemptMode:11 Flags:40 UsageThres:10 UsageFactor:11 GrpTRES:13 GrpTRESMins:13 GrpTRESRunMins:13 GrpJobs:7 GrpSubmit:9 GrpWall:11 MaxTRES:13 MaxTRESPerNode:14 MaxTRESMins:13 MaxWall:11 " +
			"MaxTRESPU:13 MaxJobsPU:9 MaxSubmitPU:11 MaxTRESPA:13 MaxJobsPA:9 MaxSubmitPA:11 MinTRES:13", "Description:Descr:20 ID:6",
			map[string]string{"Name": "normal", "Priority": "0", "GraceTime": "00:00:00", "PreemptMode": "cluster", "UsageFactor": "1.000000", "Description": "Normal QOS default"}},
		{"tres", 0, "Type:8 Name:15 ID:6", "", nil},
		{"events", 0, "Cluster:10 NodeName:-15 Start:TimeStart:19 End:TimeEnd:19 State:6 Reason:30 User:10", "Duration:12 Event:7", nil},
		{"wckeys", 0, "WCKey:10 Cluster:10 User:10", "ID:6", nil},
	}
}

// sacctmgr shows the one user, cluster and QOS. Nothing can be changed.
func (w *worker) sacctmgr(args []string) (string, error) {
	a, err := parse("sacctmgr", sacctmgrOptions(), args, false)
	if err != nil {
		return "", err
	}
	const hint = "it has show and list of user, account, association, cluster, qos, tres, events, wckey and configuration"
	if len(a.rest) < 2 || !strings.EqualFold(a.rest[0], "show") && !strings.EqualFold(a.rest[0], "list") {
		return "", &optionError{"premix has no accounts to change", hint}
	}
	asked := strings.ToLower(a.rest[1])
	if asked != "" && strings.HasPrefix("configuration", asked) {
		return fmt.Sprintf("Configuration data as of %s\nAccountingStorageType = accounting_storage/premix\n", clock(time.Now())), nil
	}
	for _, e := range w.entities() {
		if asked == "" || !strings.HasPrefix(e.name, asked) {
			continue
		}
		columns := fixedColumns(e.columns, e.values)
		all := append(slices.Clip(columns), fixedColumns(e.more, e.values)...)
		names, rows := "", e.rows
		for _, word := range a.rest[2:] {
			name, value, ok := strings.Cut(word, "=")
			name = strings.ToLower(name)
			if !ok && (name == "where" || strings.HasPrefix(name, "with") || strings.HasPrefix(name, "wo")) {
				continue // they change nothing
			}
			if !ok {
				name, value = columns[0].name, word
			}
			if name = strings.TrimSuffix(name, "s"); name == "name" || name == "" {
				name = columns[0].name
			}
			c := findColumn(all, name)
			switch {
			case name == "format":
				names = value
			case c == nil:
				return "", &optionError{fmt.Sprintf("Unknown condition: %s", word), "conditions are columns, as in user=" + userName()}
			case !slices.ContainsFunc(strings.Split(value, ","), func(v string) bool {
				return strings.EqualFold(v, c.value) || c.name == "user" && v == strconv.Itoa(os.Getuid())
			}):
				rows = 0
			}
		}
		if names == "" {
			return fixed(a, "sacctmgr", "", columns, rows)
		}
		return fixed(a, "sacctmgr", names, all, rows)
	}
	return "", &optionError{fmt.Sprintf("premix does not show %q", a.rest[1]), hint}
}
