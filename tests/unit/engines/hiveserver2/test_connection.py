"""Logins and messages over real sockets, overlong replies, and repeated session calls."""

import asyncio
import gc
import gzip
import struct
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from tests.fakes.hiveserver2_messages import SUCCESS, decode_call, encode_reply
from tests.timing import TRIES

from queryserver.engines.hiveserver2.connection import Hs2Connection, Wire, connect
from queryserver.engines.hiveserver2.errors import ConnectionLost
from queryserver.engines.hiveserver2.messages import (
    FETCH_RESULTS,
    GET_OPERATION_STATUS,
    OPEN_SESSION,
    MalformedMessage,
    encode_call,
)
from queryserver.engines.hiveserver2.structs import (
    TEXT,
    Struct,
    TBoolColumn,
    TColumn,
    TDoubleColumn,
    TFetchResultsReq,
    TFetchResultsResp,
    THandleIdentifier,
    TI64Column,
    TOpenSessionReq,
    TOpenSessionResp,
    TOperationHandle,
    TOperationReq,
    TRowSet,
    TStatus,
    TStatusCode,
    TStatusResp,
    TStringColumn,
    list_of,
    struct_of,
    wire,
)
from queryserver.engines.hiveserver2.transports import CellTooLarge, MessageSkipper, ReplyTooLarge, skip_in_steps
from queryserver.engines.hiveserver2.variants import Hs2Address, Hs2Login, Limits, Mechanism, Member
from queryserver.errors.statements import CredentialsRequired, EngineError, EngineUnavailable, StatementRejected

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

OPEN = TOpenSessionReq(client_protocol=9)
OPENED = TOpenSessionResp(status=SUCCESS, server_protocol_version=9)
HANDLE = TOperationHandle(operation_id=THandleIdentifier(guid=b"g", secret=b"s"), operation_type=0, has_result_set=True)
FETCH = TFetchResultsReq(operation_handle=HANDLE, orientation=0, max_rows=5)
PATIENT = Limits(connect_s=30)


@asynccontextmanager
async def serving(serve: Serve) -> AsyncGenerator[Member]:
    """Run a server on the loopback interface that handles each connection with `serve`."""

    async def treat(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(treat, "127.0.0.1", 0)
    async with server:
        yield Member("127.0.0.1", server.sockets[0].getsockname()[1])
        server.close()


@asynccontextmanager
async def connected(
    member: Member, mechanism: Mechanism, password: str = "", limits: Limits = PATIENT
) -> AsyncGenerator[Hs2Connection]:
    address = Hs2Address((member,), mechanism=mechanism, limits=limits)
    connection = await connect(address, Hs2Login(member, "Zoë", password))
    try:
        yield connection
    finally:
        await connection.disconnect()


async def sasl_message(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    status, length = struct.unpack(">BI", await reader.readexactly(5))
    return status, await reader.readexactly(length)


async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> list[tuple[int, bytes]]:
    said = [await sasl_message(reader), await sasl_message(reader)]
    writer.write(struct.pack(">BI", 5, 0))
    return said


async def frame(reader: asyncio.StreamReader) -> bytes:
    (length,) = struct.unpack(">I", await reader.readexactly(4))
    return await reader.readexactly(length)


def framed(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


@pytest.mark.parametrize(("mechanism", "password"), [(Mechanism.NONE, ""), (Mechanism.LDAP, "sécret")])
async def test_plain_login_sends_user_and_password(mechanism, password):
    heard = []

    async def serve(reader, writer):
        heard.extend(await accept(reader, writer))
        await reader.read()

    async with serving(serve) as member, connected(member, mechanism, password):
        assert heard[0] == (1, b"PLAIN")
        assert heard[1] == (2, b"\0" + "Zoë".encode() + b"\0" + (password or "none").encode())


async def test_refused_login_reports_server_message():
    async def serve(reader, writer):
        await sasl_message(reader)
        await sasl_message(reader)
        writer.write(struct.pack(">BI", 3, 22) + b"Error validating login")
        await reader.read()

    async with serving(serve) as member:
        with pytest.raises(CredentialsRequired, match="Error validating login"):
            async with connected(member, Mechanism.LDAP, "wrong"):
                pass


async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await sasl_message(reader)


async def say_garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 100)
    await reader.read()


@pytest.mark.parametrize("serve", [say_nothing, hang_up, say_garbage])
async def test_silent_or_garbled_server_is_unavailable(serve):
    async with serving(serve) as member:
        with pytest.raises(EngineUnavailable):
            async with asyncio.timeout(30), connected(member, Mechanism.NONE, limits=Limits(connect_s=2)):
                pass


async def test_framed_reply_arriving_byte_by_byte_is_read():
    async def serve(reader, writer):
        await accept(reader, writer)
        call = decode_call(await frame(reader))
        answer = framed(encode_reply(call, OPENED))
        for byte in answer:
            writer.write(bytes([byte]))
            await writer.drain()
        await reader.read()

    async with serving(serve) as member, connected(member, Mechanism.NONE) as connection:
        assert await connection.call(OPEN_SESSION, OPEN, limit_s=5) == OPENED
        assert await connection.clean()


@pytest.mark.parametrize("answer", [b"\xff\xff\xff\xff", framed(b"garbage"), framed(b""), b"\0\0"])
async def test_broken_frame_closes_connection(answer):
    async def serve(reader, writer):
        await accept(reader, writer)
        await frame(reader)
        writer.write(answer)

    async with serving(serve) as member, connected(member, Mechanism.NONE) as connection:
        with pytest.raises(ConnectionLost) as caught:
            await connection.call(OPEN_SESSION, OPEN, limit_s=5)
        assert caught.value.sent
        assert connection.is_closed()
        with pytest.raises(ConnectionLost) as caught:
            await connection.call(OPEN_SESSION, OPEN, limit_s=5)
        assert not caught.value.sent


async def test_unanswered_call_times_out_and_closes_connection():
    async def serve(reader, writer):
        await accept(reader, writer)
        await reader.read()

    async with serving(serve) as member, connected(member, Mechanism.NONE) as connection:
        with pytest.raises(ConnectionLost):
            await connection.call(OPEN_SESSION, OPEN, limit_s=0.1)
        assert connection.is_closed()


async def test_canceled_call_leaves_connection_usable():
    called, answer = asyncio.Event(), asyncio.Event()

    async def serve(reader, writer):
        await accept(reader, writer)
        for _ in range(2):
            call = decode_call(await frame(reader))
            called.set()
            await answer.wait()
            writer.write(framed(encode_reply(call, OPENED)))
        await reader.read()

    async with serving(serve) as member, connected(member, Mechanism.NONE) as connection:
        waiting = asyncio.create_task(connection.call(OPEN_SESSION, OPEN, limit_s=30))
        await called.wait()
        waiting.cancel()
        await asyncio.wait({waiting})
        assert connection.is_busy
        assert not await connection.clean()
        answer.set()
        assert await connection.call(OPEN_SESSION, OPEN, limit_s=30) == OPENED


@pytest.mark.parametrize("pause_s", [0, 0.02])
async def test_unframed_reply_is_read_from_arbitrary_chunks(pause_s):
    text = [b"%d" % number * 50 for number in range(20_000)]
    rows = TRowSet(columns=[TColumn(string_val=TStringColumn(values=text, nulls=b""))])

    async def serve(reader, writer):
        call = decode_call(await reader.read(65536))
        raw = encode_reply(call, TFetchResultsResp(status=SUCCESS, results=rows))
        for start in range(0, len(raw), len(raw) // 10):
            writer.write(raw[start : start + len(raw) // 10])
            await writer.drain()
            await asyncio.sleep(pause_s)
        await reader.read()

    async with serving(serve) as member, connected(member, Mechanism.NOSASL) as connection:
        reply = await connection.call(FETCH_RESULTS, FETCH, limit_s=20)
        assert reply.results == rows


async def test_truncated_unframed_reply_is_lost():
    async def serve(reader, writer):
        call = decode_call(await reader.read(65536))
        writer.write(encode_reply(call, OPENED)[:-5])

    async with serving(serve) as member, connected(member, Mechanism.NOSASL) as connection:
        with pytest.raises(ConnectionLost):
            await connection.call(OPEN_SESSION, OPEN, limit_s=5)


def one_row(size: int) -> TFetchResultsResp:
    column = TColumn(string_val=TStringColumn(values=[b"x", b"y" * size], nulls=b""))
    rows = TRowSet(columns=[TColumn(i64_val=TI64Column(values=[1, 2], nulls=b"")), column])
    return TFetchResultsResp(status=SUCCESS, results=rows)


async def call_over_http(reader: asyncio.StreamReader) -> bytes:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    return await reader.readexactly(int(head.partition(b"content-length: ")[2].split(b"\r\n")[0]))


@pytest.mark.parametrize("kind", ["framed", "bare", "http"])
async def test_overlong_reply_is_skipped_and_connection_stays_usable(kind):
    """In this test, the limit is 24 MiB (`Hs2Address.reply_max_bytes`)."""
    long = one_row(30 * 1024 * 1024)

    async def serve(reader, writer):
        if kind == "framed":
            await accept(reader, writer)
        for reply in (long, one_row(5)):
            raw = {"framed": frame, "bare": lambda source: source.read(65536), "http": call_over_http}[kind]
            answer = encode_reply(decode_call(await raw(reader)), reply)
            if kind == "http":
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(answer) + answer)
            else:
                writer.write(framed(answer) if kind == "framed" else answer)
        await reader.read()

    mechanism = Mechanism.NOSASL if kind == "bare" else Mechanism.NONE
    async with serving(serve) as member:
        path = "cliservice" if kind == "http" else None
        address = Hs2Address((member,), mechanism=mechanism, http_path=path, cell_max_bytes=65536)
        connection = await connect(address, Hs2Login(member, "Zoë"))
        try:
            with pytest.raises(ReplyTooLarge) as caught:
                await connection.call(FETCH_RESULTS, FETCH, limit_s=60)
            assert caught.value.size == pytest.approx(30 * 1024 * 1024, rel=0.01)
            assert await connection.clean()
            reply = await connection.call(FETCH_RESULTS, FETCH, limit_s=60)
            assert reply == one_row(5)
        finally:
            await connection.disconnect()


async def test_compressed_replies_are_neither_requested_nor_decompressed():
    """Replies are never decompressed, because a thousand bytes could expand to a million before their size is known."""
    heads = []

    async def serve(reader, writer):
        heads.append((await reader.readuntil(b"\r\n\r\n")).lower())
        body = gzip.compress(b"x" * 1_000_000)
        head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body)
        writer.write(head + body)
        await reader.read()

    async with serving(serve) as member:
        connection = await connect(Hs2Address((member,), http_path="cliservice"), Hs2Login(member, "Zoë"))
        with pytest.raises(ConnectionLost) as caught:
            await connection.call(OPEN_SESSION, OPEN, limit_s=10)
        assert isinstance(caught.value.__cause__, MalformedMessage)
        assert "compressed" in str(caught.value.__cause__)
        await connection.disconnect()
    assert b"\r\naccept-encoding: identity\r\n" in heads[0]


async def test_connection_does_not_retain_reply():
    async def serve(reader, writer):
        await accept(reader, writer)
        writer.write(framed(encode_reply(decode_call(await frame(reader)), one_row(5))))
        await reader.read()

    async with serving(serve) as member, connected(member, Mechanism.NONE) as connection:
        reply = await connection.call(FETCH_RESULTS, FETCH, limit_s=10)
        await asyncio.sleep(0)
        gc.collect()
        holders = [one for one in gc.get_referrers(reply) if isinstance(one, asyncio.Task)]
        assert [one.get_name() for one in holders if one is not asyncio.current_task()] == []
        assert connection._exchange is None


async def test_other_tasks_run_while_small_values_are_skipped():
    """Skipping values yields to the event loop after at most a few thousand values."""
    column = TColumn(string_val=TStringColumn(values=[b""] * 100_000, nulls=b""))
    rows = TFetchResultsResp(status=SUCCESS, results=TRowSet(columns=[column]))
    raw = encode_reply(decode_call(encode_call(FETCH_RESULTS, FETCH, sequence=1)), rows)
    turns = 0

    async def others():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    waiting = asyncio.create_task(others())
    assert await skip_in_steps(MessageSkipper(), raw)
    waiting.cancel()
    assert turns >= 100_000 // 5_000


CALL = decode_call(
    encode_call(FETCH_RESULTS, TFetchResultsReq(operation_handle=HANDLE, orientation=0, max_rows=5), sequence=7)
)


def rows(*columns: TColumn) -> TFetchResultsResp:
    status = TStatus(status_code=TStatusCode.SUCCESS, info_messages=["long " * 50])
    return TFetchResultsResp(status=status, has_more_rows=False, results=TRowSet(columns=list(columns)))


def texts(*values: bytes) -> TColumn:
    return TColumn(string_val=TStringColumn(values=list(values), nulls=b"\1"))


class FullProgress(Struct):
    """A TProgressUpdateResp that includes the fields that the client never reads."""

    header_names: list[str] = wire(1, list_of(TEXT))
    rows: list[list[str]] = wire(2, list_of(list_of(TEXT)))


class FullStatus(TStatusResp):
    progress_update: FullProgress = wire(10, struct_of(FullProgress))


NUMBERS = (
    TColumn(bool_val=TBoolColumn(values=[True, False], nulls=b"")),
    TColumn(i64_val=TI64Column(values=[1, 2], nulls=b"")),
    TColumn(double_val=TDoubleColumn(values=[0.5, 1], nulls=b"")),
)
REPLIES = (
    rows(),
    rows(*NUMBERS, texts(b"", b"x" * 1000)),
    rows(TColumn(binary_val=TStringColumn(values=[b"\0" * 70_000, b""], nulls=b""))),
    FullStatus(status=SUCCESS, progress_update=FullProgress(header_names=["a"], rows=[["b", "c"], []])),
)


@pytest.mark.parametrize("step", [1, 7, 100_000])
@pytest.mark.parametrize("number", range(len(REPLIES)))
def test_message_end_is_found_in_arbitrary_chunks(number: int, step: int) -> None:
    raw = encode_reply(CALL, REPLIES[number])
    skimmer = MessageSkipper()
    ends = [skimmer.feed(raw[start : start + step]) for start in range(0, len(raw), step)]
    assert ends == [False] * (len(ends) - 1) + [True]
    assert skimmer.size == len(raw)


@pytest.mark.parametrize("kind", ["string", "binary"])
def test_oversized_cell_is_detected_by_its_length_prefix(kind: str) -> None:
    values = [b"short", b"y" * 5_001, b""]
    large = texts(*values) if kind == "string" else TColumn(binary_val=TStringColumn(values=values, nulls=b""))
    raw = encode_reply(CALL, rows(*NUMBERS, texts(b"z" * 5_000), large))
    begin = raw[: raw.index(b"yyyy")]
    with pytest.raises(CellTooLarge) as caught:
        MessageSkipper(5_000).feed(begin)
    assert (caught.value.column, caught.value.row) == (4, 1)


@pytest.mark.parametrize("reply", [rows(texts(b"x" * 100)), REPLIES[3]], ids=["at the limit", "no rows"])
def test_reply_without_oversized_cell_passes(reply: Struct) -> None:
    assert MessageSkipper(100).feed(encode_reply(CALL, reply))


@pytest.mark.parametrize(
    "raw",
    [
        b"\xff" * 40,
        b"\x80\x01\x00\x02" + b"\0\0\0\1x" + b"\0" * 4 + b"\x0b\0\1\xff\xff\xff\xff",
        b"\x80\x01\x00\x02" + b"\0\0\0\1x" + b"\0" * 4 + b"\x0c\0\1" * 100,
        b"\x80\x01\x00\x02" + b"\0\0\0\1x" + b"\0" * 4 + b"\x0f\0\1\x08\xff\xff\xff\xff",
        b"\x80\x01\x00\x02" + b"\0\0\0\1x" + b"\0" * 4 + b"\0more",
        b"\x80\x01\x00\x02" + b"\0\0\0\1x" + b"\0" * 4 + b"\x07\0\1",
    ],
)
def test_invalid_bytes_are_malformed(raw: bytes) -> None:
    with pytest.raises(MalformedMessage):
        MessageSkipper().feed(raw)


class _Broken(Hs2Connection):
    """A session's connection that has been lost."""

    def __init__(self) -> None:
        pass

    def is_closed(self) -> bool:
        return True

    @property
    def is_busy(self) -> bool:
        return False


class _Group:
    """A group of servers on which every connection attempt raises the given error."""

    def __init__(self, error: EngineError) -> None:
        self.error = error
        self.attempts = 0
        self.was_asked_twice = asyncio.Event()

    async def more(self) -> Hs2Connection:
        self.attempts += 1
        if self.attempts == 2:
            self.was_asked_twice.set()
        raise self.error


async def _asked(wire: Wire) -> None:
    await wire.call_with_retries(GET_OPERATION_STATUS, TOperationReq(operation_handle=HANDLE), limit_s=5)  # type: ignore[arg-type]


@pytest.mark.parametrize("error", [CredentialsRequired("wrong"), StatementRejected("no such database")])
async def test_refused_login_is_not_retried(error: EngineError) -> None:
    """Repeating a refused login every second for a minute would lock the user's directory account."""
    group = _Group(error)
    with pytest.raises(ConnectionLost):
        await _asked(Wire(_Broken(), group.more, Limits(retry_s=5)))
    assert group.attempts == 1


async def test_unavailable_server_is_retried_until_time_limit() -> None:
    for _ in range(TRIES):
        group = _Group(EngineUnavailable("no answer"))
        with pytest.raises(ConnectionLost):
            await _asked(Wire(_Broken(), group.more, Limits(retry_s=2)))
        if group.attempts > 2:
            return
    pytest.fail("it was not tried again until the time was over")


async def test_retries_stop_when_session_is_released() -> None:
    group = _Group(EngineUnavailable("no answer"))
    wire = Wire(_Broken(), group.more, Limits(retry_s=600))
    asking = asyncio.create_task(_asked(wire))
    await group.was_asked_twice.wait()
    wire.release()
    with pytest.raises(ConnectionLost):
        await asking
