package local

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"premix/internal/engine/queue"
	"premix/internal/kit/exit"
	"premix/internal/record"
)

// gpu is the resource whose ids are in gpuVariable too, which CUDA reads.
const (
	gpu         = "gpu"
	gpuVariable = "CUDA_VISIBLE_DEVICES"
)

// pools has the ids of the resources that no task holds, by name.
type pools struct {
	total queue.Resources
	free  map[string][]string
}

// CheckResources returns the error that a run with these resources would end with, or nil.
func CheckResources(total queue.Resources) error {
	_, err := newPools(total)
	return err
}

// newPools numbers resources from 0. The ids of GPUs are the ids in the environment of premix,
// if it has them: a batch system may have given this machine's GPUs to several users.
func newPools(total queue.Resources) (*pools, error) {
	p := &pools{total: total, free: make(map[string][]string)}
	for name, n := range total {
		for i := range n {
			p.free[name] = append(p.free[name], strconv.Itoa(i))
		}
	}
	if text, ok := os.LookupEnv(gpuVariable); ok && total[gpu] > 0 {
		ids := strings.FieldsFunc(text, func(r rune) bool { return r == ',' })
		if len(ids) < total[gpu] {
			return nil, exit.Errorf(exit.Usage, fmt.Sprintf("give --resource %s=%d, or unset %s", gpu, len(ids), gpuVariable), "--resource %s=%d: %s has %d", gpu, total[gpu], gpuVariable, len(ids))
		}
		p.free[gpu] = ids[:total[gpu]]
	}
	return p, nil
}

// lacks returns the reason why a task can never have its resources, or nil.
func (p *pools) lacks(t *queue.Task) *failure {
	if t.Resources == "" {
		return nil
	}
	r, err := queue.ParseResources(t.Resources)
	if err != nil {
		return &failure{record.CauseStart, fmt.Sprintf("the resources of the task: %v", err), ""}
	}
	for _, name := range slices.Sorted(maps.Keys(r)) {
		if r[name] > p.total[name] {
			return &failure{record.CauseStart, fmt.Sprintf("the task needs %d of resource %s and there are %d", r[name], name, p.total[name]),
				fmt.Sprintf("run it with premix task run --resource %s=%d on a machine that has them", name, r[name])}
		}
	}
	return nil
}

// has reports whether the resources of a task are free.
func (p *pools) has(t *queue.Task) bool {
	if t.Resources == "" {
		return true
	}
	r, err := queue.ParseResources(t.Resources)
	for name, n := range r {
		if n > len(p.free[name]) {
			return false
		}
	}
	return err == nil
}

// take takes the resources of a task, which are free.
func (p *pools) take(t *queue.Task) map[string][]string {
	if t.Resources == "" {
		return nil
	}
	r, _ := queue.ParseResources(t.Resources) // lacks has returned the error
	held := make(map[string][]string)
	for name, n := range r {
		held[name], p.free[name] = p.free[name][:n:n], p.free[name][n:]
	}
	return held
}

// release takes resources back.
func (p *pools) release(held map[string][]string) {
	for name, ids := range held {
		p.free[name] = append(p.free[name], ids...)
	}
}

// environ returns the variables with the ids of the resources that a task holds. Without
// GPUs the task sees none, if tasks of this run hold GPUs.
func (p *pools) environ(held map[string][]string) (list []string) {
	for _, name := range slices.Sorted(maps.Keys(held)) {
		list = append(list, "PREMIX_RESOURCE_"+strings.ToUpper(name)+"="+strings.Join(held[name], ","))
	}
	if p.total[gpu] > 0 {
		list = append(list, gpuVariable+"="+strings.Join(held[gpu], ","))
	}
	return list
}
