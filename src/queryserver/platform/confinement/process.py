"""What a process may do from now on, and how much of that the kernel enforces."""

import os
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from queryserver.platform.confinement import linux
from queryserver.platform.confinement.landlock import landlock_abi, restrict
from queryserver.platform.confinement.limits import limit_memory, lower_limit
from queryserver.platform.confinement.seccomp import has_seccomp, refuse_calls

# What the dynamic loader, Python, glibc, Arrow and DuckDB read while they run: libraries, time zones, and how many
# processors and how much memory there is. None of it is of the service or of its users.
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
    """What a process may do. Python's own modules, libraries and time zones are always readable."""

    writable: tuple[Path, ...] = ()
    """Files, and directories beneath which it reads and writes. They exist already."""
    readable: tuple[Path, ...] = ()
    memory_bytes: int | None = None
    """The addresses that it may have, what it has mapped already included; None: `limit_memory` is called later."""
    file_bytes: int | None = None
    """The size of the largest file that it may write; None: no limit, 0: it writes to pipes and sockets only."""
    open_files: int = 64
    niceness: int = 0
    """How far it stands behind other processes for the processor: up to 19."""
    may_use_network: bool = False
    """Without, it has the sockets that it was started with, and pairs that it makes itself."""
    parent: int | None = None
    """The process with which this one ends. None: the parent of now, which may be another one already when the process
    that started this one ended at once.
    """


@dataclass(frozen=True, slots=True)
class Confined:
    """What the kernel enforces beyond the limits of resources."""

    landlock_abi: int
    """0: it opens all files of its user."""
    seccomp: bool
    """False: it makes all system calls, so that it may start programs and connect."""
    threads_outside: int
    """Threads that ran before, and which Landlock does not hold (Linux before 7.0)."""


@dataclass(frozen=True, slots=True)
class KernelSupport:
    """What `confine` would get here."""

    landlock_abi: int
    seccomp: bool


def detected() -> KernelSupport:
    """What the kernel permits to this process. Confines nothing."""
    if sys.platform != "linux":
        return KernelSupport(0, seccomp=False)
    return KernelSupport(landlock_abi(), has_seccomp())


def confine(confinement: Confinement) -> Confined:
    """Give up, for good, all that `confinement` does not name. What the kernel does not have is left out.

    It dumps no core and no other process of its user reads its memory. Raises ProcessLookupError when the parent has
    ended, FileNotFoundError for a missing `writable`, OSError for limits that the system refuses.
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
        return Confined(0, seccomp=False, threads_outside=0)
    with suppress(OSError):  # gVisor and the like
        linux.drop_capabilities()
    # Behind what changes the rights of the process, which resets both.
    linux.control_process(linux.PR_SET_DUMPABLE, 0)
    linux.control_process(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
    _check_parent(parent)
    linux.control_process(linux.PR_SET_NO_NEW_PRIVS, 1)
    return _held_by_the_kernel(confinement)


def _check_parent(expected: int) -> None:
    """A parent that ended before PR_SET_PDEATHSIG sends no signal."""
    if os.getppid() != expected:
        raise ProcessLookupError("The process that started this one has ended.")


def _held_by_the_kernel(confinement: Confinement) -> Confined:
    abi, outside = landlock_abi(), 0
    if abi:
        readable = (*runtime_paths(), *confinement.readable)
        try:
            holds_all = restrict(
                abi, (*confinement.writable, _DEV_NULL), readable, may_use_network=confinement.may_use_network
            )
            outside = 0 if holds_all else linux.other_threads()
        except OSError:  # such as the most rulesets that one process may have, 16 of them, by who started the server
            abi = 0
    has_filter = has_seccomp()
    if has_filter:
        try:
            refuse_calls(may_use_network=confinement.may_use_network)
        except OSError:
            has_filter = False
    return Confined(abi, has_filter, outside)


def runtime_paths() -> Iterator[Path]:
    """What this Python and its libraries read while they run. Some of it may not exist."""
    yield from map(Path, _SYSTEM)
    # An empty entry is the working directory.
    yield from (Path(one) for one in sys.path if one)
    yield Path(sys.base_prefix, "lib")
