"""Linux system calls for which Python has no function."""

import ctypes
import os
from pathlib import Path
from struct import Struct

_LIBC = ctypes.CDLL(None, use_errno=True)

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_MM = 35
PR_SET_NO_NEW_PRIVS = 38
PR_SET_PTRACER = 0x59616D61
# linux/capability.h
_CAPABILITIES_3 = 0x20080522
_DAC_OVERRIDE = 1 << 1


def system_call(number: int, *arguments: int) -> int:
    """Make a system call and return its result. Raises OSError."""
    return _checked(_LIBC.syscall(ctypes.c_long(number), *(ctypes.c_long(one) for one in arguments)))


def control_process(option: int, *arguments: int) -> None:
    """Call prctl(2). Raises OSError."""
    filled = (*arguments, 0, 0, 0, 0)[:4]
    _checked(_LIBC.prctl(ctypes.c_int(option), *(ctypes.c_ulong(one) for one in filled)))


def drop_capabilities() -> None:
    """Drop all capabilities except CAP_DAC_OVERRIDE, which permits access to all users' files. Raises OSError.

    It is kept because the service may run as root while its files belong to another user (a mounted volume).
    """
    head = ctypes.create_string_buffer(Struct("=Ii").pack(_CAPABILITIES_3, 0))
    # effective, permitted and inheritable set: of the lower 32 capabilities, then of the upper 32
    sets = Struct("=6I")
    found = ctypes.create_string_buffer(sets.size)
    _checked(_LIBC.capget(head, found))
    _, permitted, *_ = sets.unpack(found.raw[: sets.size])
    kept = permitted & _DAC_OVERRIDE
    _checked(_LIBC.capset(head, ctypes.create_string_buffer(sets.pack(kept, kept, 0, 0, 0, 0))))


def other_threads() -> int:
    """Return the number of threads other than the calling thread; 0 if /proc is not mounted."""
    try:
        return len(list(Path("/proc/self/task").iterdir())) - 1
    except OSError:
        return 0


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
