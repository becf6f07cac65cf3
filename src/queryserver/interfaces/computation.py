"""Work of the processor on what users send, away from the event loop and from the work of other users."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Protocol


class Task(StrEnum):
    """What can be computed."""

    FORMAT = "format"
    CHOOSE_STATEMENT = "choose_statement"
    FIRST_TO_EXPLAIN = "first_to_explain"
    DETECT_FILE = "detect_file"
    DETECT_ENCODING = "detect_encoding"
    PREVIEW = "preview"
    HEADER = "header"


class Computing(Protocol):
    """Computes with limits of time and memory. One computation of a user runs at a time; users take turns."""

    async def run(self, user_id: int, task: Task, options: Mapping[str, Any], content: bytes) -> Any:
        """What the task gives for `content`, as parsed JSON. `options` are JSON, too.

        When the caller is cancelled, the computation ends. Raises TooComplex (it needs more time or memory than a
        computation may have), TooManyRequests (the user has too many waiting), ServiceUnavailable, and the domain
        errors of the task.
        """
        ...
