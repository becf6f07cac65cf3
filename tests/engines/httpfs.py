"""HttpFS, the gateway to HDFS that offers the same calls as WebHDFS, in one JVM."""

from collections.abc import Generator
from contextlib import contextmanager

import httpx
from tests.engines.cache import RECIPES
from tests.engines.hdfs import HEAP, SERVICE_USER, SETTINGS, HdfsCluster
from tests.engines.java import jvm
from tests.engines.servers import HttpAddress, data_directory
from tests.ports import free_port

_SETTINGS = RECIPES / "httpfs" / "conf"
_MAIN = "org.apache.hadoop.fs.http.server.HttpFSServerWebServer"


@contextmanager
def httpfs_gateway(cluster: HdfsCluster) -> Generator[HttpAddress]:
    """Start a gateway to the cluster. Its calls are below `/webhdfs/v1`; `svc` may impersonate any user there, too."""
    address = HttpAddress("127.0.0.1", free_port())
    with data_directory() as directory:
        environment = {
            **cluster.environment,
            "HTTPFS_PORT": str(address.port),
            "HTTPFS_HADOOP_CONF": str(SETTINGS),
            # The gateway's own user, which HDFS allows to impersonate others.
            "HADOOP_USER_NAME": "httpfs",
        }
        for folder in ("log", "temp"):
            (directory / folder).mkdir()
        arguments = [
            *(*HEAP, f"-Dhttpfs.home.dir={directory}", f"-Dhttpfs.config.dir={_SETTINGS}"),
            *(f"-Dhttpfs.log.dir={directory / 'log'}", f"-Dhttpfs.temp.dir={directory / 'temp'}"),
            *("-cp", cluster.program.class_path(_SETTINGS, SETTINGS), _MAIN),
        ]
        with jvm(cluster.program.jdk, arguments, directory, lambda: _answers(address.url), environment):
            yield address


def _answers(url: str) -> bool:
    query = {"op": "GETFILESTATUS", "user.name": SERVICE_USER}
    try:
        return httpx.get(f"{url}/webhdfs/v1/", params=query, timeout=10).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False
