"""The bytes of files that statements read, with few calls: each costs the server some milliseconds.

DuckDB reads the end of a Parquet file several times, with a few KiB each: small pieces are kept. It reads the column
chunks of a row group one by one, in several threads: a call takes some of what follows, as long as that is read, too.
It reads compressed files and JSON in order: the next pieces are on their way before they are read.
"""

import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from weakref import WeakSet

BLOCK_BYTES = 64 * 1024
"""Reads of up to this size are made of blocks of it, which are kept."""
KEPT_BYTES = 16 * 1024 * 1024
"""Of blocks, for all files of a process."""
PIECE_BYTES = 2 * 1024 * 1024
"""That DuckDB reads at most at a time."""
AHEAD_BYTES = 64 * 1024 * 1024
"""Of pieces that are read ahead, for all files of a process."""
_AHEAD_PIECES = 4
"""Of one open file."""
_FOLLOWING_BYTES = 512 * 1024
"""Of what follows a column chunk, in the same call."""
_CHUNK_BYTES = 1536 * 1024
"""Above this size nothing follows: DuckDB has divided a larger read, and reads what follows by itself."""
_MOST_CHUNKS = 8
"""Of one file, that are held for what follows them."""
_TRIALS = 6
"""Chunks after which nothing follows any more, when none of what followed them was read."""
_AT_ONCE = 8
_IN_ORDER = 2
"""Reads that continue the one before, until the next ones are read ahead."""

Fetch = Callable[[int, int], bytes]
"""Offset and length to exactly these bytes. Raises domain errors."""


class StoredReads:
    """The memory and the threads that the files of one process share. To be closed by its owner."""

    def __init__(self, *, kept_bytes: int = KEPT_BYTES, ahead_bytes: int = AHEAD_BYTES) -> None:
        self._lock = threading.Lock()
        self._kept = OrderedDict[tuple[int, int], bytes]()
        self._kept_bytes = 0
        self._most_kept_bytes = kept_bytes
        self._ahead_bytes = 0
        self._most_ahead_bytes = ahead_bytes
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="read-ahead")
        self._contents = 0

    @property
    def held_bytes(self) -> int:
        return self._kept_bytes + self._ahead_bytes

    def content(self, size: int, fetch: Fetch) -> "StoredBytes":
        with self._lock:
            self._contents += 1
            return StoredBytes(self, self._contents, size, fetch)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def kept(self, content: int, block: int) -> bytes | None:
        with self._lock:
            if (found := self._kept.get((content, block))) is not None:
                self._kept.move_to_end((content, block))
            return found

    def keep(self, content: int, block: int, value: bytes) -> None:
        with self._lock:
            if (content, block) not in self._kept:
                self._kept[content, block] = value
                self._kept_bytes += len(value)
            while self._kept_bytes > self._most_kept_bytes:
                _, dropped = self._kept.popitem(last=False)
                self._kept_bytes -= len(dropped)

    def forget(self, content: int) -> None:
        with self._lock:
            for key in [key for key in self._kept if key[0] == content]:
                self._kept_bytes -= len(self._kept.pop(key))

    def take(self, length: int) -> bool:
        """Whether there is room for so many bytes more; `give_back` ends the use of the room."""
        with self._lock:
            has_room = self._ahead_bytes + length <= self._most_ahead_bytes
            self._ahead_bytes += length if has_room else 0
            return has_room

    def ahead(self, fetch: Fetch, start: int, length: int) -> "Future[bytes] | None":
        """The bytes, on their way; None when there is no room for more. `give_back` ends the use of the room."""
        if not self.take(length):
            return None
        try:
            return self._threads.submit(fetch, start, length)
        except RuntimeError:  # closed
            self.give_back(length)
            return None

    def give_back(self, length: int) -> None:
        with self._lock:
            self._ahead_bytes -= length


@dataclass(slots=True)
class _Piece:
    """Bytes that were fetched, or are on their way."""

    start: int
    end: int
    value: "Future[bytes]" = field(repr=False)

    def slice(self, offset: int, end: int) -> bytes:
        """Those of [offset, end) that it has. Raises what the fetch raises, CancelledError."""
        value = self.value.result()
        if offset <= self.start and end >= self.end:
            return value
        return value[max(offset - self.start, 0) : end - self.start]


class StoredBytes:
    """The content of one file. Any thread may call."""

    def __init__(self, reads: StoredReads, number: int, size: int, fetch: Fetch) -> None:
        self.size = size
        self.reads = reads
        self.fetch = fetch
        self._number = number
        self._lock = threading.Lock()
        self._opened = WeakSet[OrderedReads]()
        self._chunks = deque[_Piece]()
        self._trials = 0
        self._is_followed = False

    def part(self, offset: int, end: int) -> bytes:
        """Exactly the bytes [offset, end) of the file. Raises domain errors."""
        is_small, is_chunk = end - offset <= BLOCK_BYTES, end - offset <= _CHUNK_BYTES
        found = None
        with self._lock:
            piece = next((one for one in self._chunks if one.start <= offset and end <= one.end), None)
            if piece is not None:
                self._is_followed = True
            elif is_chunk and not is_small and (self._is_followed or self._trials < _TRIALS):
                piece = found = self._chunk(offset, min(end + _FOLLOWING_BYTES, self.size))
        if found is not None:
            self._fill(found)
        if piece is not None:
            return piece.slice(offset, end)
        return self._small(offset, end - offset) if is_small else self.fetch(offset, end - offset)

    def open(self) -> "OrderedReads":
        """The reads of one more open file."""
        with self._lock:
            self._opened.add(opened := OrderedReads(self))
            return opened

    def forget(self) -> None:
        """Hold nothing of it any more, also for files that DuckDB has not closed yet."""
        self.reads.forget(self._number)
        with self._lock:
            opened = list(self._opened)
        for one in opened:
            one.close()
        with self._lock:
            while self._chunks:
                self._drop_chunk()

    def _chunk(self, offset: int, end: int) -> _Piece | None:
        """A new one, still to be filled; None: there is no room. The caller has the lock."""
        self._trials += 1
        while len(self._chunks) >= _MOST_CHUNKS:
            self._drop_chunk()
        if not self.reads.take(end - offset):
            return None
        self._chunks.append(_Piece(offset, end, Future()))
        return self._chunks[-1]

    def _drop_chunk(self) -> None:
        dropped = self._chunks.popleft()
        self.reads.give_back(dropped.end - dropped.start)

    def _fill(self, piece: _Piece) -> None:
        try:
            piece.value.set_result(self.fetch(piece.start, piece.end - piece.start))
        except BaseException as error:
            piece.value.set_exception(error)  # for threads that wait for it
            with self._lock:
                if piece in self._chunks:
                    self._chunks.remove(piece)
                    self.reads.give_back(piece.end - piece.start)
            raise

    def _small(self, offset: int, length: int) -> bytes:
        """Out of blocks that are kept; those that are missing come with one call."""
        first, last = offset // BLOCK_BYTES, (offset + length - 1) // BLOCK_BYTES
        blocks = [self.reads.kept(self._number, block) for block in range(first, last + 1)]
        if any(block is None for block in blocks):
            start = first * BLOCK_BYTES
            fetched = self.fetch(start, min((last + 1) * BLOCK_BYTES, self.size) - start)
            blocks = [fetched[at : at + BLOCK_BYTES] for at in range(0, len(fetched), BLOCK_BYTES)]
            for block, value in enumerate(blocks, start=first):
                self.reads.keep(self._number, block, value)
        at = offset - first * BLOCK_BYTES
        return b"".join(block for block in blocks if block is not None)[at : at + length]


class OrderedReads:
    """The reads of one open file. Any thread may call; to be closed."""

    def __init__(self, content: StoredBytes) -> None:
        self._content = content
        self._lock = threading.Lock()
        self._next = 0
        self._in_order = 0
        self._ahead = deque[_Piece]()
        self._is_closed = False

    def read(self, offset: int, length: int) -> bytes:
        """Exactly these bytes, fewer only at the end of the file. Raises domain errors."""
        end = min(offset + length, self._content.size)
        if offset >= end:
            return b""
        if end - offset <= BLOCK_BYTES:
            return self._content.part(offset, end)
        with self._lock:
            pieces = self._due(offset, end)
        found, at = list[bytes](), offset
        for piece in pieces:
            try:
                found.append(piece.slice(at, end))
            except CancelledError:  # another thread, which is ahead of this one, has dropped it
                break
            at = min(piece.end, end)
        while at < end:
            found.append(self._content.part(at, min(end, at + 2 * PIECE_BYTES)))
            at += len(found[-1])
        return found[0] if len(found) == 1 else b"".join(found)

    def close(self) -> None:
        """What was read ahead is dropped. Idempotent."""
        with self._lock:
            self._is_closed = True
            self._drop(self._content.size)

    def _due(self, offset: int, end: int) -> list[_Piece]:
        """What is read ahead of these bytes, from `offset` on without a gap. Starts the next pieces."""
        is_ahead = bool(self._ahead) and self._ahead[0].start <= offset < self._ahead[-1].end
        if offset == self._next:
            self._in_order += 1
        elif not is_ahead:
            self._in_order = 0
            self._drop(self._content.size)
        self._next = end
        if self._in_order >= _IN_ORDER and not self._is_closed:
            self._drop(offset)
            self._go_ahead(offset)
        due = [piece for piece in self._ahead if piece.end > offset and piece.start < end]
        return due if due and due[0].start <= offset else []

    def _go_ahead(self, offset: int) -> None:
        start = self._ahead[-1].end if self._ahead else offset
        while len(self._ahead) <= _AHEAD_PIECES and start < self._content.size:
            end = min(start + PIECE_BYTES, self._content.size)
            value = self._content.reads.ahead(self._content.fetch, start, end - start)
            if value is None:
                return
            self._ahead.append(_Piece(start, end, value))
            start = end

    def _drop(self, offset: int) -> None:
        """The pieces that end before `offset`."""
        while self._ahead and self._ahead[0].end <= offset:
            piece = self._ahead.popleft()
            piece.value.cancel()
            self._content.reads.give_back(piece.end - piece.start)
