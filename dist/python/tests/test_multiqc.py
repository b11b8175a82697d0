"""The module of MultiQC, with the real MultiQC."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import premix

pytest.importorskip("multiqc")

PROJECT = Path(__file__).parents[1]


def install(site: Path) -> None:
    """Make the entry points of the package known, as its installation does."""
    info = site / "premix-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: premix\nVersion: 0\n")
    points = re.findall(r'^\[project\.entry-points\."(.*)"\]\n(\w+) = "(.*)"$', (PROJECT / "pyproject.toml").read_text(), re.MULTILINE)
    assert len(points) == 2
    (info / "entry_points.txt").write_text("".join(f"[{group}]\n{name} = {value}\n" for group, name, value in points))


def test_report(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    with premix.Queue(runs / "tasks") as queue:
        queue.map(["sleep 0.1"] * 3, group="align", cores=2, memory="64M")
        queue.submit("test $PREMIX_TRY = 2", group="call", retries=1)
        queue.submit("exit 3", group="call")
    (tmp_path / "cat.yaml").write_text(
        "name: cat\ncommand: cat ${r1}\ninputs: [r1]\noutputs: {stdout: '${sample}.txt'}\nmemory: 100M\nthreads: 2\n"
    )
    (tmp_path / "samples.csv").write_text("sample,r1\nA,cat.yaml\nB,cat.yaml\n")
    command = [premix.find_premix(), "run", "cat.yaml", "samples.csv", "--out", "runs/recipe", "--start", "cold", "--quiet"]
    subprocess.run(command, cwd=tmp_path, check=True)
    install(tmp_path / "site")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), str(PROJECT / "src")])}
    command = [sys.executable, "-m", "multiqc", "--strict", "--no-ansi", "-o", "report", "runs"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    with open(tmp_path / "report" / "multiqc_data" / "multiqc_data.json") as file:
        steps = json.load(file)["report_saved_raw_data"]["multiqc_premix"]
    assert sorted(steps) == ["recipe | cat", "tasks | align", "tasks | call"]
    align, call, recipe = steps["tasks | align"], steps["tasks | call"], steps["recipe | cat"]
    assert (align["tasks"], align["failed"], align["cold"], align["memory_asked"]) == (3, 0, 3, 64)
    assert align["wall"] >= 0.1 and align["efficiency"] < 100
    assert (call["tasks"], call["failed"], call["tries"]) == (2, 1, 3)
    assert (recipe["tasks"], recipe["hot"], recipe["cold"], recipe["memory_asked"]) == (2, 0, 2, 100)
    page = (tmp_path / "report" / "multiqc_report.html").read_text()
    assert "premix-steps" in page and "premix-starts" in page
    assert os.path.getsize(tmp_path / "report" / "multiqc_report.html") > 100000
