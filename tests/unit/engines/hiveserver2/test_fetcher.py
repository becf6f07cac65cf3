"""Result types, values and rows, including rows that are fetched after a lost connection."""

import asyncio
import datetime as dt
import gc
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal

import pyarrow as pa
import pytest
from tests.fakes.hiveserver2_messages import SUCCESS

from queryserver.engines.hiveserver2.errors import ConnectionLost, ServerRefused
from queryserver.engines.hiveserver2.fetcher import Fetcher, log_lines, null_mask, record_batch, wire_column
from queryserver.engines.hiveserver2.messages import MalformedMessage
from queryserver.engines.hiveserver2.structs import (
    TBoolColumn,
    TColumn,
    TColumnDesc,
    TDoubleColumn,
    TFetchOrientation,
    TFetchResultsReq,
    TFetchResultsResp,
    THandleIdentifier,
    TI32Column,
    TOperationHandle,
    TPrimitiveTypeEntry,
    TRowSet,
    TStatus,
    TStatusCode,
    TStringColumn,
    TTypeDesc,
    TTypeEntry,
    TTypeId,
    TTypeQualifiers,
    TTypeQualifierValue,
)
from queryserver.engines.hiveserver2.transports import ReplyTooLarge
from queryserver.engines.hiveserver2.variants import Limits
from queryserver.engines.record_batches import BATCH_BYTES, DeclaredColumn
from queryserver.errors.statements import OutcomeUnknown, RowTooLarge, StatementRejected
from queryserver.formats.arrow import Column, ResultType


def column(kind: TTypeId, **qualifiers: int) -> DeclaredColumn:
    values = {name: TTypeQualifierValue(i32_value=number) for name, number in qualifiers.items()}
    entry = TPrimitiveTypeEntry(type=kind, type_qualifiers=TTypeQualifiers(qualifiers=values))
    described = TTypeDesc(types=[TTypeEntry(primitive=entry)])
    return wire_column(TColumnDesc(column_name="a", type_desc=described))


def text(*values: bytes, nulls: bytes = b"") -> TColumn:
    return TColumn(string_val=TStringColumn(values=list(values), nulls=nulls))


def decoded(values: TColumn, declared: DeclaredColumn) -> pa.Array:
    rows = TRowSet(columns=[values])
    return record_batch(rows, (declared,)).column(0)


@pytest.mark.parametrize(("nulls", "length", "expected"),
    [(b"", 3, None), (b"\0\0", 3, None), (b"\5", 3, [True, False, True]), (b"\2", 12, [False, True, *([False] * 10)]),
    (b"\0\1\xff", 9, [*([False] * 8), True])])  # fmt: skip
def test_null_mask_may_be_shorter_or_longer_than_column(nulls, length, expected):
    mask = null_mask(nulls, length)
    assert (None if mask is None else mask.to_pylist()) == expected


def test_masked_values_are_null_regardless_of_content():
    assert decoded(TColumn(i32_val=TI32Column(values=[1, 0, 3], nulls=b"\2")), column(TTypeId.INT)).to_pylist() == [
        1,
        None,
        3,
    ]
    assert decoded(text(b"x", b"", nulls=b"\2"), column(TTypeId.STRING)).to_pylist() == ["x", None]
    assert decoded(text(b"1", b"", nulls=b"\2"), column(TTypeId.DECIMAL, precision=3, scale=1)).to_pylist() == [
        Decimal("1.0"),
        None,
    ]
    flags = TBoolColumn(values=[False, True], nulls=b"\1")
    assert decoded(TColumn(bool_val=flags), column(TTypeId.BOOLEAN)).to_pylist() == [None, True]


@pytest.mark.parametrize(
    ("kind", "raw", "value"),
    [
        (TTypeId.DATE, b"2024-01-31", dt.date(2024, 1, 31)),
        (TTypeId.TIMESTAMP, b"2024-01-31 10:20:30.5", dt.datetime(2024, 1, 31, 10, 20, 30, 500000)),  # noqa: DTZ001 a naive timestamp
        (TTypeId.STRING, "Zoë 🐘".encode(), "Zoë 🐘"),
        (TTypeId.STRING, b"a\xffb", "a\ufffdb"),
        (TTypeId.BINARY, b"\0\xff", b"\0\xff"),
        (TTypeId.INTERVAL_DAY_TIME, b"1 02:03:04.000000000", "1 02:03:04.000000000"),
        (TTypeId.ARRAY, b'[1,{"a":null}]', '[1,{"a":null}]'),
        (TTypeId.TIMESTAMP_LOCAL_TZ, b"2024-01-31 10:20:30.0 UTC", "2024-01-31 10:20:30 UTC"),
        (TTypeId.TIMESTAMP_LOCAL_TZ, b"2024-01-31 10:20:30.500 Europe/Rome", "2024-01-31 10:20:30.500 Europe/Rome"),
    ],
)
def test_text_is_converted_to_declared_column_type(kind, raw, value):
    assert decoded(text(raw), column(kind)).to_pylist() == [value]


def test_timestamp_keeps_nanoseconds():
    array = decoded(text(b"2024-01-31 10:20:30.123456789"), column(TTypeId.TIMESTAMP))
    assert array.cast(pa.string()).to_pylist() == ["2024-01-31 10:20:30.123456789"]


@pytest.mark.parametrize("raw", [b"-0044-03-15 00:00:00", b"+12024-01-31 10:20:30"])
def test_timestamp_beyond_arrow_range_stays_text(raw):
    assert decoded(text(raw), column(TTypeId.TIMESTAMP)).to_pylist() == [raw.decode()]


def test_decimal_exceeding_declared_scale_stays_text():
    assert decoded(text(b"1.2345"), column(TTypeId.DECIMAL, precision=4, scale=2)).to_pylist() == ["1.2345"]


def test_float_column_becomes_float32():
    array = decoded(TColumn(double_val=TDoubleColumn(values=[0.1], nulls=b"")), column(TTypeId.FLOAT))
    assert array.type == pa.float32()


def test_binary_values_stay_bytes():
    array = decoded(TColumn(binary_val=TStringColumn(values=[b"\0", b""], nulls=b"\2")), column(TTypeId.BINARY))
    assert array.to_pylist() == [b"\0", None]


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        (column(TTypeId.DECIMAL, precision=10, scale=2), (ResultType.DECIMAL, "decimal(10,2)")),
        (column(TTypeId.VARCHAR, characterMaximumLength=20), (ResultType.VARCHAR, "varchar(20)")),
        (column(TTypeId.CHAR, characterMaximumLength=5), (ResultType.CHAR, "char(5)")),
        (column(TTypeId.UNION), (ResultType.UNION, "uniontype")),
        (column(TTypeId.NULL), (ResultType.NULL, "void")),
    ],
)
def test_native_type_names_include_qualifiers(declared, expected):
    assert (declared.column.type, declared.column.native_type) == expected


def test_type_without_primitive_entry_is_user_defined():
    found = wire_column(TColumnDesc(column_name="a", type_desc=TTypeDesc(types=[TTypeEntry()])))
    assert found.column == Column("a", ResultType.USER_DEFINED, "user defined")


def test_rows_with_mismatched_columns_are_refused():
    rows = TRowSet(columns=[text(b"x")])
    with pytest.raises(MalformedMessage):
        record_batch(rows, (column(TTypeId.STRING), column(TTypeId.STRING)))
    rows = TRowSet(columns=[text(b"x"), text(b"x", b"y")])
    with pytest.raises(MalformedMessage):
        record_batch(rows, (column(TTypeId.STRING), column(TTypeId.STRING)))


HANDLE = TOperationHandle(operation_id=THandleIdentifier(guid=b"g", secret=b"s"), operation_type=0, has_result_set=True)
COLUMNS = (DeclaredColumn(Column("a", ResultType.STRING, "string"), pa.string()),)
Happening = Callable[["RowServer", TFetchResultsResp], TFetchResultsResp]


@dataclass
class RowServer:
    """A server whose cursor advances with every FetchResults call, even if the reply is lost. Also replaces `Wire`.

    `happens` maps the number of a call to a function that changes its response.
    """

    values: list[bytes]
    happens: dict[int, Happening] = field(default_factory=dict[int, Happening])
    retry_s: float = 60
    settle_s: float = 0
    cell_max_bytes: int = 1_000
    most_bytes: int = 100_000_000
    most_rows: int = 10_000
    at: int = 0
    is_released: bool = False
    retains_rows: bool = True
    asked: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])

    @property
    def limits(self) -> Limits:
        return Limits(retry_s=self.retry_s, settle_s=self.settle_s)

    async def call(
        self, method: object, request: TFetchResultsReq, *, limit_s: float, largest_cell: int | None = None
    ) -> TFetchResultsResp:
        self.asked.append((request.orientation, request.max_rows))
        if request.orientation == TFetchOrientation.FIRST:
            self.at = 0
        given = self.values[self.at : self.at + min(request.max_rows, self.most_rows)]
        self.at += len(given)
        if (size := sum(map(len, given))) > self.most_bytes:
            raise ReplyTooLarge(size)
        column = TColumn(string_val=TStringColumn(values=given, nulls=b""))
        reply = TFetchResultsResp(status=SUCCESS, results=TRowSet(columns=[column]))
        return self.happens.get(len(self.asked), _answered)(self, reply)


def _answered(server: RowServer, reply: TFetchResultsResp) -> TFetchResultsResp:
    return reply


def _lost(server: RowServer, reply: TFetchResultsResp) -> TFetchResultsResp:
    raise ConnectionLost(sent=True)


def _not_sent(server: RowServer, reply: TFetchResultsResp) -> TFetchResultsResp:
    server.at -= len(reply.results.columns[0].string_val.values)
    raise ConnectionLost(sent=False)


def _timed_out(server: RowServer, reply: TFetchResultsResp) -> TFetchResultsResp:
    raise ConnectionLost(sent=True, timed_out=True)


def _login_refused(server: RowServer, reply: TFetchResultsResp) -> TFetchResultsResp:
    raise ConnectionLost(sent=False, is_refused=True)


def _refused(server: RowServer, reply: TFetchResultsResp) -> TFetchResultsResp:
    raise ServerRefused(TStatus(status_code=TStatusCode.ERROR, error_message="The cache is exceeded."))


def _shorter(server: RowServer, reply: TFetchResultsResp) -> TFetchResultsResp:
    del server.values[5:]
    raise ConnectionLost(sent=True)


def fetcher(server: RowServer, *, skip: int = 0, again: bool = False) -> Fetcher:
    async def can_repeat() -> bool:
        return server.retains_rows

    made = Fetcher(server, HANDLE, has_reliable_more_rows=False, can_repeat=can_repeat, skip=skip, again=again)  # type: ignore[arg-type]
    made.columns = COLUMNS
    return made


async def read(one: Fetcher) -> list[bytes]:
    return [value.encode() async for batch in one.batches() for value in batch.column(0).to_pylist()]


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


async def test_requested_row_count_grows_to_the_maximum() -> None:
    server = RowServer(numbers(60_000))
    assert await read(fetcher(server)) == numbers(60_000)
    counts = [count for _, count in server.asked]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (8, 10_000)


@pytest.mark.parametrize("lost", [(1,), (2,), (3,), (2, 3), (2, 4, 5), (4, 5, 6, 7)])
async def test_lost_reply_neither_loses_nor_duplicates_rows(lost: tuple[int, ...]) -> None:
    server = RowServer(numbers(3_000), dict.fromkeys(lost, _lost))
    assert await read(fetcher(server)) == numbers(3_000)
    assert [number for number, (how, _) in enumerate(server.asked, 1) if how == TFetchOrientation.FIRST] == [
        number + 1 for number in lost
    ]


async def test_unsent_call_is_repeated_unchanged() -> None:
    server = RowServer(numbers(3_000), {2: _not_sent, 3: _not_sent})
    assert await read(fetcher(server)) == numbers(3_000)
    assert {how for how, _ in server.asked} == {TFetchOrientation.NEXT}


async def test_resumed_reader_gets_only_remaining_rows() -> None:
    server = RowServer(numbers(3_000), {3: _lost})
    assert await read(fetcher(server, skip=1_000, again=True)) == numbers(3_000)[1_000:]


@pytest.mark.parametrize("known", [True, False], ids=["rows were read", "another process may have read"])
async def test_rows_are_not_requested_again_if_server_discards_them(known: bool) -> None:
    server = RowServer(numbers(3_000), {2: _lost}, retains_rows=False)
    with pytest.raises(OutcomeUnknown, match=r"^Results have expired"):
        await read(fetcher(server, skip=0 if known else 5, again=not known))
    assert [how for how, _ in server.asked] == [TFetchOrientation.NEXT] * (2 if known else 0)


async def test_timed_out_fetch_is_not_repeated() -> None:
    server = RowServer(numbers(3_000), {2: _timed_out})
    with pytest.raises(OutcomeUnknown):
        await read(fetcher(server))
    assert len(server.asked) == 2


async def test_fetch_is_repeated_only_after_lost_call_has_settled() -> None:
    """If two fetches ran concurrently, the server would divide the rows between their responses."""
    loop = asyncio.get_running_loop()
    lost_at = list[float]()

    def lose(server: RowServer, reply: TFetchResultsResp) -> TFetchResultsResp:
        lost_at.append(loop.time())
        raise ConnectionLost(sent=True)

    def come(server: RowServer, reply: TFetchResultsResp) -> TFetchResultsResp:
        lost_at.append(loop.time())
        return reply

    server = RowServer(numbers(300), {2: lose, 3: come}, settle_s=0.4)
    assert await read(fetcher(server)) == numbers(300)
    assert lost_at[1] - lost_at[0] >= 0.4
    taking_over = RowServer(numbers(3), settle_s=0.4)
    begun = loop.time()
    assert await read(fetcher(taking_over, again=True)) == numbers(3)
    assert loop.time() - begun >= 0.4


async def test_fetch_is_not_repeated_when_settling_exceeds_retry_time() -> None:
    server = RowServer(numbers(300), {2: _lost}, retry_s=1)
    one = fetcher(server)
    one._longest_s = 2
    with pytest.raises(OutcomeUnknown):
        await read(one)
    assert len(server.asked) == 2


async def test_fetch_is_not_repeated_after_refused_login() -> None:
    server = RowServer(numbers(300), {2: _login_refused})
    with pytest.raises(OutcomeUnknown):
        await read(fetcher(server))
    assert len(server.asked) == 2


async def test_closed_fetcher_retains_no_rows() -> None:
    one = fetcher(RowServer(numbers(300)))
    kept = list[weakref.ref[pa.RecordBatch]]()
    async for batch in one.batches():
        kept.append(weakref.ref(batch))
        del batch
    await one.close()
    gc.collect()
    assert [ref() for ref in kept] == [None] * len(kept)


async def test_retries_stop_at_time_limit_despite_intermittent_success() -> None:
    server = RowServer(numbers(3_000), {number: _lost for number in range(2, 10_000) if number % 2 == 0}, retry_s=0.5)
    with pytest.raises(OutcomeUnknown):
        await read(fetcher(server))


async def test_fetch_is_not_repeated_for_released_session() -> None:
    server = RowServer(numbers(3_000), {2: _lost}, is_released=True)
    with pytest.raises(OutcomeUnknown):
        await read(fetcher(server))
    assert len(server.asked) == 2


@pytest.mark.parametrize(
    ("happens", "error", "words"),
    [
        ({2: _lost, 3: _refused}, OutcomeUnknown, r"^Results have expired.* The cache is exceeded\."),
        ({3: _shorter}, OutcomeUnknown, "^Results have expired.* fewer rows"),
        ({1: _lost, 2: _refused}, StatementRejected, "The cache is exceeded"),
        ({2: _refused}, StatementRejected, "The cache is exceeded"),
    ],
)
async def test_rows_that_cannot_be_fetched_are_an_error(happens, error, words) -> None:
    """If rows that were read before cannot be fetched again, the error states that the results have expired, not that
    the statement failed.
    """
    with pytest.raises(error, match=words):
        await read(fetcher(RowServer(numbers(3_000), happens)))


async def test_wide_rows_come_in_smaller_batches() -> None:
    values = [*numbers(500), *(b"x" * 100_000 for _ in range(300)), *numbers(500)]
    server = RowServer(values, most_bytes=2 * BATCH_BYTES)
    assert await read(fetcher(server)) == values
    repeated = sum(how == TFetchOrientation.FIRST for how, _ in server.asked)
    assert 1 <= repeated <= 4, "the whole result is read again for each wide row"


async def test_oversized_row_fails_statement() -> None:
    values = [*numbers(20), b"x" * 5_000, *numbers(20)]
    with pytest.raises(RowTooLarge, match=r"Row 20 is larger than the limit of 2000 bytes"):
        await read(fetcher(RowServer(values, most_bytes=3_000)))


@pytest.mark.slow
async def test_only_one_huge_batch_is_held_in_memory() -> None:
    server = RowServer([b"x" * (3 * BATCH_BYTES) for _ in range(4)])
    one = fetcher(server)
    one._rows = 1
    rows = 0
    async for batch in one.batches():
        rows += batch.num_rows
        assert server.at == rows, "the next batch was requested while this one is used"
        del batch
        gc.collect()
    assert rows == 4


async def test_overlong_log_line_is_skipped_and_later_lines_follow() -> None:
    server = RowServer([b"x" * 5_000, b"later"], most_bytes=3_000)
    server.most_rows = 1
    assert await log_lines(server, HANDLE, first=True) == ["5000 bytes of the log were omitted."]  # type: ignore[arg-type]
    assert await log_lines(server, HANDLE, first=False) == ["later"]  # type: ignore[arg-type]
