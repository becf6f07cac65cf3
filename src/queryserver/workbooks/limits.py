"""The limits under which a worker reads a file (Contract importer 14.4)."""

import resource

MEMORY_BYTES = 1024**3
SHOWN_MEMORY_BYTES = MEMORY_BYTES // 4
"""For a file of which a part is shown: that holds a block of it, and a record."""
TIME_S = 60
RECORDS_TIME_S = 900
"""For all rows of a file of records."""
_OPEN_FILES = 32


def limit_this_process(time_s: int, memory_bytes: int) -> None:
    """From now on this process has so much memory and time, writes no file and leaves no core."""
    _limit(resource.RLIMIT_AS, memory_bytes)
    _limit(resource.RLIMIT_CPU, time_s)
    _limit(resource.RLIMIT_NOFILE, _OPEN_FILES)
    _limit(resource.RLIMIT_FSIZE, 0)
    _limit(resource.RLIMIT_CORE, 0)


def _limit(kind: int, wanted: int) -> None:
    """Lower the limit: a stricter one stays, for it cannot be raised."""
    _, hard = resource.getrlimit(kind)
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(kind, (allowed, allowed))
