"""Search over several sources, and the addresses that identify index scopes."""

from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any

import pytest

from queryserver.connectors.engine_builders import EngineBuilder
from queryserver.connectors.model import Connector, ConnectorLimits
from queryserver.connectors.registry import Connectors
from queryserver.errors.base import PermissionDenied, QueryServerError
from queryserver.errors.files import StorageUnavailable
from queryserver.errors.statements import CatalogUnavailable, SourceNotConfigured
from queryserver.identity.model import User
from queryserver.platform.settings.tree import Settings
from queryserver.search.model import FacetName, Match, Record, Search, SearchSource, SourceAnswer, SourceName
from queryserver.search.refresh import scope_key
from queryserver.search.search import MetadataSearch, SearchParameters

ANA = User(1, "ana", rights=frozenset({"metadata"}))
NOW = datetime(2026, 1, 5, tzinfo=UTC)


class Failing:
    """A source whose searches fail."""

    def __init__(self, error: QueryServerError) -> None:
        self._error = error

    async def search(self, user: User, search: Search) -> SourceAnswer:
        raise self._error


class Holding:
    """A source in which every one of `names` matches with the rank `position`. Each match is one day older than the
    previous one.
    """

    def __init__(self, *names: str, position: int = 1) -> None:
        self._matches = [
            Match(position, Record(name, name, "FILE", "S3", name, last_modified=NOW - timedelta(days=place)))
            for place, name in enumerate(names)
        ]

    async def search(self, user: User, search: Search) -> SourceAnswer:
        facets = {facet: {"FILE": len(self._matches)} for facet in search.facets}
        return SourceAnswer(self._matches[: search.reach], len(self._matches), facets)


def searching(**sources: SearchSource) -> MetadataSearch:
    return MetadataSearch({SourceName(name): source for name, source in sources.items()})


@pytest.mark.platform(90)
async def test_failing_source_does_not_affect_others() -> None:
    search = searching(documents=Holding("a"), sql=Failing(StorageUnavailable("It is down.")), s3=Holding("b"))
    result = await search.search(ANA, SearchParameters("x", facets=("type",)))
    assert [record.name for record in result.records] == ["a", "b"]
    assert (result.total, result.facets) == (2, {FacetName.TYPE: {"FILE": 2}})
    told = {name.value: (one.ok, one.message) for name, one in result.sources.items()}
    assert told["sql"] == (False, "It is down.")
    assert told["hdfs"] == (False, "Not configured.")


@pytest.mark.platform(90)
@pytest.mark.parametrize(
    ("errors", "raised"),
    [
        ([StorageUnavailable("down"), StorageUnavailable("down")], CatalogUnavailable),
        ([PermissionDenied("no"), StorageUnavailable("down")], CatalogUnavailable),
        ([PermissionDenied("no"), PermissionDenied("no")], PermissionDenied),
    ],
)
async def test_failure_of_all_sources_is_an_error(
    errors: list[QueryServerError], raised: type[QueryServerError]
) -> None:
    search = searching(sql=Failing(errors[0]), s3=Failing(errors[1]))
    with pytest.raises(raised) as caught:
        await search.search(ANA, SearchParameters(sources=(SourceName.SQL, SourceName.S3)))
    assert type(caught.value) is raised


@pytest.mark.platform(90)
async def test_missing_source_is_not_a_failure() -> None:
    search = searching(sql=Failing(SourceNotConfigured("Off.")), s3=Failing(StorageUnavailable("down")))
    result = await search.search(ANA, SearchParameters(sources=(SourceName.SQL, SourceName.S3)))
    assert [one.message for one in result.sources.values()] == ["Off.", "down"]


@pytest.mark.platform(93)
async def test_pages_over_several_sources_return_each_match_once() -> None:
    worse = Holding(*(f"w{number:02}" for number in range(18)), position=3)
    search = searching(
        documents=worse, sql=Holding(*(f"b{n}" for n in range(9))), s3=Holding(*(f"s{n}" for n in range(8)))
    )
    pages = [await search.search(ANA, SearchParameters("x", limit=10, offset=start)) for start in range(0, 40, 10)]
    names = [record.name for page in pages for record in page.records]
    assert names[:9] == [f"b{number}" for number in range(9)]
    assert names[9:17] == [f"s{number}" for number in range(8)]
    assert len(names) == len(set(names)) == 35
    assert {page.total for page in pages} == {35}


LIMITS = ConnectorLimits(*[timedelta(seconds=60)] * 4)
FEEDER = User(4, "ana")


async def address(dialect: str, settings: dict[str, Any], **options: Any) -> bytes:
    """Return the address in the index scope of a `hiveserver2` connector."""
    builder = EngineBuilder(Settings.model_validate(settings))
    connector = Connector(dialect, dialect, "hiveserver2", dialect, LIMITS, options=MappingProxyType(options))
    connectors = Connectors([connector], build=builder.build)
    try:
        key = scope_key(connectors, FEEDER, connector)
    finally:
        await connectors.aclose()
    assert key is not None
    return key.address


@pytest.mark.parametrize(
    ("dialect", "section", "host", "port"),
    [
        ("hive", "beeswax", "hive_server_host", "hive_server_port"),
        ("impala", "impala", "server_host", "server_port"),
        ("sparksql", "spark", "sql_server_host", "sql_server_port"),
    ],
)
async def test_host_of_the_settings_section_is_part_of_the_address(dialect, section, host, port) -> None:
    """A connector without options takes its host from a section of the settings."""
    one = await address(dialect, {section: {host: "one.example"}})
    assert one == await address(dialect, {section: {host: "one.example"}})
    assert one != await address(dialect, {section: {host: "two.example"}})
    assert one != await address(dialect, {section: {host: "one.example", port: 4711}})


async def test_password_is_not_part_of_the_address() -> None:
    given = {"server_host": "one.example", "username": "svc", "auth_mechanism": "LDAP"}
    one = await address("hive", {}, **given, password="first")
    assert one == await address("hive", {}, **given, password="second")
    assert one != await address("hive", {}, **{**given, "server_host": "two.example"}, password="first")
