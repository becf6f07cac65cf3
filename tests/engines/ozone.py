"""Apache Ozone and its HttpFS gateway: four JVMs in a separate network namespace.

Some of Ozone's servers always listen on every address. Their namespace therefore has only a loopback interface, which
requires root, and the tests reach the gateway through a relay. Users: `ozone` is the administrator; `svc` may
impersonate any user; `alice` owns the volume `tests`. The block size is 4 MiB.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from tests.engines import relay
from tests.engines.cache import RECIPES, kept, run_tool
from tests.engines.java import OPENS, Jdk, java_17, jvm
from tests.engines.servers import HttpAddress, data_directory, listens, serving, unavailable
from tests.ports import free_port

NAME = "ozone"
SERVICE_USER = "svc"
ADMINISTRATOR = "ozone"
VOLUME, BUCKETS = "tests", ("one", "two")
_SETTINGS = RECIPES / NAME / "conf"
_POM, _PARENT = RECIPES / NAME / "pom.xml", RECIPES / NAME / "parent" / "pom.xml"
_MANAGER_PORT, _BLOCKS_PORT, _GATEWAY_PORT = 9862, 9863, 14_001
_SCM = "org.apache.hadoop.hdds.scm.server.StorageContainerManagerStarter"
_MANAGER = "org.apache.hadoop.ozone.om.OzoneManagerStarter"
_DATA_NODE = "org.apache.hadoop.ozone.HddsDatanodeService"
_GATEWAY = "org.apache.ozone.fs.http.server.HttpFSServerWebServer"
_CALL_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class OzoneGateway:
    """A running Ozone cluster, reached through its gateway."""

    address: HttpAddress

    @property
    def webhdfs_url(self) -> str:
        """The value for the setting `webhdfs_url`."""
        return f"{self.address.url}/webhdfs/v1"

    def call(self, method: str, path: str, op: str, *, user: str = ADMINISTRATOR, **parameters: str) -> httpx.Response:
        """Call an operation that has no request body as `user`."""
        query = {"op": op, "user.name": user, **parameters}
        with httpx.Client(timeout=_CALL_TIMEOUT_S) as client:
            return client.request(method, self.webhdfs_url + path, params=query)


@dataclass(frozen=True, slots=True)
class _Network:
    """A network namespace, which exists as long as a process runs in it."""

    keeper: int

    @property
    def entrance(self) -> Sequence[str]:
        """The command prefix that runs a program in the namespace."""
        return ("nsenter", f"--net=/proc/{self.keeper}/ns/net")

    def listens(self, port: int) -> bool:
        """Return whether a port on the namespace's loopback interface accepts connections."""
        command = f"exec 3<>/dev/tcp/127.0.0.1/{port}"
        return subprocess.run([*self.entrance, "bash", "-c", command], capture_output=True, timeout=10).returncode == 0


@contextmanager
def ozone_gateway() -> Generator[OzoneGateway]:
    """Start Ozone with the volume `tests` and its buckets. Requires root for the namespace."""
    libraries, program = ozone_libraries(), java_17(NAME)
    with data_directory() as directory, _network(directory) as network, ExitStack() as stack:
        jdk = _inside(program, network, directory)
        data = directory / "data"
        environment = {
            "OZONE_DATA": str(data),
            "OM_PORT": str(_MANAGER_PORT),
            "HTTPFS_PORT": str(_GATEWAY_PORT),
            "HTTPFS_HADOOP_CONF": str(_SETTINGS),
            "HADOOP_USER_NAME": ADMINISTRATOR,
        }
        for folder in ("meta", "scm", "om", "scm-ratis", "om-ratis", "dn/data", "dn/ratis", "tmp"):
            (data / folder).mkdir(parents=True)
        java = _arguments(libraries)

        def start(name: str, main: Sequence[str], port: int | None, user: str = ADMINISTRATOR) -> None:
            home = directory / name
            home.mkdir()
            server = jvm(
                jdk,
                [*java, *main],
                home,
                lambda: port is None or network.listens(port),
                {**environment, "HADOOP_USER_NAME": user},
            )
            stack.enter_context(server)

        _prepare(jdk, [*java, _SCM, "--init"], directory, environment)
        start("scm", [_SCM], _BLOCKS_PORT)
        _prepare(jdk, [*java, _MANAGER, "--init"], directory, environment)
        start("manager", [_MANAGER], _MANAGER_PORT)
        start("data-node", [_DATA_NODE], None)
        start("gateway", _gateway(directory), _GATEWAY_PORT, "httpfs")
        gateway = OzoneGateway(stack.enter_context(_relayed(network, directory)))
        _make_buckets(gateway)
        yield gateway


def ozone_libraries() -> Path:
    """Download Ozone 2.2 unless it is cached. One parent POM of its modules is not published, so a POM in this
    repository replaces it.
    """

    def fill(folder: Path) -> None:
        environment = {**os.environ, "JAVA_HOME": str(java_17(NAME).home)}
        install = ["install:install-file", f"-Dfile={_PARENT}", f"-DpomFile={_PARENT}", "-Dpackaging=pom"]
        run_tool(NAME, ["mvn", "-q", "-B", *install], environment)
        run_tool(NAME, ["mvn", "-q", "-B", "-f", _POM, "dependency:copy-dependencies", f"-Dhome={folder}"], environment)

    return kept(NAME, [_POM, _PARENT], fill)


@contextmanager
def _network(directory: Path) -> Generator[_Network]:
    if os.geteuid() != 0 or not all(map(shutil.which, ("unshare", "nsenter", "ip"))):
        unavailable(
            NAME, "its servers need a network namespace, which takes root and the tools of util-linux, iproute2"
        )
    ready = directory / "network-is-up"
    script = 'ip link set lo up && : > "$0" && exec sleep infinity'
    keeper = directory / "network"
    keeper.mkdir()
    command = ["unshare", "--net", "sh", "-c", script, ready]
    with serving(command, keeper, ready.exists, signal.SIGKILL, options={"process_group": 0}) as process:
        yield _Network(process.pid)


def _inside(jdk: Jdk, network: _Network, directory: Path) -> Jdk:
    """Return the same JDK, with programs that run in the namespace."""
    home = directory / "jdk"
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f'#!/bin/sh\nexec {" ".join(network.entrance)} {jdk.java} "$@"\n')
    java.chmod(0o755)
    return Jdk(home)


def _arguments(libraries: Path) -> Sequence[str]:
    return (
        *("-Xmx256m", *OPENS),
        "-Dorg.apache.ratis.thirdparty.io.netty.tryReflectionSetAccessible=true",
        "-Dorg.apache.ratis.thirdparty.io.netty.allocator.useCacheForAllThreads=false",
        *("-cp", f"{_SETTINGS}:{libraries}/*"),
    )


def _gateway(directory: Path) -> Sequence[str]:
    for folder in ("log", "temp"):
        (directory / folder).mkdir()
    return (
        *(f"-Dhttpfs.home.dir={directory}", f"-Dhttpfs.config.dir={_SETTINGS}"),
        *(f"-Dhttpfs.log.dir={directory / 'log'}", f"-Dhttpfs.temp.dir={directory / 'temp'}"),
        _GATEWAY,
    )


def _prepare(jdk: Jdk, arguments: Sequence[str], directory: Path, environment: dict[str, str]) -> None:
    run_tool(NAME, [jdk.java, "-Duser.dir=" + str(directory), *arguments], {**os.environ, **environment})


@contextmanager
def _relayed(network: _Network, directory: Path) -> Generator[HttpAddress]:
    """Yield a port outside the namespace that forwards to the gateway inside."""
    address, door = HttpAddress("127.0.0.1", free_port()), directory / "door"
    program = (sys.executable, Path(relay.__file__))
    inner = [*network.entrance, *program, f"unix:{door}", f"tcp:127.0.0.1:{_GATEWAY_PORT}"]
    outer = [*program, f"tcp:{address.host}:{address.port}", f"unix:{door}"]
    options = {"process_group": 0, "stdin": subprocess.DEVNULL}
    with (
        serving(inner, directory, door.exists, signal.SIGTERM, options=options),
        serving(outer, directory, lambda: listens(address.port), signal.SIGTERM, options=options),
    ):
        yield address


def _make_buckets(gateway: OzoneGateway) -> None:
    """Create the volume and its buckets; the first calls wait for the DataNode."""
    for path in (f"/{VOLUME}", *(f"/{VOLUME}/{bucket}" for bucket in BUCKETS)):
        gateway.call("PUT", path, "MKDIRS", user=SERVICE_USER, doas="alice").raise_for_status()
