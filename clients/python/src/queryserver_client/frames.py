"""Writes data frames into files that the importer reads. Needs pyarrow.

A data frame is any object with `__arrow_c_stream__`, the Arrow PyCapsule interface: frames of pandas and polars, tables
and readers of pyarrow, relations of DuckDB and others. Its columns are passed as Arrow memory, batch by batch, into a
temporary file in the format of an Arrow stream, compressed with Zstandard. No value becomes a Python object.
"""

import re
import tempfile
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import IO, TYPE_CHECKING, Any, BinaryIO, Protocol, cast

import anyio.to_thread

from queryserver_client.arrow import optional
from queryserver_client.errors import ConversionFailed, is_panic

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH_ROWS = 65_536
_BATCH_BYTES = 16 * 1024 * 1024
"""The server holds a whole batch in memory, so larger ones are split, unless they have only one row."""
_SPOOLED_BYTES = 8 * 1024 * 1024
_UNNAMED_INDEX = re.compile(r"__index_level_\d+__")


class Frame(Protocol):
    """A data frame that another library can read as a stream of Arrow batches."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


def is_frame(source: object) -> bool:
    """Return whether the object has the Arrow PyCapsule interface for streams."""
    return hasattr(source, "__arrow_c_stream__")


@asynccontextmanager
async def spooled(frame: Frame) -> AsyncGenerator[BinaryIO, None]:
    """Yield a temporary file, at its beginning, with the rows of the frame. Work is done in threads, batch by batch.

    Raises MissingPackage, and ConversionFailed if a column cannot be represented as Arrow.
    """
    pa = optional("pyarrow", "arrow")
    with tempfile.SpooledTemporaryFile(_SPOOLED_BYTES) as file:
        batches = _written(pa, frame, file)
        try:
            while await anyio.to_thread.run_sync(next, batches, None) is not None:
                pass
        finally:
            batches.close()
        file.seek(0)
        yield cast("BinaryIO", file)


def _written(pa: Any, frame: Frame, file: "IO[bytes]") -> Generator[int, None, None]:
    """Write the frame into the file. Yield the number of rows after each batch."""
    with _conversion(pa):
        _require_no_objects(frame)
        reader = pa.RecordBatchReader.from_stream(frame)
        kept = [place for place, name in enumerate(reader.schema.names) if not _UNNAMED_INDEX.fullmatch(name)]
        fields = [reader.schema.field(place) for place in kept]
        # Metadata, such as those of pandas, would refer to the columns of the index.
        schema = pa.schema([pa.field(field.name, _plain(pa, field.type)) for field in fields])
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.ipc.new_stream(file, schema, options=options) as writer:
            for batch in reader:
                for start in range(0, batch.num_rows, _BATCH_ROWS):
                    rows = batch.slice(start, _BATCH_ROWS)
                    columns = [_cast(pa, rows.column(place), schema.types[at]) for at, place in enumerate(kept)]
                    for piece in _pieces(pa.record_batch(columns, schema=schema)):
                        writer.write_batch(piece)
                    yield rows.num_rows


def _require_no_objects(frame: Frame) -> None:
    """Raise TypeError for columns of Python objects of polars, which it exports as their addresses in memory."""
    if type(frame).__module__.partition(".")[0] == "polars":
        schema: dict[str, object] = dict(getattr(frame, "schema", {}))
        names = [name for name, kind in schema.items() if str(kind) == "Object"]
        if names:
            message = f"the column {names[0]!r} contains Python objects"
            raise TypeError(message)


def _pieces(batch: "pa.RecordBatch") -> "Iterator[pa.RecordBatch]":
    """Split a batch in halves until each one is small enough."""
    if batch.nbytes <= _BATCH_BYTES or batch.num_rows <= 1:
        yield batch
        return
    half = batch.num_rows // 2
    yield from _pieces(batch.slice(0, half))
    yield from _pieces(batch.slice(half))


def _cast(pa: Any, column: Any, kind: Any) -> Any:
    """Return the column with a type that `_plain` has returned for its own type."""
    if pa.types.is_dictionary(column.type):
        # Arrow cannot cast a dictionary of views, which are the categories of polars, in one step.
        return column.dictionary.cast(kind).take(column.indices)
    return column.cast(kind)


def _plain(pa: Any, kind: Any) -> Any:
    """Return the type with the same values without dictionaries, views and extensions.

    A slice of a dictionary or view refers to the data of the whole column, which each batch would then contain.
    """
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return _plain(pa, kind.storage_type)
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return _plain(pa, kind.value_type)
    for is_kind, plain in ((types.is_string_view, pa.large_string()), (types.is_binary_view, pa.large_binary())):
        if is_kind(kind):
            return plain
    if types.is_struct(kind):
        return pa.struct([pa.field(field.name, _plain(pa, field.type)) for field in kind])
    if types.is_map(kind):
        return pa.map_(_plain(pa, kind.key_type), _plain(pa, kind.item_type))
    if any(is_list(kind) for is_list in (types.is_list, types.is_large_list, types.is_fixed_size_list)):
        return pa.large_list(_plain(pa, kind.value_type))
    return kind


@contextmanager
def _conversion(pa: Any) -> Generator[None, None, None]:
    """Translate the errors of pyarrow, pandas and polars for columns that are not representable."""
    try:
        yield
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        message = f"the data frame cannot be converted: {error}"
        raise ConversionFailed(message) from None
    except BaseException as error:
        if not is_panic(error):  # a panic of polars
            raise
        message = f"the data frame cannot be converted: {error}"
        raise ConversionFailed(message) from None
