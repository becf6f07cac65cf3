"""Computations as callers see them, what crosses the pipes of their workers, and the limits of a worker."""

import ctypes
import os
import resource
import signal
import struct
import sys
import time
from collections.abc import Mapping
from enum import StrEnum
from math import ceil
from typing import Any, Protocol

_PR_SET_PDEATHSIG = 1


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


def limit_this_process(memory_bytes: int) -> None:
    """From now on this process has so much memory, yields the processor to others, writes no file, leaves no core, and
    ends with its parent.
    """
    os.nice(10)
    limit_resources(memory_bytes, open_files=64)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def limit_time(limit_s: int) -> None:
    """From now on this process may use the processor for so many seconds, then SIGXCPU ends it."""
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    wanted = ceil(time.process_time()) + limit_s
    resource.setrlimit(resource.RLIMIT_CPU, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


def limit_resources(memory_bytes: int, *, open_files: int) -> None:
    """From now on this process has so much memory, writes no file and leaves no core."""
    lower_limit(resource.RLIMIT_AS, memory_bytes)
    lower_limit(resource.RLIMIT_NOFILE, open_files)
    lower_limit(resource.RLIMIT_FSIZE, 0)
    lower_limit(resource.RLIMIT_CORE, 0)


def lower_limit(kind: int, wanted: int) -> None:
    """Lower the limit: a stricter one stays, for it cannot be raised."""
    _, hard = resource.getrlimit(kind)
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(kind, (allowed, allowed))
