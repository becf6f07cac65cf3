"""The interface for computations in worker processes, and the frame format between server and worker."""

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
    """Runs computations with limits on time and memory. Users take turns; each has at most one running computation."""

    async def run(self, user_id: int, task: Task, options: Mapping[str, Any], content: bytes) -> Any:
        """Run `task` on `content` and return the result, parsed from JSON. `options` must be serializable as JSON.

        Canceling the call stops the computation. Raises TooComplex if the time or memory limit is exceeded;
        TooManyRequests if too many computations of this user are waiting; ServiceUnavailable; and the task's own domain
        errors.
        """
        ...

    def warm_up(self, user_id: int, task: Task, options: Mapping[str, Any], content: bytes) -> None:
        """Run `task` in the background and ignore its outcome, unless a worker process is already running.

        A process takes half a second to start and to load its libraries. The next call then need not wait for it.
        """
        ...


HEAD = struct.Struct("<cLL")
"""A frame header: the frame kind, and the sizes of the JSON and the content that follow."""
MAX_BYTES = 256 * 1024 * 1024
TASK, RESULT, REFUSED, EXCEEDED, BROKEN = b"T", b"R", b"D", b"X", b"B"
"""Frame kinds: a task, its result, a domain error, an exceeded limit, a bug in the worker program."""
