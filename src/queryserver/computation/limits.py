"""The limits of a worker process."""

import ctypes
import os
import resource
import signal
import sys
import time
from math import ceil

_NICENESS = 10
_OPEN_FILES = 64
_PR_SET_PDEATHSIG = 1


def limit_this_process(memory_bytes: int) -> None:
    """From now on this process has so much memory, yields the processor to others, writes no file, leaves no core, and
    ends with its parent.
    """
    os.nice(_NICENESS)
    _limit(resource.RLIMIT_AS, memory_bytes)
    _limit(resource.RLIMIT_NOFILE, _OPEN_FILES)
    _limit(resource.RLIMIT_FSIZE, 0)
    _limit(resource.RLIMIT_CORE, 0)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def limit_time(limit_s: int) -> None:
    """From now on this process may use the processor for so many seconds, then SIGXCPU ends it."""
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    wanted = ceil(time.process_time()) + limit_s
    resource.setrlimit(resource.RLIMIT_CPU, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


def _limit(kind: int, wanted: int) -> None:
    """Lower the limit: a stricter one stays, for it cannot be raised."""
    _, hard = resource.getrlimit(kind)
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(kind, (allowed, allowed))
