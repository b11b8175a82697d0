"""Records of tasks: one for each try."""

from __future__ import annotations

import glob
import json
import os
from typing import TYPE_CHECKING, Any, Dict, List, Union

from ._binary import PremixError

if TYPE_CHECKING:
    import pandas
    import pyarrow

#: A record has the columns that docs/run.md and docs/task.md list. Fields with zeros may be
#: left out.
Record = Dict[str, Any]

_FORMAT = 1  # of journals


class Records(List[Record]):
    """Records as a list, with two more forms."""

    def to_pandas(self) -> "pandas.DataFrame":
        """Return a DataFrame with a row for each record. It needs pandas."""
        import pandas

        frame = pandas.DataFrame.from_records(_even(self))
        for column in ("queued", "started", "ended"):
            if column in frame:
                frame[column] = pandas.to_datetime(frame[column], format="ISO8601", utc=True)
        return frame

    def to_arrow(self) -> "pyarrow.Table":
        """Return an Arrow table with a row for each record. It needs pyarrow."""
        import pyarrow

        table = pyarrow.Table.from_pylist(_even(self))
        for at, column in enumerate(table.column_names):
            if column in ("queued", "started", "ended"):
                zoned = table[column].cast(pyarrow.timestamp("ns", "UTC"))
                table = table.set_column(at, column, zoned)
        return table


# The zeros of fields that records leave out.
_ZEROS: Record = {
    "task": 0, "sample": "", "try": 0, "slot": 0, "start": "", "reason": "",
    "queued": None, "started": None, "ended": None,
    "wait": 0.0, "latency": 0.0, "seconds": 0.0, "user": 0.0, "system": 0.0,
    "max_rss": 0, "read_bytes": 0, "write_bytes": 0,
    "exit": 0, "signal": 0, "cause": "", "error": "", "hint": "",
    "group": "", "cores": 0, "memory": 0,
}  # fmt: skip


def _even(records: List[Record]) -> List[Record]:
    """Give all records the same columns."""
    columns: Dict[str, None] = dict.fromkeys(_ZEROS)
    for record in records:
        columns.update(dict.fromkeys(record))
    return [{name: record.get(name, _ZEROS.get(name)) for name in columns} for record in records]


def records(directory: Union[str, "os.PathLike[str]"], *, last: bool = False) -> Records:
    """Return the records in a directory of premix task run or premix run.

    With last, only the last record of each task. The group of a run with a recipe is the
    recipe, and its cores and memory are the recipe's.
    """
    state = os.path.join(os.fspath(directory), ".premix")
    if not os.path.isdir(state):
        raise PremixError(f"{os.fspath(directory)} is not a directory of premix")
    common: Record = {}
    queue = os.path.join(state, "queue")
    if os.path.isdir(queue):
        state = queue
    else:
        common = _recipe(os.path.join(state, "plan.jsonl"))
    found = Records()
    for path in sorted(glob.glob(os.path.join(glob.escape(state), "journal-*.jsonl"))):
        found += ({**common, **record} for record in _journal(path))
    if not last:
        return found
    best: Dict[int, Record] = {}
    for record in found:
        before = best.get(record["task"])
        if before is None or record["try"] >= before["try"]:
            best[record["task"]] = record
    return Records(best[task] for task in sorted(best))


def _recipe(plan: str) -> Record:
    """Return the fields that all records of a run with a recipe have in common."""
    try:
        with open(plan, "rb") as file:
            header = json.loads(file.readline())
    except (OSError, ValueError) as e:
        raise PremixError(f"{plan} is not the plan of a run") from e
    return {"group": header["recipe"], "cores": header.get("threads") or 1, "memory": header.get("memory", 0)}


def _journal(path: str) -> List[Record]:
    with open(path, "rb") as file:
        lines = file.read().split(b"\n")
    lines.pop()  # a line without its end is not whole
    try:
        header = json.loads(lines[0])
    except (IndexError, ValueError):
        return []  # it was begun, and never whole
    if header.get("format", 0) > _FORMAT:
        raise PremixError(f"{path} has format {header['format']}: a newer premix wrote it")
    found = []
    for line in lines[1:]:
        try:
            record = json.loads(line)
        except ValueError:
            continue  # torn by a crash
        if isinstance(record, dict) and "task" in record and "try" in record:
            found.append(record)
    return found
