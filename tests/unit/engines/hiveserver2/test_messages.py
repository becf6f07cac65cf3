"""Encoding and decoding of calls and replies, with different errors for malformed and for incomplete messages."""

import dataclasses

import pytest
from tests.fakes.hiveserver2_messages import SUCCESS, UNKNOWN_METHOD, decode_call, encode_exception, encode_reply
from thrift.protocol.TBinaryProtocol import TBinaryProtocol

from queryserver.engines.hiveserver2 import messages
from queryserver.engines.hiveserver2.messages import (
    CLOSE_SESSION,
    FETCH_RESULTS,
    OPEN_SESSION,
    IncompleteMessage,
    MalformedMessage,
    Method,
    ServerException,
    decode_reply,
    encode_call,
)
from queryserver.engines.hiveserver2.structs import (
    TColumn,
    TFetchResultsReq,
    TFetchResultsResp,
    THandleIdentifier,
    TI64Column,
    TOpenSessionReq,
    TOpenSessionResp,
    TOperationHandle,
    TRowSet,
    TSessionHandle,
    TStringColumn,
)

IDENTIFIER = THandleIdentifier(guid=b"g" * 16, secret=b"\xff" * 16)
SESSION = TSessionHandle(session_id=IDENTIFIER)
OPERATION = TOperationHandle(operation_id=IDENTIFIER, operation_type=0, has_result_set=True)
OPEN = TOpenSessionReq(client_protocol=9, username="Zoë", configuration={"k": "v"})
OPENED = TOpenSessionResp(status=SUCCESS, server_protocol_version=9, session_handle=SESSION)
ROWS = TFetchResultsResp(
    status=SUCCESS,
    results=TRowSet(
        columns=[
            TColumn(string_val=TStringColumn(values=[b"a", b"\xff"], nulls=b"\1")),
            TColumn(i64_val=TI64Column(values=[-1, 2**63 - 1], nulls=b"")),
        ]
    ),
)
FETCH = TFetchResultsReq(operation_handle=OPERATION, orientation=0, max_rows=5)


def answer() -> bytes:
    return encode_reply(decode_call(encode_call(OPEN_SESSION, OPEN, 7)), OPENED)


def test_call_round_trips():
    call = decode_call(encode_call(OPEN_SESSION, OPEN, 7))
    assert (call.name, call.sequence, call.method, call.request) == ("OpenSession", 7, OPEN_SESSION, OPEN)


def test_call_encoding_matches_the_protocol():
    raw = encode_call(CLOSE_SESSION, CLOSE_SESSION.request(session_handle=SESSION), 1)
    session = b"\x0c\0\1\x0c\0\1\x0b\0\1\0\0\0\x10" + b"g" * 16 + b"\x0b\0\2\0\0\0\x10" + b"\xff" * 16 + b"\0\0"
    name = b"\0\0\0\x0cCloseSession"
    assert raw == b"\x80\1\0\1" + name + b"\0\0\0\1" + b"\x0c\0\1" + session + b"\0\0"


def test_reply_round_trips():
    assert decode_reply(OPEN_SESSION, answer(), 7) == OPENED


def test_row_texts_stay_bytes():
    raw = encode_reply(decode_call(encode_call(FETCH_RESULTS, FETCH, 1)), ROWS)
    assert decode_reply(FETCH_RESULTS, raw, 1) == ROWS


@pytest.mark.parametrize("cut", range(1, 40))
def test_truncated_reply_is_incomplete(cut):
    raw = answer()
    with pytest.raises(IncompleteMessage):
        decode_reply(OPEN_SESSION, raw[: len(raw) * cut // 40], 7)


def test_trailing_bytes_after_reply_are_refused():
    with pytest.raises(MalformedMessage) as caught:
        decode_reply(OPEN_SESSION, answer() + b"\0", 7)
    assert not isinstance(caught.value, IncompleteMessage)


def test_reply_to_another_call_is_refused():
    with pytest.raises(MalformedMessage):
        decode_reply(OPEN_SESSION, answer(), 8)
    with pytest.raises(MalformedMessage):
        decode_reply(FETCH_RESULTS, answer(), 7)


@pytest.mark.parametrize(
    "garbage", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0" * 100, b"\x80\1\0\2\xff\xff\xff\xff" * 9]
)
def test_garbage_is_malformed_rather_than_incomplete(garbage):
    with pytest.raises(MalformedMessage) as caught:
        decode_reply(OPEN_SESSION, garbage, 7)
    assert not isinstance(caught.value, IncompleteMessage)


def test_list_claiming_billions_of_elements_is_refused():
    raw = bytearray(encode_reply(decode_call(encode_call(FETCH_RESULTS, FETCH, 1)), ROWS))
    qualified_name = raw.index(b"\x0f\0\3\x0c\0\0\0\2")
    raw[qualified_name + 4 : qualified_name + 8] = b"\x7f\xff\xff\xff"
    with pytest.raises(MalformedMessage):
        decode_reply(FETCH_RESULTS, bytes(raw), 1)


def test_reply_without_status_is_refused():
    nothing = dataclasses.replace(OPENED)
    nothing.status = None
    raw = encode_reply(decode_call(encode_call(OPEN_SESSION, OPEN, 7)), nothing)
    with pytest.raises(MalformedMessage, match="status"):
        decode_reply(OPEN_SESSION, raw, 7)


def test_server_exception_keeps_its_message():
    call = decode_call(encode_call(OPEN_SESSION, OPEN, 7))
    with pytest.raises(ServerException, match="no such method"):
        decode_reply(OPEN_SESSION, encode_exception(call, "no such method", UNKNOWN_METHOD), 7)


def test_call_with_unknown_name_has_no_method():
    raw = encode_call(Method("NoSuchCall", OPEN_SESSION.request, OPEN_SESSION.reply), OPEN, 3)
    call = decode_call(raw)
    assert (call.name, call.sequence, call.method) == ("NoSuchCall", 3, None)


def test_pure_python_protocol_matches_accelerated_protocol(monkeypatch):
    call = decode_call(encode_call(FETCH_RESULTS, FETCH, 1))
    raw = encode_reply(call, ROWS)
    monkeypatch.setattr(messages, "TBinaryProtocolAccelerated", TBinaryProtocol)
    assert encode_reply(call, ROWS) == raw
    assert decode_reply(FETCH_RESULTS, raw, 1) == ROWS
    with pytest.raises(IncompleteMessage):
        decode_reply(FETCH_RESULTS, raw[:-5], 1)
