"""Apache Hive's HiveServer2: metastore on an embedded Derby, Tez in local mode, all in one JVM."""

import getpass
from collections.abc import Generator
from contextlib import contextmanager

from tests.engines.cache import RECIPES
from tests.engines.java import OPENS, java_17, jvm, maven
from tests.engines.servers import ServerAddress, data_directory, free_port, listens

_NAME = "hive"
_SETTINGS = RECIPES / _NAME / "conf"


@contextmanager
def hive_server() -> Generator[ServerAddress]:
    """Hive 4.0 with an empty metastore, binary transport, SASL PLAIN that lets in any user with any password."""
    jdk = java_17(_NAME)
    libraries = maven(_NAME, "dependency:copy-dependencies")
    (bridge,) = libraries.glob("log4j-1.2-api-*.jar")
    address = ServerAddress("127.0.0.1", free_port(), "svc", "secret")
    with data_directory() as directory:
        environment = {
            "HIVE_PORT": str(address.port),
            "HIVE_DATA": str(directory),
            # Tez looks whether its files belong to this user.
            "HADOOP_USER_NAME": getpass.getuser(),
        }
        arguments = [
            *("-Xmx768m", *OPENS, "-cp", f"{_SETTINGS}:{bridge}:{libraries}/*"),
            "org.apache.hive.service.server.HiveServer2",
        ]
        with jvm(jdk, arguments, directory, lambda: listens(address.port), environment):
            yield address
