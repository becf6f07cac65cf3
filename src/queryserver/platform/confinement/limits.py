"""Limits of the running process that every Unix has (setrlimit)."""

import resource
import time
from contextlib import suppress
from math import ceil
from pathlib import Path

_SIZES = Path("/proc/self/statm")


def lower_limit(kind: int, wanted: int) -> None:
    """Lower the limit `resource.RLIMIT_…`: a stricter one stays, for it cannot be raised."""
    _, hard = resource.getrlimit(kind)
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(kind, (allowed, allowed))


def limit_memory(memory_bytes: int) -> None:
    """From now on the address space of this process ends at so many bytes; what it has mapped already counts.

    The limit counts addresses, used or not: 8 MiB for the stack of each thread, 64 MiB for each heap of glibc, and
    files that are mapped. See `address_space_bytes`. macOS refuses such a limit; nothing happens there.
    """
    with suppress(OSError, ValueError):
        lower_limit(resource.RLIMIT_AS, memory_bytes)


def limit_processor_time(limit_s: int) -> None:
    """From now on this process may use the processor for so many seconds, then SIGXCPU ends it.

    Another call begins a new count.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    wanted = ceil(time.process_time()) + limit_s
    resource.setrlimit(resource.RLIMIT_CPU, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


def address_space_bytes() -> int:
    """The addresses that this process has mapped now (VmSize); 0 where the system does not say (macOS)."""
    return _pages(0)


def resident_bytes() -> int:
    """The memory of this process now (VmRSS); 0 where the system does not say. The peak of `getrusage` begins with the
    parent's.
    """
    return _pages(1)


def _pages(column: int) -> int:
    try:
        return int(_SIZES.read_text().split()[column]) * resource.getpagesize()
    except OSError:
        return 0
