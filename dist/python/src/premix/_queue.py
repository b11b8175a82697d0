"""A directory of tasks, and futures of its tasks.

Three threads serve a queue, with a process each: one submits the tasks that have gathered
(`premix task submit`), one has tasks run (`premix task run --stay`), and one reads the
results (`premix task follow --stay`). When this process is killed, the standard input of
the two that stay ends: the tasks that were submitted are run, and then nothing is left.

A future that comes after others of its directory is a task at once, with edges to theirs:
premix starts it in time, also without this process. Only a future that needs a result as a
value, or a future from elsewhere, is kept here until that is there (see Queue._await).
"""

from __future__ import annotations

import atexit
import collections
import concurrent.futures
import contextlib
import functools
import json
import os
import pickle
import shlex
import signal
import subprocess
import sys
import threading
import time
import uuid
import weakref
from types import TracebackType
from typing import (
    Any,
    Callable,
    Deque,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
    Type,
    TypeVar,
    Union,
    cast,
    overload,
)

from . import _call
from ._binary import CommandError, PremixError, find_premix, run
from ._records import Record, Records, records

T = TypeVar("T")
AnyFuture = concurrent.futures.Future  # of this package, or another one
Path = Union[str, "os.PathLike[str]"]
Word = Union[str, "os.PathLike[str]", "concurrent.futures.Future[Any]"]
Command = Union[str, Sequence[Word]]
Size = Union[int, str]

# Most tasks of one submission.
_MOST = 20000

# How long to wait before a process that has ended too early is started again, and how often.
_PAUSE = 0.2
_STARTS = 5


class TaskError(PremixError):
    """A task failed."""

    def __init__(self, explanation: Mapping[str, Any]) -> None:
        record = explanation.get("record") or {}
        self.number: int = explanation["task"]
        self.name: str = explanation.get("name", "")
        self.command: str = explanation["command"]
        #: The exit status; -1 without one.
        self.exit: int = record.get("exit", -1)
        #: The number of the signal that killed it; 0 without one.
        self.signal: int = record.get("signal", 0)
        #: One of the causes of docs/run.md, such as exit, memory or timeout.
        self.cause: str = record.get("cause", "")
        self.reason: str = explanation["why"]
        self.hint: str = explanation.get("hint", "")
        #: The last lines of its standard error; Future.stderr returns all of it.
        self.stderr: str = "".join(line + "\n" for line in explanation.get("stderr") or [])
        self.record: Record = dict(record)
        name = f" ({self.name})" if self.name else ""
        text = f"task {self.number}{name}: {self.reason}\ncommand: {self.command}"
        if self.stderr:
            text += f"\nstderr:\n{self.stderr}"
        super().__init__(text)

    def __reduce__(self) -> Tuple[Any, ...]:
        explanation = {
            "task": self.number, "name": self.name, "command": self.command,
            "why": self.reason, "hint": self.hint, "stderr": self.stderr.splitlines(),
            "record": self.record,
        }  # fmt: skip
        return (TaskError, (explanation,))


class DependencyError(PremixError):
    """A future was not begun, since one that it comes after has failed or was cancelled.

    That one, which may be several steps before it, is in the attribute future, its number in
    the directory in number, and its exception is __cause__. They are None where a group that
    other programs have submitted is the cause.
    """

    def __init__(self, future: "Optional[concurrent.futures.Future[Any]]", why: str = "") -> None:
        self.future = future
        self.number: Optional[int] = future.number if isinstance(future, Future) else None
        if future is None:
            super().__init__(why)
            return
        name = f"task {self.number}" if self.number else "one"
        how = "was cancelled" if future.cancelled() else "failed"
        super().__init__(f"{name}, which it comes after, {how}")
        if not future.cancelled():
            self.__cause__ = future.exception()


class _Traceback(Exception):
    """The traceback of an exception in another process, as text."""

    def __str__(self) -> str:
        return f"\n\n{self.args[0]}"


class Result:
    """The result of a command that succeeded."""

    def __init__(self, queue: "Queue", explanation: Mapping[str, Any]) -> None:
        self._queue = queue
        self.number: int = explanation["task"]
        self.name: str = explanation.get("name", "")
        self.command: str = explanation["command"]
        #: The record of its last try.
        self.record: Record = explanation["record"]
        self.seconds: float = self.record["seconds"]

    @property
    def stdout(self) -> bytes:
        """Its standard output."""
        return self._queue._tail(self.number)

    @property
    def stderr(self) -> bytes:
        """Its standard error."""
        return self._queue._tail(self.number, "--stderr")

    def __repr__(self) -> str:
        return f"<Result of task {self.number}: {self.command}>"


class Future(concurrent.futures.Future[T]):
    """A future of a task.

    concurrent.futures.wait and as_completed take it.
    """

    def __init__(self, queue: "Queue", name: str = "") -> None:
        super().__init__()
        self.queue = queue
        self.name = name
        #: Its number in the directory; None before it was submitted.
        self.number: Optional[int] = None
        self._stdout: Optional[str] = None  # the file that it writes
        self._queued = False  # its task is to be submitted, or was
        self._then: List[Callable[[], object]] = []  # called when it is queued or done
        self._claimed = False  # it is being submitted, or was
        self._dropped = False  # it is not to be submitted
        self._ending = False

    def cancel(self) -> bool:
        """Cancel the task, also if it runs; return False if it has ended."""
        return self.queue.cancel([self]) == 1

    def running(self) -> bool:
        """Report whether the task runs now. It asks premix."""
        return not self.done() and self.number is not None and self.queue._runs(self.number)

    def stdout(self) -> bytes:
        """Return its standard output, so far or of its last try."""
        return self.queue._tail(self._known())

    def stderr(self) -> bytes:
        """Return its standard error, so far or of its last try."""
        return self.queue._tail(self._known(), "--stderr")

    def why(self) -> str:
        """Return the reason why it waits or failed, in one sentence."""
        if self.number is None:
            return "it was not submitted yet"
        return str(self.queue._explain(self.number)["why"])

    def _known(self) -> int:
        if self.number is None:
            raise PremixError("it was not submitted yet, and has no output")
        return self.number

    def _begin_end(self) -> bool:
        with self._condition:
            first, self._ending = not self._ending, True
        return first

    def _end_cancelled(self) -> bool:
        """Make it cancelled, if it is not done."""
        if not self._begin_end():
            return False
        super().cancel()
        self.set_running_or_notify_cancel()
        return True

    def _end(self, value: Any, error: Optional[BaseException]) -> None:
        """Set its result or its exception, if it is not done."""
        if not self._begin_end():
            return
        self.set_running_or_notify_cancel()
        if error is not None:
            self.set_exception(error)
        else:
            self.set_result(value)


class _Task(NamedTuple):
    """A task that is to be submitted."""

    future: Future[Any]
    spec: Dict[str, Any]
    command: Union[str, List[str]]
    after: Tuple[Future[Any], ...]  # tasks of the directory that it comes after


class Queue:
    """Tasks in a directory, which premix runs.

    jobs, cores and memory are limits on all tasks together, and resources are things that
    tasks hold besides, such as {"gpu": 4}. engine is local, slurm or
    kubernetes, and engine_options its options, as in premix task run. With run=False tasks
    are submitted here, and another premix runs them.
    """

    def __init__(
        self,
        directory: Path,
        *,
        jobs: Optional[int] = None,
        cores: Optional[int] = None,
        memory: Optional[Size] = None,
        resources: Optional[Mapping[str, int]] = None,
        engine: str = "local",
        engine_options: Optional[Mapping[str, object]] = None,
        run: bool = True,
        premix: Optional[Path] = None,
    ) -> None:
        self.directory = os.path.abspath(os.fspath(directory))
        self._premix = os.fspath(premix) if premix is not None else find_premix()
        # Another engine shows that it does not answer only to a premix that does not stay.
        self._options = ["--stay"] if engine == "local" else []
        for flag, value in (("--jobs", jobs), ("--cores", cores), ("--memory", memory)):
            if value is not None:
                self._options.append(f"{flag}={value}")
        for name, number in (resources or {}).items():
            self._options.append(f"--resource={name}={number}")
        if engine != "local":
            self._options.append(f"--engine={engine}")
        for key, option in (engine_options or {}).items():
            self._options.append(f"--engine-opt={key}={option}")
        self._runs_tasks = run

        # changed guards the fields below, and is notified of each change.
        self._changed = threading.Condition()
        self._ready: Deque[_Task] = collections.deque()
        self._open: Set[Future[Any]] = set()  # that are not done
        self._tasks: Dict[int, Future[Any]] = {}  # those of them that were submitted
        # All that were submitted and are still held: they may be the cause of others' fates.
        self._known: "weakref.WeakValueDictionary[int, Future[Any]]" = weakref.WeakValueDictionary()
        self._early: Dict[int, Dict[str, Any]] = {}  # results that came before their numbers
        self._submitting = False
        self._ended_since = False  # a task has ended since the runner was started
        self._first: Optional[int] = None  # the lowest task that is followed
        self._threads: List[threading.Thread] = []
        self._runner: Optional["subprocess.Popen[bytes]"] = None
        self._follower: Optional["subprocess.Popen[bytes]"] = None
        self._closing = False  # nothing more is submitted
        self._closed = False  # no process is started again
        self._signal: Optional[signal.Signals] = None  # for the runner, if it was closed so
        # Outcomes that are to be delivered, so that a long chain is no deep recursion.
        self._outcomes: Deque[Callable[[], object]] = collections.deque()
        self._delivering = threading.local()
        _queues.add(self)

    # Submitting

    @overload
    def submit(
        self,
        task: Command,
        /,
        *,
        name: str = ...,
        group: str = ...,
        after: Iterable["concurrent.futures.Future[Any]"] = ...,
        cwd: Optional[Path] = ...,
        env: Optional[Mapping[str, str]] = ...,
        cores: Optional[int] = ...,
        memory: Optional[Size] = ...,
        timeout: Union[None, int, float, str] = ...,
        retries: int = ...,
        priority: int = ...,
        resources: Optional[Mapping[str, int]] = ...,
        stdin: Optional[Path] = ...,
        stdout: Optional[Path] = ...,
        stderr: Optional[Path] = ...,
    ) -> Future[Result]: ...

    @overload
    def submit(
        self,
        task: Callable[..., T],
        /,
        *args: Any,
        kwargs: Optional[Mapping[str, Any]] = ...,
        name: str = ...,
        group: str = ...,
        after: Iterable["concurrent.futures.Future[Any]"] = ...,
        cwd: Optional[Path] = ...,
        env: Optional[Mapping[str, str]] = ...,
        cores: Optional[int] = ...,
        memory: Optional[Size] = ...,
        timeout: Union[None, int, float, str] = ...,
        retries: int = ...,
        priority: int = ...,
        resources: Optional[Mapping[str, int]] = ...,
        stdin: Optional[Path] = ...,
        stdout: Optional[Path] = ...,
        stderr: Optional[Path] = ...,
    ) -> Future[T]: ...

    def submit(
        self,
        task: Union[Command, Callable[..., Any]],
        /,
        *args: Any,
        kwargs: Optional[Mapping[str, Any]] = None,
        name: str = "",
        group: str = "",
        after: Iterable["concurrent.futures.Future[Any]"] = (),
        cwd: Optional[Path] = None,
        env: Optional[Mapping[str, str]] = None,
        cores: Optional[int] = None,
        memory: Optional[Size] = None,
        timeout: Union[None, int, float, str] = None,
        retries: int = 0,
        priority: int = 0,
        resources: Optional[Mapping[str, int]] = None,
        stdin: Optional[Path] = None,
        stdout: Optional[Path] = None,
        stderr: Optional[Path] = None,
    ) -> Future[Any]:
        """Submit a command or a Python call, and return its future.

        A command is a string for /bin/sh, or a list: a program and its arguments. Its
        result is a Result. A call is a function and its arguments; it is executed by a
        Python of its own, and its result is the function's. The other arguments are the
        fields of docs/task.md.

        A task starts when the futures in after have succeeded, and those among its own
        arguments, which are replaced by their results; in a command, by the file that the
        task writes as stdout, or by the result of a call as text. If one of them fails,
        the future has a DependencyError. Premix itself keeps to this order, so that it does
        not need this process for it, unless the result of a call is an argument.
        """
        spec: Dict[str, Any] = {"cwd": os.path.abspath(os.fspath(cwd) if cwd is not None else os.getcwd())}
        fields: Dict[str, Any] = {
            "name": name, "group": group, "cores": cores, "memory": memory, "timeout": timeout,
            "retries": retries, "priority": priority, "env": dict(env) if env else None,
            "resources": dict(resources) if resources else None,
            "stdin": None if stdin is None else os.fspath(stdin),
            "stdout": None if stdout is None else os.fspath(stdout),
            "stderr": None if stderr is None else os.fspath(stderr),
        }  # fmt: skip
        spec.update((key, value) for key, value in fields.items() if value)
        make: Callable[[], Union[str, List[str]]]
        needs: List["concurrent.futures.Future[Any]"] = []  # whose results are values here
        before = list(after)
        if callable(task):
            kwargs = dict(kwargs or {})
            needs += [v for v in (*args, *kwargs.values()) if isinstance(v, concurrent.futures.Future)]
            make = functools.partial(self._call, task, args, kwargs)
        else:
            if args or kwargs:
                raise TypeError("a command takes no arguments of its own: give a list")
            if isinstance(task, str):
                line = task
                make = lambda: line  # noqa: E731
            elif isinstance(task, Sequence) and not isinstance(task, (bytes, bytearray)):
                words = list(task)
                for word in words:
                    if isinstance(word, concurrent.futures.Future):
                        # A file has its name before it is written.
                        (before if getattr(word, "_stdout", None) else needs).append(word)
                make = functools.partial(_words, words)
            else:
                raise TypeError("a task is a string, a list of strings, or a function")
            if not task:
                raise ValueError("the command is empty")
        future: Future[Any] = Future(self, name)
        if stdout is not None:
            future._stdout = os.path.join(spec["cwd"], spec["stdout"])
        if not needs:
            command = make()  # a value that is changed later is taken as it is now
            _line(spec, command)  # a mistake is reported here
            make = lambda: command  # noqa: E731
        with self._changed:
            if self._closing:
                raise RuntimeError("the queue is closed")
            self._open.add(future)
        future.add_done_callback(self._over)
        self._await(future, spec, make, before, needs)
        return future

    def map(self, commands: Iterable[Command], **options: Any) -> List[Future[Result]]:
        """Submit many commands with the same options, and return their futures."""
        return [self.submit(command, **options) for command in commands]

    def _call(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> List[str]:
        """Write a call into a file, and return the command that executes it."""
        call = (function, tuple(map(_value, args)), {k: _value(v) for k, v in kwargs.items()})
        pickled = _call.dumps(call)
        main = None
        if not _call.by_value() and b"__main__" in pickled:
            main = getattr(sys.modules["__main__"], "__file__", None)
            if main is None:
                raise PremixError(
                    "a function of an interactive session cannot be sent to another process: "
                    "install cloudpickle, or move it to a module"
                )
            sys.modules.setdefault(_call.MAIN, sys.modules["__main__"])
        calls = os.path.join(self.directory, "calls")
        with contextlib.suppress(FileExistsError):
            # premix refuses a directory to which all users can write, as umask 0 would make it.
            os.makedirs(self.directory, 0o755, exist_ok=True)
            os.mkdir(calls, 0o700)
        path = os.path.join(calls, f"{uuid.uuid4().hex}.call")
        setting = {"path": sys.path, "main": main and os.path.abspath(main)}
        with open(path, "xb") as file:
            file.write(pickle.dumps(setting, protocol=4) + pickled)
        return [sys.executable, _call.__file__, path]

    # Dependencies: this is the one place that knows them.

    def _await(
        self,
        future: Future[Any],
        spec: Dict[str, Any],
        make: Callable[[], Union[str, List[str]]],
        before: Iterable["concurrent.futures.Future[Any]"],
        needs: Iterable["concurrent.futures.Future[Any]"],
    ) -> None:
        """Queue a future's task, with edges to those of the directory that it comes after.

        The future is kept here until then only for what no edge can express: until the
        results in needs are there, as they are written into its command; until futures of
        before have ended that are no tasks of this directory, or not yet ones, since another
        Queue submits them; and until its edges have tasks to lead to.
        """
        after = tuple(dict.fromkeys(f for f in before if isinstance(f, Future) and self._has(f)))
        missing: Set["concurrent.futures.Future[Any]"] = {*before, *needs}
        lock = threading.Lock()

        def arrived(need: "concurrent.futures.Future[Any]") -> None:
            if need.done() and (need.cancelled() or need.exception() is not None):
                self._deliver(lambda: future._end(None, DependencyError(need)))
                return
            with lock:
                missing.discard(need)
                if missing:
                    return
            self._enqueue(future, spec, make, after)

        if not missing:
            self._enqueue(future, spec, make, ())
        wait_for = set(needs)
        for need in tuple(missing):
            if need in after and need not in wait_for:
                self._when_queued(need, functools.partial(arrived, need))
            else:
                need.add_done_callback(arrived)

    def _has(self, future: Future[Any]) -> bool:
        """Report whether a future's task is in the directory, or will be put there by this queue."""
        return future.queue is self or (future.queue.directory == self.directory and future.number is not None)

    def _when_queued(self, future: Future[Any], then: Callable[[], object]) -> None:
        """Call then when a future of this directory is queued or done."""
        with self._changed:
            if not future._queued and not future.done():
                future._then.append(then)
                return
        then()

    def _enqueue(
        self,
        future: Future[Any],
        spec: Dict[str, Any],
        make: Callable[[], Union[str, List[str]]],
        after: Tuple[Future[Any], ...],
    ) -> None:
        if future.done():
            return
        try:
            command = make()
            _line(spec, command)
        except Exception as e:
            error = e
            self._deliver(lambda: future._end(None, error))
            return
        with self._changed:
            self._ready.append(_Task(future, spec, command, after))
            future._queued = True
            waiters, future._then = future._then, []
            self._begin()
            self._changed.notify_all()
        for then in waiters:
            self._deliver(then)

    def _deliver(self, outcome: Callable[[], object]) -> None:
        """Deliver an outcome, and all that it leads to, one after another."""
        self._outcomes.append(outcome)
        if getattr(self._delivering, "now", False):
            return
        self._delivering.now = True
        try:
            while True:
                try:
                    next_outcome = self._outcomes.popleft()
                except IndexError:
                    return
                next_outcome()
        finally:
            self._delivering.now = False

    def _over(self, future: "concurrent.futures.Future[Any]") -> None:
        with self._changed:
            self._open.discard(cast("Future[Any]", future))
            number = cast("Future[Any]", future).number
            if number is not None:
                self._tasks.pop(number, None)
                self._ended_since = True
            waiters, cast("Future[Any]", future)._then = cast("Future[Any]", future)._then, []
            self._changed.notify_all()
        for then in waiters:
            self._deliver(then)

    # The thread that submits

    def _begin(self) -> None:
        """Start the threads, if they were not started. The caller holds changed."""
        if self._threads:
            return
        loops = [self._submit_loop, self._follow_loop]
        if self._runs_tasks:
            loops.append(self._run_loop)
        for loop in loops:
            thread = threading.Thread(target=loop, name=f"premix {loop.__name__}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _submit_loop(self) -> None:
        while True:
            batch: List[_Task] = []
            with self._changed:
                while not self._ready and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
                while self._ready and len(batch) < _MOST:
                    task = self._ready.popleft()
                    if not task.future._dropped:
                        task.future._claimed = True
                        batch.append(task)
                self._submitting = True
            try:
                self._submit(batch)
            except Exception as e:
                for task in batch:
                    if task.future.number is None:
                        task.future._end(None, e)
            finally:
                with self._changed:
                    self._submitting = False
                    self._early.clear()
                    self._changed.notify_all()

    def _submit(self, batch: List[_Task]) -> None:
        submitted: Dict[str, int] = {}
        while batch:
            batch, lines = self._lines(batch)
            if not batch:
                break
            try:
                submitted = json.loads(
                    self._task("submit", "-", "--out", self.directory, "--format", "jsonl", stdin=b"".join(lines))
                )
                break
            except CommandError as e:
                # Nothing was submitted. A mistake names the line of its task.
                wrong = {error["line"]: error for error in e.errors if "line" in error}
                if not wrong:
                    raise
                bad = {batch[line - 1].future for line in wrong}
                for line, error in wrong.items():
                    del error["line"]
                    task = batch[line - 1]
                    if bad.isdisjoint(task.after):  # otherwise _lines finds why
                        task.future._end(None, CommandError(e.command, e.status, json.dumps(error)))
                        task.future._dropped = True
                batch = [task for task in batch if not task.future._dropped]
        if not batch:
            return
        early = []
        with self._changed:
            for number, (future, *_) in enumerate(batch, submitted["first"]):
                future.number = number
                self._tasks[number] = self._known[number] = future
                if number in self._early:
                    early.append(self._early.pop(number))
            if self._first is None:
                self._first = submitted["first"]
            self._changed.notify_all()
        for explanation in early:
            self._ended(explanation)

    def _lines(self, batch: List[_Task]) -> Tuple[List[_Task], List[bytes]]:
        """Return the tasks that can be submitted, and their lines.

        The others come after one that will not be submitted.
        """
        places: Dict[Future[Any], int] = {}
        good: List[_Task] = []
        for task in batch:
            lost = [f for f in task.after if f.number is None and f not in places]
            if not lost:
                places[task.future] = len(good)
                good.append(task)
                continue
            task.future._dropped = True
            # It is done, or is about to be.
            lost[0].add_done_callback(functools.partial(self._lose, task.future))
        named = {f for task in good for f in task.after if f.number is None}
        lines = []
        for task in good:
            edges: Dict[str, Any] = {}
            if task.future in named:
                # Without its own name it would be shown by its id.
                edges = {"name": task.future.name, "id": str(places[task.future])}
            if task.after:
                edges["after_tasks"] = [str(places[f]) if f.number is None else f.number for f in task.after]
            lines.append(_line({**task.spec, **edges}, task.command))
        return good, lines

    def _lose(self, future: Future[Any], cause: "concurrent.futures.Future[Any]") -> None:
        """End a future because of one before it, which is done."""
        self._deliver(lambda: future._end(None, DependencyError(cause)))

    # The thread that reads results

    def _follow_loop(self) -> None:
        idle = 0
        while True:
            with self._changed:
                while not self._tasks and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
                assert self._first is not None
                first = self._first
            process = self._start("follow", self.directory, f"{first}-", "--json", "--stay", output=subprocess.PIPE)
            with self._changed:
                self._follower = process
                if self._closed or self._first < first:
                    _end_input(process)
            assert process.stdout is not None
            lines = 0
            for line in process.stdout:
                if not line.endswith(b"\n"):
                    break  # it was ended in between
                lines += 1
                self._ended(json.loads(line))
            process.stdout.close()
            status = process.wait()
            _end_input(process)
            with self._changed:
                self._follower = None
                if self._first < first:
                    idle = 0
                    continue
            idle = 0 if lines else idle + 1
            if not self._retry("follow", status, idle):
                return

    def _ended(self, explanation: Dict[str, Any]) -> None:
        number = explanation["task"]
        with self._changed:
            future = self._tasks.get(number)
            if future is None:
                if self._submitting:
                    self._early[number] = explanation
                return
        if explanation["state"] == "cancelled":
            self._deliver(lambda: future._end_cancelled())
            return
        if explanation["state"] == "skipped":
            self._skip(future, explanation)
            return
        value, error = self._outcome(explanation)
        self._deliver(lambda: future._end(value, error))

    def _skip(self, future: Future[Any], explanation: Dict[str, Any]) -> None:
        """End a future that will not start. Its cause may be reported after it."""
        number = explanation.get("because")
        if number is None:
            error = DependencyError(None, explanation["why"])
            self._deliver(lambda: future._end(None, error))
            return
        with self._changed:
            cause = self._known.get(number)
        if cause is None:
            cause = self._ended_future(number)
        cause.add_done_callback(functools.partial(self._lose, future))

    def _ended_future(self, number: int) -> Future[Any]:
        """Return a future of a task that has ended, and that no future of this queue stands for."""
        cause: Future[Any] = Future(self)
        cause.number, cause._queued, cause._claimed = number, True, True
        try:
            explanation = self._explain(number)
        except PremixError as e:
            cause._end(None, e)
            return cause
        cause.name = explanation.get("name", "")
        if explanation["state"] == "cancelled":
            cause._end_cancelled()
        elif explanation["state"] in ("failed", "succeeded"):
            cause._end(*self._outcome(explanation))
        else:
            cause._end(None, PremixError(f"task {number} had failed, and is to be tried again"))
        with self._changed:
            return self._known.setdefault(number, cause)

    def _outcome(self, explanation: Dict[str, Any]) -> Tuple[Any, Optional[BaseException]]:
        """Return the value or the exception of a task that has ended."""
        failure = TaskError(explanation) if explanation["state"] != "succeeded" else None
        call = _call_of(explanation["command"])
        if call is None:
            return (None, failure) if failure else (Result(self, explanation), None)
        try:
            with open(call[: -len(".call")] + ".result", "rb") as file:
                number, ok, pickled, text = pickle.load(file)
            if number != explanation["record"]["try"] or ok == bool(failure):
                raise PremixError(f"task {explanation['task']} has left the result of another try")
        except Exception as e:
            if failure is None:
                return None, e
            return None, failure  # it was ended before it could leave one
        try:
            value = pickle.loads(pickled)
        except Exception as e:
            if failure is None:
                return None, e
            value = None
        if failure is None:
            return value, None
        failure.__cause__ = _Traceback(text)
        if isinstance(value, Exception):
            value.__cause__ = failure
            return None, value
        return None, failure

    # The thread that has tasks run

    def _run_loop(self) -> None:
        quick = 0
        while True:
            with self._changed:
                while not self._tasks and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
                self._ended_since = False
            begun = time.monotonic()
            log = os.path.join(self.directory, "run.log")
            with open(log, "ab") as output:
                at = output.tell()
                process = self._start("run", "--out", self.directory, "--quiet", *self._options, output=output)
            with self._changed:
                self._runner = process
                if self._closed:
                    self._leave(process)
            status = process.wait()
            with self._changed:
                self._runner = None
                _end_input(process)
            if status == 4 and self._has_worker():
                quick = 0  # another premix runs the tasks; it may end before they have
                self._pause(5 * _PAUSE)
                continue
            with open(log, "rb") as output:
                output.seek(at)
                said = output.read().decode(errors="replace")
            quick = 0 if self._ended_since or time.monotonic() - begun > 10 else quick + 1
            if status in (0, 1):
                # It had nothing left that could start. More may have come at that moment.
                self._pause(min(_PAUSE * 2 ** min(quick, 5), 5))
                continue
            if 1 < status < 128:
                quick = _STARTS  # it would fail again
            if not self._retry("run", status, quick, said):
                return

    def _has_worker(self) -> bool:
        try:
            return bool(json.loads(self._task("ls", self.directory))["worker"])
        except (CommandError, ValueError, KeyError):
            return False

    # Processes

    def _task(self, verb: str, *args: str, stdin: Optional[bytes] = None) -> bytes:
        return run(self._premix, "task", verb, *args, "--json", stdin=stdin)

    def _leave(self, process: "subprocess.Popen[bytes]") -> None:
        """Have the runner end. The caller holds changed."""
        _end_input(process)
        if self._signal is not None:
            process.send_signal(self._signal)

    def _start(self, verb: str, *args: str, output: Any) -> "subprocess.Popen[bytes]":
        log = os.path.join(self.directory, "run.log")
        with open(log, "ab") as errors:
            return subprocess.Popen(
                [self._premix, "task", verb, *args],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=errors,
                start_new_session=True,  # Ctrl-C is for Python
            )

    def _retry(self, verb: str, status: int, failed: int, said: str = "") -> bool:
        """Report whether a process that has ended is to be started again."""
        with self._changed:
            if self._closed:
                return False
            if failed < _STARTS:
                lost = []
            else:
                lost = list(self._tasks.values())
        if not lost:
            self._pause(_PAUSE if failed else 0)
            return True
        if not said:
            said = f"premix task {verb} ended with status {status}; see {self.directory}/run.log"
        for future in lost:
            future._end(None, CommandError(["premix", "task", verb], status, said))
        return True  # for later tasks

    def _pause(self, seconds: float) -> None:
        with self._changed:
            if seconds and not self._closed:
                self._changed.wait_for(lambda: self._closed, seconds)

    # Looking, cancelling

    def future(self, number: int) -> Future[Any]:
        """Return a future of a task that is in the directory."""
        self._explain(number)  # it must be there
        return self._attach([number])[0]

    def futures(self) -> List[Future[Any]]:
        """Return futures of all tasks in the directory, in the order of their numbers.

        If the process of an earlier queue was killed, these have the results that are there,
        and get those that are to come.
        """
        return self._attach(range(1, json.loads(self._task("ls", self.directory))["tasks"] + 1))

    def _attach(self, numbers: Sequence[int]) -> List[Future[Any]]:
        found: List[Future[Any]] = []
        with self._changed:
            if self._closing:
                raise RuntimeError("the queue is closed")
            new = [number for number in numbers if number not in self._tasks]
            for number in numbers:
                future = self._tasks.get(number)
                if future is None:
                    future = Future(self)
                    future.number, future._queued, future._claimed = number, True, True
                    self._tasks[number] = self._known[number] = future
                    self._open.add(future)
                    future.add_done_callback(self._over)
                found.append(future)
            if new:
                # The follower may have reported them before: another one begins with them.
                self._first = min(new) if self._first is None else min(*new, self._first)
                if self._follower is not None:
                    self._follower.send_signal(signal.SIGTERM)
                self._begin()
                self._changed.notify_all()
        return found

    def cancel(self, futures: Iterable[Future[Any]]) -> int:
        """Cancel tasks, also those that run, and return how many futures are now cancelled."""
        futures = set(futures)
        with self._changed:
            for future in futures:
                future._dropped = not future._claimed
            submitted = [f for f in futures if f._claimed]
            self._changed.wait_for(lambda: all(f.number is not None or f.done() for f in submitted))
        for future in futures:
            if future._dropped:
                future._end_cancelled()
        tasks = {f.number: f for f in submitted if f.number is not None and not f.done()}
        for some in _chunks([f"{a}-{b}" for a, b in _ranges(sorted(tasks))], 5000):
            self._task("cancel", self.directory, *some)
            for line in self._task("ls", self.directory, *some).splitlines():
                task = json.loads(line)
                if task["state"] == "cancelled":
                    tasks[task["task"]]._end_cancelled()
        return sum(future.cancelled() for future in futures)

    def records(self, *, last: bool = False) -> Records:
        """Return the records of all tries; with last, of the last try of each task."""
        return records(self.directory, last=last)

    def _runs(self, number: int) -> bool:
        return bool(json.loads(self._task("ls", self.directory, str(number)))["state"] == "running")

    def _explain(self, number: int) -> Dict[str, Any]:
        explanation: Dict[str, Any] = json.loads(self._task("why", self.directory, str(number)))
        return explanation

    def _tail(self, number: int, *options: str) -> bytes:
        return self._task("tail", self.directory, str(number), *options)

    # The end

    def pending(self) -> List[Future[Any]]:
        """Return the futures of this queue that are not done."""
        with self._changed:
            return list(self._open)

    def wait(self, timeout: Optional[float] = None) -> bool:
        """Wait until all futures of this queue are done; return False after the timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._open, timeout)

    def close(self, *, wait: bool = True) -> None:
        """Submit nothing more, wait for all futures, and end the processes of the queue."""
        with self._changed:
            self._closing = True
        if not wait:
            threading.Thread(target=self.close, daemon=True).start()
            return
        self.wait()
        self._end(None)

    def stop(self) -> None:
        """End running tasks, and the processes of the queue.

        The tasks that were submitted stay in the directory: another Queue goes on with them.
        """
        self._end(signal.SIGTERM)
        for future in self.pending():
            future._end(None, PremixError("the queue was stopped, and the task has not ended"))

    def _end(self, number: Optional[signal.Signals]) -> None:
        with self._changed:
            self._closing = self._closed = True
            self._signal = number
            if self._runner is not None:
                self._leave(self._runner)
            if self._follower is not None:
                _end_input(self._follower)
            self._changed.notify_all()
            threads = list(self._threads)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join()
        _queues.discard(self)

    def __enter__(self) -> "Queue":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.stop()


_queues: "weakref.WeakSet[Queue]" = weakref.WeakSet()


@atexit.register
def _leave() -> None:
    """Wait for all tasks, as executors of the standard library do."""
    interrupted = getattr(sys, "last_type", None) is KeyboardInterrupt
    for queue in list(_queues):
        if interrupted:
            queue.stop()
        else:
            queue.close()


def _line(spec: Mapping[str, Any], command: Union[str, List[str]]) -> bytes:
    """Return the line of JSON of a task."""
    text = json.dumps({**spec, "command": command}, ensure_ascii=False, allow_nan=False)
    try:
        return text.encode() + b"\n"
    except UnicodeEncodeError as e:
        raise ValueError(f"{command!r} is not valid Unicode, and would be changed on its way") from e


def _value(argument: Any) -> Any:
    return argument.result() if isinstance(argument, concurrent.futures.Future) else argument


def _words(words: Sequence[Word]) -> List[str]:
    """Return the words of a command, with results in the place of futures."""
    return [_word(word) for word in words]


def _word(word: Word) -> str:
    value: Any = word
    if isinstance(word, concurrent.futures.Future):
        value = getattr(word, "_stdout", None) or word.result()
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return str(value)
    if isinstance(value, (str, os.PathLike)):
        text = os.fspath(value)
        if isinstance(text, str):
            return text
    raise TypeError(
        f"a word of a command is a string, a path or a future: {value!r} is none of them; "
        "a future stands for the file that its task writes with stdout="
    )


def _call_of(command: str) -> Optional[str]:
    """Return the file of the call that a command executes; None for another command."""
    if "_call.py" not in command:
        return None
    try:
        words = shlex.split(command)
    except ValueError:
        return None
    own = len(words) == 3 and words[1].endswith(os.path.join("premix", "_call.py")) and words[2].endswith(".call")
    return words[2] if own else None


def _end_input(process: "subprocess.Popen[bytes]") -> None:
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()


def _ranges(numbers: Sequence[int]) -> Iterator[Tuple[int, int]]:
    """Return ascending numbers as ranges, first and last."""
    first = last = 0
    for number in numbers:
        if first and number == last + 1:
            last = number
            continue
        if first:
            yield first, last
        first = last = number
    if first:
        yield first, last


def _chunks(values: List[T], most: int) -> Iterator[List[T]]:
    for at in range(0, len(values), most):
        yield values[at : at + most]
