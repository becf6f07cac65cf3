"""Confines a process and reports how much of the confinement the kernel enforces."""

import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from queryserver.platform.confinement import kernel
from queryserver.platform.confinement.kernel import has_seccomp, landlock_abi, refuse_calls, restrict

_SIZES = Path("/proc/self/statm")


def lower_limit(kind: int, wanted: int) -> None:
    """Lower the resource limit `kind` (`resource.RLIMIT_…`). A limit that is already stricter is kept."""
    _, hard = resource.getrlimit(kind)
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(kind, (allowed, allowed))


def limit_memory(memory_bytes: int) -> None:
    """Limit this process's address space, including existing mappings.

    Unused address space counts as well: 8 MiB per thread stack, 64 MiB per glibc heap, and mapped files; see
    `address_space_bytes`. Has no effect on macOS, which does not support this limit.
    """
    with suppress(OSError, ValueError):
        lower_limit(resource.RLIMIT_AS, memory_bytes)


def limit_processor_time(limit_s: int) -> None:
    """Limit the CPU time that this process uses from now on. At the limit, SIGXCPU terminates the process.

    Another call restarts the limit.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    wanted = ceil(time.process_time()) + limit_s
    resource.setrlimit(resource.RLIMIT_CPU, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


def address_space_bytes() -> int:
    """Return the size of this process's address space (VmSize); 0 if the system does not report it (macOS)."""
    return _pages(0)


def resident_bytes() -> int:
    """Return this process's resident memory (VmRSS); 0 if the system does not report it.

    `getrusage` cannot be used instead, because its peak value is inherited from the parent process.
    """
    return _pages(1)


def _pages(column: int) -> int:
    try:
        return int(_SIZES.read_text().split()[column]) * resource.getpagesize()
    except OSError:
        return 0


# Files that the dynamic loader, Python, glibc, Arrow and DuckDB read at run time: libraries, time zones, CPU count and
# memory size. They contain no data of the service or its users.
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
    """The access that a confined process keeps. Python's modules, libraries and time zones are always readable."""

    writable: tuple[Path, ...] = ()
    """Files and directories that the process may read and write, including everything below the directories. All must
    exist."""
    readable: tuple[Path, ...] = ()
    memory_bytes: int | None = None
    """Limit on the address space, including existing mappings; None if `limit_memory` is called later."""
    file_bytes: int | None = None
    """Maximum size of a file written by the process. None: no limit; 0: only pipes and sockets can be written."""
    open_files: int = 64
    niceness: int = 0
    """The value added to the nice value, which is at most 19."""
    may_use_network: bool = False
    """If false, the process can use only inherited sockets and socket pairs that it creates."""
    parent: int | None = None
    """PID of the process whose death terminates this process. None: the current parent, which may already be another
    process if the process that started this one died immediately."""


@dataclass(frozen=True, slots=True)
class ConfinementResult:
    """The restrictions that the kernel enforces, in addition to resource limits."""

    landlock_abi: int
    """The Landlock ABI version; 0 if Landlock is off, so the process can open all files of its user."""
    seccomp: bool
    """Whether system calls are filtered. If not, the process may start programs and open connections."""
    threads_outside: int
    """Number of existing threads that Landlock does not restrict (before Linux 7.0)."""


@dataclass(frozen=True, slots=True)
class KernelSupport:
    """The kernel features that `confine` can use on this machine."""

    landlock_abi: int
    seccomp: bool


def detect_support() -> KernelSupport:
    """Detect the kernel's features. Does not confine the process."""
    if sys.platform != "linux":
        return KernelSupport(0, seccomp=False)
    return KernelSupport(landlock_abi(), has_seccomp())


def confine(confinement: Confinement) -> ConfinementResult:
    """Irrevocably drop all access that `confinement` does not grant. Features that the kernel lacks are skipped.

    Also disables core dumps and prevents the user's other processes from reading the memory of this process. Raises
    ProcessLookupError if the parent has exited, FileNotFoundError if a `writable` path is missing, OSError if a limit
    is rejected.
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
    with suppress(OSError):  # gVisor and similar kernels do not support this
        kernel.drop_capabilities()
    # Both are set after the capabilities, because changing the capabilities resets them.
    kernel.control_process(kernel.PR_SET_DUMPABLE, 0)
    kernel.control_process(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    _check_parent(parent)
    kernel.control_process(kernel.PR_SET_NO_NEW_PRIVS, 1)
    return _apply_kernel_confinement(confinement)


def name_thread(name: str) -> None:
    """Name the calling thread: completely in Python, and by the first 15 bytes in `ps -L` and `top -H`."""
    threading.current_thread().name = name
    if sys.platform == "linux":
        with suppress(OSError):  # the name only informs the administrator
            kernel.name_thread(name)


def _check_parent(expected: int) -> None:
    """Raise ProcessLookupError if the parent died before PR_SET_PDEATHSIG was set, because no signal is sent then."""
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
            outside = 0 if holds_all else kernel.other_threads()
        # Fails, for example, if the process already has the maximum of 16 rulesets, which it may have inherited.
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
