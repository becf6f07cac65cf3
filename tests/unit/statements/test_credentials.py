"""Credentials that a caller provides are used for one address only (Contract platform 5.11)."""

from dataclasses import replace
from types import MappingProxyType
from typing import Any, cast

import pytest
from tests.fakes.engine import FakeEngine
from tests.fakes.statements import PlainSealer
from tests.unit.statements.driving import ANA, CONNECTOR

from queryserver.connectors.model import Connector
from queryserver.connectors.registry import Connectors
from queryserver.engines.protocol import Credentials, EngineCapabilities
from queryserver.statements.session_options import SessionCredentials

GIVEN = Credentials("ana", "planted-secret")


class Sessions:
    """Session records that contain the given sealed credentials."""

    def __init__(self, sealed: bytes) -> None:
        self.sealed = sealed

    async def credentials(self, user_id: int, connector: str) -> bytes | None:
        return self.sealed


class Placed(FakeEngine):
    """An engine that requires credentials and whose endpoints are `places`."""

    places: tuple[tuple[str, int], ...] = ()

    @property
    def capabilities(self) -> EngineCapabilities:
        return EngineCapabilities(wants_credentials=True, endpoints=self.places)


def at(url: str, places: tuple[tuple[str, int], ...]) -> tuple[Connector, Connectors]:
    connector = replace(CONNECTOR, options=MappingProxyType({"url": url}))

    engine = Placed()
    engine.places = places
    return connector, Connectors([connector], build=lambda _: engine)


@pytest.mark.security("T8")
@pytest.mark.parametrize(
    ("url", "places", "stays"),
    [
        ("oracle://${USER}:${PASSWORD}@one/x", (), True),
        ("oracle://${USER}:${PASSWORD}@two/x", (), False),
        ("oracle://${USER}:${PASSWORD}@two:1521/x", (("two", 1521),), False),
    ],
)
async def test_credentials_are_never_sent_to_another_address(
    url: str, places: tuple[tuple[str, int], ...], stays: bool
) -> None:
    before, connectors = at("oracle://${USER}:${PASSWORD}@one/x", ())
    sealed = SessionCredentials(cast("Any", None), connectors, PlainSealer()).seal(GIVEN, before)
    after, connectors = at(url, places)
    book = SessionCredentials(cast("Any", Sessions(sealed)), connectors, PlainSealer())
    assert await book.latest(ANA, after) == (GIVEN if stays else None)
