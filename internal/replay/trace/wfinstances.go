package trace

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// WfInstances: executions of workflows as WfCommons publishes them, in JSON, with the
// dependencies of tasks. See https://github.com/wfcommons/WfFormat; versions 1.3 to 1.5 are
// read. All tasks are submitted at the begin and wait for the tasks that they depend on.

const wfName = "WfInstance"

type wfDocument struct {
	Name          string `json:"name"`
	SchemaVersion string `json:"schemaVersion"`
	CreatedAt     string `json:"createdAt"`
	Workflow      struct {
		ExecutedAt    string   `json:"executedAt"`
		Tasks         []wfTask `json:"tasks"` // until 1.4
		Jobs          []wfTask `json:"jobs"`  // until 1.2
		Specification struct {
			Tasks []wfTask `json:"tasks"`
		} `json:"specification"` // from 1.5
		Execution struct {
			ExecutedAt string   `json:"executedAt"`
			Tasks      []wfTask `json:"tasks"`
			Machines   []wfNode `json:"machines"`
		} `json:"execution"`
		Machines []wfNode `json:"machines"`
	} `json:"workflow"`
}

type wfTask struct {
	Name     string     `json:"name"`
	ID       string     `json:"id"`
	Type     string     `json:"type"`
	Category string     `json:"category"`
	Parents  []string   `json:"parents"`
	Runtime  *float64   `json:"runtimeInSeconds"`
	Runtime0 *float64   `json:"runtime"` // until 1.3
	Cores    *float64   `json:"cores"`
	Cores5   *float64   `json:"coreCount"`
	AvgCPU   float64    `json:"avgCPU"` // percent
	Memory   float64    `json:"memoryInBytes"`
	Machines []string   `json:"machines"`
	Command  *wfCommand `json:"command"`
}

type wfCommand struct {
	Program string `json:"program"`
}

type wfNode struct {
	NodeName string `json:"nodeName"`
	CPU      struct {
		Cores int `json:"coreCount"`
		Count int `json:"count"`
	} `json:"cpu"`
}

// readJSON reads a JSON document: a WfInstance or the output of sacct.
func readJSON(r *bufio.Reader, name string) (*Trace, error) {
	dec := json.NewDecoder(io.LimitReader(r, maxDocument))
	token, err := dec.Token()
	if err != nil {
		return nil, err
	}
	if token != json.Delim('{') {
		return nil, &Error{Path: name, Reason: "is JSON, but neither a WfInstance nor an output of sacct --json", HintText: "both begin with {"}
	}
	// sacct's document may be large and is read job by job; a WfInstance is read as a
	// whole.
	var doc wfDocument
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return nil, err
		}
		switch key {
		case "jobs":
			if token, err := dec.Token(); err != nil {
				return nil, err
			} else if token != json.Delim('[') {
				return nil, &Error{Path: name, Reason: "its jobs are not a list", HintText: "write it with sacct --json"}
			}
			b := newBuilder(name, sacctJSONName, 0)
			if err := b.sacctJSON(dec); err != nil {
				return nil, err
			}
			return b.finish(true), nil
		case "workflow":
			err = dec.Decode(&doc.Workflow)
		case "createdAt":
			err = dec.Decode(&doc.CreatedAt)
		default:
			var skipped json.RawMessage
			err = dec.Decode(&skipped)
		}
		if err != nil {
			return nil, fmt.Errorf("%v: %w", key, err)
		}
	}
	return doc.trace(name)
}

func (d *wfDocument) trace(name string) (*Trace, error) {
	w := &d.Workflow
	tasks, machines, executed := w.Tasks, w.Machines, w.ExecutedAt
	if len(tasks) == 0 {
		tasks = w.Jobs
	}
	runs := make(map[string]*wfTask)
	if len(w.Specification.Tasks) > 0 {
		tasks, machines, executed = w.Specification.Tasks, w.Execution.Machines, w.Execution.ExecutedAt
		for i := range w.Execution.Tasks {
			runs[w.Execution.Tasks[i].ID] = &w.Execution.Tasks[i]
		}
	}
	b := newBuilder(name, wfName, len(tasks))
	// Parents are given by id, in older versions by name.
	index := make(map[string]int64)
	for i, t := range tasks {
		index[t.Name] = int64(i + 1)
	}
	for i, t := range tasks {
		if t.ID != "" {
			if _, taken := index[t.ID]; !taken || t.ID != t.Name {
				index[t.ID] = int64(i + 1)
			}
		}
	}
	guessed := 0
	for i := range tasks {
		t := &tasks[i]
		e := entry{number: int64(i + 1), run: Unknown}
		ran := t
		if r := runs[t.ID]; r != nil {
			ran = r
		}
		for _, seconds := range []*float64{ran.Runtime, ran.Runtime0} {
			if seconds != nil && *seconds >= 0 && *seconds < 1e10 {
				e.run = Time(*seconds*1000 + 0.5)
				break
			}
		}
		for _, cores := range []*float64{ran.Cores, ran.Cores5} {
			if cores != nil && *cores > 0 && *cores < 1e6 {
				e.cores = int64(*cores + 0.999)
				break
			}
		}
		if e.cores == 0 {
			e.cores = 1
			if ran.AvgCPU > 100 && ran.AvgCPU < 1e6 {
				e.cores = int64((ran.AvgCPU + 99) / 100)
			}
			guessed++
		}
		if ran.Memory > 0 && ran.Memory < 1<<50 {
			e.memory = perCore((int64(ran.Memory)+(1<<20)-1)>>20, e.cores)
		}
		e.account = t.Category
		if e.account == "" {
			e.account = t.Name
		}
		if why := b.add(&e); why != "" {
			b.t.Read.bad(i+1, why, t.Name)
			continue
		}
		for _, parent := range t.Parents {
			before, ok := index[parent]
			if !ok {
				before = -1
			}
			b.after = append(b.after, [2]int64{e.number, before})
		}
	}
	for _, m := range machines {
		b.t.Procs += max(m.CPU.Cores, m.CPU.Count, 1)
	}
	if b.t.Procs > 1<<30 {
		b.t.Procs = 0
	}
	b.t.Nodes = len(machines)
	if guessed > 0 {
		b.t.Read.note("%d tasks have no cores: their use of processors is taken, rounded up", guessed)
	}
	for _, text := range []string{executed, d.CreatedAt} {
		if at, err := time.Parse(time.RFC3339, text); err == nil && at.Unix() > 0 {
			b.t.Begin = at.UnixMilli()
			break
		}
	}
	return b.finish(false), nil
}
