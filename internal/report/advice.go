package report

import (
	"fmt"
	"math"

	"premix/internal/kit/units"
)

// Advice is given to steps that ask for much more than they use.
const (
	adviceTries   = 3         // tries from which something can be said
	adviceSeconds = 1         // median run time of steps that matter
	measurable    = 0.5       // run time in which the use of cores can be measured
	adviceMemory  = 512 << 20 // memory asked for and not used
	adviceSpare   = 1.25      // of the largest use
	adviceCores   = 0.6       // efficiency below which a step holds too many cores
)

// advice returns what to ask for in place of the cores and memory that the tries of the step
// asked for and did not use.
func (s *StepUsage) advice() (list []string) {
	if s.Tries < adviceTries || s.OK == 0 || s.Seconds.Median < adviceSeconds {
		return nil
	}
	// A record has the largest process of a task, and not all its memory.
	if need := roundMemory(float64(s.MaxRSS) * adviceSpare); s.MaxRSS > 0 && s.Memory-need >= adviceMemory && s.Memory >= 2*need {
		list = append(list, fmt.Sprintf("ask for %s of memory, not %s: the largest process had %s (a task whose processes run at the same time needs their sum)",
			units.Size(need), units.Size(s.Memory), units.Size(s.MaxRSS)))
	}
	if s.Cores > 1 && s.CoreUsage.Efficiency < adviceCores {
		if need := max(1, int(math.Ceil(s.CoresUsed-0.1))); need < s.Cores {
			list = append(list, fmt.Sprintf("ask for %s, not %d: no try used more than %.1f on average", cores(need), s.Cores, s.CoresUsed))
		}
	}
	return list
}

func cores(n int) string {
	if n == 1 {
		return "1 core"
	}
	return fmt.Sprintf("%d cores", n)
}

// roundMemory returns an amount of memory that is at least n and easy to write.
func roundMemory(n float64) int64 {
	step := int64(256 << 20)
	if n > 4<<30 {
		step = 1 << 30
	}
	return (int64(n) + step - 1) / step * step
}
