# Files as one table.

from collections.abc import Sequence
from typing import Any

from pyarrow import Schema

class Fragment: ...
class Expression: ...

class IpcFileFormat:
    def make_fragment(self, file: Any, filesystem: Any = None) -> Fragment: ...

class FileSystemDataset:
    def __init__(
        self,
        fragments: Sequence[Fragment],
        schema: Schema,
        format: IpcFileFormat,
        filesystem: Any = None,
        root_partition: Expression | None = None,
    ) -> None: ...
    @property
    def schema(self) -> Schema: ...
