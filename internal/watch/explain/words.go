package explain

import (
	"fmt"
	"math"
	"path"
	"strings"
	"time"

	"premix/internal/watch"
)

// things lists, for each layer, the labels that name the measured thing; the first that a
// series has counts.
var things = map[watch.Layer][]string{
	watch.LayerDisk:      {"device"},
	watch.LayerNetwork:   {"interface", "device"},
	watch.LayerMount:     {"mount", "path", "device"},
	watch.LayerStore:     {"ref", "tree", "origin"},
	watch.LayerScheduler: {"partition", "queue"},
	watch.LayerTask:      {"step", "run", "task"},
	watch.LayerVendor:    {"script", "device", "name"},
}

// words returns the thing that a series measures and the quantity, for people: "disk sdb",
// "writes in flight".
func words(id watch.ID) (thing, quantity string) {
	layer := id.Layer()
	thing = string(layer)
	switch layer {
	case watch.LayerTask:
		thing = "tasks"
	case watch.LayerMount:
		thing = "file system"
	case watch.LayerNode:
		thing = "machine"
	}
	named := ""
	for _, key := range things[layer] {
		if v := id.Label(key); v != "" {
			named = key
			if layer == watch.LayerTask {
				thing += " of " + key + " " + path.Base(v)
			} else {
				thing += " " + v
			}
			break
		}
	}
	_, name, _ := strings.Cut(id.Name, ".")
	quantity = descriptions[id.Name]
	if quantity == "" {
		quantity = strings.ReplaceAll(name, "_", " ")
	}
	// The other labels, except the machine.
	var more []string
	for _, l := range id.Labels {
		switch {
		case l.Key == named || l.Key == "node" || l.Key == "task" || l.Key == "manager" || l.Key == "type":
		case l.Key == "resource" && name == "pressure":
			quantity = waitedFor[l.Value]
		case l.Key == "kind" && name == "pressure":
			if l.Value != "some" {
				more = append(more, "all of them")
			}
		case l.Key == "minutes":
			more = append(more, "mean of "+l.Value+" min")
		case l.Key == "cpu":
			more = append(more, "processor "+l.Value)
		default:
			more = append(more, l.Value)
		}
	}
	if len(more) > 0 {
		quantity += " (" + strings.Join(more, ", ") + ")"
	}
	return thing, quantity
}

// waitedFor describes the pressure of each resource (Documentation/accounting/psi.rst).
var waitedFor = map[string]string{
	"io":     "time waiting for disks",
	"cpu":    "time waiting for a processor",
	"memory": "time waiting for memory",
}

// descriptions has the words for quantities whose names do not explain them.
var descriptions = map[string]string{
	runningName:                "number running",
	ageName:                    "time since their start",
	"disk.reads":               "reads",
	"disk.writes":              "writes",
	"disk.in_flight":           "requests in flight",
	"disk.queued":              "requests waiting or being served",
	"disk.read_wait":           "time per read",
	"disk.write_wait":          "time per write",
	"disk.read_bytes":          "bytes read",
	"disk.written_bytes":       "bytes written",
	"disk.busy":                "part of the time busy",
	"node.blocked":             "processes waiting for a disk",
	"node.running":             "threads running or ready to run",
	"node.cpu_user":            "processor time of programs",
	"node.cpu_system":          "processor time of the kernel",
	"node.cpu_wait":            "processors idle for a disk",
	"node.cpu_idle":            "processors idle",
	"node.cpu_busy":            "part of the time busy",
	"node.memory_available":    "memory available",
	"node.memory_cached":       "page cache",
	"node.memory_dirty":        "dirty memory",
	"node.memory_writeback":    "memory being written to disk",
	"node.memory_anonymous":    "memory of processes",
	"network.received_bytes":   "bytes received",
	"network.sent_bytes":       "bytes sent",
	"network.tcp_retransmits":  "TCP segments retransmitted",
	"mount.answer":             "time to answer",
	"mount.available":          "space available",
	"mount.inodes_free":        "files it may still have",
	"mount.nfs_round_trip":     "round trip of a request",
	"mount.nfs_time":           "time per request",
	"mount.lustre_round_trip":  "round trip of a request",
	"mount.gpfs_waiters":       "waiting threads",
	"store.misses":             "chunks that a read waited for",
	"scheduler.cycle":          "time per scheduling cycle",
	"scheduler.backfill_cycle": "time per backfill cycle",
	"task.cpu":                 "processor time",
	"task.read_bytes":          "bytes read",
	"task.written_bytes":       "bytes written",
	"task.throttled":           "time throttled at the CPU quota",
}

// amount formats a value for people.
func amount(v float64, u watch.Unit) string {
	switch u {
	case watch.Bytes, watch.BytesPerSecond:
		return scaled(v, string(u))
	case watch.PerSecond:
		return number(v) + "/s"
	case watch.Seconds:
		switch a := math.Abs(v); {
		case a == 0:
			return "0 s"
		case a < 0.001:
			return number(v*1e6) + " µs"
		case a < 1:
			return number(v*1e3) + " ms"
		case a < 120:
			return number(v) + " s"
		}
		return time.Duration(v * float64(time.Second)).Round(time.Second).String()
	case watch.Cores:
		return number(v) + " cores"
	case watch.Watts, watch.Celsius:
		return number(v) + " " + string(u)
	case watch.Ratio:
		return number(100*v) + " %"
	}
	return number(v)
}

func scaled(v float64, unit string) string {
	prefix := ""
	for _, p := range []string{"k", "M", "G", "T", "P"} {
		if math.Abs(v) < 1000 {
			break
		}
		v /= 1000
		prefix = p
	}
	return number(v) + " " + prefix + unit
}

// number formats a number with three significant digits and without an exponent.
func number(v float64) string {
	digits := 2
	switch a := math.Abs(v); {
	case a >= 99.95:
		digits = 0
	case a >= 9.995:
		digits = 1
	case a < 0.005:
		return "0"
	}
	text := fmt.Sprintf("%.*f", digits, v)
	if digits > 0 {
		text = strings.TrimRight(strings.TrimRight(text, "0"), ".")
	}
	return text
}

// usual formats a range, with its unit once: "0–4", "12–30 MB/s".
func usual(r [2]float64, u watch.Unit) string {
	low, high := amount(r[0], u), amount(r[1], u)
	if low == high {
		return low
	}
	unit := strings.TrimLeft(high, "-0123456789.")
	low = strings.TrimSuffix(low, unit)
	if math.Abs(r[0]) < 0.02*math.Abs(r[1]) {
		low = "0" // small enough to show as 0
	}
	return low + "–" + high
}

// tell sets the sentences, and adds to the first finding the tasks that felt it.
func (s *search) tell() {
	zone := s.Window.Start.Location()
	felt := -1
	for _, list := range [][]Finding{s.Findings, s.Notes} {
		for i := range list {
			f := &list[i]
			verb := "reached"
			if f.Seen < f.Usual[0] {
				verb = "fell to"
			}
			f.Sentence = fmt.Sprintf("%s: %s left %s at %s and %s %s", f.Thing, f.Quantity, usual(f.Usual, f.Unit), f.Began.In(zone).Format("15:04:05"), verb, amount(f.Seen, f.Unit))
			if f.Layer == watch.LayerTask {
				f.Tasks = s.affected(f.step, f.run, f.Began, f.Until)
			}
		}
	}
	for i := range s.Findings {
		if f := &s.Findings[i]; felt < 0 && i > 0 && f.Layer == watch.LayerTask && f.Series.Name != runningName {
			felt = i
		}
	}
	if felt < 0 || s.Findings[0].Layer == watch.LayerTask {
		return
	}
	first, f := &s.Findings[0], &s.Findings[felt]
	first.Tasks = f.Tasks
	when := "at the same time"
	if f.LagSeconds >= 1 {
		when = fmt.Sprintf("%.0f s later", f.LagSeconds)
	}
	first.Sentence += fmt.Sprintf("; %s felt it %s", f.Thing, when)
}
