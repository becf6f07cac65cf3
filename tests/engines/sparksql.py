"""Spark SQL's Thrift server (the HiveServer2 protocol), of the jars of the package pyspark."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from tests.engines.cache import python_packages
from tests.engines.java import OPENS, java_17, jvm
from tests.engines.servers import ServerAddress, data_directory, free_port, listens

_NAME = "sparksql"
_SUBMIT = "org.apache.spark.deploy.SparkSubmit"
_THRIFT_SERVER = "org.apache.spark.sql.hive.thriftserver.HiveThriftServer2"


@contextmanager
def spark_server() -> Generator[ServerAddress]:
    """Spark 3.5 with an empty metastore, binary transport, SASL PLAIN that lets in any user with any password.

    GetOperationStatus waits up to 5 s, as it does by default.
    """
    jdk = java_17(_NAME)
    home = python_packages(_NAME, _NAME) / "pyspark"
    address = ServerAddress("127.0.0.1", free_port(), "admin", "secret")
    with data_directory() as directory:
        arguments = [
            *("-Xmx768m", f"-Dderby.system.home={directory / 'derby'}", *OPENS, "-cp", f"{home}/jars/*"),
            *(_SUBMIT, "--class", _THRIFT_SERVER, "--master", "local[2]"),
            *_pairs("--conf", _spark_settings(directory)),
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


def _spark_settings(directory: Path) -> dict[str, str]:
    return {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.warehouse.dir": f"file://{directory / 'warehouse'}",
        "spark.sql.shuffle.partitions": "2",
        "spark.hadoop.hive.exec.scratchdir": f"{directory / 'scratch'}",
        "spark.hadoop.hive.exec.local.scratchdir": f"{directory / 'scratch-local'}",
        # A statement outlives the connection that began it, so that another process may take it over.
        "spark.hadoop.hive.server2.close.session.on.disconnect": "false",
    }


def _server_settings(directory: Path, port: int) -> dict[str, str]:
    return {
        "hive.server2.transport.mode": "binary",
        "hive.server2.authentication": "NONE",
        "hive.server2.thrift.bind.host": "127.0.0.1",
        "hive.server2.thrift.port": str(port),
        "hive.server2.enable.doAs": "false",
        "hive.server2.logging.operation.enabled": "true",
        # With the default, EXECUTION, Spark logs nothing.
        "hive.server2.logging.operation.level": "VERBOSE",
        "hive.server2.logging.operation.log.location": f"{directory / 'logs'}",
    }


def _pairs(option: str, settings: dict[str, str]) -> list[str]:
    return [word for name, value in settings.items() for word in (option, f"{name}={value}")]
