"""The program premix: where it is, and how it reports errors."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sysconfig
from typing import Any, Dict, List, Optional, Sequence


class PremixError(Exception):
    """Base class of the errors of this package."""


class CommandError(PremixError):
    """A command of premix failed."""

    def __init__(self, command: Sequence[str], status: int, stderr: str) -> None:
        self.command = list(command)
        #: The exit code; negative: the number of the signal that ended the command.
        self.status = status
        #: The errors, as premix prints them with --json.
        self.errors: List[Dict[str, Any]] = []
        other: List[str] = []
        for line in stderr.splitlines():
            try:
                error = json.loads(line)
            except ValueError:
                other.append(line)
                continue
            if isinstance(error, dict) and "error" in error:
                self.errors.append(error)
        lines = [_text(error) for error in self.errors] or other
        super().__init__("\n".join(lines) or f"{' '.join(command)} ended with status {status}")


def _text(error: Dict[str, Any]) -> str:
    hint = error.get("hint")
    return f"{error['error']} (hint: {hint})" if hint else str(error["error"])


def find_premix() -> str:
    """Return the path of the program premix.

    It is the value of the variable PREMIX, or else the program that this package was
    installed with, or else the first one on PATH.
    """
    named = os.environ.get("PREMIX")
    if named:
        return named
    beside = os.path.join(sysconfig.get_path("scripts"), "premix")
    if os.access(beside, os.X_OK):
        return beside
    found = shutil.which("premix")
    if found is None:
        raise PremixError(
            "premix was not found: put it on PATH, or set PREMIX to its path"
        )
    return found


def run(premix: str, *args: str, stdin: Optional[bytes] = None) -> bytes:
    """Run a command of premix, and return its standard output."""
    command = [premix, *args]
    done = subprocess.run(
        command,
        input=b"" if stdin is None else stdin,
        capture_output=True,
        start_new_session=True,  # Ctrl-C is for Python
    )
    if done.returncode != 0:
        raise CommandError(command, done.returncode, done.stderr.decode(errors="replace"))
    return done.stdout
