"""Futures of commands: Queue on the real premix."""

from __future__ import annotations

import concurrent.futures
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Callable, List

import pytest

import premix

LIMIT = 120  # seconds, after which something hangs


@pytest.fixture
def queue(tmp_path: Path) -> "premix.Queue":
    return premix.Queue(tmp_path / "tasks")


def comes(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_ten_thousand(queue: premix.Queue) -> None:
    with queue:
        futures = queue.map(["true"] * 10000)
        concurrent.futures.wait(futures, timeout=2 * LIMIT)
        assert [f.result(timeout=0).number for f in futures] == list(range(1, 10001))
    records = queue.records()
    assert sorted(r["task"] for r in records) == list(range(1, 10001))


def test_result(queue: premix.Queue, tmp_path: Path) -> None:
    with queue:
        future = queue.submit("echo $X; echo err >&2; pwd", name="n", env={"X": "a b"}, cwd=tmp_path, cores=2, retries=1)
        result = future.result(timeout=LIMIT)
        assert result.stdout == b"a b\n" + os.fsencode(tmp_path) + b"\n"
        assert result.stderr == b"err\n" and future.stderr() == b"err\n"
        assert (result.name, result.record["cores"], result.record.get("exit", 0)) == ("n", 2, 0)
        listed = queue.submit(["printf", "%s|", "a b", Path("c")])
        assert listed.result(timeout=LIMIT).stdout == b"a b|c|"
        assert "it succeeded in try 1" in listed.why()
        assert not listed.running() and not listed.cancel()


def test_resources_and_input(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("from a file")
    with premix.Queue(tmp_path / "tasks", resources={"gpu": 2}) as queue:
        futures = queue.map(["echo $CUDA_VISIBLE_DEVICES; sleep 0.2"] * 4, resources={"gpu": 1})
        both = queue.submit("echo $CUDA_VISIBLE_DEVICES", resources={"gpu": 2})
        read = queue.submit("cat", cwd=tmp_path, stdin="in.txt")
        ids = {f.result(timeout=LIMIT).stdout for f in futures}
        assert ids <= {b"0\n", b"1\n"}
        assert sorted(both.result(timeout=LIMIT).stdout.split()[0].split(b",")) == [b"0", b"1"]
        assert read.result(timeout=LIMIT).stdout == b"from a file"


def test_diamond(queue: premix.Queue, tmp_path: Path) -> None:
    with queue:
        top = queue.submit("test -e go && echo 1 >top", cwd=tmp_path, retries=0, stdout=tmp_path / "top.out")
        left = queue.submit("cat top >left", cwd=tmp_path, after=[top])
        right = queue.submit("cat top >right", cwd=tmp_path, after=[top])
        bottom = queue.submit("cat left right", cwd=tmp_path, after=[left, right])
        # None of this may begin before the top has succeeded; and it has not.
        with pytest.raises(premix.DependencyError) as caught:
            bottom.result(timeout=LIMIT)
        # The cause is the task that failed, not those between the two.
        assert caught.value.future is top and caught.value.number == top.number == 1
        assert caught.value.__cause__ is top.exception()
        assert isinstance(left.exception(LIMIT), premix.DependencyError) and not (tmp_path / "left").exists()
        (tmp_path / "go").touch()
        top = queue.submit("test -e go && echo 1 >top && echo a b", cwd=tmp_path, stdout=tmp_path / "top.out")
        left = queue.submit(["cp", top, "left"], cwd=tmp_path)
        length = queue.submit(len, "four", after=[top], cwd=tmp_path)
        last = queue.submit(["echo", left, length], cwd=tmp_path)
        with pytest.raises(TypeError):  # left has no file of its own
            last.result(timeout=LIMIT)
        bottom = queue.submit(["printf", "%s-", length, top], cwd=tmp_path, after=[left])
        assert bottom.result(timeout=LIMIT).stdout == b"4-" + os.fsencode(tmp_path / "top.out") + b"-"
        assert (tmp_path / "left").read_text() == "a b\n"


def test_long_chain(queue: premix.Queue) -> None:
    with queue:
        chain: List[premix.Future[premix.Result]] = [queue.submit("sleep 0.2; false")]
        for _ in range(3000):
            chain.append(queue.submit("true", after=[chain[-1]]))
        error = chain[-1].exception(timeout=LIMIT)
        assert isinstance(error, premix.DependencyError) and error.future is chain[0]
        assert queue.wait(LIMIT)
    assert [r["task"] for r in queue.records()] == [1]


def test_graph_of_single_tasks(queue: premix.Queue, tmp_path: Path) -> None:
    with queue:
        begin = queue.submit("while [ ! -e go ]; do sleep 0.05; done", cwd=tmp_path)
        layers: List[List[premix.Future[premix.Result]]] = [[begin]]
        for n in range(1, 6):
            check = f"test $(ls | grep -c ^{n - 1}-) = {50 if n > 1 else 0} && touch {n}-$PREMIX_TASK"
            layers.append([queue.submit(check, cwd=tmp_path, after=layers[-1]) for _ in range(50)])
        comes(lambda: layers[-1][-1].number is not None)  # all are tasks before the first one has ended
        assert "it waits for task" in layers[-1][-1].why() and not any(f.done() for f in layers[1])
        (tmp_path / "go").touch()
        assert [f.result(LIMIT).number for layer in layers for f in layer] == list(range(1, 252))
        # Names that users give stay, and others get none.
        named = queue.submit("true", name="given", after=[begin])
        assert queue.submit("true", after=[named]).result(LIMIT).name == "" == begin.result().name
        assert named.result().name == "given"
        many = queue.submit("true", after=[f for layer in layers for f in layer])
        assert many.result(LIMIT).number == 254


def test_wrong_tasks_and_those_after_them(queue: premix.Queue) -> None:
    with queue:
        wrong = queue.submit("true", memory="lots")
        chain = [queue.submit("true", after=[wrong])]
        for _ in range(20):
            chain.append(queue.submit("true", after=[chain[-1]]))
        right = queue.submit("true")
        assert isinstance(wrong.exception(LIMIT), premix.CommandError)
        for before, future in zip([wrong, *chain], chain):
            error = future.exception(LIMIT)
            assert isinstance(error, premix.DependencyError) and error.future is before and error.number is None
        assert right.result(LIMIT).number == 1


def test_after_another_directory(queue: premix.Queue, tmp_path: Path) -> None:
    with queue, premix.Queue(tmp_path / "others") as others, premix.Queue(queue.directory) as same:
        slow = others.submit("sleep 0.3; touch slow; echo x", cwd=tmp_path, stdout="slow.out")
        held = queue.submit(["sh", "-c", "test -e slow && cat $0 && touch held", slow], cwd=tmp_path)
        last = queue.submit("test -e held", cwd=tmp_path, after=[held])
        third = same.submit("test -e held", cwd=tmp_path, after=[held])
        assert held.result(LIMIT).stdout == b"x\n"
        last.result(LIMIT), third.result(LIMIT)
        failed = others.submit("sleep 0.3; false")
        for future in (queue.submit("true", after=[failed]), same.submit("true", after=[failed])):
            error = future.exception(LIMIT)
            assert isinstance(error, premix.DependencyError) and error.future is failed


def test_failure(queue: premix.Queue) -> None:
    with queue:
        future = queue.submit("echo some words >&2; echo more >&2; exit 3", name="n")
        with pytest.raises(premix.TaskError) as caught:
            future.result(timeout=LIMIT)
        e = caught.value
        assert (e.number, e.name, e.exit, e.signal, e.cause) == (1, "n", 3, 0, "exit")
        assert e.stderr == "some words\nmore\n" and "exit 3" in e.command
        assert "some words" in str(e) and "status 3" in str(e)
        assert str(pickle.loads(pickle.dumps(e))) == str(e)
        killed = queue.submit("kill -9 $$").exception(timeout=LIMIT)
        assert isinstance(killed, premix.TaskError) and (killed.signal, killed.cause) == (9, "signal")
        late = queue.submit("sleep 3000", timeout=0.2).exception(timeout=LIMIT)
        assert isinstance(late, premix.TaskError) and late.cause == "timeout"


def test_wrong_tasks_fail_alone(queue: premix.Queue) -> None:
    with queue:
        futures = [queue.submit("true", memory="lots" if n % 3 == 0 else "1M") for n in range(60)]
        for n, future in enumerate(futures):
            error = future.exception(timeout=LIMIT)
            if n % 3 == 0:
                assert isinstance(error, premix.CommandError) and error.status == 2 and "lots" in str(error)
            else:
                assert error is None
    assert len(queue.records()) == 40


def test_refused_at_once(queue: premix.Queue) -> None:
    with queue:
        invalid: List[Any] = ["", [], "echo \udcff", ["a", "\udcff"]]
        for command in invalid:
            with pytest.raises(ValueError):
                queue.submit(command)
        wrong: List[Any] = [5, b"true", ["a", 5], ["a", b"b"]]
        for command in wrong:
            with pytest.raises(TypeError):
                queue.submit(command)
        with pytest.raises(TypeError):
            queue.submit("echo", "a")  # type: ignore[call-overload]
    with pytest.raises(RuntimeError):
        queue.submit("true")
    assert not os.path.exists(queue.directory)


def test_cancel(queue: premix.Queue, tmp_path: Path) -> None:
    with queue:
        running = queue.submit("touch begun; sleep 3000", cwd=tmp_path)
        after = queue.submit("touch after", cwd=tmp_path, after=[running])
        comes((tmp_path / "begun").exists)
        comes(running.running)
        assert running.cancel() and running.cancelled() and running.cancel()
        assert isinstance(after.exception(timeout=LIMIT), premix.DependencyError)
        waits = concurrent.futures.Future()  # type: ignore[var-annotated]
        dependent = queue.submit("true", after=[waits])
        assert dependent.cancel() and dependent.cancelled()
        waits.set_result(None)
        many = queue.map(["sleep 3000"] * 50)
        assert queue.cancel(many) == 50
        done, _ = concurrent.futures.wait(many, timeout=LIMIT)
        assert len(done) == 50 and all(f.cancelled() for f in many)
        done_before = queue.submit("true")
        done_before.result(timeout=LIMIT)
        assert not done_before.cancel()
    assert not (tmp_path / "after").exists()


def test_cancelled_elsewhere(queue: premix.Queue) -> None:
    with queue:
        future = queue.submit("sleep 3000")
        comes(lambda: future.number is not None)
        subprocess.run([premix.find_premix(), "task", "cancel", queue.directory, "1"], check=True)
        with pytest.raises(concurrent.futures.CancelledError):
            future.result(timeout=LIMIT)


def test_callbacks(queue: premix.Queue) -> None:
    seen: "List[concurrent.futures.Future[premix.Result]]" = []
    over = threading.Event()

    def note(future: "concurrent.futures.Future[premix.Result]") -> None:
        seen.append(future)
        if len(seen) == 20:
            over.set()

    with queue:
        futures = queue.map(["true"] * 20)
        for future in futures:
            future.add_done_callback(note)
        assert over.wait(LIMIT) and set(seen) == set(futures)
        assert set(concurrent.futures.as_completed(futures, timeout=LIMIT)) == set(futures)


PROGRAM = """
import sys, premix
queue = premix.Queue(sys.argv[1], jobs=2)
futures = queue.map(["while [ ! -e go ]; do sleep 0.05; done; echo $PREMIX_TASK"] * 20 + ["exit 7"])
futures += [queue.submit(divmod, 7, 2)]
while futures[-1].number is None:
    pass
print("submitted", flush=True)
queue.wait()
"""


def test_killed_and_attached_again(tmp_path: Path) -> None:
    directory = tmp_path / "tasks"
    program = subprocess.Popen([sys.executable, "-c", PROGRAM, directory], stdout=subprocess.PIPE, cwd=tmp_path)
    assert program.stdout is not None and program.stdout.readline() == b"submitted\n"
    program.kill()
    program.wait()
    program.stdout.close()
    # The premix of that process goes on with what it has, and then ends.
    with premix.Queue(directory) as queue:
        futures = queue.futures()
        assert len(futures) == 22 and not any(f.done() for f in futures)
        (tmp_path / "go").touch()
        assert [f.result(timeout=LIMIT).stdout for f in futures[:20]] == [b"%d\n" % n for n in range(1, 21)]
        assert isinstance(futures[20].exception(timeout=LIMIT), premix.TaskError)
        assert futures[21].result(timeout=LIMIT) == (3, 1)
        # Others can be added, and those that have ended are there at once.
        assert queue.submit("echo more").result(timeout=LIMIT).stdout == b"more\n"
        assert queue.future(3).result(timeout=LIMIT).stdout == b"3\n"
        with pytest.raises(premix.CommandError):
            queue.future(99)
    assert len(queue.records()) == 23


CHAIN = """
import sys, premix
queue = premix.Queue(sys.argv[1], jobs=2)
chain = [queue.submit("while [ ! -e go ]; do sleep 0.05; done; echo 0 >0", stdout="first")]
for n in range(1, 20):
    chain.append(queue.submit(f"test $(cat {n - 1}) = {n - 1} && echo {n} >{n}", after=[chain[-1]]))
chain.append(queue.submit(["cat", chain[0]]))
chain += [queue.submit("exit 7", after=[chain[-1]])]
chain += [queue.submit("touch never", after=[chain[-1]])]
chain += [queue.submit("touch never", after=[chain[-1]])]
while chain[-1].number is None:
    pass
print("submitted", flush=True)
queue.wait()
"""


def test_chain_is_finished_after_a_kill(tmp_path: Path) -> None:
    directory = tmp_path / "tasks"
    program = subprocess.Popen([sys.executable, "-c", CHAIN, directory], stdout=subprocess.PIPE, cwd=tmp_path)
    assert program.stdout is not None and program.stdout.readline() == b"submitted\n"
    program.kill()
    program.wait()
    program.stdout.close()
    (tmp_path / "go").touch()
    # Nobody but the premix of that process is there.
    comes(lambda: len(premix.records(directory)) == 22)
    assert (tmp_path / "19").read_text() == "19\n" and not (tmp_path / "never").exists()
    with premix.Queue(directory, run=False) as queue:
        futures = queue.futures()
        assert [f.result(LIMIT).record["try"] for f in futures[:21]] == [1] * 21
        failed = futures[21].exception(LIMIT)
        assert isinstance(failed, premix.TaskError) and failed.exit == 7
        for future in futures[22:]:
            error = future.exception(LIMIT)
            assert isinstance(error, premix.DependencyError) and error.number == 22
            assert error.future is futures[21] and error.__cause__ is failed
    with premix.Queue(directory, run=False) as queue:
        error = queue.future(24).exception(LIMIT)  # the cause has no future here
        assert isinstance(error, premix.DependencyError) and error.number == 22
        assert isinstance(error.__cause__, premix.TaskError) and error.__cause__.exit == 7


def test_premix_is_killed(queue: premix.Queue, tmp_path: Path) -> None:
    with queue:
        first = queue.submit("touch begun; [ -e go ] || sleep 3000; echo ok", cwd=tmp_path)
        comes((tmp_path / "begun").exists)
        (tmp_path / "go").touch()
        assert queue._runner is not None
        queue._runner.send_signal(signal.SIGKILL)
        assert first.result(timeout=LIMIT).stdout == b"ok\n"
        comes(lambda: queue._follower is not None)
        assert queue._follower is not None
        queue._follower.send_signal(signal.SIGKILL)
        assert queue.submit("echo ok").result(timeout=LIMIT).stdout == b"ok\n"


def test_stop_and_go_on(queue: premix.Queue, tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        with queue:
            future = queue.submit("touch begun; [ -e go ] || sleep 3000; echo ok", cwd=tmp_path)
            comes((tmp_path / "begun").exists)
            1 / 0
    with pytest.raises(premix.PremixError):
        future.result(timeout=LIMIT)
    (tmp_path / "go").touch()
    with premix.Queue(queue.directory) as again:
        assert again.future(1).result(timeout=LIMIT).stdout == b"ok\n"


def test_two_queues(queue: premix.Queue) -> None:
    with queue, premix.Queue(queue.directory) as other:
        mine = [queue.submit("echo a") for _ in range(30)]
        theirs = [other.submit("echo b") for _ in range(30)]
        assert {f.result(timeout=LIMIT).stdout for f in mine} == {b"a\n"}
        assert {f.result(timeout=LIMIT).stdout for f in theirs} == {b"b\n"}


def test_premix_that_cannot_run(tmp_path: Path) -> None:
    with premix.Queue(tmp_path / "tasks", engine_options={"frobnicate": 1}) as queue:
        error = queue.submit("true").exception(timeout=LIMIT)
    assert isinstance(error, premix.CommandError) and error.status == 2 and "frobnicate" in str(error)


def test_premix_that_does_not_stay(queue: premix.Queue) -> None:
    queue._options.remove("--stay")  # as with other engines
    with queue:
        for n in range(8):
            assert queue.submit(f"echo {n}").result(timeout=LIMIT).stdout == b"%d\n" % n


def test_call_under_umask_zero(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with premix.Queue(tmp_path / "tasks") as queue:
            assert queue.submit(os.getpid).result(LIMIT) > 0
    finally:
        os.umask(before)


def test_left_without_close(tmp_path: Path) -> None:
    program = "import sys, premix; q = premix.Queue(sys.argv[1]); f = q.submit('echo 1 >a'); q.submit('cat a >b', after=[f])"
    subprocess.run([sys.executable, "-c", program, tmp_path / "tasks"], cwd=tmp_path, check=True, timeout=LIMIT)
    assert (tmp_path / "b").read_text() == "1\n"


def test_records(queue: premix.Queue) -> None:
    with queue:
        queue.submit("test $PREMIX_TRY = 2", retries=1, group="g").result(timeout=LIMIT)
    tries = queue.records()
    assert [(r["try"], r.get("cause", "")) for r in tries] == [(1, "exit"), (2, "")]
    assert [r["try"] for r in premix.records(queue.directory, last=True)] == [2]
    with open(os.path.join(queue.directory, ".premix", "queue", "journal-0001.jsonl"), "a") as journal:
        journal.write('{"task":1,"try":3')  # not whole
    assert len(queue.records()) == 2
    with pytest.raises(premix.PremixError):
        premix.records("/proc")


def test_frames(queue: premix.Queue) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    with queue:
        queue.map(["true", "echo x"], cores=2)
    frame = queue.records().to_pandas()
    assert list(frame["cores"]) == [2, 2] and list(frame["exit"]) == [0, 0]
    assert (frame["ended"] - frame["started"] >= pandas.Timedelta(0)).all()
    table = queue.records().to_arrow()
    assert table.num_rows == 2 and str(table.schema.field("queued").type) == "timestamp[ns, tz=UTC]"
