"""seccomp: restricts a process's system calls with a BPF filter (seccomp(2))."""

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from ctypes import addressof, create_string_buffer
from dataclasses import dataclass
from errno import EFAULT, EINVAL, ENOSYS, EPERM
from struct import Struct
from typing import NamedTuple

from queryserver.platform.confinement.linux import (
    PR_SET_DUMPABLE,
    PR_SET_MM,
    PR_SET_PDEATHSIG,
    PR_SET_PTRACER,
    system_call,
)
from queryserver.platform.confinement.syscalls import ARGUMENT_FILTERED, NETWORK, REFUSED

_SET_FILTER = 1
_ALL_THREADS = 1
# Before Linux 5.16, a filter without this flag disables speculative store bypass, which slows the process down.
_KEEP_SPECULATION = 4

# Instruction codes from linux/bpf_common.h and linux/filter.h. The operand is the constant `k`.
_LOAD, _AND, _RETURN = 0x20, 0x54, 0x06
_IF_EQUAL, _IF_AT_LEAST, _IF_ANY_BIT = 0x15, 0x35, 0x45
_INSTRUCTION = Struct("=HBBI")
_PROGRAM = Struct("@HP")  # struct sock_fprog
# struct seccomp_data
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
_ALLOW = 0x7FFF0000
_REFUSE = 0x00050000  # the lower 16 bits contain the errno

_CLONE_THREAD = 0x00010000
_X32 = 0x40000000
_PRIO_PROCESS = 0
_IOPRIO_WHO_PROCESS = 1
_AF_UNIX, _SOCK_STREAM, _TYPE_OF_SOCKET = 1, 1, 0xF
# fcntl and ioctl: set which process receives the signals of a descriptor. ioctl: inject terminal input.
_F_SETOWN, _F_SETOWN_EX = 8, 15
_FIOSETOWN, _SIOCSPGRP, _TIOCSTI, _TIOCLINUX = 0x8901, 0x8902, 0x5412, 0x541C


@dataclass(frozen=True, slots=True)
class _Architecture:
    column: int
    """Index into the columns of the system call tables."""
    audit: int
    """linux/audit.h: AUDIT_ARCH_…"""
    seccomp: int
    """Number of the seccomp system call."""


_ARCHITECTURES = {"x86_64": _Architecture(0, 0xC000003E, 317), "aarch64": _Architecture(1, 0xC00000B7, 277)}


class _Instruction(NamedTuple):
    code: int
    k: int
    then: int = 0
    otherwise: int = 0
    """`then` and `otherwise` are the numbers of instructions to skip."""


def has_seccomp() -> bool:
    """Return whether the kernel accepts filters from this process and its architecture is in `_ARCHITECTURES`."""
    architecture = _architecture()
    if architecture is None:
        return False
    try:
        system_call(architecture.seccomp, _SET_FILTER, 0, 0)
    except OSError as error:
        # EFAULT means that the kernel tried to read a filter at address 0. Without seccomp, it returns another error.
        return error.errno == EFAULT
    return False


def refuse_calls(*, may_use_network: bool) -> None:
    """Make the system calls listed in `syscalls` fail with EPERM in all threads. Requires no_new_privs.

    The process can still create threads and send signals to itself. Raises OSError.
    """
    architecture = _architecture()
    if architecture is None:
        raise OSError(ENOSYS, os.strerror(ENOSYS))
    filtered = program(architecture, os.getpid(), may_use_network=may_use_network)
    code = create_string_buffer(
        b"".join(_INSTRUCTION.pack(one.code, one.then, one.otherwise, one.k) for one in filtered)
    )
    described = create_string_buffer(_PROGRAM.pack(len(filtered), addressof(code)))
    try:
        _set(architecture, _ALL_THREADS | _KEEP_SPECULATION, addressof(described))
    except OSError as error:
        if error.errno != EINVAL:
            raise
        _set(architecture, _ALL_THREADS, addressof(described))  # before Linux 4.17


def _set(architecture: _Architecture, flags: int, described: int) -> None:
    if thread := system_call(architecture.seccomp, _SET_FILTER, flags, described):
        raise OSError(EPERM, f"The thread {thread} has another filter.")


def _architecture() -> _Architecture | None:
    # A 32-bit process uses different system call numbers.
    return _ARCHITECTURES.get(os.uname().machine) if sys.maxsize > 2**32 else None


def program(architecture: _Architecture, pid: int, *, may_use_network: bool) -> Sequence[_Instruction]:
    """Build the filter for the process `pid`."""
    column = architecture.column
    made = [
        _Instruction(_LOAD, _ARCHITECTURE),
        _Instruction(_IF_EQUAL, architecture.audit, then=1),
        _refuse(),  # 32-bit calls on x86_64
        _Instruction(_LOAD, _NUMBER),
        _Instruction(_IF_AT_LEAST, _X32, otherwise=1),
        _refuse(),  # x32 calls on x86_64; no other architecture has numbers this high
    ]
    for name, numbers in ARGUMENT_FILTERED.items():
        if not (may_use_network and name in NETWORK):
            judged = _ARGUMENT_FILTERS[name](pid)
            made += [_Instruction(_IF_EQUAL, numbers[column], otherwise=len(judged)), *judged]
    refused = [
        number
        for name, numbers in REFUSED.items()
        if (number := numbers[column]) is not None and not (may_use_network and name in NETWORK)
    ]
    # Each comparison jumps to the last instruction, which refuses the call.
    made += [_Instruction(_IF_EQUAL, number, then=left) for number, left in _with_jump_distances(refused)]
    return [*made, _ALLOWED, _refuse()]


def _refuse(error: int = EPERM) -> _Instruction:
    return _Instruction(_RETURN, _REFUSE | error)


def _argument(index: int) -> _Instruction:
    """Load the lower 32 bits of an argument, which is what the kernel reads for an int.

    Both architectures are little-endian.
    """
    return _Instruction(_LOAD, _ARGUMENTS + 8 * index)


def _allow_only(index: int, *values: int) -> list[_Instruction]:
    """Refuse the call unless the argument is one of the values; otherwise continue with the next instruction."""
    tests = [_Instruction(_IF_EQUAL, one, then=left) for one, left in _with_jump_distances(values)]
    return [_argument(index), *tests, _refuse()]


def _refuse_values(index: int, *values: int) -> list[_Instruction]:
    """Refuse the call if the argument is one of the values; otherwise allow it."""
    tests = [_Instruction(_IF_EQUAL, one, then=left) for one, left in _with_jump_distances(values)]
    return [_argument(index), *tests, _ALLOWED, _refuse()]


def _with_jump_distances(values: Sequence[int]) -> Iterable[tuple[int, int]]:
    """Yield each value with its jump distance: the number of values from it to the end."""
    return zip(values, range(len(values), 0, -1), strict=True)


_ALLOWED = _Instruction(_RETURN, _ALLOW)
_ARGUMENT_FILTERS: Mapping[str, Callable[[int], list[_Instruction]]] = {
    # Only threads are allowed. glibc uses clone3, whose flags a filter cannot read; on ENOSYS it falls back to clone.
    "clone": lambda _: [_argument(0), _Instruction(_IF_ANY_BIT, _CLONE_THREAD, then=1), _refuse(), _ALLOWED],
    "clone3": lambda _: [_refuse(ENOSYS)],
    # Signal 0 only tests whether a process exists; DuckDB uses it to find temporary files of dead processes.
    "kill": lambda pid: [_argument(1), _Instruction(_IF_EQUAL, 0, then=3), *_allow_only(0, pid), _ALLOWED],
    "tgkill": lambda pid: [*_allow_only(0, pid), _ALLOWED],  # abort()
    "setpriority": lambda pid: [*_allow_only(0, _PRIO_PROCESS), *_allow_only(1, 0, pid), _ALLOWED],
    "ioprio_set": lambda pid: [*_allow_only(0, _IOPRIO_WHO_PROCESS), *_allow_only(1, 0, pid), _ALLOWED],
    "prlimit64": lambda pid: [*_allow_only(0, 0, pid), _ALLOWED],
    "sched_setaffinity": lambda pid: [*_allow_only(0, 0, pid), _ALLOWED],
    "sched_setscheduler": lambda pid: [*_allow_only(0, 0, pid), _ALLOWED],
    "sched_setparam": lambda pid: [*_allow_only(0, 0, pid), _ALLOWED],
    "sched_setattr": lambda pid: [*_allow_only(0, 0, pid), _ALLOWED],
    "prctl": lambda _: _refuse_values(0, PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_PTRACER, PR_SET_MM),
    "fcntl": lambda _: _refuse_values(1, _F_SETOWN, _F_SETOWN_EX),
    "ioctl": lambda _: _refuse_values(1, _FIOSETOWN, _SIOCSPGRP, _TIOCSTI, _TIOCLINUX),
    # Event loops wake up through a socket pair. It must be a stream pair: a datagram pair could send to any address.
    "socketpair": lambda _: [
        *_allow_only(0, _AF_UNIX),
        _argument(1),
        _Instruction(_AND, _TYPE_OF_SOCKET),
        _Instruction(_IF_EQUAL, _SOCK_STREAM, then=1),
        _refuse(),
        _ALLOWED,
    ],
}
