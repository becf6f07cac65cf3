"""The computation interface, and the frame format between server and worker."""

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


class ComputationExecutor(Protocol):
    """Runs computations with limits on time and memory, one at a time per user. Users take turns."""

    async def run(self, user_id: int, task: Task, options: Mapping[str, Any], content: bytes) -> Any:
        """Run `task` on `content`, and return its result as parsed JSON. `options` must be JSON values too.

        Canceling the caller stops the computation. Raises TooComplex (time or memory limit exceeded), TooManyRequests
        (too many waiting computations of this user), ServiceUnavailable, and the domain errors of the task.
        """
        ...


HEAD = struct.Struct("<cLL")
"""A frame's header: its kind, and the sizes of the JSON and the content that follow."""
MAX_BYTES = 256 * 1024 * 1024
TASK, RESULT, REFUSED, EXCEEDED, BROKEN = b"T", b"R", b"D", b"X", b"B"
"""Frame kinds: a task, its result, a domain error, an exceeded limit, and an error in the worker program."""
