"""Apache Hive's HiveServer2: metastore on an embedded Derby, Tez in local mode, all in one JVM.

Measured: a session and its statements outlive the connection; GetOperationStatus waits 0.5 s at first and, as the
statement grows old, longer (1.5 s after 20 s). Its http mode would listen on every address and is not started here.
Slow statements: `SELECT reflect('java.lang.Thread', 'sleep', CAST(30000 AS bigint))` is no Tez job and is canceled at
once. A Tez job in local mode holds CancelOperation until its running task ends, for instance a cross join of
`SELECT explode(split(space(3000), ' ')) AS x FROM one_row` with itself, which takes about 30 s.
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
    """What HiveServer2 runs with."""

    jdk: Jdk
    libraries: Path


def hive_program() -> HiveProgram:
    """Hive 4.0, downloaded once."""
    return HiveProgram(java_17(NAME), maven(NAME, "dependency:copy-dependencies"))


@contextmanager
def hive_server() -> Generator[ServerAddress]:
    """Hive 4.0 with an empty metastore, binary transport, SASL PLAIN that lets in any user with any password."""
    address = ServerAddress("127.0.0.1", free_port(), "svc", "secret")
    # Whoever calls, Tez runs as this user: it looks whether its files belong to the one it runs as.
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
    """One HiveServer2 that keeps everything in `directory`; `settings` go before those of its file."""
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
