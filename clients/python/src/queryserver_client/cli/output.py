"""Writes results to stdout or a file in machine-readable formats."""

import io
import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from queryserver_client.cli.failures import WrongUse
from queryserver_client.cli.forms import BINARY, Form

if TYPE_CHECKING:
    from queryserver_client.sync import Connection, Result


def form_of(wanted: Form | None, target: Path | None) -> Form:
    """Return the output format: as requested, or else by file suffix; for stdout, a table on a terminal, else CSV.

    Raises WrongUse if the format does not suit the target.
    """
    from queryserver_client.result import FORMATS  # noqa: PLC0415

    is_seen = target is None and sys.stdout.isatty()
    if wanted is None and target is not None:
        suffix = target.suffix.lower()
        if suffix == ".json":
            return Form.JSON
        if suffix not in FORMATS:
            raise WrongUse(f"{target.name}: no format has this suffix; use -o")
        return Form(FORMATS[suffix])
    if wanted is None:
        return Form.TABLE if is_seen else Form.CSV
    if wanted in BINARY and is_seen:
        raise WrongUse(f"{wanted.value} is a binary format; use --to FILE or a pipe")
    if wanted is Form.TABLE and target is not None:
        raise WrongUse("tables can only be printed to a terminal; choose another format with -o")
    return wanted


def write(db: "Connection", result: "Result", form: Form, target: Path | None) -> None:
    """Write a result that has rows. A file appears only once it is complete."""
    if target is None:
        _copy(db, result, form, sys.stdout.buffer)
        sys.stdout.buffer.flush()
        return
    from queryserver_client.cli.terminal import byte_bar  # noqa: PLC0415

    if form is not Form.JSON:
        with byte_bar(target.name) as on_bytes:
            result.download(target, form.value, on_bytes=on_bytes)
        return
    from queryserver_client.places import Place  # noqa: PLC0415

    place = Place(target)
    try:
        with io.BufferedWriter(cast("io.RawIOBase", place.open()[0])) as file:
            _copy(db, result, form, file)
        place.take()
    finally:
        with suppress(OSError):
            place.leave()


def _copy(db: "Connection", result: "Result", form: Form, file: BinaryIO) -> None:
    if form is not Form.JSON:
        file.writelines(_chunks(db, result, form.value))
        return
    between = b"[\n"
    for line in _lines(_chunks(db, result, "ndjson")):
        file.write(between + line)
        between = b",\n"
    file.write(b"\n]\n" if between != b"[\n" else b"[]\n")


def _chunks(db: "Connection", result: "Result", kind: str) -> Iterator[bytes]:
    """Yield the file that the server generates, so that stdout and files get the same bytes. Memory holds one chunk."""
    from queryserver_client.downloads import Download  # noqa: PLC0415

    # Truncated results are accepted here; the command reports them with a message and its exit code.
    params = {"format": kind, "allow_truncated": "true"}
    download = Download(db.core.transport, f"editor/download/{result.operation_id}", params)
    return db.loop.iterate(download.chunks)


def _lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        yield from whole
    if rest:
        yield rest


def write_records(names: "list[str]", records: "list[list[object]]", form: Form) -> None:
    """Print records that did not come from a result as CSV, TSV, JSON or NDJSON. Raises WrongUse for other formats."""
    import csv  # noqa: PLC0415

    if form in (Form.CSV, Form.TSV):
        writer = csv.writer(sys.stdout, delimiter="\t" if form is Form.TSV else ",", lineterminator="\n")
        writer.writerow(names)
        writer.writerows([_cell(value) for value in record] for record in records)
        return
    objects = [dict(zip(names, record, strict=True)) for record in records]
    if form is Form.JSON:
        print(json.dumps(objects, ensure_ascii=False, indent=1))
    elif form is Form.NDJSON:
        for item in objects:
            print(json.dumps(item, ensure_ascii=False))
    else:
        raise WrongUse(f"a list cannot be written as {form.value}; use table, csv, tsv, json or ndjson")


def _cell(value: object) -> object:
    """Return a value as a cell of CSV."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else value
