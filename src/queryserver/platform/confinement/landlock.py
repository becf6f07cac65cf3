"""Landlock: lets a Linux process restrict its own access to files, TCP and signals (landlock(7))."""

import os
import stat
from collections.abc import Iterable
from ctypes import addressof, create_string_buffer
from enum import IntFlag
from pathlib import Path
from struct import Struct

from queryserver.platform.confinement.linux import system_call

# These system call numbers are the same on all architectures.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_GET_VERSION = 1
_PATH_BENEATH = 1
_ALL_THREADS = 1 << 3
_RULESET = Struct("=QQQ")  # handled_access_fs, handled_access_net, scoped
_PATH_RULE = Struct("=Qi")  # allowed_access, parent_fd
_TCP_BIND_AND_CONNECT = 0b11
_ABSTRACT_SOCKETS_AND_SIGNALS = 0b11


class Access(IntFlag):
    """linux/landlock.h: LANDLOCK_ACCESS_FS_…"""

    EXECUTE = 1 << 0
    WRITE_FILE = 1 << 1
    READ_FILE = 1 << 2
    READ_DIR = 1 << 3
    REMOVE_DIR = 1 << 4
    REMOVE_FILE = 1 << 5
    MAKE_CHAR = 1 << 6
    MAKE_DIR = 1 << 7
    MAKE_REG = 1 << 8
    MAKE_SOCK = 1 << 9
    MAKE_FIFO = 1 << 10
    MAKE_BLOCK = 1 << 11
    MAKE_SYM = 1 << 12
    REFER = 1 << 13
    TRUNCATE = 1 << 14
    IOCTL_DEV = 1 << 15
    RESOLVE_UNIX = 1 << 16


_READ = Access.READ_FILE | Access.READ_DIR
# Excludes creating symbolic links, devices, pipes and sockets, because the unconfined server would follow or open them.
_WRITE = (
    _READ
    | Access.WRITE_FILE
    | Access.TRUNCATE
    | Access.MAKE_REG
    | Access.MAKE_DIR
    | Access.REMOVE_FILE
    | Access.REMOVE_DIR
    | Access.REFER
)
_FILE_RIGHTS = Access.READ_FILE | Access.WRITE_FILE | Access.TRUNCATE
_FIRST_ABI_RIGHTS = Access.REFER - 1
_RIGHTS_BY_ABI = {2: Access.REFER, 3: Access.TRUNCATE, 5: Access.IOCTL_DEV, 9: Access.RESOLVE_UNIX}
_NETWORK_ABI = 4
_SCOPE_ABI = 6
_ALL_THREADS_ABI = 8


def landlock_abi() -> int:
    """Return the Landlock ABI version that the kernel offers to this process; 0 if Landlock is unavailable.

    Landlock is unavailable before Linux 5.13, if the kernel does not enable it, and in containers whose seccomp
    profile denies the system call.
    """
    try:
        return system_call(_CREATE_RULESET, 0, 0, _GET_VERSION)
    except OSError:
        return 0


def restrict(abi: int, writable: Iterable[Path], readable: Iterable[Path], *, may_use_network: bool) -> bool:
    """Restrict the calling thread to these files and to everything below these directories.

    As far as ABI version `abi` supports it, also deny TCP connections and listeners (unless `may_use_network`), and
    signals and abstract sockets to processes outside. Files that are already open stay usable. Paths that do not exist
    or that this user cannot open are skipped. Requires no_new_privs. Returns whether the restriction applies to all
    existing threads. Raises OSError.
    """
    handled = Access(_FIRST_ABI_RIGHTS)
    for since, access in _RIGHTS_BY_ABI.items():
        handled |= access if abi >= since else 0
    network = _TCP_BIND_AND_CONNECT if abi >= _NETWORK_ABI and not may_use_network else 0
    scoped = _ABSTRACT_SOCKETS_AND_SIGNALS if abi >= _SCOPE_ABI else 0
    attributes = create_string_buffer(_RULESET.pack(handled, network, scoped), _RULESET.size)
    # Older kernels accept fields that they do not know if these are zero.
    ruleset = system_call(_CREATE_RULESET, addressof(attributes), _RULESET.size, 0)
    try:
        for path in readable:
            _allow(ruleset, path, _READ & handled)
        for path in writable:
            _allow(ruleset, path, _WRITE & handled)
        reaches_all = abi >= _ALL_THREADS_ABI
        system_call(_RESTRICT_SELF, ruleset, _ALL_THREADS if reaches_all else 0)
    finally:
        os.close(ruleset)
    return reaches_all


def _allow(ruleset: int, path: Path, access: Access) -> None:
    try:
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(opened).st_mode):
            access &= _FILE_RIGHTS
        rule = create_string_buffer(_PATH_RULE.pack(access, opened), _PATH_RULE.size)
        system_call(_ADD_RULE, ruleset, _PATH_BENEATH, addressof(rule), 0)
    finally:
        os.close(opened)
