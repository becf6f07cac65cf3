"""The result of a finished statement, as rows, dicts, data frames, Arrow data or a file.

A result already contains its columns and first rows, so a small result needs no further request. All methods that may
call the server are async.
"""

import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from queryserver_client import arrow
from queryserver_client.downloads import save
from queryserver_client.errors import NoResultSet, Truncated
from queryserver_client.status import Status
from queryserver_client.submitted import SubmittedStatement
from queryserver_client.transport import Transport
from queryserver_client.values import Column, Row, columns_of, decode_rows
from queryserver_client.windows import windowed

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa
    from typing_extensions import Self

    from queryserver_client.generated import ResultPage

PAGE_ROWS = 10_000
"""Rows per page. Larger pages would only use memory for longer."""
FORMATS: Mapping[str, str] = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".xlsx": "xlsx",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".feather": "feather",
    ".ndjson": "ndjson",
    ".jsonl": "ndjson",
}
"""Download format by file suffix."""


class Result:
    """A result created by `Statement.result` or `Connection.query`. With `async with`, its rows are deleted on exit."""

    def __init__(
        self,
        statement: SubmittedStatement,
        status: Status,
        transport: Transport,
        first: "ResultPage | None",
        *,
        allow_truncated: bool = False,
    ) -> None:
        self.statement = statement
        self.status = status
        self.columns: tuple[Column, ...] = columns_of(first["meta"]) if first else ()
        """Empty if the statement has no result set."""
        self.allow_truncated = allow_truncated
        """Whether rows are returned even if the server truncated the result."""
        self._transport = transport
        self._first: list[Row] = decode_rows(first["data"], self.columns) if first else []

    def __repr__(self) -> str:
        return (
            f"Result({self.operation_id!r}, rows={self.row_count}, columns={[column.name for column in self.columns]})"
        )

    @property
    def operation_id(self) -> str:
        return self.statement.operation_id

    @property
    def first_rows(self) -> Sequence[Row]:
        """The rows in the response that reported the end of the statement; all rows if the result is small."""
        return self._first

    @property
    def row_count(self) -> int:
        """Exact number of rows in the result."""
        return self.status.rows

    @property
    def modified_row_count(self) -> int | None:
        """Number of rows that the statement changed, if the engine reports it."""
        return self.status.modified_row_count

    @property
    def has_rows(self) -> bool:
        """Whether the statement has a result set, which may be empty."""
        return self.status.state == "available"

    @property
    def is_truncated(self) -> bool:
        """Whether the server stored only the first rows, because of any limit, including the caller's."""
        return self.status.is_truncated

    async def rows(self) -> list[Row]:
        """Return all rows as tuples of Python values (`values.py`)."""
        return [row async for page in self.pages() for row in page]

    async def dicts(self) -> list[dict[str, Any]]:
        """Return all rows as dicts by column name. If several columns have the same name, the last one wins."""
        names = [column.name for column in self.columns]
        return [dict(zip(names, row, strict=True)) for row in await self.rows()]

    async def scalar(self) -> Any:
        """Return the first cell of the first row; None if there are no rows."""
        self._require_whole()
        return self._first[0][0] if self._first else None

    async def __aiter__(self) -> AsyncIterator[Row]:
        """Yield the rows one by one. Memory holds one page."""
        async for page in self.pages():
            for row in page:
                yield row

    async def pages(self, rows: int = PAGE_ROWS) -> AsyncGenerator[list[Row], None]:
        """Yield the rows in lists of at most `rows`. Each call starts from the first row."""
        self._require_whole()
        for start in range(0, len(self._first), rows):
            yield self._first[start : start + rows]
        position = len(self._first)
        # Stops at the number of rows, because a request after the last row of a truncated result is a failure.
        while position < self.row_count:
            page = await self.statement.fetch(position, rows)
            data = decode_rows(page["data"], self.columns)
            position += len(data)
            yield data

    async def batches(self) -> "AsyncGenerator[pa.RecordBatch, None]":
        """Yield the rows as Arrow record batches as they arrive. Memory holds a few MiB of batches."""
        async with aclosing(self._arrow()) as items:
            await anext(items)  # skips the schema
            async for batch in items:
                yield batch

    async def arrow(self) -> "pa.Table":
        """Return all rows as a pyarrow Table."""
        pa = arrow.optional("pyarrow", "arrow")
        async with aclosing(self._arrow()) as items:
            schema = await anext(items)
            return pa.Table.from_batches([batch async for batch in items], schema)

    async def pandas(self, **options: Any) -> "pd.DataFrame":
        """Return all rows as a pandas DataFrame. `options` are those of `pyarrow.Table.to_pandas`.

        By default, an integer column with nulls gets a nullable type such as `Int64`. As floats, which pandas would
        otherwise use, large integers would lose digits.
        """
        arrow.optional("pandas", "pandas")
        return arrow.frame(await self.arrow(), options)

    async def polars(self) -> "pl.DataFrame":
        """Return all rows as a polars DataFrame. Decimals of more than 38 digits, which polars lacks, become strings.

        Raises ConversionFailed for values that polars cannot represent.
        """
        return arrow.polars_frame(await self.arrow())

    async def download(
        self,
        path: "str | os.PathLike[str]",
        format: str | None = None,  # noqa: A002
        *,
        guard: bool = False,
        on_bytes: Callable[[int, int | None], None] | None = None,
    ) -> Path:
        """Write the result to a file. By default, the file suffix determines the format (`FORMATS`).

        The file appears only once it is complete. `guard` protects readers of csv and tsv files from cells that
        spreadsheets would interpret as formulas. `on_bytes` is called with the number of bytes so far and, if known,
        the total.
        """
        kind = format or FORMATS.get(Path(path).suffix.lower())
        if kind is None:
            message = f"{Path(path).name}: no format has this suffix; pass format=, one of {', '.join(_WORDS)}"
            raise ValueError(message)
        params = self._params(kind) | ({"guard": "true"} if guard else {})
        return await save(self._transport, self._path, path, params=params, on_bytes=on_bytes)

    async def close(self) -> None:
        """Delete the rows on the server. Otherwise, they are kept until `status.expires_at`."""
        await self.statement.close()

    async def __aenter__(self) -> "Self":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.statement.close_quietly()

    @property
    def _path(self) -> str:
        return f"editor/download/{self.operation_id}"

    def _params(self, kind: str) -> dict[str, str]:
        self.require_readable()
        return {"format": kind, "allow_truncated": "true" if self.allow_truncated else "false"}

    async def _arrow(self) -> AsyncGenerator[Any, None]:
        params = self._params("arrow")
        if arrow.optional("pyarrow", "arrow").Codec.is_available("lz4"):
            params["compression"] = "lz4"
        source = windowed(self._transport, self._path, params)
        async with aclosing(source) as chunks, aclosing(arrow.batches(chunks)) as items:
            async for item in items:
                yield item

    def require_readable(self) -> None:
        """Raise NoResultSet if there is no result set.

        Raise Truncated if a limit that the caller did not set truncated the result and `allow_truncated` is not set.
        """
        self._require_rows()
        self._require_whole()

    def _require_rows(self) -> None:
        if not self.has_rows:
            raise NoResultSet(
                "the statement has no result set", code="no_result_set", operation_id=self.operation_id, state="success"
            )

    def _require_whole(self) -> None:
        cut = self.status.truncated_by
        if cut not in (None, "limit") and not self.allow_truncated:
            raise Truncated(
                self.status.message, code="truncated", operation_id=self.operation_id, state=self.status.state
            )


_WORDS: Sequence[str] = sorted(set(FORMATS.values()))
