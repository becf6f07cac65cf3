"""Rows are collected and other messages passed on, wherever the network divides the server's bytes."""

import asyncio
import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryserver.engines.postgresql import wire
from queryserver.engines.postgresql.rows import WireRows
from queryserver.engines.postgresql.wire import RowReceiver, SizeViolation

LIMIT = 50


class Driver(asyncio.Protocol):
    """Stands for asyncpg's protocol."""

    def __init__(self) -> None:
        self.received = b""

    def data_received(self, data: bytes) -> None:
        self.received += data


class Transport(asyncio.Transport):
    """A transport that still delivers data after it was paused, as TLS does."""

    def __init__(self) -> None:
        self.is_paused = False
        self.is_aborted = False

    def pause_reading(self) -> None:
        assert not self.is_paused
        self.is_paused = True

    def resume_reading(self) -> None:
        assert self.is_paused
        self.is_paused = False

    def is_closing(self) -> bool:
        return self.is_aborted

    def abort(self) -> None:
        self.is_aborted = True


def message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!I", len(body) + 4) + body


def row(*cells: bytes) -> bytes:
    written = b"".join(struct.pack("!i", len(cell)) + cell for cell in cells)
    return message(b"D", struct.pack("!h", len(cells)) + written)


def split(rows: WireRows) -> list[bytes]:
    data = b"".join(rows.pieces)
    assert len(data) == rows.size
    return [data[start:end] for start, end in itertools.pairwise([*rows.starts, len(data)])]


MESSAGES = st.lists(
    st.builds(row, st.binary(max_size=LIMIT)) | st.builds(message, st.sampled_from([b"N", b"C", b"s"]), st.binary()),
    max_size=12,
)


@pytest.mark.parametrize("limit", [None, LIMIT])
@given(messages=MESSAGES, cuts=st.lists(st.integers(0, 500), max_size=12))
async def test_rows_are_kept_from_the_driver(limit: int | None, messages: list[bytes], cuts: list[int]) -> None:
    driver, transport = Driver(), Transport()
    receiver = RowReceiver(driver, transport)
    if limit is not None:
        receiver.limit(limit)
    stream = b"".join(messages)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire, "CHUNK_BYTES", 100)
        receiver.collect(in_chunks=True)
    for begin, end in itertools.pairwise([0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]):
        receiver.data_received(stream[begin:end])
    chunks = list[WireRows]()
    request = asyncio.create_task(asyncio.sleep(0))
    await request
    receiver.end_request(request)
    while (chunk := await receiver.full_chunk()) is not None:
        chunks.append(chunk)
        assert chunk.starts[-1] <= 100
    assert not transport.is_paused
    kept = [one for chunk in (*chunks, receiver.take_rest()) for one in split(chunk)]
    assert kept == [one for one in messages if one[:1] == b"D"]
    assert driver.received == b"".join(one for one in messages if one[:1] != b"D")


@pytest.mark.parametrize("cut", range(1, 30))
async def test_row_is_kept_from_the_driver_although_collecting_stops_in_its_middle(cut: int) -> None:
    driver = Driver()
    receiver = RowReceiver(driver, Transport())
    receiver.collect(in_chunks=False)
    one, end = row(b"x" * 20), message(b"C", b"SELECT 1")
    receiver.data_received(one[:cut])
    receiver.take_rest()
    receiver.data_received(one[cut:] + end)
    # A row that begins later is passed on whole.
    assert driver.received == (end if cut >= 5 else one + end)


@pytest.mark.parametrize("is_collecting", [True, False])
@pytest.mark.parametrize("kind", [b"N", b"D"])
@pytest.mark.parametrize("length", range(4))
@pytest.mark.timeout(30)
async def test_impossible_length_does_not_block_the_event_loop(kind: bytes, length: int, is_collecting: bool) -> None:
    driver = Driver()
    receiver = RowReceiver(driver, Transport())
    if is_collecting:
        receiver.collect(in_chunks=True)
    receiver.data_received(kind + struct.pack("!I", length) + message(b"C", b"SELECT 1"))
    assert driver.received.endswith(message(b"C", b"SELECT 1"))


async def test_full_chunk_and_end_of_request_wake_the_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "CHUNK_BYTES", 100)
    receiver = RowReceiver(Driver(), Transport())
    receiver.collect(in_chunks=True)
    one = row(b"x" * 60)
    waiting = asyncio.create_task(receiver.full_chunk())
    await asyncio.sleep(0)
    receiver.data_received(one * 3)
    chunk = await waiting
    assert chunk is not None
    assert split(chunk) == [one, one]
    waiting = asyncio.create_task(receiver.full_chunk())
    await asyncio.sleep(0)
    request = asyncio.create_task(asyncio.sleep(0))
    request.add_done_callback(receiver.end_request)
    assert await waiting is None
    assert split(receiver.take_rest()) == [one]


def test_rows_of_other_requests_are_passed_on() -> None:
    driver = Driver()
    receiver = RowReceiver(driver, Transport())
    receiver.limit(LIMIT)
    receiver.data_received(row(b"first") + message(b"C", b"SELECT 1\0"))
    assert driver.received == row(b"first") + message(b"C", b"SELECT 1\0")


@pytest.mark.parametrize("step", [1, 7, 10_000])
def test_large_value_is_refused_before_it_has_arrived(step: int) -> None:
    driver, transport = Driver(), Transport()
    receiver = RowReceiver(driver, transport)
    receiver.limit(LIMIT)
    receiver.collect(in_chunks=True)
    stream = row(b"a", b"b") + row(b"c", b"x" * 1_000)[:40]
    for begin in range(0, len(stream), step):
        receiver.data_received(stream[begin : begin + step])
    assert receiver.refusal == SizeViolation(LIMIT, row=1, column=1)
    assert transport.is_aborted


def test_dropped_rows_use_no_memory_and_stop_no_reading() -> None:
    transport = Transport()
    receiver = RowReceiver(Driver(), transport)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire, "CHUNK_BYTES", 100)
        receiver.collect(in_chunks=True)
    stream = row(b"x" * 90)
    receiver.data_received(stream * 2 + stream[:20])
    assert transport.is_paused
    receiver.drop_rest()
    receiver.data_received(stream[20:] + stream * 5)
    assert not transport.is_paused
    assert receiver.take_rest().size == 0
