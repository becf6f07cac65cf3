"""Phoenix Query Server (Avatica, protobuf over HTTP) on a real HBase: two JVMs that share one shaded jar."""

import shutil
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx
from tests.engines.cache import RECIPES, kept, run_tool
from tests.engines.java import OPENS, Jdk, java_17, jvm, maven
from tests.engines.servers import HttpAddress, data_directory, listens
from tests.ports import free_port

_NAME = "phoenix"
_SETTINGS = RECIPES / _NAME / "conf"
_LOOPBACK = RECIPES / _NAME / "loopback"
_MASTER = "org.apache.hadoop.hbase.master.HMaster"
_QUERY_SERVER = "org.apache.phoenix.queryserver.server.QueryServer"
_FIRST_CONNECTION_TIMEOUT_S = 120.0


@contextmanager
def phoenix_server() -> Generator[HttpAddress]:
    """Start Phoenix 5.2 with namespaces enabled and with its system tables. Any user is accepted without a password."""
    jdk = java_17(_NAME)
    libraries = phoenix_libraries()
    (database,) = libraries.glob("phoenix-client-embedded-*.jar")
    (server,) = libraries.glob("phoenix-queryserver-*.jar")
    small = [jar for jar in libraries.glob("*.jar") if jar not in (database, server)]
    loopback = _compiled(jdk, [server, database])
    address = HttpAddress("127.0.0.1", free_port())
    with data_directory() as directory:
        environment = {
            "HBASE_DATA": str(directory / "data"),
            "ZK_PORT": str(free_port()),
            "PQS_PORT": str(address.port),
        }
        settings = _written_settings(directory / "conf", environment)
        with (
            _hbase(jdk, [settings, database, *small], directory / "hbase", environment),
            _query_server(jdk, [settings, loopback, server, database, *small], directory / "server", environment),
        ):
            _make_system_tables(address)
            yield address


def _written_settings(folder: Path, environment: Mapping[str, str]) -> Path:
    """Write the configuration files with the values of their variables, which the writer of SYSTEM.LOG cannot read."""
    folder.mkdir()
    for file in _SETTINGS.iterdir():
        text = file.read_text()
        for name, value in environment.items():
            text = text.replace(f"${{env.{name}}}", value)
        (folder / file.name).write_text(text)
    return folder


def phoenix_libraries() -> Path:
    """Download Phoenix 5.2 and HBase 2.5 unless they are cached; return their folder."""
    return maven(_NAME, "dependency:copy-dependencies")


@contextmanager
def _hbase(jdk: Jdk, class_path: list[Path], directory: Path, environment: dict[str, str]) -> Generator[None]:
    """Start the master, a region server and ZooKeeper in one JVM. The tests' joins would crash it at 0.5 GB of heap."""
    directory.mkdir()
    arguments = ["-Xmx1536m", *OPENS, "-cp", _joined(class_path), _MASTER, "start"]
    with jvm(jdk, arguments, directory, lambda: _is_initialized(directory / "server.log"), environment):
        yield


@contextmanager
def _query_server(jdk: Jdk, class_path: list[Path], directory: Path, environment: dict[str, str]) -> Generator[None]:
    directory.mkdir()
    arguments = ["-Xmx512m", *OPENS, "-cp", _joined(class_path), _QUERY_SERVER]
    with jvm(jdk, arguments, directory, lambda: listens(int(environment["PQS_PORT"])), environment):
        yield


def _compiled(jdk: Jdk, libraries: list[Path]) -> Path:
    """Compile the class that binds the Query Server to the loopback interface; also add the file through which Java
    finds the class.
    """
    source, services = _LOOPBACK / "Loopback.java", _LOOPBACK / "META-INF"

    def fill(folder: Path) -> None:
        run_tool(_NAME, [jdk.home / "bin" / "javac", "-d", folder, "-cp", _joined(libraries), source])
        shutil.copytree(services, folder / services.name)

    return kept("phoenix-loopback", [source, RECIPES / _NAME / "pom.xml"], fill)


def _is_initialized(log: Path) -> bool:
    return "Master has completed initialization" in log.read_text(errors="replace")


def _make_system_tables(address: HttpAddress) -> None:
    """Open the first connection, which creates the system tables within 10 to 30 s."""
    with httpx.Client(base_url=address.url, timeout=_FIRST_CONNECTION_TIMEOUT_S) as client:
        for request in ("OpenConnectionRequest", "CloseConnectionRequest"):
            client.post("/", content=_message(request, "tests")).raise_for_status()


def _message(request: str, connection_id: str) -> bytes:
    """Encode Avatica's WireMessage: field 1 is the name, and field 2 the wrapped message, whose field 1 is the
    connection id (requests.proto).
    """
    name = f"org.apache.calcite.avatica.proto.Requests${request}"
    return _field(1, name.encode()) + _field(2, _field(1, connection_id.encode()))


def _field(number: int, content: bytes) -> bytes:
    """Encode a protobuf field whose content has at most 127 bytes."""
    return bytes([number << 3 | 2, len(content)]) + content


def _joined(class_path: list[Path]) -> str:
    return ":".join(map(str, class_path))
