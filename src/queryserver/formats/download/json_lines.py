"""NDJSON: one object per row (Contract editor 8.2)."""

import orjson
import pyarrow as pa

from queryserver.domain.result import Column
from queryserver.formats.download.encoder import unique_names
from queryserver.formats.download.kernels import row_bytes
from queryserver.formats.download.text import json_texts


class JsonLinesEncoder:
    """Values in the raw form of Contract editor 6.3; repeated names get `_2`, `_3`, …"""

    def __init__(self, columns: tuple[Column, ...]) -> None:
        self._columns = columns
        names = unique_names([column.name for column in columns])
        self._keys = ["{,"[number > 0] + orjson.dumps(name).decode() + ":" for number, name in enumerate(names)]

    def start(self) -> bytes:
        """Nothing: there is no header."""
        return b""

    def rows(self, batch: pa.RecordBatch) -> bytes:
        """Rows as lines."""
        pieces: list[pa.Array | str] = []
        for key, array, column in zip(self._keys, batch.columns, self._columns, strict=True):
            pieces += [key, json_texts(array, column)]
        return row_bytes(*pieces, "}\n", null="null")

    def end(self) -> bytes:
        """Nothing: the last line has its end."""
        return b""

    def close(self) -> None:
        """Nothing is held."""
