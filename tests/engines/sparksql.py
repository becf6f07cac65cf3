"""Spark SQL's Thrift server (the HiveServer2 protocol), from the jars in the package pyspark.

Measured: when a connection closes, the server closes its sessions and stops its statements, regardless of
hive.server2.close.session.on.disconnect. HTTP mode would listen on every address, so it is not started. A slow
statement that is canceled within 0.3 s: `SELECT count(*) FROM range(0, 20000000000) WHERE id % 7 = 1 AND sqrt(id) > 5`.
"""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.engines.cache import python_packages
from tests.engines.java import OPENS, java_17, jvm
from tests.engines.servers import ServerAddress, data_directory, listens
from tests.ports import free_port

_NAME = "sparksql"
_SUBMIT = "org.apache.spark.deploy.SparkSubmit"
_THRIFT_SERVER = "org.apache.spark.sql.hive.thriftserver.HiveThriftServer2"


@dataclass(frozen=True, slots=True)
class SparkAddress(ServerAddress):
    """The address of a Spark server, which reports its running jobs over HTTP on `ui_port`."""

    ui_port: int


@contextmanager
def spark_server() -> Generator[SparkAddress]:
    """Start Spark 3.5 with an empty metastore, binary transport, and SASL PLAIN that accepts any user and password.

    GetOperationStatus waits up to 5 s, Spark's default.
    """
    jdk = java_17(_NAME)
    home = spark_home()
    address = SparkAddress("127.0.0.1", free_port(), "admin", "secret", free_port())
    with data_directory() as directory:
        arguments = [
            *("-Xmx768m", f"-Dderby.system.home={directory / 'derby'}", *OPENS, "-cp", f"{home}/jars/*"),
            *(_SUBMIT, "--class", _THRIFT_SERVER, "--master", "local[2]"),
            *_pairs("--conf", _spark_settings(directory, address.ui_port)),
            "spark-internal",
            *_pairs("--hiveconf", _server_settings(directory, address.port)),
        ]
        environment = {
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(directory / "local"),
        }
        with jvm(jdk, arguments, directory, lambda: listens(address.port), environment):
            yield address


def spark_home() -> Path:
    """Download Spark 3.5 unless it is cached; return its home directory."""
    return python_packages(_NAME, _NAME) / "pyspark"


def _spark_settings(directory: Path, ui_port: int) -> dict[str, str]:
    return {
        "spark.ui.port": str(ui_port),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.warehouse.dir": f"file://{directory / 'warehouse'}",
        "spark.sql.shuffle.partitions": "2",
        "spark.hadoop.hive.exec.scratchdir": f"{directory / 'scratch'}",
        "spark.hadoop.hive.exec.local.scratchdir": f"{directory / 'scratch-local'}",
    }


def _server_settings(directory: Path, port: int) -> dict[str, str]:
    return {
        "hive.server2.transport.mode": "binary",
        "hive.server2.authentication": "NONE",
        "hive.server2.thrift.bind.host": "127.0.0.1",
        "hive.server2.thrift.port": str(port),
        "hive.server2.enable.doAs": "false",
        "hive.server2.logging.operation.enabled": "true",
        # At the default level, EXECUTION, Spark logs nothing.
        "hive.server2.logging.operation.level": "VERBOSE",
        "hive.server2.logging.operation.log.location": f"{directory / 'logs'}",
    }


def _pairs(option: str, settings: dict[str, str]) -> list[str]:
    return [word for name, value in settings.items() for word in (option, f"{name}={value}")]
