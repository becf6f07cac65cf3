"""What a file is, told from its first bytes (Contract importer 4, 9, 10)."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import Executor
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

from queryserver.domain.importing import SAMPLE_BYTES
from queryserver.formats.delimited.detection import Detected, detect
from queryserver.formats.kinds import FileKind, recognise
from queryserver.interfaces.workbooks import WorkbookReader
from queryserver.services.importing.files import ImportFile
from queryserver.services.importing.keeping import KeptAnswers

_KEPT_BYTES = 1024 * 1024
_ANSWER_BYTES = 512


@dataclass(frozen=True, slots=True)
class Sheets:
    """A workbook: its worksheets in their order."""

    names: Sequence[str]


class Detection:
    """Looks at files. Of those that never change, answers are kept."""

    def __init__(self, workbooks: WorkbookReader, threads: Executor) -> None:
        self._workbooks = workbooks
        self._threads = threads
        self._kept: KeptAnswers[Detected | Sheets] = KeptAnswers(_weight, max_bytes=_KEPT_BYTES)

    async def metadata(self, file: ImportFile) -> Detected | Sheets:
        """How a text is delimited, or the sheets of a workbook.

        Raises FileEmpty, UnsupportedFormat, FileEncrypted, FileCorrupt, FileTooComplex, and what reading raises.
        """
        return await self._kept.get(file.fixed_identity, partial(self._metadata, file))

    async def _metadata(self, file: ImportFile) -> Detected | Sheets:
        async with aclosing(file.read(length=SAMPLE_BYTES)) as pieces:
            head = await first_bytes(pieces)
        look = partial(_detected, head, is_whole=file.size_bytes <= len(head))
        detected = await asyncio.get_running_loop().run_in_executor(self._threads, look)
        if detected is not None:
            return detected
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


def _detected(head: bytes, *, is_whole: bool) -> Detected | None:
    """How the text is delimited; None: it may be a workbook."""
    if recognise(head, is_whole=is_whole) is FileKind.WORKBOOK_CANDIDATE:
        return None
    return detect(head, is_whole=is_whole)


def _weight(answer: Detected | Sheets) -> int:
    return _ANSWER_BYTES + (sum(len(name) + 64 for name in answer.names) if isinstance(answer, Sheets) else 0)
