"""Java for the engines that need it: JDKs by version, jars through Maven, and servers as processes."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.engines.cache import RECIPES, kept, run_tool
from tests.engines.servers import serving, unavailable

START_TIMEOUT_S = 300.0
# Packages that Hadoop, Spark, Hive and HBase access by reflection, which Java 17 forbids by default.
_OPENED = (
    *(
        f"java.base/java.{package}"
        for package in (
            "io", "lang", "lang.invoke", "lang.reflect", "net", "nio", "security", "text", "time", "util",
            "util.concurrent", "util.concurrent.atomic", "util.regex",
        )
    ),
    "java.base/jdk.internal.ref",
    "java.base/jdk.internal.util.random",
    "java.base/sun.net.dns",
    "java.base/sun.net.util",
    "java.base/sun.nio.ch",
    "java.base/sun.nio.cs",
    "java.base/sun.security.action",
    "java.base/sun.util.calendar",
    "java.sql/java.sql",
)  # fmt: skip
_EXPORTED = ("java.base/jdk.internal.misc", "java.security.jgss/sun.security.krb5")
OPENS = (
    *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED),
    *(f"--add-exports={package}=ALL-UNNAMED" for package in _EXPORTED),
)
"""Command-line options for servers that run on Java 17."""


@dataclass(frozen=True, slots=True)
class Jdk:
    """A Java runtime, which may lack a compiler."""

    home: Path

    @property
    def java(self) -> Path:
        return self.home / "bin" / "java"

    @property
    def version(self) -> int:
        """The major version, for example 17 for any 17.0.x; 0 if unknown."""
        with suppress(OSError):
            if found := re.search(r'^JAVA_VERSION="(\d+)', (self.home / "release").read_text(), re.MULTILINE):
                return int(found[1])
        return 0


def installed_jdk(oldest: int, newest: int = sys.maxsize) -> Jdk | None:
    """Return the newest JDK in the version range, or None. Searches JAVA_HOME, the system's JDK folder (or
    QUERYSERVER_JDKS) and PATH.
    """
    fitting = [jdk for jdk in _installed() if jdk.java.exists() and oldest <= jdk.version <= newest]
    return max(fitting, key=lambda jdk: jdk.version, default=None)


def _installed() -> Iterator[Jdk]:
    if home := os.environ.get("JAVA_HOME"):
        yield Jdk(Path(home))
    system = Path(os.environ.get("QUERYSERVER_JDKS", "/usr/lib/jvm"))
    if system.is_dir():
        yield from (Jdk(home) for home in sorted(system.iterdir()))
    if program := shutil.which("java"):
        yield Jdk(Path(program).resolve().parent.parent)


def java_17(engine: str) -> Jdk:
    """Return JDK 17, which is known to work with Spark 3.5, Hive 4.0 and HBase 2.5."""
    return installed_jdk(17, 17) or unavailable(engine, "no JDK 17 (Debian: openjdk-17-jdk-headless)")


def maven(engine: str, goal: str, *settings: str) -> Path:
    """Run a goal of the engine's own pom.xml; return the folder that it fills, which the pom calls `${home}`. Any JDK
    from version 17 on works.
    """
    pom = RECIPES / engine / "pom.xml"

    def fill(folder: Path) -> None:
        jdk = installed_jdk(17) or unavailable(engine, "no JDK for Maven")
        command = ["mvn", "-q", "-B", "-f", pom, goal, f"-Dhome={folder}", *settings]
        run_tool(engine, command, {**os.environ, "JAVA_HOME": str(jdk.home)})

    return kept(engine, [pom], fill)


@contextmanager
def jvm(
    jdk: Jdk,
    arguments: Sequence[str],
    directory: Path,
    ready: Callable[[], bool],
    environment: Mapping[str, str] | None = None,
) -> Generator[subprocess.Popen[bytes]]:
    """Start a Java server in `directory` and wait until it is ready. The JVM is tuned for a small footprint and fast
    startup, not for throughput.

    The server exits when the tests' process does. It runs as the caller's user, in a separate process group, and
    inherits only PATH and HOME from the caller's environment.
    """
    temporary = directory / "tmp"
    temporary.mkdir()
    command = [
        *_ends_with_us(),
        jdk.java,
        *("-Xms64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-XX:+ExitOnOutOfMemoryError"),
        *("-Dfile.encoding=UTF-8", "-Duser.timezone=UTC", "-Djava.net.preferIPv4Stack=true"),
        f"-Djava.io.tmpdir={temporary}",
        *arguments,
    ]
    inherited = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    settings = {**inherited, "LC_ALL": "C.UTF-8", "JAVA_HOME": str(jdk.home), **(environment or {})}
    options = {"env": settings, "process_group": 0, "stdin": subprocess.DEVNULL}
    with serving(command, directory, ready, signal.SIGTERM, options=options, start_timeout_s=START_TIMEOUT_S) as server:
        yield server


def _ends_with_us() -> tuple[str, ...]:
    """Return a command prefix that makes Linux kill the server if the tests' process dies without stopping it."""
    program = shutil.which("setpriv")
    return (program, "--pdeathsig", "KILL") if program else ()
