"""Reads statements' files with few calls, because each call to the server takes some milliseconds.

DuckDB reads the end of a Parquet file several times, a few KiB each, so small blocks are cached. It reads a row group's
column chunks one by one in several threads, so each call also fetches some bytes after the chunk, as long as DuckDB
uses these extra bytes. It reads compressed files and JSON sequentially, so the next pieces are fetched in advance.
"""

import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from weakref import WeakSet

BLOCK_BYTES = 64 * 1024
"""Reads up to this size are served from cached blocks of this size."""
CACHE_BYTES = 16 * 1024 * 1024
"""Size of the block cache for all files of a process."""
PIECE_BYTES = 2 * 1024 * 1024
"""The maximum number of bytes that DuckDB reads at a time."""
AHEAD_BYTES = 64 * 1024 * 1024
"""Maximum total size of the pieces read ahead, for all files of a process."""
_AHEAD_PIECES = 4
"""Number of pieces read ahead per open file."""
_FOLLOWING_BYTES = 512 * 1024
"""Number of bytes fetched after a column chunk in the same call."""
_CHUNK_BYTES = 1536 * 1024
"""Maximum size of a chunk for which extra bytes are fetched.

DuckDB splits larger reads itself and requests the remaining bytes.
"""
_MAX_CHUNKS = 8
"""Maximum number of chunks kept per file to serve reads of their extra bytes."""
_TRIAL_CHUNKS = 6
"""Number of chunks after which no more extra bytes are fetched if none of them were used."""
_MAX_THREADS = 8
_SEQUENTIAL_READS = 2
"""Number of sequential reads after which reading ahead starts."""

Fetch = Callable[[int, int], bytes]
"""Fetches exactly `length` bytes at an offset. Raises domain errors."""


class ReadBuffers:
    """Memory and threads shared by the files of one process. The owner must close this object."""

    def __init__(self, *, cache_bytes: int = CACHE_BYTES, ahead_bytes: int = AHEAD_BYTES) -> None:
        self._lock = threading.Lock()
        self._cache = OrderedDict[tuple[int, int], bytes]()
        self._cached_bytes = 0
        self._max_cached_bytes = cache_bytes
        self._ahead_bytes = 0
        self._max_ahead_bytes = ahead_bytes
        self._threads = ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="read-ahead")
        self._contents = 0

    @property
    def held_bytes(self) -> int:
        return self._cached_bytes + self._ahead_bytes

    def content(self, size: int, fetch: Fetch) -> "FileContent":
        with self._lock:
            self._contents += 1
            return FileContent(self, self._contents, size, fetch)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def cached(self, content: int, block: int) -> bytes | None:
        with self._lock:
            if (value := self._cache.get((content, block))) is not None:
                self._cache.move_to_end((content, block))
            return value

    def cache(self, content: int, block: int, value: bytes) -> None:
        with self._lock:
            if (content, block) not in self._cache:
                self._cache[content, block] = value
                self._cached_bytes += len(value)
            while self._cached_bytes > self._max_cached_bytes:
                _, dropped = self._cache.popitem(last=False)
                self._cached_bytes -= len(dropped)

    def forget(self, content: int) -> None:
        with self._lock:
            for key in [key for key in self._cache if key[0] == content]:
                self._cached_bytes -= len(self._cache.pop(key))

    def take(self, length: int) -> bool:
        """Reserve memory for `length` bytes, which the caller frees with `give_back`.

        Return False if the limit is reached.
        """
        with self._lock:
            has_room = self._ahead_bytes + length <= self._max_ahead_bytes
            self._ahead_bytes += length if has_room else 0
            return has_room

    def ahead(self, fetch: Fetch, start: int, length: int) -> "Future[bytes] | None":
        """Start fetching bytes; return None if the limit is reached. The caller frees the memory with `give_back`."""
        if not self.take(length):
            return None
        try:
            return self._threads.submit(fetch, start, length)
        except RuntimeError:  # the threads have been shut down
            self.give_back(length)
            return None

    def give_back(self, length: int) -> None:
        with self._lock:
            self._ahead_bytes -= length


@dataclass(slots=True)
class _Piece:
    """A byte range that was fetched or is being fetched."""

    start: int
    end: int
    value: "Future[bytes]" = field(repr=False)

    def slice(self, offset: int, end: int) -> bytes:
        """Return the piece's bytes within [offset, end). Raises the errors of the fetch, and CancelledError."""
        value = self.value.result()
        if offset <= self.start and end >= self.end:
            return value
        return value[max(offset - self.start, 0) : end - self.start]


class FileContent:
    """The content of one file. Callable from any thread."""

    def __init__(self, reads: ReadBuffers, number: int, size: int, fetch: Fetch) -> None:
        self.size = size
        self.reads = reads
        self.fetch = fetch
        self._number = number
        self._lock = threading.Lock()
        self._opened = WeakSet[OpenFileReads]()
        self._chunks = deque[_Piece]()
        self._trials = 0
        self._is_followed = False

    def part(self, offset: int, end: int) -> bytes:
        """Return exactly the bytes [offset, end) of the file. Raises domain errors."""
        is_small, is_chunk = end - offset <= BLOCK_BYTES, end - offset <= _CHUNK_BYTES
        found = None
        with self._lock:
            piece = next((one for one in self._chunks if one.start <= offset and end <= one.end), None)
            if piece is not None:
                self._is_followed = True
            elif is_chunk and not is_small and (self._is_followed or self._trials < _TRIAL_CHUNKS):
                piece = found = self._chunk(offset, min(end + _FOLLOWING_BYTES, self.size))
        if found is not None:
            self._fill(found)
        if piece is not None:
            return piece.slice(offset, end)
        return self._small(offset, end - offset) if is_small else self.fetch(offset, end - offset)

    def open(self) -> "OpenFileReads":
        """Return a new `OpenFileReads` for this file."""
        with self._lock:
            self._opened.add(opened := OpenFileReads(self))
            return opened

    def forget(self) -> None:
        """Free all memory, including the memory of open files that DuckDB has not closed yet."""
        self.reads.forget(self._number)
        with self._lock:
            opened = list(self._opened)
        for one in opened:
            one.close()
        with self._lock:
            while self._chunks:
                self._drop_chunk()

    def _chunk(self, offset: int, end: int) -> _Piece | None:
        """Create a chunk for the caller to fill; return None if the memory limit is reached.

        The caller holds the lock.
        """
        self._trials += 1
        while len(self._chunks) >= _MAX_CHUNKS:
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
            piece.value.set_exception(error)  # for threads that are waiting for the piece
            with self._lock:
                if piece in self._chunks:
                    self._chunks.remove(piece)
                    self.reads.give_back(piece.end - piece.start)
            raise

    def _small(self, offset: int, length: int) -> bytes:
        """Read from cached blocks. If any block is missing, fetch all blocks of the range with a single call."""
        first, last = offset // BLOCK_BYTES, (offset + length - 1) // BLOCK_BYTES
        blocks = [self.reads.cached(self._number, block) for block in range(first, last + 1)]
        if any(block is None for block in blocks):
            start = first * BLOCK_BYTES
            fetched = self.fetch(start, min((last + 1) * BLOCK_BYTES, self.size) - start)
            blocks = [fetched[at : at + BLOCK_BYTES] for at in range(0, len(fetched), BLOCK_BYTES)]
            for block, value in enumerate(blocks, start=first):
                self.reads.cache(self._number, block, value)
        at = offset - first * BLOCK_BYTES
        return b"".join(block for block in blocks if block is not None)[at : at + length]


class OpenFileReads:
    """Reads an open file, and fetches the next pieces in advance once it is read sequentially.

    Callable from any thread. Must be closed.
    """

    def __init__(self, content: FileContent) -> None:
        self._content = content
        self._lock = threading.Lock()
        self._next = 0
        self._in_order = 0
        self._ahead = deque[_Piece]()
        self._is_closed = False

    def read(self, offset: int, length: int) -> bytes:
        """Return exactly `length` bytes, or fewer at the end of the file. Raises domain errors."""
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
            except CancelledError:  # dropped by another thread that reads further ahead
                break
            at = min(piece.end, end)
        while at < end:
            found.append(self._content.part(at, min(end, at + 2 * PIECE_BYTES)))
            at += len(found[-1])
        return found[0] if len(found) == 1 else b"".join(found)

    def close(self) -> None:
        """Drop the pieces that were read ahead. Idempotent."""
        with self._lock:
            self._is_closed = True
            self._drop(self._content.size)

    def _due(self, offset: int, end: int) -> list[_Piece]:
        """Return the pieces read ahead that cover [offset, end) from `offset` on, without gaps.

        Also starts to fetch the next pieces if the file is read sequentially.
        """
        is_ahead = bool(self._ahead) and self._ahead[0].start <= offset < self._ahead[-1].end
        if offset == self._next:
            self._in_order += 1
        elif not is_ahead:
            self._in_order = 0
            self._drop(self._content.size)
        self._next = end
        if self._in_order >= _SEQUENTIAL_READS and not self._is_closed:
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
        """Drop the pieces that end at or before `offset`."""
        while self._ahead and self._ahead[0].end <= offset:
            piece = self._ahead.popleft()
            piece.value.cancel()
            self._content.reads.give_back(piece.end - piece.start)
