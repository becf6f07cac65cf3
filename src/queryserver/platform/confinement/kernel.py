"""The kernel features with which a Linux process restricts itself, and system calls for which Python has no function.

Landlock restricts access to files, TCP and signals (landlock(7)); seccomp restricts system calls with a BPF filter
(seccomp(2)).

System call numbers are those of x86_64 and aarch64 (asm/unistd_64.h, asm-generic/unistd.h).
"""

import ctypes
import os
import stat
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from ctypes import addressof, create_string_buffer
from dataclasses import dataclass
from enum import IntFlag
from errno import EFAULT, EINVAL, ENOSYS, EPERM
from pathlib import Path
from struct import Struct
from typing import NamedTuple

_LIBC = ctypes.CDLL(None, use_errno=True)

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_NAME = 15
PR_SET_MM = 35
PR_SET_NO_NEW_PRIVS = 38
PR_SET_PTRACER = 0x59616D61
_THREAD_NAME_BYTES = 15
# linux/capability.h
_CAPABILITIES_3 = 0x20080522
_DAC_OVERRIDE = 1 << 1

# These system call numbers are the same on all architectures.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_GET_VERSION = 1
_PATH_BENEATH = 1
_RESTRICT_ALL_THREADS = 1 << 3
_RULESET = Struct("=QQQ")  # handled_access_fs, handled_access_net, scoped
_PATH_RULE = Struct("=Qi")  # allowed_access, parent_fd
_TCP_BIND_AND_CONNECT = 0b11
_ABSTRACT_SOCKETS_AND_SIGNALS = 0b11

REFUSED: Mapping[str, tuple[int | None, int | None]] = {
    # Starting programs and processes.
    "execve": (59, 221),
    "execveat": (322, 281),
    "fork": (57, None),
    "vfork": (58, None),
    # Sockets.
    "socket": (41, 198),
    "connect": (42, 203),
    "bind": (49, 200),
    "listen": (50, 201),
    "accept": (43, 202),
    "accept4": (288, 242),
    # Memory and descriptors of other processes.
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "kcmp": (312, 272),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    # Signals to other processes.
    "tkill": (200, 130),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424),
    # File permissions, owners and timestamps, which Landlock does not restrict; truncation by path, which it restricts
    # only since Linux 6.2.
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "fchown": (93, 55),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "setxattrat": (463, 463),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "removexattrat": (466, 466),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
    "truncate": (76, 45),
    "file_setattr": (469, 469),
    # File change notifications.
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "fanotify_init": (300, 262),
    # System V and POSIX IPC, which all processes of a user share.
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "semget": (64, 190),
    "semop": (65, 193),
    "semtimedop": (220, 192),
    "semctl": (66, 191),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    # Mounts and namespaces.
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "move_mount": (429, 429),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "mount_setattr": (442, 442),
    "unshare": (272, 97),
    "setns": (308, 268),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    # Kernel features with frequent vulnerabilities, none of which this program uses.
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "userfaultfd": (323, 282),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "syslog": (103, 116),
    "personality": (135, 92),
    "modify_ldt": (154, None),
    "iopl": (172, None),
    "ioperm": (173, None),
    # Administration of the machine.
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "vhangup": (153, 58),
}
"""System calls that are always refused, with their numbers on x86_64 and aarch64. A number is None if the
architecture lacks the call."""

ARGUMENT_FILTERED: Mapping[str, tuple[int, int]] = {
    "kill": (62, 129),
    "tgkill": (234, 131),
    "clone": (56, 220),
    "clone3": (435, 435),
    "setpriority": (141, 140),
    "prlimit64": (302, 261),
    "sched_setaffinity": (203, 122),
    "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118),
    "sched_setattr": (314, 274),
    "ioprio_set": (251, 30),
    "prctl": (157, 167),
    "fcntl": (72, 25),
    "ioctl": (16, 29),
    "socketpair": (53, 199),
}
"""System calls that are refused for some arguments, with their numbers on x86_64 and aarch64."""

NETWORK = frozenset({"socket", "connect", "bind", "listen", "accept", "accept4", "socketpair"})
"""System calls that stay allowed for a process with network access."""

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


def system_call(number: int, *arguments: int) -> int:
    """Make a system call and return its result. Raises OSError."""
    return _checked(_LIBC.syscall(ctypes.c_long(number), *(ctypes.c_long(one) for one in arguments)))


def control_process(option: int, *arguments: int) -> None:
    """Call prctl(2). Raises OSError."""
    filled = (*arguments, 0, 0, 0, 0)[:4]
    _checked(_LIBC.prctl(ctypes.c_int(option), *(ctypes.c_ulong(one) for one in filled)))


def name_thread(name: str) -> None:
    """Set the calling thread's name in the kernel to the first 15 bytes of `name`. Raises OSError."""
    shown = create_string_buffer(name.encode(errors="replace")[:_THREAD_NAME_BYTES])
    control_process(PR_SET_NAME, addressof(shown))


def drop_capabilities() -> None:
    """Drop all capabilities except CAP_DAC_OVERRIDE, which permits access to all users' files.

    That capability is kept because the service may run as root while its files belong to another user (a mounted
    volume). Raises OSError.
    """
    head = ctypes.create_string_buffer(Struct("=Ii").pack(_CAPABILITIES_3, 0))
    # The effective, permitted and inheritable sets: first of the lower 32 capabilities, then of the upper 32.
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
# Creating symbolic links, devices, pipes and sockets is excluded, because the unconfined server would follow or open
# them.
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

    As far as ABI version `abi` supports it, also deny TCP connections and listeners (unless `may_use_network` is set),
    and signals and abstract sockets to processes outside the thread's Landlock domain. Files that are already open stay
    usable. Paths that do not exist or that this user cannot open are skipped. Requires no_new_privs. Returns whether
    the restriction applies to all existing threads. Raises OSError.
    """
    handled = Access(_FIRST_ABI_RIGHTS)
    for since, access in _RIGHTS_BY_ABI.items():
        handled |= access if abi >= since else 0
    network = _TCP_BIND_AND_CONNECT if abi >= _NETWORK_ABI and not may_use_network else 0
    scoped = _ABSTRACT_SOCKETS_AND_SIGNALS if abi >= _SCOPE_ABI else 0
    attributes = create_string_buffer(_RULESET.pack(handled, network, scoped), _RULESET.size)
    # Older kernels accept fields that they do not know, provided that these fields are zero.
    ruleset = system_call(_CREATE_RULESET, addressof(attributes), _RULESET.size, 0)
    try:
        for path in readable:
            _allow(ruleset, path, _READ & handled)
        for path in writable:
            _allow(ruleset, path, _WRITE & handled)
        reaches_all = abi >= _ALL_THREADS_ABI
        system_call(_RESTRICT_SELF, ruleset, _RESTRICT_ALL_THREADS if reaches_all else 0)
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
    """`then` and `otherwise` are the numbers of instructions to skip if the comparison is true or false."""


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
    """Make the system calls in `REFUSED` fail with EPERM in all threads, and filter the calls in `ARGUMENT_FILTERED`.

    The process can still create threads and send signals to itself. Requires no_new_privs. Raises OSError.
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
        _set(architecture, _ALL_THREADS, addressof(described))  # before Linux 4.17, which added the flag


def _set(architecture: _Architecture, flags: int, described: int) -> None:
    if thread := system_call(architecture.seccomp, _SET_FILTER, flags, described):
        raise OSError(EPERM, f"The thread {thread} has another filter.")


def _architecture() -> _Architecture | None:
    # A 32-bit process uses different system call numbers.
    return _ARCHITECTURES.get(os.uname().machine) if sys.maxsize > 2**32 else None


def program(architecture: _Architecture, pid: int, *, may_use_network: bool) -> Sequence[_Instruction]:
    """Build the seccomp filter program for the process `pid`."""
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
    """Build an instruction that loads the lower 32 bits of an argument, which are all that the kernel reads for an int.

    These bits come first, because both architectures are little-endian.
    """
    return _Instruction(_LOAD, _ARGUMENTS + 8 * index)


def _allow_only(index: int, *values: int) -> list[_Instruction]:
    """Build instructions that refuse the call unless the argument is one of the values, and otherwise continue."""
    tests = [_Instruction(_IF_EQUAL, one, then=left) for one, left in _with_jump_distances(values)]
    return [_argument(index), *tests, _refuse()]


def _refuse_values(index: int, *values: int) -> list[_Instruction]:
    """Build instructions that refuse the call if the argument is one of the values, and otherwise allow it."""
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
