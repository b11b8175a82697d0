"""An executor as in concurrent.futures."""

from __future__ import annotations

import concurrent.futures
import itertools
import shutil
import tempfile
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple, TypeVar, Union

from ._queue import Future, Path, Queue, Size

T = TypeVar("T")


class Executor(concurrent.futures.Executor):
    """Executes Python calls as tasks of premix, each in a Python of its own.

    Without a directory the tasks are in a temporary one, which shutdown removes. cores,
    memory, timeout and retries are those of each call; further options are those of Queue.
    """

    def __init__(
        self,
        directory: Optional[Path] = None,
        *,
        max_workers: Optional[int] = None,
        cores: Optional[int] = None,
        memory: Optional[Size] = None,
        timeout: Union[None, int, float, str] = None,
        retries: int = 0,
        **options: Any,
    ) -> None:
        self._temporary = tempfile.mkdtemp(prefix="premix-") if directory is None else None
        self.queue = Queue(directory if directory is not None else f"{self._temporary}/tasks", jobs=max_workers, **options)
        self._options: Dict[str, Any] = {"cores": cores, "memory": memory, "timeout": timeout, "retries": retries}

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Submit a call. Futures among its arguments are replaced by their results."""
        return self.queue.submit(fn, *args, kwargs=kwargs, **self._options)

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: Optional[float] = None,
        chunksize: int = 1,
    ) -> Iterator[T]:
        """Return the results of calls in order; a task does chunksize of them."""
        if chunksize < 1:
            raise ValueError("chunksize is less than 1")
        calls = zip(*iterables)
        chunks = iter(lambda: list(itertools.islice(calls, chunksize)), [])
        results: Iterator[List[T]] = super().map(_several, itertools.repeat(fn), chunks, timeout=timeout)
        return itertools.chain.from_iterable(results)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls. With cancel_futures, cancel those that have not ended."""
        if cancel_futures:
            self.queue.cancel(self.queue.pending())
        self.queue.close(wait=wait)
        if wait and self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)


def _several(function: Callable[..., T], calls: Sequence[Tuple[Any, ...]]) -> List[T]:
    return [function(*args) for args in calls]
