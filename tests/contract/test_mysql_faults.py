"""The MySQL adapter on MariaDB when the connection breaks."""

from collections.abc import Callable

import pytest
from tests.contract.engine_faults import FaultsContract
from tests.contract.test_mysql_engine import FACTS
from tests.engines.servers import ServerAddress

from queryserver.engines.mysql.engine import MysqlAddress, MysqlEngine
from queryserver.engines.protocol import Engine


@pytest.mark.engine("mariadb")
class TestMariadbFaults(FaultsContract):
    """The broken-connection tests on MariaDB, which uses the MySQL protocol."""

    facts = FACTS
    tested_with = "MariaDB 10.11"

    @pytest.fixture
    def server(self, mariadb: ServerAddress) -> tuple[str, int]:
        return mariadb.host, mariadb.port

    @pytest.fixture
    def engine_at(self, mariadb: ServerAddress) -> Callable[[int], Engine]:
        return lambda port: MysqlEngine(
            MysqlAddress("127.0.0.1", port, "users", mariadb.user, mariadb.password, connect_timeout_s=2)
        )
