"""The limits under which a worker reads a file (Contract importer 14.4)."""

import resource

MEMORY_BYTES = 1024**3
TIME_S = 60
RECORDS_TIME_S = 900
"""For all rows of a file of records: those of Avro take a minute for each 100 MiB or so."""
_OPEN_FILES = 32


def limit_this_process(time_s: int = TIME_S) -> None:
    """From now on this process has so much memory and time, writes no file and leaves no core."""
    _limit(resource.RLIMIT_AS, MEMORY_BYTES)
    _limit(resource.RLIMIT_CPU, time_s)
    _limit(resource.RLIMIT_NOFILE, _OPEN_FILES)
    _limit(resource.RLIMIT_FSIZE, 0)
    _limit(resource.RLIMIT_CORE, 0)


def _limit(kind: int, wanted: int) -> None:
    """Lower the limit: a stricter one stays, for it cannot be raised."""
    _, hard = resource.getrlimit(kind)
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(kind, (allowed, allowed))
