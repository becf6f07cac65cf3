# Delimited text.

from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

from pyarrow import DataType, NativeFile, PathLike, RecordBatch, Table

class ReadOptions:
    def __init__(self, **options: Any) -> None: ...

class ParseOptions:
    def __init__(self, **options: Any) -> None: ...

class ConvertOptions:
    def __init__(
        self,
        *,
        column_types: Mapping[str, DataType] | None = None,
        null_values: Sequence[str] | None = None,
        strings_can_be_null: bool = False,
        quoted_strings_can_be_null: bool = True,
        **options: Any,
    ) -> None: ...

class WriteOptions:
    def __init__(self, **options: Any) -> None: ...

def read_csv(
    input_file: PathLike | BinaryIO | NativeFile,
    read_options: ReadOptions | None = None,
    parse_options: ParseOptions | None = None,
    convert_options: ConvertOptions | None = None,
) -> Table: ...
def write_csv(
    data: Table | RecordBatch, output_file: PathLike | BinaryIO | NativeFile, write_options: WriteOptions | None = None
) -> None: ...
