"""The answer of LISTSTATUS_BATCH, entry by entry as it arrives: HttpFS answers with the whole directory at once."""

import codecs
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from queryserver.domain.errors.files import StorageError

_BEGIN = re.compile(r'"FileStatus"\s*:\s*\[')
_NEXT = re.compile(r"[^\s,]")
_BORDERS, _BETWEEN = ("},{", "},\n{"), " \t\r\n,"
_REMAINING = re.compile(r'"remainingEntries"\s*:\s*(\d+)')
_MOST_PENDING = 1024 * 1024
"""Characters that may wait for the end of an entry: a name has at most a few thousand bytes."""


class ListingScanner:
    """Takes an answer in pieces and gives the objects of the array `FileStatus` out of it.

    What it holds is less than one piece and one entry.
    """

    def __init__(self) -> None:
        self._characters = codecs.getincrementaldecoder("utf-8")()
        self._object = json.JSONDecoder().raw_decode
        self._pending = ""
        self._before, self._after = True, False
        self._remaining = 0

    def feed(self, piece: bytes) -> Iterator[Mapping[str, Any]]:
        """The entries that end in this piece. Raises StorageError: this is no listing."""
        try:
            self._pending += self._characters.decode(piece)
        except UnicodeDecodeError as error:
            raise _no_listing() from error
        if self._before:
            self._find_begin()
        if not self._before and not self._after:
            yield from self._objects()
        if self._after:
            self._find_remaining()
        if len(self._pending) > _MOST_PENDING:
            raise _no_listing()

    def end(self) -> int:
        """The answer is over: how many entries the store keeps for further calls. Raises StorageError: it is cut."""
        if not self._after:
            raise _no_listing()
        return self._remaining

    def _find_begin(self) -> None:
        self._find_remaining()
        if found := _BEGIN.search(self._pending):
            self._pending = self._pending[found.end() :]
            self._before = False

    def _objects(self) -> Iterator[Mapping[str, Any]]:
        yield from self._many_objects()
        text, end = self._pending, 0
        while (found := _NEXT.search(text, end)) and found[0] == "{":
            try:
                entry, end = self._object(text, found.start())
            except ValueError:
                break
            yield entry
        self._pending = text[found.start() :] if found else ""
        self._after = self._pending.startswith("]")
        if self._pending and self._pending[0] not in "{]":
            raise _no_listing()

    def _many_objects(self) -> Sequence[Mapping[str, Any]]:
        """All but the last one at once, which is several times faster; none where it does not come out even.

        What is cut within a text, or behind the end of the array, is no JSON.
        """
        cut = max(map(self._pending.rfind, _BORDERS))
        if cut < 0:
            return []
        try:
            entries = orjson.loads(f"[{self._pending[: cut + 1].lstrip(_BETWEEN)}]")
        except ValueError:
            return []
        if not all(isinstance(entry, dict) for entry in entries):
            raise _no_listing()
        self._pending = self._pending[cut + 1 :]
        return entries

    def _find_remaining(self) -> None:
        if found := _REMAINING.search(self._pending):
            self._remaining = int(found[1])


def _no_listing() -> StorageError:
    return StorageError("The store told something else than a listing.")
