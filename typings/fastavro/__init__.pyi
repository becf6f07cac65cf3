# Types of what this project uses of fastavro, whose own have files and dictionaries of unknown content.

from typing import IO, Any

def parse_schema(schema: Any) -> Any: ...
def schemaless_reader(
    fo: IO[bytes], writer_schema: Any, reader_schema: Any = None, *, handle_unicode_errors: str = "strict"
) -> Any: ...
