"""What is computed of the beginning of a file, as the computation of a task: bytes in, JSON out."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from queryserver.formats.cell_types.preview import Analysis, Oddity, PreviewColumn, SampleWarning
from queryserver.formats.cell_types.written_forms import GivenFormats
from queryserver.formats.delimited.detection import Detected, detect
from queryserver.formats.delimited.encodings import detect_encoding
from queryserver.formats.file_kinds import FileKind, recognise, recognise_told
from queryserver.imports.model import SAMPLE_BYTES, SAMPLE_TEXT_BYTES, BaseType, ColumnType, Delimiters, FileType
from queryserver.imports.samples import HeaderSample, PreviewSample, ReadingOptions, Sample, TextForm

WORKBOOK = "workbook"
MORE = "more"
"""The answers where the file may be a workbook, and where more of the file is needed."""

CUT_FIELD_BYTES = 4 * 1024 * 1024 + 64 * 1024
"""What of a file is read behind its sample: the longest field has 1 MiB characters of up to four bytes."""

_FEED_BYTES = 1024 * 1024


def options_json(options: ReadingOptions) -> Mapping[str, Any]:
    """How a text is to be read, as options of a task."""
    return asdict(options)


def detect_file(options: Mapping[str, Any], head: bytes) -> object:
    """What `detected_of` reads, WORKBOOK, or the type of a file of records.

    `is_whole`: there is nothing behind `head`. Raises file_empty, UnsupportedFormat.
    """
    kind = recognise(head, is_whole=options["is_whole"])
    if kind is FileKind.WORKBOOK_CANDIDATE:
        return WORKBOOK
    if kind is not FileKind.TEXT:
        return FileType[kind.name].value
    return asdict(detect(head, is_whole=options["is_whole"]))


def detected_of(answer: Mapping[str, Any]) -> Detected:
    """What `detect_file` gives for a text."""
    return Detected(
        FileType(answer["type"]),
        Delimiters(**answer["delimiters"]),
        answer["record_separator"],
        answer["encoding"],
        answer["confidence"],
    )


def file_encoding(options: Mapping[str, Any], head: bytes) -> object:
    """The name of the encoding."""
    return detect_encoding(head, is_whole=options["is_whole"])


def preview(options: Mapping[str, Any], head: bytes) -> object:
    """The columns and first rows; MORE: `head` is not enough, and there is more. `reading`: see `options_json`.

    `is_whole`: there is nothing behind `head`; `is_last`: no more of the file is read.
    """
    form = _form_of(head, options)
    if form is None:
        return WORKBOOK
    reading = _reading_of(options["reading"])
    sample = PreviewSample(form, has_header=options["has_header"], given=reading.formats)
    if not _is_fed(sample, options, head):
        return MORE
    analysis = sample.analysis()
    _read_cut_record(sample, head, is_whole=options["is_whole"])
    return asdict(analysis)


def analysis_of(answer: Mapping[str, Any]) -> Analysis:
    """What `preview` gives for a text."""
    return Analysis(
        [PreviewColumn(one["name"], _type_of(one["type"]), one["format"]) for one in answer["columns"]],
        answer["rows"],
        [SampleWarning(Oddity(one["code"]), one["count"], one["rows"]) for one in answer["warnings"]],
        answer["has_header"],
        answer["is_whole"],
        answer["fields"],
    )


def header(options: Mapping[str, Any], head: bytes) -> object:
    """Whether the first record names the columns; MORE and the options as those of `preview`."""
    form = _form_of(head, options)
    if form is None:
        return WORKBOOK
    sample = HeaderSample(form)
    return sample.has_header() if _is_fed(sample, options, head) else MORE


def _form_of(head: bytes, options: Mapping[str, Any]) -> TextForm | None:
    """None: the file begins as workbooks do."""
    reading = _reading_of(options["reading"])
    sample = head[:SAMPLE_BYTES]
    is_whole: bool = options["is_whole"] and len(head) <= SAMPLE_BYTES
    if recognise_told(sample, is_whole=is_whole, encoding=reading.encoding) is not FileKind.TEXT:
        return None
    encoding = reading.encoding or detect_encoding(sample, is_whole=is_whole)
    delimiters = reading.delimiters
    if delimiters is None:
        delimiters = reading.completed(detect(sample, is_whole=is_whole, encoding=encoding).delimiters)
    return TextForm(delimiters, encoding, is_encoding_given=reading.encoding is not None)


def _is_fed(sample: Sample, options: Mapping[str, Any], head: bytes) -> bool:
    end = min(len(head), SAMPLE_TEXT_BYTES)
    pieces: Sequence[bytes] = [head[start : min(start + _FEED_BYTES, end)] for start in range(0, end, _FEED_BYTES)]
    if any(sample.feed(piece) for piece in pieces):
        return True
    if options["is_whole"] and len(head) == end:
        sample.finish()
    return options["is_whole"] or options["is_last"]


def _read_cut_record(sample: PreviewSample, head: bytes, *, is_whole: bool) -> None:
    """Read as much behind the sample as the longest field takes: one that the sample cuts may be too long.

    An import would refuse such a record. Raises record_too_long, too_many_columns.
    """
    steps = range(SAMPLE_TEXT_BYTES, len(head), _FEED_BYTES)
    if sample.is_full or any(sample.feed(head[start : start + _FEED_BYTES]) for start in steps):
        return
    if is_whole and steps:
        sample.finish()


def _reading_of(reading: Mapping[str, Any]) -> ReadingOptions:
    delimiters = reading["delimiters"]
    return ReadingOptions(
        FileType(reading["file_type"]),
        reading["sheet_name"],
        delimiters and Delimiters(**delimiters),
        reading["quote_char"],
        reading["record_separator"],
        reading["encoding"],
        GivenFormats(**reading["formats"]),
    )


def _type_of(told: Mapping[str, Any]) -> ColumnType:
    return ColumnType(BaseType(told["base"]), told["precision"], told["scale"])
