"""Confines a process, and reports how much of the confinement the kernel enforces."""

import os
import resource
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from queryserver.platform.confinement import linux
from queryserver.platform.confinement.landlock import landlock_abi, restrict
from queryserver.platform.confinement.seccomp import has_seccomp, refuse_calls

_SIZES = Path("/proc/self/statm")


def lower_limit(kind: int, wanted: int) -> None:
    """Lower the limit `resource.RLIMIT_…`. A stricter limit is kept."""
    _, hard = resource.getrlimit(kind)
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(kind, (allowed, allowed))


def limit_memory(memory_bytes: int) -> None:
    """Limit this process's address space, including existing mappings.

    Unused address space counts too: 8 MiB per thread stack, 64 MiB per glibc heap, and mapped files. See
    `address_space_bytes`. Does nothing on macOS, which does not support this limit.
    """
    with suppress(OSError, ValueError):
        lower_limit(resource.RLIMIT_AS, memory_bytes)


def limit_processor_time(limit_s: int) -> None:
    """Limit this process's processor time from now on. SIGXCPU ends it at the limit.

    Each call restarts the count.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    wanted = ceil(time.process_time()) + limit_s
    resource.setrlimit(resource.RLIMIT_CPU, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


def address_space_bytes() -> int:
    """Return this process's address space (VmSize); 0 if the system does not report it (macOS)."""
    return _pages(0)


def resident_bytes() -> int:
    """Return this process's resident memory (VmRSS); 0 if the system does not report it.

    `getrusage` is not a replacement, because its peak is inherited from the parent process.
    """
    return _pages(1)


def _pages(column: int) -> int:
    try:
        return int(_SIZES.read_text().split()[column]) * resource.getpagesize()
    except OSError:
        return 0


# Files that the dynamic loader, Python, glibc, Arrow and DuckDB read at run time: libraries, time zones, and the
# processor count and memory size. They contain no data of the service or its users.
_SYSTEM = (
    "/lib",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
    "/usr/local/lib",
    "/nix/store",
    "/etc/ld.so.cache",
    f"/etc/ld-musl-{os.uname().machine}.path",
    "/etc/localtime",
    "/etc/ssl/openssl.cnf",
    "/etc/pki/tls/openssl.cnf",
    "/etc/crypto-policies",
    "/usr/share/crypto-policies",
    "/usr/share/locale",
    "/usr/share/zoneinfo",
    "/proc/self",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/stat",
    "/proc/sys/vm",
    "/sys/devices/system/cpu",
    "/sys/devices/system/node",
    "/sys/fs/cgroup",
    "/sys/kernel/mm/transparent_hugepage",
    "/dev/random",
    "/dev/urandom",
    "/dev/zero",
)
_DEV_NULL = Path("/dev/null")


@dataclass(frozen=True, slots=True)
class Confinement:
    """The rights of a process. Python's modules, libraries and time zones are always readable."""

    writable: tuple[Path, ...] = ()
    """Existing files, and directories below which the process may read and write."""
    readable: tuple[Path, ...] = ()
    memory_bytes: int | None = None
    """Limit of the address space, including existing mappings; None if `limit_memory` is called later."""
    file_bytes: int | None = None
    """Maximum size of a written file. None means no limit, and 0 permits writing to pipes and sockets only."""
    open_files: int = 64
    niceness: int = 0
    """Added to the scheduling niceness, up to 19."""
    may_use_network: bool = False
    """If false, the process can only use inherited sockets and socket pairs that it creates."""
    parent: int | None = None
    """The process whose death ends this process. None means the current parent, which may already be a different
    process if the starting process died immediately."""


@dataclass(frozen=True, slots=True)
class ConfinementResult:
    """The restrictions that the kernel enforces in addition to resource limits."""

    landlock_abi: int
    """The Landlock ABI version; 0 means that the process can open all of its user's files."""
    seccomp: bool
    """Whether system calls are filtered. Otherwise the process may start programs and connect."""
    threads_outside: int
    """The number of existing threads that Landlock does not restrict (before Linux 7.0)."""


@dataclass(frozen=True, slots=True)
class KernelSupport:
    """The kernel features that `confine` could use here."""

    landlock_abi: int
    seccomp: bool


def detect_support() -> KernelSupport:
    """Detect the kernel's features without confining anything."""
    if sys.platform != "linux":
        return KernelSupport(0, seccomp=False)
    return KernelSupport(landlock_abi(), has_seccomp())


def confine(confinement: Confinement) -> ConfinementResult:
    """Irrevocably drop every right that `confinement` does not list. Features that the kernel lacks are skipped.

    This also disables core dumps, and prevents the user's other processes from reading its memory. Raises
    ProcessLookupError if the parent is gone, FileNotFoundError for a missing `writable` path, OSError for rejected
    limits.
    """
    for path in confinement.writable:
        path.lstat()
    if confinement.niceness:
        os.nice(confinement.niceness)
    if confinement.memory_bytes is not None:
        limit_memory(confinement.memory_bytes)
    if confinement.file_bytes is not None:
        lower_limit(resource.RLIMIT_FSIZE, confinement.file_bytes)
    lower_limit(resource.RLIMIT_NOFILE, confinement.open_files)
    lower_limit(resource.RLIMIT_CORE, 0)
    parent = os.getppid() if confinement.parent is None else confinement.parent
    if sys.platform != "linux":
        _check_parent(parent)
        return ConfinementResult(0, seccomp=False, threads_outside=0)
    with suppress(OSError):  # not supported by gVisor and similar kernels
        linux.drop_capabilities()
    # After credentials change, which resets both.
    linux.control_process(linux.PR_SET_DUMPABLE, 0)
    linux.control_process(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
    _check_parent(parent)
    linux.control_process(linux.PR_SET_NO_NEW_PRIVS, 1)
    return _apply_kernel_confinement(confinement)


def _check_parent(expected: int) -> None:
    """Raises ProcessLookupError if the parent died before PR_SET_PDEATHSIG was set, as no signal follows then."""
    if os.getppid() != expected:
        raise ProcessLookupError("The process that started this one has ended.")


def _apply_kernel_confinement(confinement: Confinement) -> ConfinementResult:
    abi, outside = landlock_abi(), 0
    if abi:
        readable = (*runtime_paths(), *confinement.readable)
        try:
            holds_all = restrict(
                abi, (*confinement.writable, _DEV_NULL), readable, may_use_network=confinement.may_use_network
            )
            outside = 0 if holds_all else linux.other_threads()
        # for example the limit of 16 rulesets per process, including those inherited from the server's launcher
        except OSError:
            abi = 0
    has_filter = has_seccomp()
    if has_filter:
        try:
            refuse_calls(may_use_network=confinement.may_use_network)
        except OSError:
            has_filter = False
    return ConfinementResult(abi, has_filter, outside)


def runtime_paths() -> Iterator[Path]:
    """Yield the paths that this Python and its libraries read at run time. Some may not exist."""
    yield from map(Path, _SYSTEM)
    # An empty entry stands for the working directory.
    yield from (Path(one) for one in sys.path if one)
    yield Path(sys.base_prefix, "lib")
