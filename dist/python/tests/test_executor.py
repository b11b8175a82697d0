"""Python calls: Executor on the real premix."""

from __future__ import annotations

import concurrent.futures
import math
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Iterator

import pytest

import premix

LIMIT = 120


@pytest.fixture
def executor(tmp_path: Path) -> Iterator[premix.Executor]:
    with premix.Executor(tmp_path / "tasks", max_workers=2) as executor:
        yield executor


class Strange(Exception):
    """It cannot be made again from its pickled form."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__(a + b)


def strange() -> None:
    raise Strange(1, 2)


def own_process() -> int:
    return os.getpid()


def kill() -> None:
    os.kill(os.getpid(), 9)


def test_calls(executor: premix.Executor) -> None:
    assert isinstance(executor, concurrent.futures.Executor)
    assert executor.submit(pow, 2, 5).result(timeout=LIMIT) == 32
    assert executor.submit(int, "ff", base=16).result(timeout=LIMIT) == 255
    assert list(executor.map(math.sqrt, [4, 9], timeout=LIMIT)) == [2, 3]
    assert list(executor.map(pow, range(10), range(10), chunksize=3)) == [n**n for n in range(10)]
    assert executor.submit(own_process).result(timeout=LIMIT) != os.getpid()


def test_futures_as_arguments(executor: premix.Executor) -> None:
    a = executor.submit(pow, 2, 3)
    b = executor.submit(pow, a, 2)
    c = executor.submit(max, a, b)
    assert executor.submit(divmod, c, a).result(timeout=LIMIT) == (8, 0)


def test_exceptions(executor: premix.Executor) -> None:
    failed = executor.submit(int, "x")
    with pytest.raises(ValueError, match="invalid literal") as caught:
        failed.result(timeout=LIMIT)
    cause = caught.value.__cause__
    assert isinstance(cause, premix.TaskError) and cause.exit == 1 and "ValueError" in cause.stderr
    assert isinstance(executor.submit(strange).exception(timeout=LIMIT), premix.TaskError)
    left = executor.submit(sys.exit, 5).exception(timeout=LIMIT)
    assert isinstance(left, premix.TaskError) and "SystemExit" in left.stderr
    killed = executor.submit(kill).exception(timeout=LIMIT)
    assert isinstance(killed, premix.TaskError) and killed.signal == 9
    # A result that cannot be pickled is the failure of its task.
    assert isinstance(executor.submit(threading.Lock).exception(timeout=LIMIT), TypeError)


def test_arguments_are_taken_at_once(executor: premix.Executor) -> None:
    values = [1, 2]
    future = executor.submit(sum, values)
    values.append(3)
    assert future.result(timeout=LIMIT) == 3


def test_shutdown_cancels(tmp_path: Path) -> None:
    executor = premix.Executor(max_workers=1)
    executor.submit(os.stat, "/").result(timeout=LIMIT)
    import time

    futures = [executor.submit(time.sleep, 3000) for _ in range(5)]
    executor.shutdown(cancel_futures=True)
    assert all(f.cancelled() for f in futures)
    assert not os.path.exists(executor.queue.directory)
    with pytest.raises(RuntimeError):
        executor.submit(pow, 1, 1)


def test_functions_of_the_program(tmp_path: Path) -> None:
    """Functions and classes of __main__, with the standard pickle and a guard."""
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            """
            import sys
            sys.modules["cloudpickle"] = None
            import premix

            class Pair:
                def __init__(self, a, b):
                    self.a, self.b = a, b

            def swap(pair):
                return Pair(pair.b, pair.a)

            if __name__ == "__main__":
                with premix.Executor(sys.argv[1]) as executor:
                    pair = executor.submit(swap, Pair(1, 2)).result()
                    assert type(pair) is Pair
                    print(pair.a, pair.b)
            """
        )
    )
    done = subprocess.run([sys.executable, program, tmp_path / "tasks"], capture_output=True, text=True, timeout=LIMIT)
    assert done.stdout == "2 1\n", done.stderr
    interactive = "import sys; sys.modules['cloudpickle'] = None; import premix\ndef f(): pass\npremix.Queue(sys.argv[1]).submit(f)"
    done = subprocess.run([sys.executable, "-c", interactive, tmp_path / "tasks"], capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 1 and "install cloudpickle" in done.stderr


def test_cloudpickle(tmp_path: Path) -> None:
    pytest.importorskip("cloudpickle")
    with premix.Executor(tmp_path / "tasks") as executor:
        offset = 3
        assert list(executor.map(lambda n: n + offset, [1, 2])) == [4, 5]
