"""Messages that are read past: their end, and the place of a cell that is too large."""

import pytest
from tests.fakes.hiveserver2_messages import SUCCESS, decode_call, encode_reply

from queryserver.engines.hiveserver2.protocol.messages import FETCH_RESULTS, MalformedMessage, encode_call
from queryserver.engines.hiveserver2.protocol.structs import (
    Struct,
    TBinaryColumn,
    TBoolColumn,
    TColumn,
    TDoubleColumn,
    TFetchResultsReq,
    TFetchResultsResp,
    TGetOperationStatusResp,
    THandleIdentifier,
    TI64Column,
    TOperationHandle,
    TProgressUpdateResp,
    TRowSet,
    TStatus,
    TStatusCode,
    TStringColumn,
)
from queryserver.engines.hiveserver2.transports import CellFound, Skimmer

HANDLE = TOperationHandle(operation_id=THandleIdentifier(guid=b"g", secret=b"s"), operation_type=0, has_result_set=True)
CALL = decode_call(
    encode_call(FETCH_RESULTS, TFetchResultsReq(operation_handle=HANDLE, orientation=0, max_rows=5), sequence=7)
)


def rows(*columns: TColumn) -> TFetchResultsResp:
    status = TStatus(status_code=TStatusCode.SUCCESS, info_messages=["long " * 50])
    return TFetchResultsResp(
        status=status, has_more_rows=False, results=TRowSet(start_row_offset=0, rows=[], columns=list(columns))
    )


def texts(*values: bytes) -> TColumn:
    return TColumn(string_val=TStringColumn(values=list(values), nulls=b"\1"))


NUMBERS = (
    TColumn(bool_val=TBoolColumn(values=[True, False], nulls=b"")),
    TColumn(i64_val=TI64Column(values=[1, 2], nulls=b"")),
    TColumn(double_val=TDoubleColumn(values=[0.5, 1], nulls=b"")),
)
REPLIES = (
    rows(),
    rows(*NUMBERS, texts(b"", b"x" * 1000)),
    rows(TColumn(binary_val=TBinaryColumn(values=[b"\0" * 70_000, b""], nulls=b""))),
    TGetOperationStatusResp(
        status=SUCCESS,
        progress_update=TProgressUpdateResp(header_names=["a"], rows=[["b", "c"], []], progressed_percentage=0.5),
    ),
)


@pytest.mark.parametrize("step", [1, 7, 100_000])
@pytest.mark.parametrize("number", range(len(REPLIES)))
def test_the_end_is_found_however_the_message_is_cut(number: int, step: int) -> None:
    raw = encode_reply(CALL, REPLIES[number])
    skimmer = Skimmer()
    ends = [skimmer.feed(raw[start : start + step]) for start in range(0, len(raw), step)]
    assert ends == [False] * (len(ends) - 1) + [True]
    assert skimmer.size == len(raw)


@pytest.mark.parametrize("kind", ["string", "binary"])
def test_a_cell_that_is_too_large_is_found_by_its_length_alone(kind: str) -> None:
    values = [b"short", b"y" * 5_001, b""]
    large = texts(*values) if kind == "string" else TColumn(binary_val=TBinaryColumn(values=values, nulls=b""))
    raw = encode_reply(CALL, rows(*NUMBERS, texts(b"z" * 5_000), large))
    begin = raw[: raw.index(b"yyyy")]
    with pytest.raises(CellFound) as caught:
        Skimmer(5_000).feed(begin)
    assert (caught.value.column, caught.value.row) == (4, 1)


@pytest.mark.parametrize("reply", [rows(texts(b"x" * 100)), REPLIES[3]], ids=["at the limit", "no rows"])
def test_what_is_no_cell_above_the_limit_passes(reply: Struct) -> None:
    assert Skimmer(100).feed(encode_reply(CALL, reply))


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
    ids=["no message", "negative text", "nested deep", "negative list", "more after the end", "unknown type"],
)
def test_what_is_no_message_is_malformed(raw: bytes) -> None:
    with pytest.raises(MalformedMessage):
        Skimmer().feed(raw)
