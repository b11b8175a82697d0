# AccaSim on a Standard Workload File: peer.py FILE NODES fifo|easy|easy-strict DIR
# prints the mean wait in seconds.
import collections, collections.abc, json, os, sys
from datetime import datetime
for n in ("Mapping", "MutableMapping", "Sequence", "Iterable", "Callable", "Set"):
    if not hasattr(collections, n):
        setattr(collections, n, getattr(collections.abc, n))
from accasim.base.simulator_class import Simulator
from accasim.base.scheduler_class import FirstInFirstOut, EASYBackfilling
from accasim.base.allocator_class import FirstFit
src, nodes, which = sys.argv[1], int(sys.argv[2]), sys.argv[3]
os.chdir(sys.argv[4])
os.makedirs("acca-" + which, exist_ok=True)
swf = "acca-%s/in.swf" % which
with open(src) as f, open(swf, "w") as g:
    for l in f:
        if l.startswith(";"):
            g.write(l); continue
        p = l.split()
        if len(p) < 18: continue
        p[7] = p[4]          # asked for the cores that it had
        p[8] = p[3]          # and for the time that it ran: exact estimates
        p[9] = "1"           # its EASY divides by the memory
        g.write(" ".join(p) + "\n")
cfg = "acca-%s/sys.json" % which
json.dump({"groups": {"g0": {"core": 1, "mem": 1000000}}, "resources": {"g0": nodes}}, open(cfg, "w"))
class Strict(FirstFit):
    # AccaSim's EASY tells its allocator of no reserved nodes, so that any job that fits now
    # is backfilled. Told of them, the allocator refuses every job that outlasts the
    # reservation, wherever it would run.
    def allocating_method(self, es, cur_time, skip=False, reserved_time=None, reserved_nodes=None):
        if reserved_time is not None:
            reserved_nodes = d._reserved_slot[1]
        return super().allocating_method(es, cur_time, skip=skip, reserved_time=reserved_time, reserved_nodes=reserved_nodes)
d = {"fifo": FirstInFirstOut, "easy": EASYBackfilling, "easy-strict": EASYBackfilling}[which](Strict() if which == "easy-strict" else FirstFit())
s = Simulator(swf, cfg, d, scheduling_output=True, RESULTS_FOLDER_PATH="acca-%s/out" % which, statistics_output=False, show_statistics=False)
s.start_simulation()
form, waits = "%Y-%m-%d %H:%M:%S", []
with open("acca-%s/out/sched-in.swf" % which) as f:
    for l in f:
        p = l.strip().split("__")
        submit, start = p[0].split(";")[2], p[2].split(";")[0]
        waits.append((datetime.strptime(start, form) - datetime.strptime(submit, form)).total_seconds())
print(sum(waits) / len(waits))
