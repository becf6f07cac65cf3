"""The program of a worker: reads one question from its standard input, answers in frames, ends."""

import json
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.abc import MetaPathFinder
from itertools import accumulate
from pathlib import Path
from typing import BinaryIO, NotRequired, TypedDict

from queryserver.errors.base import QueryServerError
from queryserver.errors.files import DetectionFailed, FileTooComplex, UnsupportedFormat, import_file_not_found
from queryserver.formats.unpacking import OUTPUT_BYTES
from queryserver.imports.model import SAMPLE_TEXT_BYTES, FileType, TypedText
from queryserver.workbooks.cells import checked_rows, columns_in_use
from queryserver.workbooks.frames import (
    END,
    FAILED,
    LINES,
    MEMORY_BYTES,
    NAMES,
    RECORDS_TIME_S,
    SHOWN_MEMORY_BYTES,
    TIME_S,
    frame,
    limit_this_process,
    portions,
    raw_frame,
    rows_frame,
)
from queryserver.workbooks.packages import recognise_workbook
from queryserver.workbooks.reader import OpenWorkbook


class Question(TypedDict):
    """The first line of the input. `sheet` None: the names of the sheets. `limit` None: all rows.

    `records`: the file is no workbook, but one of records of this type. `fields` None: its preview. `path` None: an
    avro file that follows on the input, of which all records are wanted as JSON Lines.
    """

    path: str | None
    sheet: str | None
    limit: int | None
    records: NotRequired[str | None]
    fields: NotRequired[Sequence[str] | None]


class _WithoutPandas(MetaPathFinder):
    """Arrow loads pandas where it is installed, which takes half a second; nothing here uses it."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        """None for all other modules: the next finder is asked."""
        del path, target
        if fullname == "pandas":
            raise ModuleNotFoundError(fullname)


def main() -> None:
    """Never raises: what goes wrong is the last frame."""
    question: Question = json.loads(sys.stdin.buffer.readline())
    limit_this_process(
        TIME_S if question.get("fields") is None else RECORDS_TIME_S,
        SHOWN_MEMORY_BYTES if question["path"] is None else MEMORY_BYTES,
    )
    output = sys.stdout.buffer
    # Nobody may be left to hear the answer.
    with suppress(BrokenPipeError):
        for piece in _answer(question):
            output.write(piece)
            output.flush()


def _answer(question: Question) -> Iterator[bytes]:
    try:
        if question["path"] is None:
            yield from _avro_frames(sys.stdin.buffer)
            return
        with Path(question["path"]).open("rb") as file:
            records = question.get("records")
            if records is None:
                yield from _frames(_opened(file), question["sheet"], question["limit"])
            else:
                sys.meta_path.insert(0, _WithoutPandas())
                from queryserver.workbooks.record_files import record_frames  # noqa: PLC0415 workbooks do without

                yield from record_frames(file, FileType(records), question.get("fields"))
    except QueryServerError as error:
        yield frame(FAILED, [error.code, error.message])
    except FileNotFoundError:
        yield frame(FAILED, [import_file_not_found().code, ""])
    except (MemoryError, RecursionError):
        yield frame(FAILED, [FileTooComplex.code, "The file is too large to be read."])
    except BrokenPipeError:
        raise
    except Exception:  # noqa: BLE001 the outer wall of this process: the server logs what is said here
        yield frame(FAILED, [DetectionFailed.code, traceback.format_exc(limit=-20)])


def _avro_frames(file: BinaryIO) -> Iterator[bytes]:
    from queryserver.formats.unpacking_records import AvroFile  # noqa: PLC0415 workbooks do without

    made = bytearray()
    for line in AvroFile(file).lines():
        made += line
        while len(made) >= OUTPUT_BYTES:
            yield raw_frame(LINES, made[:OUTPUT_BYTES])
            del made[:OUTPUT_BYTES]
    yield raw_frame(LINES, made)
    yield frame(END, True)


def _opened(file: BinaryIO) -> OpenWorkbook:
    kind = recognise_workbook(file)
    if kind is None:
        raise UnsupportedFormat
    return OpenWorkbook(file, kind)


def _frames(workbook: OpenWorkbook, sheet: str | None, limit: int | None) -> Iterator[bytes]:
    if sheet is None:
        yield frame(NAMES, workbook.sheet_names())
        return
    head = workbook.head(sheet)
    columns = columns_in_use(head.rows)
    if limit is None:
        rows = checked_rows(columns, workbook.rows(sheet))
        is_whole = True
    else:
        first = _within_sample(list(checked_rows(columns, head.rows[:limit])))
        rows, is_whole = iter(first), head.is_whole and len(first) == len(head.rows)
    for portion in portions(rows):
        yield rows_frame(portion)
    yield frame(END, is_whole)


def _within_sample(rows: list[list[TypedText]]) -> list[list[TypedText]]:
    """As many rows as the sample of 7.4 has text for, and one at least."""
    before = accumulate((sum(map(len, row)) for row in rows), initial=0)
    return [row for row, characters in zip(rows, before, strict=False) if characters < SAMPLE_TEXT_BYTES]


if __name__ == "__main__":
    main()
