"""The examples of docs/python.md, each in a directory of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[3] / "docs" / "python.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", DOCS.read_text(), re.DOTALL | re.MULTILINE)

# Lines of their output, where it is always the same.
PRINTED = ["19\n", "1 0 True\n", "3 there is no sample\n\n", "1\t2\n3\t4\n5\t6\n7\t8\n9\t10\n\n", "1905\n6\n", "", "b'7\\n'\n"]


def test_all_examples_are_known() -> None:
    assert len(EXAMPLES) == len(PRINTED)


@pytest.mark.parametrize("number", range(len(PRINTED)))
def test_example(number: int, tmp_path: Path) -> None:
    program = tmp_path / "example.py"
    program.write_text(EXAMPLES[number])
    done = subprocess.run([sys.executable, program], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, PRINTED[number]), done.stderr
