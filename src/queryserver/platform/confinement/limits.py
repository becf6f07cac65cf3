"""Resource limits of the running process (setrlimit)."""

import resource
import time
from contextlib import suppress
from math import ceil
from pathlib import Path

_SIZES = Path("/proc/self/statm")


def lower_limit(kind: int, wanted: int) -> None:
    """Lower the limit `resource.RLIMIT_…`. A stricter limit is kept."""
    _, hard = resource.getrlimit(kind)
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(kind, (allowed, allowed))


def limit_memory(memory_bytes: int) -> None:
    """Limit the address space of this process, including what is already mapped.

    Address space counts whether used or not: 8 MiB per thread stack, 64 MiB per glibc heap, and mapped files. See
    `address_space_bytes`. Does nothing on macOS, which does not support this limit.
    """
    with suppress(OSError, ValueError):
        lower_limit(resource.RLIMIT_AS, memory_bytes)


def limit_processor_time(limit_s: int) -> None:
    """Limit the processor time of this process from now on; SIGXCPU then ends it.

    Each call starts a new count.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    wanted = ceil(time.process_time()) + limit_s
    resource.setrlimit(resource.RLIMIT_CPU, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


def address_space_bytes() -> int:
    """The address space of this process (VmSize); 0 where the system does not report it (macOS)."""
    return _pages(0)


def resident_bytes() -> int:
    """The resident memory of this process (VmRSS); 0 where the system does not report it.

    `getrusage` is no replacement: its peak is inherited from the parent process.
    """
    return _pages(1)


def _pages(column: int) -> int:
    try:
        return int(_SIZES.read_text().split()[column]) * resource.getpagesize()
    except OSError:
        return 0
