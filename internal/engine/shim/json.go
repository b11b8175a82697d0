package shim

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"gopkg.in/yaml.v3"
)

// document returns what a program prints with --json or --yaml, in the form of the plugins
// v0.0.38 of Slurm 22.05. It makes the text of one object of the list at a time: for many jobs, the
// objects take a hundred times the memory of the jobs, and an encoder of YAML as much again.
func document(a *arguments, name string, list iter.Seq[map[string]any]) (string, error) {
	head := map[string]any{
		"meta": map[string]any{
			"plugin": map[string]any{"type": "openapi/v0.0.38", "name": "premix"},
			"Slurm":  map[string]any{"release": strings.TrimPrefix(slurmVersion, "slurm "), "version": map[string]any{"major": 22, "minor": 5, "micro": 8}},
		},
		"errors": []string{},
	}
	var b bytes.Buffer
	if a.has("yaml") {
		return yamlDocument(&b, head, name, list)
	}
	text, err := json.MarshalIndent(head, "", "  ")
	if err != nil {
		return "", err
	}
	b.Write(bytes.TrimSuffix(text, []byte("\n}")))
	fmt.Fprintf(&b, ",\n  %q: [", name)
	between, end := "\n    ", "]\n}\n"
	for m := range list {
		if text, err = json.MarshalIndent(m, "    ", "  "); err != nil {
			return "", err
		}
		b.WriteString(between)
		b.Write(text)
		between, end = ",\n    ", "\n  ]\n}\n"
	}
	b.WriteString(end)
	return b.String(), nil
}

// yamlDocument is document for --yaml.
func yamlDocument(b *bytes.Buffer, head map[string]any, name string, list iter.Seq[map[string]any]) (string, error) {
	encode := func(w io.Writer, v any) error {
		e := yaml.NewEncoder(w)
		e.SetIndent(2)
		return errors.Join(e.Encode(v), e.Close())
	}
	if err := encode(b, head); err != nil {
		return "", err
	}
	empty := true
	var one bytes.Buffer
	for m := range list {
		if empty {
			fmt.Fprintf(b, "%s:\n", name)
		}
		empty = false
		one.Reset()
		if err := encode(&one, []any{m}); err != nil {
			return "", err
		}
		for line := range bytes.Lines(one.Bytes()) {
			b.WriteString("  ")
			b.Write(line)
		}
	}
	if empty {
		fmt.Fprintf(b, "%s: []\n", name)
	}
	return b.String(), nil
}

// only is a list of one object.
func only(m map[string]any) iter.Seq[map[string]any] {
	return func(yield func(map[string]any) bool) { yield(m) }
}

// epoch returns the seconds since 1970, 0 for no time.
func epoch(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.Unix()
}

// minutes returns a time limit in minutes, nil for none.
func minutes(j *job) any {
	if j.Limit == 0 {
		return nil
	}
	return int64(j.Limit+59) / 60
}

// emptyJob are the fields of a job of squeue --json that are the same for all jobs of premix.
const emptyJob = `{"admin_comment": "", "array_max_tasks": 0, "association_id": 0, "batch_features": "", "batch_flag": true, "burst_buffer": "", "burst_buffer_state": "", "cluster_features": "",
"container": "", "contiguous": false, "core_spec": null, "thread_spec": null, "cores_per_socket": null, "cpu_frequency_minimum": null, "cpu_frequency_maximum": null,
"cpu_frequency_governor": null, "cpus_per_tres": "", "deadline": 0, "delay_boot": 0, "derived_exit_code": 0, "excluded_nodes": "", "features": "", "federation_origin": "",
"federation_siblings_active": "", "federation_siblings_viable": "", "gres_detail": [], "het_job_id": 0, "het_job_id_set": "", "het_job_offset": 0, "last_sched_evaluation": 0,
"licenses": "", "max_cpus": 0, "max_nodes": 0, "mcs_label": "", "memory_per_tres": "", "tasks_per_core": null, "tasks_per_node": 0, "tasks_per_socket": null, "tasks_per_board": 0,
"memory_per_cpu": null, "minimum_tmp_disk_per_node": 0, "node_count": 1, "preempt_time": 0, "pre_sus_time": 0, "prefer": "", "profile": null, "reboot": false, "required_nodes": "",
"resize_time": 0, "restart_cnt": 0, "resv_name": "", "shared": null, "show_flags": [], "flags": [], "sockets_per_board": 0, "sockets_per_node": null, "standard_input": "/dev/null",
"state_description": "", "suspend_time": 0, "system_comment": "", "threads_per_core": null, "time_minimum": 0, "tres_bind": "", "tres_freq": "", "tres_per_job": "", "tres_per_node": "",
"tres_per_socket": "", "tres_per_task": "", "wckey": "", "array_task_id": null, "array_task_string": ""}`

// squeueJSON returns the jobs of squeue --json.
func (w *worker) squeueJSON(rows []row) iter.Seq[map[string]any] {
	return func(yield func(map[string]any) bool) {
		for i := range rows {
			r := &rows[i]
			m := make(map[string]any)
			if err := json.Unmarshal([]byte(emptyJob), &m); err != nil {
				panic(err) // a constant
			}
			for k, v := range map[string]any{
				"job_id": r.id, "name": r.Name, "job_state": r.state.name, "state_reason": r.reason, "partition": r.Partition, "account": r.Account, "qos": r.QOS, "comment": r.Comment,
				"user_name": userName(), "user_id": os.Getuid(), "group_id": os.Getgid(), "group_name": groupName(), "cluster": clusterName, "cpus": r.Cores, "tasks": r.Ntasks, "cpus_per_task": r.PerTask,
				"memory_per_node": r.Memory >> 20, "time_limit": minutes(r.job), "submit_time": epoch(r.Submitted), "eligible_time": epoch(r.Submitted), "accrue_time": epoch(r.Submitted), "start_time": epoch(r.started), "end_time": epoch(r.end()),
				"exit_code": r.exit<<8 | r.signal, "current_working_directory": r.Dir, "standard_output": r.stdout(), "standard_error": r.stderr(), "command": r.Command, "dependency": r.Needs, "priority": r.Priority,
				"nodes": r.node(), "batch_host": r.node(), "array_job_id": 0, "requeue": !r.NoRequeue, "nice": max(0, -r.Priority), "minimum_cpus_per_node": r.PerTask, "billable_tres": r.Cores,
				"tres_per_node": r.gresTexts("gres:", ":"), "tres_req_str": r.tres(), "tres_alloc_str": "", "job_resources": map[string]any{},
			} {
				m[k] = v
			}
			if r.state != pending {
				m["tres_alloc_str"] = r.tres()
				m["job_resources"] = map[string]any{"nodes": r.node(), "allocated_cores": r.Cores, "allocated_hosts": 1}
			}
			if r.Array > 0 {
				m["array_job_id"], m["array_task_id"] = r.array(), r.Index
			}
			if !yield(m) {
				return
			}
		}
	}
}

// sacctJSON returns the jobs of sacct --json, each with its steps.
func (w *worker) sacctJSON(lines []account) iter.Seq[map[string]any] {
	return func(yield func(map[string]any) bool) {
		var job map[string]any // the last one; its steps follow
		for i := range lines {
			a := &lines[i]
			took, user, system, _, _ := a.used()
			stamp := func(seconds float64) map[string]any {
				return map[string]any{"seconds": int64(seconds), "microseconds": int64(seconds*1e6) % 1e6}
			}
			code := func(exit, signal int, state string) map[string]any {
				m := map[string]any{"status": "SUCCESS", "return_code": exit}
				switch {
				case signal != 0:
					m["status"], m["signal"] = "SIGNALED", map[string]any{"signal_id": signal, "name": strings.TrimPrefix(signalName(signal), "SIG")}
				case exit != 0 || state == failed.name:
					m["status"] = "ERROR"
				}
				return m
			}
			tres := []map[string]any{{"type": "cpu", "name": nil, "id": 1, "count": a.Cores}, {"type": "mem", "name": nil, "id": 2, "count": a.Memory >> 20}, {"type": "node", "name": nil, "id": 4, "count": 1}}
			if !a.isJob() {
				if job == nil {
					continue // a step alone
				}
				id, name, exit, signal, tasks, started, finished := "batch", "batch", a.exit, a.signal, 1, a.started, a.finished
				if s := a.step; s != nil {
					id, name, exit, signal, tasks, started, finished = s.ID, s.Name, s.Exit, s.Signal, s.Tasks, s.Started, s.Finished
				}
				job["steps"] = append(job["steps"].([]map[string]any), map[string]any{
					"step": map[string]any{"job_id": a.id, "id": id, "name": name}, "state": a.stateName(), "exit_code": code(exit, signal, a.stateName()), "tasks": map[string]any{"count": tasks},
					"nodes": map[string]any{"list": []string{nodeName()}, "count": 1, "range": nodeName()}, "pid": nil, "kill_request_user": nil,
					"time": map[string]any{"elapsed": int64(took.Seconds()), "start": epoch(started), "end": epoch(finished), "suspended": 0, "system": stamp(system), "user": stamp(user), "total": stamp(user + system)},
					"tres": map[string]any{"allocated": tres},
				})
				continue
			}
			array := map[string]any{"job_id": 0, "limits": map[string]any{"max": map[string]any{"running": map[string]any{"tasks": 0}}}, "task": nil, "task_id": nil}
			if a.Array > 0 {
				array["job_id"], array["task_id"] = a.array(), a.Index
			}
			name, _, _ := strings.Cut(a.stateName(), " ")
			if job != nil && !yield(job) {
				return
			}
			job = map[string]any{
				"account": a.Account, "comment": map[string]any{"administrator": nil, "job": a.Comment, "system": nil}, "allocation_nodes": 1, "array": array, "cluster": clusterName, "constraints": "", "container": nil,
				"association":       map[string]any{"account": a.Account, "cluster": clusterName, "partition": nil, "user": userName()},
				"derived_exit_code": code(0, 0, ""), "exit_code": code(a.exit, a.signal, name), "flags": []string{}, "group": groupName(), "het": map[string]any{"job_id": 0, "job_offset": nil},
				"job_id": a.id, "name": a.Name, "mcs": map[string]any{"label": ""}, "nodes": nodeName(), "partition": a.Partition, "priority": a.job.Priority, "qos": a.QOS,
				"required": map[string]any{"CPUs": a.Cores, "memory": a.Memory >> 20}, "kill_request_user": nil, "reservation": map[string]any{"id": 0, "name": 0},
				"state": map[string]any{"current": name, "reason": a.reason}, "steps": []map[string]any{}, "tres": map[string]any{"allocated": tres, "requested": tres}, "user": userName(),
				"wckey": map[string]any{"wckey": "", "flags": []string{}}, "working_directory": a.Dir,
				"time": map[string]any{"elapsed": int64(took.Seconds()), "eligible": epoch(a.Submitted), "submission": epoch(a.Submitted), "start": epoch(a.started), "end": epoch(a.finished), "suspended": 0,
					"limit": minutes(a.job), "system": stamp(system), "user": stamp(user), "total": stamp(user + system)},
			}
		}
		if job != nil {
			yield(job)
		}
	}
}

// json returns the node of sinfo --json.
func (n *nodeState) json() map[string]any {
	return map[string]any{
		"name": nodeName(), "hostname": nodeName(), "address": nodeName(), "architecture": "x86_64", "state": n.state, "state_flags": []string{}, "partitions": []string{defaultPartition},
		"cpus": n.cores, "cores": n.cores, "sockets": 1, "threads": 1, "boards": 1, "alloc_cpus": n.used, "idle_cpus": max(0, n.cores-n.used), "real_memory": n.memory >> 20, "alloc_memory": n.usedMemory >> 20,
		"free_memory": (n.memory - n.usedMemory) >> 20, "temporary_disk": 0, "weight": 1, "gres": n.gres, "gres_used": n.usedGres, "features": "", "active_features": "", "reason": "", "slurmd_version": strings.TrimPrefix(slurmVersion, "slurm "),
		"tres": "cpu=" + strconv.Itoa(n.cores), "tres_used": "cpu=" + strconv.Itoa(n.used), "comment": "", "extra": "", "owner": nil, "port": 0, "operating_system": "Linux",
	}
}

// partitionJSON returns the partition of scontrol show partition --json.
func (w *worker) partitionJSON() map[string]any {
	return map[string]any{
		"name": defaultPartition, "nodes": nodeName(), "total_cpus": w.cores, "total_nodes": 1, "state": "UP", "maximum_memory_per_node": w.memory >> 20, "max_cpus_per_node": w.cores,
		"max_nodes_per_job": 1, "max_time_limit": nil, "default_time_limit": nil, "min_nodes_per_job": 0, "allowed_accounts": "", "allowed_groups": "", "allowed_qos": "", "denied_accounts": "", "denied_qos": "",
		"alternative": "", "default_memory_per_node": nil, "nodes_online": 1, "over_time_limit": nil, "priority_job_factor": 1, "priority_tier": 1, "qos": "", "flags": []string{"default"}, "preemption_mode": []string{"disabled"},
		"tres": "cpu=" + strconv.Itoa(w.cores),
	}
}

// sortedKeys returns the keys of a map in order.
func sortedKeys(m map[string]string) []string {
	list := make([]string, 0, len(m))
	for k := range m {
		list = append(list, k)
	}
	slices.Sort(list)
	return list
}
