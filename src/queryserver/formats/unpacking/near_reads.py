"""Small reads that follow each other, as few large ones."""

import io


class NearReads(io.RawIOBase):
    """A file that is read `window_bytes` at a time: 20,000 columns of a few bytes are 20,000 reads of a store else.

    The file below is closed by its owner.
    """

    def __init__(self, file: io.IOBase, window_bytes: int) -> None:
        super().__init__()
        self._file: io.RawIOBase = file  # type: ignore[assignment]
        self._window_bytes = window_bytes
        self._window = b""
        self._window_start = 0
        self._place = file.tell()

    def readable(self) -> bool:
        """True: this is all it can do."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def tell(self) -> int:
        """Where the next read begins."""
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Move; nothing is read."""
        if whence == io.SEEK_END:
            self._place = self._file.seek(offset, io.SEEK_END)
        else:
            self._place = max(offset + (self._place if whence == io.SEEK_CUR else 0), 0)
        return self._place

    def read(self, size: int = -1, /) -> bytes:
        """Up to `size` bytes. Raises what the file raises."""
        begin = self._place - self._window_start
        if size < 0 or not 0 <= begin <= len(self._window) - size:
            self._file.seek(self._place)
            self._window = self._file.read(size if size < 0 else max(size, self._window_bytes)) or b""
            self._window_start, begin = self._place, 0
        piece = self._window[begin:] if size < 0 else self._window[begin : begin + size]
        self._place += len(piece)
        return piece
