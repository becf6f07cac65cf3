"""Apache Hive's HiveServer2, with a metastore on embedded Derby and Tez in local mode, all in one JVM.

Measured: a session and its statements outlive the connection; GetOperationStatus waits 0.5 s at first, and longer for
older statements (1.5 s after 20 s). HTTP mode would listen on every address, so it is not started. Slow statements:
`SELECT reflect('java.lang.Thread', 'sleep', CAST(30000 AS bigint))` is not a Tez job, and is canceled immediately. A
Tez job in local mode delays CancelOperation until its running task finishes; an example is a cross join of `SELECT
explode(split(space(3000), ' ')) AS x FROM one_row` with itself, which takes about 30 s.
"""

import getpass
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.engines.cache import RECIPES
from tests.engines.java import OPENS, Jdk, java_17, jvm, maven
from tests.engines.servers import ServerAddress, data_directory, listens
from tests.ports import free_port

NAME = "hive"
_SETTINGS = RECIPES / NAME / "conf"


@dataclass(frozen=True, slots=True)
class HiveProgram:
    """The JDK and libraries that run HiveServer2."""

    jdk: Jdk
    libraries: Path


def hive_program() -> HiveProgram:
    """Download Hive 4.0 unless it is cached; return its program files."""
    return HiveProgram(java_17(NAME), maven(NAME, "dependency:copy-dependencies"))


@contextmanager
def hive_server() -> Generator[ServerAddress]:
    """Start Hive 4.0 with an empty metastore, binary transport, and SASL PLAIN that accepts any user and password."""
    address = ServerAddress("127.0.0.1", free_port(), "svc", "secret")
    # Tez requires that its files belong to the user who runs it, so all statements run as this user.
    environment = {"HADOOP_USER_NAME": getpass.getuser()}
    with (
        data_directory() as directory,
        hive_node(hive_program(), directory, address.port, memory="1g", environment=environment),
    ):
        yield address


@contextmanager
def hive_node(
    program: HiveProgram,
    directory: Path,
    port: int,
    *,
    memory: str,
    classes: Sequence[Path] = (),
    settings: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Generator[None]:
    """Start a HiveServer2 that stores all its data in `directory`; `settings` override its configuration file."""
    (bridge,) = program.libraries.glob("log4j-1.2-api-*.jar")
    class_path = ":".join(map(str, (_SETTINGS, *classes, bridge, program.libraries / "*")))
    variables = {"HIVE_PORT": str(port), "HIVE_DATA": str(directory), **(environment or {})}
    arguments = [
        *(f"-Xmx{memory}", *OPENS, "-cp", class_path),
        "org.apache.hive.service.server.HiveServer2",
        *(part for name, value in (settings or {}).items() for part in ("--hiveconf", f"{name}={value}")),
    ]
    with jvm(program.jdk, arguments, directory, lambda: listens(port), variables):
        yield
