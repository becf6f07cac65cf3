"""HDFS: a NameNode and a DataNode with empty storage, each in a separate JVM.

Users: `hdfs` is the superuser; `svc` may impersonate any user (`doas`); `alice` and `bob` own their home directories.
The trash is kept for an hour.
"""

import os
import subprocess
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from tests.engines.cache import RECIPES
from tests.engines.java import OPENS, Jdk, java_17, jvm, maven
from tests.engines.servers import HttpAddress, data_directory
from tests.ports import free_port

NAME = "hdfs"
SETTINGS = RECIPES / NAME / "conf"
SERVICE_USER = "svc"
SUPERUSER = "hdfs"
USERS = ("alice", "bob", SERVICE_USER)
HEAP = ("-Xmx256m", *OPENS)
_TOOL_TIMEOUT_S = 60.0
_NAME_NODE = "org.apache.hadoop.hdfs.server.namenode.NameNode"
_DATA_NODE = "org.apache.hadoop.hdfs.server.datanode.DataNode"


@dataclass(frozen=True, slots=True)
class HdfsProgram:
    """The JDK and libraries that run HDFS and HttpFS."""

    jdk: Jdk
    libraries: Path

    def class_path(self, *first: Path) -> str:
        """Return the class path of a server; `first` precedes the libraries."""
        return ":".join(map(str, (*first, self.libraries / "*")))


@dataclass(frozen=True, slots=True)
class HdfsCluster:
    """A running HDFS cluster."""

    name_node: HttpAddress
    rpc_port: int
    program: HdfsProgram
    environment: Mapping[str, str] = field(repr=False)

    @property
    def webhdfs_url(self) -> str:
        """The value for the setting `webhdfs_url`."""
        return f"{self.name_node.url}/webhdfs/v1"

    def call(self, method: str, path: str, op: str, *, user: str = SUPERUSER, **parameters: str) -> httpx.Response:
        """Call a WebHDFS operation that has no request body as `user`."""
        query = {"op": op, "user.name": user, **parameters}
        with httpx.Client(timeout=_TOOL_TIMEOUT_S) as client:
            return client.request(method, self.webhdfs_url + path, params=query).raise_for_status()

    def administer(self, *arguments: str) -> str:
        """Run `hdfs dfsadmin`, for example with `-safemode enter`; return its output."""
        command = [
            self.program.jdk.java,
            *("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true"),
            *("-cp", self.program.class_path(SETTINGS), "org.apache.hadoop.hdfs.tools.DFSAdmin", *arguments),
        ]
        return _run(command, {**os.environ, **self.environment})


def hdfs_program() -> HdfsProgram:
    """Download Hadoop 3.4 unless it is cached; return its program files."""
    return HdfsProgram(java_17(NAME), maven(NAME, "dependency:copy-dependencies"))


@contextmanager
def hdfs_cluster(*, listing_limit: int = 50) -> Generator[HdfsCluster]:
    """Start a cluster with the users' home directories and a shared `/tmp`. Listings return at most `listing_limit`
    entries per batch.
    """
    program = hdfs_program()
    address, rpc_port = HttpAddress("127.0.0.1", free_port()), free_port()
    with data_directory() as directory:
        environment = {
            "HDFS_DATA": str(directory / "data"),
            "NN_RPC_PORT": str(rpc_port),
            "NN_HTTP_PORT": str(address.port),
            "HADOOP_USER_NAME": SUPERUSER,
            "LISTING_LIMIT": str(listing_limit),
        }
        cluster = HdfsCluster(address, rpc_port, program, environment)
        arguments = [*HEAP, "-cp", program.class_path(SETTINGS, _web_applications(directory))]
        _format(cluster, arguments)
        with (
            _node(cluster, [*arguments, _NAME_NODE], directory / "name-node", '"NumLiveDataNodes" : '),
            _node(cluster, [*arguments, _DATA_NODE], directory / "data-node", '"NumLiveDataNodes" : 1'),
        ):
            _make_homes(cluster)
            yield cluster


@contextmanager
def _node(cluster: HdfsCluster, arguments: Sequence[str], directory: Path, state: str) -> Generator[None]:
    """Start a server and wait until the NameNode reports this state."""
    directory.mkdir()
    with jvm(
        cluster.program.jdk, arguments, directory, lambda: state in _state(cluster.name_node.url), cluster.environment
    ):
        yield


def _web_applications(directory: Path) -> Path:
    """Create the empty folders for web pages that the servers require but that their jar lacks."""
    for name in ("hdfs", "datanode"):
        (directory / "classes" / "webapps" / name).mkdir(parents=True)
    return directory / "classes"


def _format(cluster: HdfsCluster, arguments: Sequence[str]) -> None:
    command = [cluster.program.jdk.java, *arguments, _NAME_NODE, "-format", "-nonInteractive", "-clusterId", "tests"]
    _run(command, {**os.environ, **cluster.environment})


def _run(command: Sequence[str | Path], environment: Mapping[str, str]) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, stdin=subprocess.DEVNULL, timeout=_TOOL_TIMEOUT_S
    )
    if done.returncode:
        pytest.fail(f"{command[-1]} failed: {done.stdout[-1500:]}{done.stderr[-1500:]}")
    return done.stdout


def _state(url: str) -> str:
    try:
        return httpx.get(f"{url}/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState", timeout=5).text
    except httpx.TransportError:
        return ""


def _make_homes(cluster: HdfsCluster) -> None:
    cluster.call("PUT", "/tmp", "MKDIRS", permission="1777")  # noqa: S108 a directory of HDFS
    for user in USERS:
        cluster.call("PUT", f"/user/{user}", "MKDIRS", permission="755")
        cluster.call("PUT", f"/user/{user}", "SETOWNER", owner=user, group=user)
