"""Executes one Python call, as a task: python _call.py FILE.call

The result, or the exception, goes to FILE.result. This file is executed as a program, and
imports nothing of its package.
"""

from __future__ import annotations

import os
import pickle
import runpy
import sys
import traceback
import types
from typing import Any, BinaryIO, Callable, Dict, Tuple

# The name of the module that is the submitting program, in this process.
MAIN = "__premix_main__"


def by_value() -> bool:
    """Report whether functions of the program are pickled with their code."""
    try:
        import cloudpickle  # noqa: F401
    except ImportError:
        return False
    return True


def dumps(value: Any) -> bytes:
    """Pickle a value: with cloudpickle if it is installed."""
    if not by_value():
        return pickle.dumps(value, protocol=4)
    import cloudpickle

    pickled: bytes = cloudpickle.dumps(value, protocol=4)
    return pickled


def _restore_main(path: str) -> None:
    """Give functions and classes of the submitting program their module."""
    main = types.ModuleType(MAIN)
    sys.modules["__main__"] = sys.modules[MAIN] = main
    main.__dict__.update(runpy.run_path(path, run_name=MAIN))


def _execute(file: BinaryIO) -> Any:
    setting: Dict[str, Any] = pickle.load(file)
    sys.path[:] = setting["path"]
    if setting["main"]:
        _restore_main(setting["main"])
    call: Tuple[Callable[..., Any], Tuple[Any, ...], Dict[str, Any]] = pickle.load(file)
    function, args, kwargs = call
    return function(*args, **kwargs)


def _keep(path: str, ok: bool, value: Any, text: str) -> None:
    """Write the outcome: the try, whether it succeeded, the pickled value and a traceback."""
    outcome = (int(os.environ.get("PREMIX_TRY", "1")), ok, dumps(value), text)
    temporary = f"{path}.{os.getpid()}"
    with open(temporary, "wb") as file:
        pickle.dump(outcome, file, protocol=4)
    os.replace(temporary, path)


def main(call: str) -> int:
    result = call[: -len(".call")] + ".result"
    try:
        with open(call, "rb") as file:
            value = _execute(file)
        sys.stdout.flush()
        _keep(result, True, value, "")
        return 0
    except BaseException as e:
        text = traceback.format_exc()
        print(text, end="", file=sys.stderr)
        try:
            _keep(result, False, e, text)
        except Exception:
            _keep(result, False, RuntimeError(f"{type(e).__name__}: {e}"), text)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
