package slurm

import (
	"os"
	"strconv"

	"premix/internal/engine/pilot"
)

// Allocation sets the unset fields of o from the resources that Slurm has given to the job
// that this process runs in. The ids of its GPUs are in its environment.
func Allocation(o *pilot.WorkOptions) {
	number := func(name string) int64 {
		n, err := strconv.ParseInt(os.Getenv(name), 10, 64)
		if err != nil {
			return 0 // not set: the machine's figure counts
		}
		return n
	}
	o.Resources = true
	cpus := number("SLURM_CPUS_ON_NODE")
	if o.Cores == 0 {
		o.Cores = int(cpus)
	}
	if o.Memory == 0 {
		memory := number("SLURM_MEM_PER_NODE") << 20
		if memory == 0 {
			memory = number("SLURM_MEM_PER_CPU") << 20 * max(cpus, 1)
		}
		if memory > 2*overhead {
			memory -= overhead
		}
		o.Memory = memory
	}
}
