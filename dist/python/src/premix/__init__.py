"""Many commands and Python calls as futures, run by premix.

    import premix

    with premix.Queue("out") as queue:
        parts = [queue.submit(f"gzip -k part.{n}", cores=1) for n in range(100)]
        whole = queue.submit("cat part.*.gz >whole.gz", after=parts)
        print(whole.result().seconds)

A Queue is a directory of tasks, as `premix task` has it. See docs/python.md.
"""

from ._binary import CommandError, PremixError, find_premix
from ._executor import Executor
from ._queue import DependencyError, Future, Queue, Result, TaskError
from ._records import Record, Records, records

__all__ = [
    "CommandError",
    "DependencyError",
    "Executor",
    "Future",
    "PremixError",
    "Queue",
    "Record",
    "Records",
    "Result",
    "TaskError",
    "find_premix",
    "records",
]

__version__ = "0.1.0"
