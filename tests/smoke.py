"""Installs the packages of the lock files with every Python on this machine, and uses the server with each of them as a
new user would.

For the system's own Python, `make run` is called in a copy of the project, with only the system's programs on PATH: pip
installs the packages and checks their hashes. For every other Python, uv creates an environment with the wheels of
server and client, quickly because of its cache. Then a server starts on a free port, and a user logs in. A statement
runs on DuckDB, and its rows are read through the API, the client, SQLAlchemy and `qs`. Finally, the server must stop
with exit code 0. A Python that only the client supports, or otherwise the oldest one, tests only the client. It gets
the oldest packages that the client and its extras accept, and uses a server of this script's environment.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import psutil
from uv import find_uv_bin

PROJECT = Path(__file__).resolve().parent.parent
FIRST, FIRST_OF_CLIENT, BEYOND = (3, 11), (3, 10), (3, 15)
SYSTEM_PATH = "/usr/bin:/bin"
LOCKS = [f"--requirement=requirements/{name}.lock" for name in ("build", "service", "embedded", "ldap")]
UV = find_uv_bin()
WHEELS = "dist/*.whl"
EXTRAS = ("arrow", "cli", "sqlalchemy")
"""The client's extras. pandas and polars are omitted because they are large, and only the modules for pandas and polars
import them.
"""
PASSWORD = "a password for a minute"
LISTENS = re.compile(r"queryserver listens url=(\S+) api_page=(\S+) docs=")
LISTENS_WITHIN_S = 360  # `make run` must install all packages within this time, even on a busy machine.
ENDS_WITHIN_S = 120
TERMINATED = 143
STATEMENT_ENDS_WITHIN_S = 120
ANSWER = [(42,)]
_USE_CLIENT = f"""
from queryserver_client import connect_sync
with connect_sync() as db, db.query("duckdb", "SELECT 6 * 7 AS answer") as result:
    assert result.rows() == {ANSWER}, result.rows()
    assert [tuple(row.values()) for row in result.arrow().to_pylist()] == {ANSWER}

import os, subprocess, sys
import sqlalchemy as sa
engine = sa.create_engine("queryserver:///duckdb")
with engine.connect() as connection:
    assert connection.execute(sa.text("SELECT :n + 1"), {{"n": 41}}).fetchall() == {ANSWER}
    assert "customers" in sa.inspect(connection).get_table_names()
engine.dispose()

def qs(*words):
    command = [os.path.join(sys.prefix, "bin", "qs"), *words]
    return subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True).stdout

for command in ("sql", "cp", "import", "history"):
    assert command in qs("--help")
    assert "--help" in qs(command, "--help")
statement = ("sql", "duckdb", "SELECT ? + 1 AS answer", "41")
assert qs(*statement) == "answer\\n42\\n"
assert qs(*statement, "-o", "table").split() == ["answer", "──────", "42", "(1", "row)"]
assert "duckdb" in qs("history", "-o", "json")
"""
# Pre-releases and free-threaded builds are excluded, because packages have no wheels for them.
_DESCRIBE = """
import ensurepip, sys, sysconfig
if sys.version_info.releaselevel != "final" or sysconfig.get_config_var("Py_GIL_DISABLED"):
    sys.exit(1)
print("%d.%d.%d" % sys.version_info[:3], sys.base_prefix)
"""


class SmokeError(Exception):
    """The installation or use of a server failed. The message gives the reason, in most cases with the program's
    output.
    """


@dataclass(frozen=True, slots=True)
class Python:
    """A Python installation that can create virtual environments."""

    version: str
    prefix: str
    program: str
    is_for_client: bool = False
    """Whether this installation tests only the client, although the server also supports it."""

    @property
    def is_system(self) -> bool:
        """Whether this is the operating system's python3."""
        return self.has_server and self.program == "/usr/bin/python3"

    @property
    def has_server(self) -> bool:
        """Whether this installation tests the server, which must support its version."""
        return self.minor >= FIRST and not self.is_for_client

    @property
    def minor(self) -> tuple[int, ...]:
        """The minor version, such as (3, 12) for 3.12.1."""
        return tuple(int(part) for part in self.version.split(".")[:2])


def pythons() -> list[Python]:
    """Return all installations that the server or the client supports, starting with the system's Python. At least one
    tests only the client.
    """
    found: dict[tuple[str, str], Python] = {}  # several versions of a distribution share /usr
    for program in candidates():
        described = subprocess.run([program, "-c", _DESCRIBE], capture_output=True, text=True, check=False)
        # otherwise this is a pyenv shim of a version that is not selected, or a Python without ensurepip
        if described.returncode == 0:
            version, prefix = described.stdout.strip().split(" ", 1)
            python = Python(version, prefix, program)
            if FIRST_OF_CLIENT <= python.minor < BEYOND:
                found.setdefault((version, prefix), python)
    made = list(found.values())
    if made and all(python.has_server for python in made):
        made.append(replace(min(made, key=lambda python: python.minor), is_for_client=True))
    return made


def candidates() -> Iterator[str]:
    """Yield the paths of possible Python interpreters: the system's, those on PATH, and those that pyenv manages."""
    names = ["python3", *(f"python3.{minor}" for minor in range(FIRST_OF_CLIENT[1], BEYOND[1]))]
    directories = [*SYSTEM_PATH.split(":"), *os.get_exec_path()]
    if pyenv := shutil.which("pyenv"):
        root = subprocess.run([pyenv, "root"], capture_output=True, text=True, check=True).stdout.strip()
        directories += [str(directory) for directory in sorted(Path(root, "versions").glob("3.*/bin"))]
    for directory in directories:
        for name in names:
            program = Path(directory, name)
            # The environment of this script is not a separate installation.
            if program.exists() and not program.is_relative_to(sys.prefix):
                yield str(program)


def copy_project(target: Path) -> None:
    """Copy the files that git tracks or would add, as a fresh clone has them."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=PROJECT, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in filter(None, names):
        if (PROJECT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(PROJECT / name, target / name)


def environment_of(python: Python, clone: Path) -> Path:
    """Create an environment with the wheels of server and client, or of the client alone if the server does not support
    this Python. The client has all its extras.
    """
    place = Path(tempfile.mkdtemp(prefix=f".venv-{python.version}-", dir=clone))
    run_uv(clone, "venv", f"--python={python.program}", str(place))
    install = ("pip", "install", "--only-binary=:all:", f"--python={place}")
    wheels = [str(wheel) for wheel in clone.glob(WHEELS)]
    [client] = [wheel for wheel in wheels if "client" in Path(wheel).name]
    if python.has_server:
        run_uv(clone, *install, "--require-hashes", *LOCKS)
        run_uv(clone, *install, "--no-deps", "--no-index", *wheels)
        run_uv(clone, *install, f"{client}[{','.join(EXTRAS)}]")  # client packages that are not in the lock files
    else:
        # For a wheel, "direct" would refer to the wheel itself, so the newest of its dependencies would be installed.
        extras = [f"--extra={extra}" for extra in EXTRAS]
        oldest = ("--resolution=lowest-direct", "--requirement=clients/python/pyproject.toml", *extras)
        run_uv(clone, *install, *oldest)
        run_uv(clone, *install, "--no-deps", "--no-index", client)
    return place


def build_wheels(clone: Path) -> None:
    """Build the wheels of server and client as for publication. Raises SmokeError if a build fails."""
    with_our_tools = (f"--python={sys.executable}", "--no-build-isolation", "--no-index")
    for project in (".", "clients/python"):
        run_uv(clone, "build", "--wheel", *with_our_tools, "--out-dir=dist", project)


def run_uv(clone: Path, *arguments: str) -> None:
    """Run uv. Raises SmokeError if it fails."""
    command = [UV, "--quiet", "--system-certs", *arguments]
    ended = subprocess.run(command, cwd=clone, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        message = f"uv {' '.join(arguments)}:\n{ended.stdout}{ended.stderr}"
        raise SmokeError(message)


def smoke(python: Python, clone: Path) -> str:
    """Install, start, use and stop a server with this Python; return a line for the report. Raises SmokeError if a step
    fails.
    """
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        data_dir = Path(directory, "data")
        inherited = {name: value for name, value in os.environ.items() if not name.upper().startswith("QUERYSERVER")}
        environment = {**inherited, "QUERYSERVER_ADMIN_PASSWORD": PASSWORD}
        if python.is_system:
            environment["PATH"] = SYSTEM_PATH
            command, client = ["make", "run", "PORT=0", f"QUERYSERVER_DATA_DIR={data_dir}"], ()
        else:
            environment["QUERYSERVER__DESKTOP__DATA_DIR"] = str(data_dir)
            installed = environment_of(python, clone) / "bin"
            serves = installed if python.has_server else Path(sys.executable).parent
            command = [str(serves / "queryserver"), "serve", "--embedded", "--port=0"]
            client = (str(installed / "python"), "-c", _USE_CLIENT)
        use_server(command, client, environment, clone, Path(directory, "output"))
    how = "make run" if python.is_system else "uv" if python.has_server else "uv, the client only"
    return f"Python {python.version} ({how}): installed, served, stopped in {time.monotonic() - began:.0f} s"


def use_server(
    command: list[str], client: tuple[str, ...], environment: Mapping[str, str], clone: Path, output: Path
) -> None:
    """Start the server, run a statement, and stop the server. Unless `client` is empty, run its command as well. Raises
    SmokeError if a step fails.
    """
    with output.open("wb") as file:
        server = subprocess.Popen(command, cwd=clone, env=environment, stdout=file, stderr=subprocess.STDOUT)
    try:
        url = address(server, output)
        rows = rows_of(url, "SELECT 6 * 7 AS answer, count(*) AS customers FROM customers")
        if len(rows) != 1 or rows[0][0] != 42 or rows[0][1] <= 0:
            message = f"wrong rows: {rows}"
            raise SmokeError(message)
        if client:
            use_client(client, url)
        serving = psutil.Process(server.pid).children() if command[0] == "make" else [psutil.Process(server.pid)]
        serving[0].terminate()
        if (code := server.wait(ENDS_WITHIN_S)) != 0:
            message = f"exit code {code}:\n{output.read_text(errors='replace')}"
            raise SmokeError(message)
    except (OSError, subprocess.TimeoutExpired) as error:
        message = f"{error}:\n{output.read_text(errors='replace')}"
        raise SmokeError(message) from error
    finally:
        if server.poll() is None:
            for process in [*psutil.Process(server.pid).children(recursive=True), server]:
                process.kill()
            server.wait()


def use_client(client: tuple[str, ...], url: str) -> None:
    """Run a command that uses the client. Raises SmokeError if it fails."""
    environment = {
        "QUERYSERVER_URL": url,
        "QUERYSERVER_USER": "admin",
        "QUERYSERVER_PASSWORD": PASSWORD,
        "PYTHONUTF8": "1",  # lets the client print the borders of tables in any locale
    }
    ended = subprocess.run(
        client, env=environment, capture_output=True, text=True, timeout=STATEMENT_ENDS_WITHIN_S, check=False
    )
    if ended.returncode != 0:
        message = f"the client failed:\n{ended.stdout}{ended.stderr}"
        raise SmokeError(message)


def address(server: subprocess.Popen[bytes], output: Path) -> str:
    """Wait until the server logs its address, and return it. Raises SmokeError if the server exits or is too slow."""
    until = time.monotonic() + LISTENS_WITHIN_S
    while time.monotonic() < until and server.poll() is None:
        if found := LISTENS.search(output.read_text(errors="replace")):
            return found[1]
        time.sleep(0.1)
    message = f"does not listen (exit code {server.poll()}):\n{output.read_text(errors='replace')}"
    raise SmokeError(message)


def rows_of(url: str, statement: str) -> list[list[Any]]:
    """Run a statement on DuckDB with the API calls shown in the README; return its rows."""
    login = called(f"{url}api/v1/token/auth", {"username": "admin", "password": PASSWORD})
    token = login["access"]
    started = called(f"{url}api/v1/editor/execute/duckdb", {"statement": statement}, token)
    operation = {"operationId": started["history_uuid"]}
    until = time.monotonic() + STATEMENT_ENDS_WITHIN_S
    while time.monotonic() < until:
        answered = called(f"{url}api/v1/editor/check_status", {**operation, "wait": 30}, token)
        if answered.get("query_status", {}).get("status") not in {"waiting", "running"}:
            break
    return called(f"{url}api/v1/editor/fetch_result_data", {**operation, "rows": 10}, token)["result"]["data"]


def called(url: str, body: dict[str, Any], token: str = "") -> dict[str, Any]:
    """POST a JSON body; return the parsed response body."""
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
    request = Request(url, json.dumps(body).encode(), headers)  # noqa: S310 our own server
    with urlopen(request, timeout=60) as answer:  # noqa: S310 as above
        return json.load(answer)


def main() -> int:
    """Test all Python installations; return 1 if any of them fails."""
    failed = 0
    # By default, SIGTERM ends a process without deleting its temporary files, which are several gigabytes here.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    with tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor(2) as threads:
        clone = Path(directory)
        copy_project(clone)
        build_wheels(clone)
        tries = [(python, threads.submit(smoke, python, clone)) for python in pythons()]
        try:
            for python, one in tries:
                try:
                    print(one.result(), flush=True)
                except SmokeError as error:
                    failed += 1
                    print(f"Python {python.version} failed: {error}", flush=True)
        finally:
            threads.shutdown(cancel_futures=True)
    print(f"{len(tries) - failed} passed, {failed} failed")
    return int(failed > 0 or not tries)


if __name__ == "__main__":
    sys.exit(main())
