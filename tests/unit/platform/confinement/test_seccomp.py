"""The system call filter, interpreted like the kernel of each architecture, and the system call numbers."""

import errno
import re
from pathlib import Path

import pytest

from queryserver.platform.confinement import kernel
from queryserver.platform.confinement.kernel import ARGUMENT_FILTERED, NETWORK, REFUSED

PID = 4711
HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}
# Some systems' headers do not define these calls. Recent calls have the same number on all architectures.
NEWER = {"fchmodat2": 452, "setxattrat": 463, "removexattrat": 466, "open_tree_attr": 467, "file_setattr": 469}
READ = {"x86_64": 0, "aarch64": 63}

both = pytest.mark.parametrize("machine", ["x86_64", "aarch64"])


def decided(program, number: int, audit: int, *arguments: int) -> int:
    """Run the filter for a system call; return 0 or the error number.

    Raises an exception if the program runs past its end.
    """
    filled = [*arguments, 0, 0, 0, 0, 0, 0][:6]
    words = {0: number, 4: audit} | {16 + 8 * at: one & 0xFFFFFFFF for at, one in enumerate(filled)}
    at, value = 0, 0
    while True:
        one = program[at]
        assert 0 <= one.then <= 255
        assert 0 <= one.otherwise <= 255
        at += 1
        match one.code:
            case kernel._LOAD:
                value = words[one.k]
            case kernel._AND:
                value &= one.k
            case kernel._RETURN:
                return 0 if one.k == kernel._ALLOW else one.k & 0xFFFF
            case kernel._IF_EQUAL:
                at += one.then if value == one.k else one.otherwise
            case kernel._IF_AT_LEAST:
                at += one.then if value >= one.k else one.otherwise
            case kernel._IF_ANY_BIT:
                at += one.then if value & one.k else one.otherwise


class Filter:
    def __init__(self, machine: str, *, may_use_network: bool = False) -> None:
        self.architecture = kernel._ARCHITECTURES[machine]
        self.program = kernel.program(self.architecture, PID, may_use_network=may_use_network)

    def __call__(self, call: str | int, *arguments: int) -> int:
        number = call if isinstance(call, int) else (ARGUMENT_FILTERED | REFUSED)[call][self.architecture.column]
        return decided(self.program, number, self.architecture.audit, *arguments)


@both
def test_filter_refuses_only_listed_calls(machine):
    one = Filter(machine)
    listed = {numbers[one.architecture.column] for numbers in REFUSED.values()}
    judged = {numbers[one.architecture.column] for numbers in ARGUMENT_FILTERED.values()}
    for number in range(600):
        if number not in judged:
            assert one(number) == (errno.EPERM if number in listed else 0), number


@both
def test_filter_refuses_calls_for_other_architectures(machine):
    one = Filter(machine)
    i386 = 0x40000003
    assert decided(one.program, READ[machine], i386) == errno.EPERM
    assert one(READ[machine] | 0x40000000) == errno.EPERM


@both
@pytest.mark.parametrize(
    ("call", "arguments", "answer"),
    [
        ("clone", (0x3D0F00,), 0),  # pthread_create
        ("clone", (17,), errno.EPERM),  # fork
        ("clone", (0x4111,), errno.EPERM),  # posix_spawn
        ("clone3", (), errno.ENOSYS),
        ("kill", (PID, 15), 0),
        ("kill", (PID + 1, 15), errno.EPERM),
        ("kill", (0, 15), errno.EPERM),
        ("kill", (-1, 9), errno.EPERM),
        ("kill", (-PID, 9), errno.EPERM),
        ("kill", (PID + 1, 0), 0),
        ("tgkill", (PID, PID + 3, 6), 0),
        ("tgkill", (PID + 1, PID + 1, 6), errno.EPERM),
        ("setpriority", (0, 0, 5), 0),
        ("setpriority", (0, PID, 5), 0),
        ("setpriority", (0, PID + 1, 5), errno.EPERM),
        ("setpriority", (2, 0, 5), errno.EPERM),  # all processes of the user
        ("ioprio_set", (1, 0, 0), 0),
        ("ioprio_set", (3, 0, 0), errno.EPERM),
        ("prlimit64", (0, 9), 0),
        ("prlimit64", (PID + 1, 9), errno.EPERM),
        ("sched_setaffinity", (0,), 0),
        ("sched_setscheduler", (PID + 1,), errno.EPERM),
        ("prctl", (15,), 0),  # PR_SET_NAME
        ("prctl", (4, 1), errno.EPERM),
        ("prctl", (1, 0), errno.EPERM),
        ("fcntl", (3, 6), 0),  # F_SETLK
        ("fcntl", (3, 8), errno.EPERM),
        ("ioctl", (1, 0x5401), 0),  # TCGETS
        ("ioctl", (1, 0x5412), errno.EPERM),
        ("socketpair", (1, 1), 0),
        ("socketpair", (1, 1 | 0o2000000 | 0o4000), 0),  # SOCK_CLOEXEC, SOCK_NONBLOCK
        ("socketpair", (1, 2), errno.EPERM),
        ("socketpair", (10, 1), errno.EPERM),
    ],
)
def test_filter_checks_call_arguments(machine, call, arguments, answer):
    assert Filter(machine)(call, *arguments) == answer


@both
def test_network_permission_allows_sockets(machine):
    one = Filter(machine, may_use_network=True)
    assert [one(name, 2, 2) for name in sorted(NETWORK)] == [0] * len(NETWORK)
    assert one("execve") == errno.EPERM


@both
def test_filter_program_fits_kernel_limit(machine):
    assert len(Filter(machine).program) < 4096  # BPF_MAXINSNS


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_call_numbers_match_linux_headers(machine):
    header = HEADERS[machine]
    if not header.exists():
        pytest.skip("the Linux headers are not installed")
    found = re.findall(r"^#define\s+__NR(?:3264)?_(\w+)\s+(\d+)", header.read_text(), re.MULTILINE)
    expected = NEWER | {name: int(number) for name, number in found}
    column = kernel._ARCHITECTURES[machine].column
    for name, numbers in (ARGUMENT_FILTERED | REFUSED).items():
        assert numbers[column] == expected.get(name), name
