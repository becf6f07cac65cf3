"""A file that somebody wants to import, wherever it lies."""

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol


class ImportFile(Protocol):
    """One file, read with the caller's rights. Offsets and sizes are bytes.

    Reading may raise import_file_not_found, import_file_denied, StorageUnavailable, ChangedMeanwhile.
    """

    @property
    def shown(self) -> str:
        """What people call it, for messages and history: the name that its client gave it, or its storage path."""
        ...

    @property
    def size_bytes(self) -> int:
        """How large it was when it was opened."""
        ...

    @property
    def fixed_identity(self) -> str | None:
        """Names its content among all files for ever; None where the content under the same name may change."""
        ...

    def read(self, *, offset: int = 0, length: int | None = None) -> AsyncGenerator[bytes]:
        """Bytes [offset, offset + length) in pieces of at most 1 MiB, of the version that was opened."""
        ...

    def on_disk(self) -> AbstractAsyncContextManager[Path]:
        """The file on the local disk: itself, or a copy that is removed afterwards. Raises import_file_too_large."""
        ...
