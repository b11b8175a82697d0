package shim

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// sprio shows the priorities of waiting jobs, which are those of --priority and --nice.
func (w *worker) sprio(args []string) (string, error) {
	a, err := parse("sprio", sprioOptions(), args, false)
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
	f.states = map[state]bool{pending: true}
	var b strings.Builder
	if !a.has("noheader") {
		fmt.Fprintf(&b, "%15s %9s %10s %10s\n", "JOBID", "PARTITION", "PRIORITY", "SITE")
	}
	for _, r := range w.rows(f, true) {
		fmt.Fprintf(&b, "%15s %9s %10d %10d\n", r.display(), r.Partition, r.Priority, 0)
	}
	return b.String(), nil
}

// fixed prints a table of sshare or sacctmgr, whose rows are all alike.
func fixed(a *arguments, program, list string, values map[string]string, widths map[string]int, rows int) (string, error) {
	titles := make(map[string]string)
	for name := range values {
		titles[strings.ToLower(name)] = name
	}
	names, cells, err := columnNames(program, list, func(name string) (cell, bool) {
		title, ok := titles[name]
		width := widths[title]
		if width == 0 {
			width = 10
		}
		return cell{title, width}, ok
	})
	if err != nil {
		return "", err
	}
	p := newPrinter(a, cells)
	line := make([]string, len(names))
	for range rows {
		for i, name := range names {
			line[i] = values[titles[name]]
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
	values := map[string]string{"Account": "", "User": userName(), "RawShares": "1", "NormShares": "1.000000", "RawUsage": "0", "NormUsage": "0.000000", "EffectvUsage": "0.000000", "FairShare": "1.000000",
		"LevelFS": "inf", "Cluster": clusterName, "Partition": defaultPartition, "GrpTRESMins": "", "TRESRunMins": ""}
	return fixed(a, "sshare", a.get("format", "account,user,rawshares,normshares,rawusage,effectvusage,fairshare"), values, map[string]int{"Account": 20, "EffectvUsage": 13, "NormShares": 11, "RawUsage": 11}, 1)
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
	entities := []struct {
		name, format string
		rows         int
		values       map[string]string
	}{
		{"users", "user,defaultaccount,adminlevel", 1, map[string]string{"User": userName(), "DefaultAccount": "", "Def Acct": "", "AdminLevel": "None", "Account": "", "Cluster": clusterName, "Partition": "", "QOS": "normal", "DefaultQOS": "normal"}},
		{"accounts", "account,descr,org", 0, map[string]string{"Account": "", "Descr": "", "Org": ""}},
		{"associations", "cluster,account,user,partition,share,qos", 1, map[string]string{"Cluster": clusterName, "Account": "", "User": userName(), "Partition": "", "Share": "1", "QOS": "normal", "DefaultQOS": "normal", "MaxJobs": "", "MaxSubmit": "", "MaxWall": "", "MaxTRES": "", "GrpTRES": "", "ParentName": ""}},
		{"clusters", "cluster,controlhost,controlport,rpc,share,qos", 1, map[string]string{"Cluster": clusterName, "ControlHost": nodeName(), "ControlPort": "0", "RPC": "0", "Share": "1", "QOS": "normal", "TRES": "cpu=" + strconv.Itoa(w.cores)}},
		{"qos", "name,priority,maxwall,maxtrespu,maxjobspu", 1, map[string]string{"Name": "normal", "Priority": "0", "MaxWall": "", "MaxTRESPU": "", "MaxJobsPU": "", "MaxTRES": "", "MaxSubmitPU": "", "GrpTRES": "", "Flags": "", "Preempt": "", "Description": "Normal QOS default"}},
		{"tres", "type,name,id", 0, map[string]string{"Type": "", "Name": "", "ID": ""}},
		{"events", "cluster,nodename,start,end,state,reason,user", 0, map[string]string{"Cluster": "", "NodeName": "", "Start": "", "End": "", "State": "", "Reason": "", "User": ""}},
		{"wckeys", "wckey,cluster,user", 0, map[string]string{"WCKey": "", "Cluster": "", "User": ""}},
	}
	entity := strings.ToLower(a.rest[1])
	if entity != "" && strings.HasPrefix("configuration", entity) {
		return fmt.Sprintf("Configuration data as of %s\nAccountingStorageType = accounting_storage/premix\n", nodeName()), nil
	}
	for _, e := range entities {
		if entity == "" || !strings.HasPrefix(e.name, entity) {
			continue
		}
		format, rows := e.format, e.rows
		for _, word := range a.rest[2:] {
			name, value, ok := strings.Cut(word, "=")
			switch name = strings.ToLower(name); {
			case ok && name == "format":
				format = value
			case name == "user" || name == "users" || name == "name" && e.name == "users" || !ok && e.name == "users":
				if !ok {
					value = word
				}
				if value != userName() && value != strconv.Itoa(os.Getuid()) {
					rows = 0
				}
			}
		}
		return fixed(a, "sacctmgr", format, e.values, nil, rows)
	}
	return "", &optionError{fmt.Sprintf("premix does not show %q", a.rest[1]), hint}
}
