"""A module of MultiQC: the runs of premix beside the results of their tools.

MultiQC finds it when both packages are installed. It reads the journals of run directories
and task directories.
"""

from __future__ import annotations

import os
from datetime import datetime
from typing import Any, Dict, List, Optional, Tuple

from multiqc import config
from multiqc.base_module import BaseMultiqcModule, ModuleNoSamplesFound
from multiqc.plots import bargraph, table

from ._records import Record, records

_MIB = 1 << 20


def before_config() -> None:
    """Tell MultiQC which files are ours."""
    # A journal may be beyond MultiQC's limit on the size of files. The orders are small.
    orders = {"fn": "orders.jsonl", "contents": '"table":"order"', "num_lines": 1}
    journal = {"fn": "journal-*.jsonl", "contents": '"table":"task"', "num_lines": 1}
    config.sp.setdefault("premix", [orders, journal])


class MultiqcModule(BaseMultiqcModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__(
            name="premix",
            anchor="premix",
            info="Runs many tasks, and starts tools hot.",
        )
        places: Dict[str, Dict[str, Any]] = {}
        for found in self.find_log_files("premix", filecontents=False):
            directory = _directory_of(found["root"])
            if directory is not None:
                places[directory] = found
        steps: Dict[str, Dict[str, Any]] = {}
        for directory, found in sorted(places.items()):
            name = os.path.basename(directory)
            if sum(os.path.basename(other) == name for other in places) > 1:
                name = directory
            self.add_data_source(found, name)
            for step, tries in _by_step(records(directory)).items():
                steps[f"{name} | {step}" if step else name] = _summary(tries)
        steps = self.ignore_samples(steps)
        if not steps:
            raise ModuleNoSamplesFound
        self.add_software_version(None)
        self.write_data_file(steps, "multiqc_premix")
        self.add_section(
            name="Steps",
            anchor="premix-steps",
            description="The groups or the recipe of each directory. The last try of a task decides whether it "
            "succeeded; times are those of all tries. Efficiency is CPU time divided by core time held.",
            plot=table.plot(steps, _columns(), {"id": "premix_steps", "title": "premix: steps", "col1_header": "Step"}),
        )
        self.add_section(
            name="Starts",
            anchor="premix-starts",
            description="How the tools of the tries were started: hot, from a snapshot of their memory, or cold.",
            plot=bargraph.plot(
                steps,
                {
                    "hot": {"name": "hot", "color": "#d95f0e"},
                    "cold": {"name": "cold", "color": "#3182bd"},
                    "not_started": {"name": "not started", "color": "#bbbbbb"},
                },
                {"id": "premix_starts", "title": "premix: starts", "ylab": "tries"},
            ),
        )


def _directory_of(root: str) -> Optional[str]:
    """Return the run directory or task directory with a journal in root."""
    head, last = os.path.split(os.path.abspath(root))
    if last == "queue":
        head, last = os.path.split(head)
    return head if last == ".premix" else None


def _by_step(tries: List[Record]) -> Dict[str, List[Record]]:
    steps: Dict[str, List[Record]] = {}
    for record in tries:
        steps.setdefault(record.get("group", ""), []).append(record)
    return steps


def _summary(tries: List[Record]) -> Dict[str, Any]:
    last: Dict[int, Record] = {}
    for record in tries:
        before = last.get(record["task"])
        if before is None or record["try"] >= before["try"]:
            last[record["task"]] = record
    starts = [record.get("start", "") for record in tries]
    core = sum(record.get("seconds", 0.0) * record.get("cores", 1) for record in tries)
    cpu = sum(record.get("user", 0.0) + record.get("system", 0.0) for record in tries)
    summary: Dict[str, Any] = {
        "tasks": len(last),
        "failed": sum(bool(record.get("cause")) for record in last.values()),
        "tries": len(tries),
        "hot": starts.count("hot"),
        "cold": starts.count("cold"),
        "not_started": len(starts) - starts.count("hot") - starts.count("cold"),
        "wall": _active(tries),
        "cpu": cpu,
    }
    if core > 0:
        summary["efficiency"] = 100 * cpu / core
    asked = max(record.get("memory", 0) for record in tries)
    used = max(record.get("max_rss", 0) for record in tries)
    if asked:
        summary["memory_asked"] = asked / _MIB
    if used:
        summary["memory_used"] = used / _MIB
    return summary


def _active(tries: List[Record]) -> float:
    """Return the seconds in which at least one try ran."""
    spans: List[Tuple[float, float]] = sorted(
        (_moment(record["started"]), _moment(record["ended"])) for record in tries if record.get("start")
    )
    total, until = 0.0, float("-inf")
    for begin, end in spans:
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total


def _moment(text: str) -> float:
    """Return a moment as premix writes it, in seconds since 1970."""
    # Python before 3.11 knows neither Z nor nanoseconds.
    whole, _, rest = text.rstrip("Z").partition(".")
    return datetime.fromisoformat(f"{whole}+00:00").timestamp() + float(f"0.{rest or 0}")


def _columns() -> Dict[str, Dict[str, Any]]:
    count = {"format": "{:,d}", "min": 0, "scale": "Blues"}
    seconds = {"format": "{:,.1f}", "min": 0, "suffix": " s", "scale": "Greys"}
    memory = {"format": "{:,.0f}", "min": 0, "suffix": " MiB", "scale": "Purples", "shared_key": "premix_memory"}
    return {
        "tasks": {"title": "Tasks", "description": "Tasks with a record", **count},
        "failed": {"title": "Failed", "description": "Tasks whose last try failed", **count, "scale": "Reds"},
        "tries": {"title": "Tries", "description": "Tries of all tasks", **count, "hidden": True},
        "hot": {"title": "Hot", "description": "Tries that were started hot", **count},
        "cold": {"title": "Cold", "description": "Tries that were started cold", **count},
        "wall": {"title": "Wall time", "description": "Time in which at least one try ran", **seconds},
        "cpu": {"title": "CPU time", "description": "User and system time of all tries", **seconds},
        "efficiency": {
            "title": "Efficiency", "description": "CPU time divided by core time held",
            "min": 0, "max": 100, "suffix": " %", "format": "{:,.0f}", "scale": "RdYlGn",
        },
        "memory_asked": {"title": "Memory asked", "description": "Largest memory that a try held", **memory},
        "memory_used": {"title": "Memory used", "description": "Largest resident set of one process", **memory},
    }  # fmt: skip
