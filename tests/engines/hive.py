"""Apache Hive's HiveServer2: metastore on an embedded Derby, Tez in local mode, all in one JVM.

Measured: a session and its statements outlive the connection; GetOperationStatus waits 0.5 s at first and, as the
statement grows old, longer (1.5 s after 20 s). Its http mode would listen on every address and is not started here.
Slow statements: `SELECT reflect('java.lang.Thread', 'sleep', CAST(30000 AS bigint))` is no Tez job and is canceled at
once. A Tez job in local mode holds CancelOperation until its running task ends, for instance a cross join of
`SELECT explode(split(space(3000), ' ')) AS x FROM one_row` with itself, which takes about 30 s.
"""

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
            *("-Xmx1g", *OPENS, "-cp", f"{_SETTINGS}:{bridge}:{libraries}/*"),
            "org.apache.hive.service.server.HiveServer2",
        ]
        with jvm(jdk, arguments, directory, lambda: listens(address.port), environment):
            yield address
