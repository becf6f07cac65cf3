"""The recipes of the engines keep to the loopback interface and clean up after themselves."""

import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import psutil
import pytest
from tests.engines.hive import hive_server
from tests.engines.hive_secured import SecuredHive, secured_hive_server
from tests.engines.phoenix import phoenix_server
from tests.engines.servers import HttpAddress, ServerAddress
from tests.engines.slapd import DirectoryAddress, slapd_server
from tests.engines.sparksql import spark_server
from tests.engines.trino import trino_server
from tests.engines.trino_secured import SecuredAddress, secured_trino_server
from tests.fixtures.engines import FIRST_TEST_TIMEOUT_S

Address = ServerAddress | HttpAddress | SecuredHive | SecuredAddress | DirectoryAddress
Recipe = Callable[[], AbstractContextManager[Address]]


@pytest.mark.timeout(FIRST_TEST_TIMEOUT_S)
@pytest.mark.parametrize(
    "recipe",
    [
        pytest.param(hive_server, marks=pytest.mark.engine("hive"), id="hive"),
        pytest.param(secured_hive_server, marks=pytest.mark.engine("hive"), id="secured hive"),
        pytest.param(slapd_server, marks=pytest.mark.engine("ldap"), id="ldap"),
        pytest.param(phoenix_server, marks=pytest.mark.engine("phoenix"), id="phoenix"),
        pytest.param(spark_server, marks=pytest.mark.engine("sparksql"), id="sparksql"),
        pytest.param(trino_server, marks=pytest.mark.engine("trino"), id="trino"),
        pytest.param(secured_trino_server, marks=pytest.mark.engine("trino"), id="secured trino"),
    ],
)
def test_a_server_listens_on_loopback_only_and_leaves_nothing(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    others = set(psutil.Process().children(recursive=True))
    with recipe() as address:
        family = set(psutil.Process().children(recursive=True)) - others
        doors = [
            connection.laddr
            for process in family
            for connection in process.net_connections()
            if connection.status == psutil.CONN_LISTEN
        ]
        assert address.port in {door.port for door in doors}
        assert {door.ip for door in doors} <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
        assert list(tmp_path.iterdir())
    assert not any(process.is_running() for process in family)
    assert not list(tmp_path.iterdir())
