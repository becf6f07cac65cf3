"""Files and results that engine sessions can read in addition to their own database (Contract editor 4.7)."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, nullcontext
from datetime import timedelta
from uuid import UUID, uuid4

import pytest
from tests.fakes.engine import FakeEngine
from tests.fakes.statement_files import ANA, GivenFiles, by_token
from tests.fakes.storage import MemoryFileSystem
from tests.refusals import raises_code

from queryserver.engines.protocol import EngineCapabilities, SessionOptions
from queryserver.errors.base import DatabaseUnavailable, PermissionDenied
from queryserver.errors.statements import ResultRefused
from queryserver.files.model import Scheme
from queryserver.identity.model import Scope, User
from queryserver.statements.external_access import NO_EXTERNAL_DATA, ExternalData, SessionReads, SourcedResult
from queryserver.statements.grant_repository import ReadSources
from queryserver.statements.open_sessions import OpenSession, OpenSessions

ALL_CAPABILITIES = EngineCapabilities(reads_files=True, writes_files=True, reads_results=True)


class Stores:
    """A store that contains one file, and results that record which users open them."""

    def __init__(self) -> None:
        file_system = MemoryFileSystem(Scheme.FILE)
        file_system.tree.put("a.csv", b"x")
        self.openers: list[User] = []
        self.external_data = ExternalData(GivenFiles(file_system).access, self._open)

    @asynccontextmanager
    async def _open(self, user: User, operation_id: str) -> AsyncGenerator[SourcedResult]:
        del operation_id
        self.openers.append(user)
        raise NotImplementedError
        yield  # pyright: ignore[reportUnreachable] makes this a generator


@pytest.mark.parametrize(("reads", "writes", "read_only", "may_write"), [
    (False, True, False, None), (True, False, False, False),
    (True, True, False, True), (True, True, True, False)])  # fmt: skip
async def test_engine_and_connector_determine_the_external_data_of_a_session(
    may_write: bool | None, *, reads: bool, writes: bool, read_only: bool
):
    capabilities = EngineCapabilities(reads_files=reads, writes_files=writes, reads_results=reads)
    session = Stores().external_data.for_session(capabilities, read_only=read_only)
    options = session.add_to(SessionOptions(database="main"))
    assert (options.database, options.files, options.results) == ("main", session.files, session.results)
    assert (session.files is None) is (session.results is None) is (may_write is None)
    if session.files is None:
        return
    async with session.acting(ANA):
        assert (await session.files.status("file:///a.csv")).size == 1
        if may_write:
            await session.files.make_directory("file:///d")
        else:
            with pytest.raises(PermissionDenied, match="read-only"):
                await session.files.make_directory("file:///d")


async def test_session_without_external_data_has_no_files_or_results():
    session = NO_EXTERNAL_DATA.for_session(ALL_CAPABILITIES, read_only=False)
    assert (session.files, session.results) == (None, None)
    async with session.acting(ANA):
        pass


async def test_each_turn_in_an_open_session_has_the_rights_of_its_caller():
    stores, engine = Stores(), FakeEngine(capabilities=ALL_CAPABILITIES)

    async def close_record(session_id: int) -> None:
        del session_id

    open_sessions = OpenSessions(close_record)
    external_data = stores.external_data.for_session(ALL_CAPABILITIES, read_only=False)
    session = OpenSession(1, "fake", ANA, is_named=True, idle=timedelta(minutes=1), external_data=external_data)
    await open_sessions.open(session, nullcontext(engine), external_data.add_to(SessionOptions()))
    files, results = engine.options[0].files, engine.options[0].results
    assert files is not None
    assert results is not None
    program = by_token(ANA, Scope.QUERY)
    for user, may_read in ((ANA, True), (program, False), (ANA, True)):
        with pytest.raises(PermissionDenied):
            await files.status("file:///a.csv")
        with pytest.raises(ResultRefused):
            await results.open("op").__aenter__()
        async with open_sessions.turn(session, user):
            if may_read:
                await files.status("file:///a.csv")
            else:
                with raises_code("permission_denied", match="lacks the scope files:read"):
                    await files.status("file:///a.csv")
            with pytest.raises(NotImplementedError):
                await results.open("op").__aenter__()
    assert stores.openers == [ANA, program, ANA]
    await open_sessions.aclose()


async def test_statements_record_what_they_and_their_session_have_read_before_they_receive_it() -> None:
    recorded: list[tuple[UUID, ReadSources]] = []

    async def record(statement_id: UUID, sources: ReadSources) -> None:
        recorded.append((statement_id, sources))

    reads, first, second = SessionReads(record), uuid4(), uuid4()
    await reads.begin(first)
    assert recorded == []
    await reads.add(ReadSources(connectors=frozenset(["hive"])))
    await reads.add_files()
    await reads.add_files()
    await reads.add(ReadSources(connectors=frozenset(["hive"])))
    everything = ReadSources(own_rights=True, connectors=frozenset(["hive"]))
    assert recorded == [(first, ReadSources(connectors=frozenset(["hive"]))), (first, everything)]
    await reads.begin(None)  # such as a lookup of the plan
    await reads.begin(second)
    assert recorded[2:] == [(second, everything)]


async def test_nothing_is_read_if_it_cannot_be_recorded() -> None:
    async def record(statement_id: UUID, sources: ReadSources) -> None:
        raise DatabaseUnavailable

    reads, files = SessionReads(record), GivenFiles(MemoryFileSystem(Scheme.FILE)).access
    session = files.of_session(may_write=False, on_read=reads.add_files)
    await reads.begin(uuid4())
    async with session.acting(ANA):
        for _ in range(2):
            with pytest.raises(DatabaseUnavailable):
                await session.glob("file:///*")
