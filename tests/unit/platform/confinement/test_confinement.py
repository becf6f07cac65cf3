"""The process sandbox: actions it refuses, actions that still work, and how processes end (rule T33)."""

import errno
import json
import os
import resource
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from queryserver.platform.confinement import detect_support

SUPPORT = detect_support()
needs_landlock = pytest.mark.skipif(not SUPPORT.landlock_abi, reason="this kernel does not support Landlock")
needs_seccomp = pytest.mark.skipif(not SUPPORT.seccomp, reason="this platform has no seccomp filters")
needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="requires Linux")

BEGIN = """
import ctypes, json, os, signal, socket, subprocess, sys, threading, time
from pathlib import Path
from queryserver.platform import confinement
from queryserver.platform.confinement import Confinement, confine

directory = Path(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)

def attempt(action):
    "0, or the number of the error."
    try:
        action()
    except OSError as error:
        return error.errno
    return 0

def called(function, *arguments):
    if getattr(libc, function)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), function)
"""


def child(code: str, directory: Path, *, expect: int = 0) -> str:
    """Run `code` in a new process without environment variables; return its output."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", BEGIN + code, str(directory)], env={}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == expect, done.stderr
    return done.stdout


ATTEMPTS = """
(directory / "secret").write_text("of the server")
mine, library = directory / "mine", directory / "library"
for made in (mine, library):
    made.mkdir()
(library / "book").write_text("text")
# Another process of the same user, which ends with its input, that is with this one.
server = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
confine(Confinement(writable=(mine,), readable=(library,)))

def files():
    (mine / "a").write_text("1234")
    with open(mine / "a", "r+") as file:
        file.truncate(2)
    (mine / "deeper").mkdir()
    (mine / "a").rename(mine / "deeper" / "b")
    assert (mine / "deeper" / "b").read_text() == "12"
    (mine / "deeper" / "b").unlink()
    (mine / "deeper").rmdir()

def threads():
    seen = []
    running = [threading.Thread(target=seen.append, args=(one,)) for one in range(8)]
    for one in running: one.start()
    for one in running: one.join()
    assert len(seen) == 8

def event_loop():
    import asyncio
    async def slept():
        await asyncio.to_thread(time.sleep, 0)
    asyncio.run(slept())

def fork():
    if os.fork() == 0:
        os._exit(0)

gone = 4194304  # no process has a greater number
found = {
    # Landlock
    "read a file outside": attempt((directory / "secret").read_text),
    "read a file of the system": attempt(lambda: open("/etc/passwd")),
    "list the root": attempt(lambda: os.listdir("/")),
    "write outside": attempt(lambda: (directory / "new").write_text("x")),
    "write to what is readable": attempt(lambda: (library / "book").write_text("x")),
    "delete what is readable": attempt((library / "book").unlink),
    "move a file in": attempt(lambda: (library / "book").rename(mine / "book")),
    "link a file in": attempt(lambda: os.link(library / "book", mine / "book")),
    "make a symbolic link": attempt(lambda: os.symlink("/etc", mine / "etc")),
    "make a pipe": attempt(lambda: os.mkfifo(mine / "pipe")),
    # seccomp
    "make a TCP socket": attempt(lambda: socket.socket(socket.AF_INET)),
    "make a UDP socket": attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)),
    "make a local socket": attempt(lambda: socket.socket(socket.AF_UNIX)),
    "make a netlink socket": attempt(lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)),
    "make a pair of datagram sockets": attempt(lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)),
    "fork": attempt(fork),
    "start a program": attempt(lambda: subprocess.run(["true"])),
    "start a program by posix_spawn": attempt(lambda: os.posix_spawn("/bin/true", ["true"], {})),
    "become a program": attempt(lambda: os.execv("/bin/true", ["true"])),
    "signal another process": attempt(lambda: os.kill(server.pid, signal.SIGTERM)),
    "lower another's priority": attempt(lambda: os.setpriority(os.PRIO_PROCESS, server.pid, 19)),
    "limit another process": attempt(lambda: __import__("resource").prlimit(server.pid, 7, (0, 0))),
    "trace another process": attempt(lambda: called("ptrace", 16, server.pid, 0, 0)),
    "change rights": attempt(lambda: os.chmod(directory / "secret", 0o777)),
    "change the owner": attempt(lambda: os.chown(directory / "secret", os.getuid(), -1)),
    "change times": attempt(lambda: os.utime(directory / "secret")),
    "truncate by a path": attempt(lambda: os.truncate(directory / "secret", 0)),
    "make a namespace": attempt(lambda: called("unshare", 0x10000000)),
    "be dumpable again": attempt(lambda: called("prctl", 4, 1, 0, 0, 0)),
    "outlive the parent": attempt(lambda: called("prctl", 1, 0, 0, 0, 0)),
    "send signals by a descriptor": attempt(lambda: __import__("fcntl").fcntl(0, 8, server.pid)),
    # What goes on
    "work on own files": attempt(files),
    "read what is readable": attempt((library / "book").read_text),
    "read a library": attempt(lambda: Path(json.__file__).read_text()),
    "import": attempt(lambda: __import__("sqlite3")),
    "find a time zone": attempt(lambda: __import__("zoneinfo").ZoneInfo("Europe/Berlin")),
    "start threads": attempt(threads),
    "run an event loop": attempt(event_loop),
    "make a pair of stream sockets": attempt(socket.socketpair),
    "write to /dev/null": attempt(lambda: Path("/dev/null").write_text("x")),
    "signal itself": attempt(lambda: os.kill(os.getpid(), 0)),
    "find a process gone": attempt(lambda: os.kill(gone, 0)),
    "lower its priority": attempt(lambda: os.nice(1)),
    "lower its limit": attempt(lambda: confinement.lower_limit(7, 32)),
    "know its memory": attempt(lambda: Path("/proc/self/statm").read_text()),
}
found["the other process"] = server.poll()
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def attempts(tmp_path_factory):
    if sys.platform != "linux":
        pytest.skip("requires Linux")
    directory = tmp_path_factory.mktemp("confined")
    found = json.loads(child(ATTEMPTS, directory))
    assert found.pop("the other process") is None
    return found


@needs_landlock
@pytest.mark.parametrize(
    ("what", "error"),
    [
        ("read a file outside", errno.EACCES),
        ("read a file of the system", errno.EACCES),
        ("list the root", errno.EACCES),
        ("write outside", errno.EACCES),
        ("write to what is readable", errno.EACCES),
        ("delete what is readable", errno.EACCES),
        ("make a symbolic link", errno.EACCES),
        ("make a pipe", errno.EACCES),
    ],
)
def test_landlock_refuses_file_access_outside_rules(attempts, what, error):
    assert attempts[what] == error


@needs_landlock
@pytest.mark.parametrize("what", ["move a file in", "link a file in"])
def test_files_cannot_be_moved_or_linked_into_writable_directory(attempts, what):
    assert attempts[what] in {errno.EACCES, errno.EXDEV}


@needs_seccomp
@pytest.mark.parametrize(
    "what",
    [
        "make a TCP socket",
        "make a UDP socket",
        "make a local socket",
        "make a netlink socket",
        "make a pair of datagram sockets",
        "fork",
        "start a program",
        "start a program by posix_spawn",
        "become a program",
        "signal another process",
        "lower another's priority",
        "limit another process",
        "trace another process",
        "change rights",
        "change the owner",
        "change times",
        "truncate by a path",
        "make a namespace",
        "be dumpable again",
        "outlive the parent",
        "send signals by a descriptor",
    ],
)
def test_seccomp_refuses_system_calls(attempts, what):
    assert attempts[what] == errno.EPERM


@pytest.mark.parametrize(
    "what",
    [
        "work on own files",
        "read what is readable",
        "read a library",
        "import",
        "find a time zone",
        "start threads",
        "run an event loop",
        "make a pair of stream sockets",
        "write to /dev/null",
        "signal itself",
        "lower its priority",
        "lower its limit",
        "know its memory",
    ],
)
def test_permitted_actions_still_work(attempts, what):
    assert attempts[what] == 0


def test_ended_process_can_be_detected(attempts):
    """DuckDB must be able to detect ended processes, because it removes their temporary files."""
    assert attempts["find a process gone"] == errno.ESRCH


@needs_linux
def test_result_reports_active_protections(tmp_path):
    code = """
held = confine(Confinement(writable=(directory,)))
print(json.dumps([held.landlock_abi, held.seccomp, held.threads_outside]))
"""
    assert json.loads(child(code, tmp_path)) == [SUPPORT.landlock_abi, SUPPORT.seccomp, 0]


@needs_linux
def test_support_detection_confines_nothing():
    fields = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line)
    detect_support()
    after = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line)
    for name in ("NoNewPrivs", "Seccomp", "Seccomp_filters", "CapEff"):
        assert after.get(name) == fields.get(name)


@needs_linux
@pytest.mark.parametrize("threads", [1, 3])
def test_duckdb_works_in_confined_process(tmp_path, threads):
    code = f"""
(directory / "data").mkdir()
confine(Confinement(writable=(directory / "data",)))
import duckdb
confinement.limit_memory(confinement.address_space_bytes() + 3 * 2**30)
settings = {{"temp_directory": str(directory / "data" / "spilled"), "memory_limit": "40MB", "threads": {threads}}}
for _ in range(2):
    database = duckdb.connect(str(directory / "data" / "a.duckdb"), config=settings)
    database.execute("SET enable_progress_bar = false")
    rows = "SELECT range AS i, md5(range::VARCHAR) || md5((-range)::VARCHAR) AS s FROM range({{}})"
    database.execute("CREATE OR REPLACE TABLE t AS " + rows.format(50_000))
    database.execute("CHECKPOINT")
    database.execute("CREATE TEMP TABLE spilled AS " + rows.format(700_000))  # 50 MB
    has_spilled = any((directory / "data" / "spilled").iterdir())
    sums = database.execute("SELECT count(*), sum(i) FROM spilled JOIN t USING (i)").fetchone()
    database.execute(f"COPY t TO '{{directory}}/data/t.parquet'")
    copied = database.execute(f"SELECT count(*) FROM '{{directory}}/data/t.parquet'").fetchone()
    zone = database.execute("SET TimeZone = 'Europe/Berlin'; SELECT TIMESTAMPTZ '2026-01-01 00:00:00+00'").fetchone()
    database.close()
    print(*sums, *copied, zone[0].utcoffset(), has_spilled)
try:
    duckdb.connect(str(directory / "other.duckdb"))
except duckdb.IOException:
    print("refused")
"""
    *lines, last = child(code, tmp_path).splitlines()
    assert lines == ["50000 1249975000 50000 1:00:00 True"] * 2
    if SUPPORT.landlock_abi:
        assert last == "refused"


@needs_linux
def test_memory_limit_is_enforced(tmp_path):
    code = """
confine(Confinement(memory_bytes=confinement.address_space_bytes() + 200 * 2**20))
held = bytearray(100 * 2**20)
try:
    more = bytearray(200 * 2**20)
except MemoryError:
    print("refused")
"""
    assert child(code, tmp_path) == "refused\n"


def test_resource_limits_are_set(tmp_path):
    code = """
import resource
before = os.nice(0)
confine(Confinement(file_bytes=1000, open_files=40, niceness=3))
with open(os.devnull) as many:
    opened = attempt(lambda: [os.dup(many.fileno()) for _ in range(50)])
kinds = resource.RLIMIT_CORE, resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE
print(json.dumps([[resource.getrlimit(one) for one in kinds], opened, os.nice(0) - before]))
"""
    limits, opened, niceness = json.loads(child(code, tmp_path))
    assert limits == [[0, 0], [40, 40], [1000, 1000]]
    assert opened == errno.EMFILE
    assert niceness == 3


def test_stricter_existing_limit_is_kept(tmp_path):
    code = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (30, 30))
confine(Confinement(open_files=40))
print(resource.getrlimit(resource.RLIMIT_NOFILE))
"""
    assert child(code, tmp_path) == "(30, 30)\n"


@needs_linux
def test_core_dumps_and_new_privileges_are_disabled(tmp_path):
    code = """
confine(Confinement())
fields = dict(line.split(":\\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\\t" in line)
dumpable = libc.prctl(3, 0, 0, 0, 0)
print(json.dumps([dumpable, fields["NoNewPrivs"], int(fields["CapEff"], 16), int(fields["CapPrm"], 16)]))
"""
    dumpable, no_new_privileges, effective, permitted = json.loads(child(code, tmp_path))
    assert (dumpable, no_new_privileges) == (0, "1")
    may_open_files_of_all = 0b10
    assert effective | permitted in (0, may_open_files_of_all)


@needs_linux
def test_abort_ends_confined_process_with_sigabrt(tmp_path):
    assert child("confine(Confinement()); os.abort()", tmp_path, expect=-signal.SIGABRT) == ""


@needs_linux
def test_confined_process_ends_with_its_parent(tmp_path):
    confined = BEGIN + "confine(Confinement(parent=os.getppid())); print(os.getpid(), flush=True); time.sleep(60)"
    code = f"""
started = subprocess.Popen([sys.executable, "-I", "-c", {confined!r}, "."], env={{}}, stdout=subprocess.PIPE)
print(started.stdout.readline().decode(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    pid = int(child(code, tmp_path, expect=-signal.SIGKILL))
    until = time.monotonic() + 10
    while Path(f"/proc/{pid}/stat").exists() and " Z " not in Path(f"/proc/{pid}/stat").read_text():
        if time.monotonic() > until:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            pytest.fail("It outlives its parent.")
        time.sleep(0.02)


def test_already_ended_parent_is_detected(tmp_path):
    code = """
try:
    confine(Confinement(parent=os.getppid() + 1))
except ProcessLookupError:
    print("noticed")
"""
    assert child(code, tmp_path) == "noticed\n"


def test_missing_directory_is_an_error(tmp_path):
    code = """
try:
    confine(Confinement(writable=(directory / "missing",)))
except FileNotFoundError:
    print("noticed")
"""
    assert child(code, tmp_path) == "noticed\n"


@needs_landlock
@needs_seccomp
def test_running_threads_get_seccomp_filter_and_are_counted(tmp_path):
    """Only since Linux 7.0 can Landlock be applied to threads that are already running."""
    code = """
go, done, found = threading.Event(), threading.Event(), []

def wait():
    go.wait()
    found.extend([attempt(lambda: socket.socket()), attempt(lambda: open("/etc/passwd"))])
    done.set()

threading.Thread(target=wait).start()
held = confine(Confinement())
go.set()
done.wait()
print(json.dumps([held.threads_outside, *found]))
"""
    outside, of_socket, of_file = json.loads(child(code, tmp_path))
    assert outside == (0 if SUPPORT.landlock_abi >= 8 else 1)
    assert of_socket == errno.EPERM
    assert of_file == (errno.EACCES if SUPPORT.landlock_abi >= 8 else 0)


LISTENING = """
listening = socket.create_server(("127.0.0.1", 0))
{}
print(attempt(lambda: socket.create_connection(listening.getsockname(), timeout=5)))
"""


@needs_linux
def test_network_access_can_be_permitted(tmp_path):
    code = LISTENING.format("confine(Confinement(may_use_network=True))")
    assert child(code, tmp_path) == "0\n"


@pytest.mark.skipif(SUPPORT.landlock_abi < 4, reason="Landlock on this kernel has no rules for TCP")
def test_landlock_without_seccomp_refuses_tcp(tmp_path):
    """On architectures without a list of system calls, there is no seccomp filter; Landlock alone must refuse TCP."""
    alone = "from queryserver.platform.confinement import process; process.has_seccomp = lambda: False"
    code = LISTENING.format(f"{alone}; confine(Confinement())")
    assert child(code, tmp_path) == f"{errno.EACCES}\n"


@pytest.mark.parametrize("system", ["linux", "darwin"])
def test_limits_apply_without_kernel_support(tmp_path, system):
    code = f"""
import resource
from queryserver.platform.confinement import process
process.landlock_abi, process.has_seccomp = lambda: 0, lambda: False
process.sys.platform = {system!r}
held = confine(Confinement(open_files=40))
print(held, resource.getrlimit(resource.RLIMIT_NOFILE), attempt(lambda: socket.socket()))
"""
    assert child(code, tmp_path) == "ConfinementResult(landlock_abi=0, seccomp=False, threads_outside=0) (40, 40) 0\n"


@needs_landlock
def test_exceeding_landlock_ruleset_limit_is_not_an_error(tmp_path):
    """A process can have at most 16 stacked rulesets, including those of its container."""
    code = """
from queryserver.platform.confinement import process
from queryserver.platform.confinement import kernel
kernel.control_process(kernel.PR_SET_NO_NEW_PRIVS, 1)
for _ in range(16):
    process.restrict(process.landlock_abi(), (Path("/"),), (), may_use_network=True)
print(confine(Confinement()).landlock_abi)
"""
    assert child(code, tmp_path) == "0\n"


def test_child_limits_do_not_affect_the_test_process(tmp_path):
    """The tests above must set limits only in their child processes."""
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] != 40
