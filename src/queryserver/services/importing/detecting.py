"""What a file is, told from its first bytes (Contract importer 4, 9, 10)."""

from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from queryserver.domain.errors.base import TooComplex
from queryserver.domain.errors.files import FileTooComplex
from queryserver.domain.importing import SAMPLE_BYTES, FileType
from queryserver.formats.delimited.detection import Detected
from queryserver.interfaces.computation import Computing, Task
from queryserver.interfaces.workbooks import WorkbookReader
from queryserver.services.importing.computed import WORKBOOK, detected_of
from queryserver.services.importing.files import ImportFile
from queryserver.services.importing.keeping import KeptAnswers
from queryserver.services.places import FairPlaces

_KEPT_BYTES = 1024 * 1024
_ANSWER_BYTES = 512


@dataclass(frozen=True, slots=True)
class Sheets:
    """A workbook: its worksheets in their order."""

    names: Sequence[str]


@dataclass(frozen=True, slots=True)
class Records:
    """A file that names its columns itself."""

    type: FileType


Found: TypeAlias = Detected | Sheets | Records


class Detection:
    """Looks at files. Of those that never change, answers are kept."""

    def __init__(self, workbooks: WorkbookReader, computing: Computing, places: FairPlaces) -> None:
        self._workbooks = workbooks
        self._computing = computing
        self._places = places
        self._kept: KeptAnswers[Found] = KeptAnswers(_weight, max_bytes=_KEPT_BYTES)

    async def metadata(self, user_id: int, file: ImportFile) -> Found:
        """How a text is delimited, the sheets of a workbook, or the type of a file of records.

        Raises file_empty, UnsupportedFormat, file_encrypted, FileCorrupt, FileTooComplex, TooManyRequests, and what
        reading raises.
        """
        return await self._kept.get(file.fixed_identity, partial(self._metadata, user_id, file))

    async def _metadata(self, user_id: int, file: ImportFile) -> Found:
        async with self._places.place(user_id):
            return await self._looked_at(user_id, file)

    async def _looked_at(self, user_id: int, file: ImportFile) -> Found:
        async with aclosing(file.read(length=SAMPLE_BYTES)) as pieces:
            head = await first_bytes(pieces)
        options = {"is_whole": file.size_bytes <= len(head)}
        with of_a_file():
            answer = await self._computing.run(user_id, Task.DETECT_FILE, options, head)
        if not isinstance(answer, str):
            return detected_of(answer)
        if answer != WORKBOOK:
            return Records(FileType(answer))
        async with file.on_disk() as path:
            return Sheets(await self._workbooks.sheet_names(path))


async def first_bytes(pieces: AsyncGenerator[bytes]) -> bytes:
    """At least SAMPLE_BYTES, unless there are no more pieces."""
    head = bytearray()
    async for piece in pieces:
        head += piece
        if len(head) >= SAMPLE_BYTES:
            break
    return bytes(head)


@contextmanager
def of_a_file() -> Generator[None]:
    """What is too complex in here is the file. Raises FileTooComplex."""
    try:
        yield
    except TooComplex as error:
        raise FileTooComplex(f"The file could not be read: {error.message}") from None


def _weight(answer: Found) -> int:
    return _ANSWER_BYTES + (sum(len(name) + 64 for name in answer.names) if isinstance(answer, Sheets) else 0)
