"""Computations as callers see them, and what crosses the pipes of their workers."""

import struct
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Protocol


class Task(StrEnum):
    FORMAT = "format"
    CHOOSE_STATEMENT = "choose_statement"
    FIRST_TO_EXPLAIN = "first_to_explain"
    DETECT_FILE = "detect_file"
    PREVIEW = "preview"
    HEADER = "header"


class Computing(Protocol):
    """Computes with limits of time and memory. One computation of a user runs at a time; users take turns."""

    async def run(self, user_id: int, task: Task, options: Mapping[str, Any], content: bytes) -> Any:
        """The result of the task for `content`, as parsed JSON. `options` are JSON, too.

        When the caller is cancelled, the computation ends. Raises TooComplex (it needs more time or memory than a
        computation may have), TooManyRequests (the user has too many waiting), ServiceUnavailable, and the domain
        errors of the task.
        """
        ...


HEAD = struct.Struct("<cLL")
"""The begin of a frame: its kind, and the sizes of the JSON and of the content that follow."""
MAX_BYTES = 256 * 1024 * 1024
TASK, RESULT, REFUSED, EXCEEDED, BROKEN = b"T", b"R", b"D", b"X", b"B"
"""A task; its result; a domain error; limits reached; an error of the program."""
