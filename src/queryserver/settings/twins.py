"""Secrets that stand elsewhere: `<key>_file` and `<key>_script` (Contract platform 11)."""

import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SCRIPT_S = 10


@dataclass(frozen=True, slots=True)
class Twin:
    """Stands for the value until it is known that no later source replaces it."""

    kind: str
    where: Any

    def read(self) -> str:
        """The content of the file, or what the command prints, without the last line end.

        Raises ValueError with a text for a person, free of what was read.
        """
        if not isinstance(self.where, str) or not self.where.strip():
            message = f"its {self.kind} must be given as text."
            raise ValueError(message)
        text = _content(self.where) if self.kind == "file" else _output(self.where)
        return text.rstrip("\r\n")


def _content(path: str) -> str:
    try:
        return Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        message = f"its file {path} cannot be read: {_reason(error)}."
        raise ValueError(message) from None


def _output(command: str) -> str:
    try:
        done = subprocess.run(  # noqa: S603 the administrator wrote the command; no shell sees it
            shlex.split(command), capture_output=True, timeout=_SCRIPT_S, check=True, stdin=subprocess.DEVNULL
        )
        return done.stdout.decode()
    except subprocess.TimeoutExpired:
        message = f"its script did not end within {_SCRIPT_S} s."
    except subprocess.CalledProcessError as error:
        message = f"its script ended with exit code {error.returncode}."
    except (OSError, ValueError) as error:
        message = f"its script cannot be run: {_reason(error)}."
    raise ValueError(message)


def _reason(error: Exception) -> str:
    return error.strerror or type(error).__name__ if isinstance(error, OSError) else "it is not UTF-8 text"
