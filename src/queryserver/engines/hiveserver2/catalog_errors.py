"""What an engine's refusal says about a metadata object."""

import re
from collections.abc import Generator
from contextlib import contextmanager

from queryserver.domain.errors import StatementRejected, TableNotFound, database_not_found
from queryserver.engines import denials

_NO_DATABASE = re.compile(r"SCHEMA_NOT_FOUND|Error 10072\b|Database does not exist|NoSuchDatabaseException")
_NO_TABLE = re.compile(
    r"TABLE_OR_VIEW_NOT_FOUND|Error 10001\b|Table not found|NoSuchTableException|InvalidTableException"
    r"|Table or database name may not contain|Could not resolve (?:path|table reference)|Table does not exist"
)
_NO_FUNCTION = re.compile(r"UNRESOLVED_ROUTINE|ROUTINE_NOT_FOUND|NoSuchFunctionException|Undefined function")


@contextmanager
def metadata_errors(database: str, table: str = "") -> Generator[None]:
    """Turn a refusal into database_not_found, TableNotFound or EngineForbidden where the engine's text tells so."""
    try:
        with denials.metadata_errors():
            yield
    except StatementRejected as error:
        if _NO_DATABASE.search(error.message):
            raise database_not_found(database) from error
        if table and _NO_TABLE.search(error.message):
            raise TableNotFound(database, table) from error
        raise


def is_unknown_function(error: StatementRejected) -> bool:
    """Whether the engine says that there is no such function."""
    return _NO_FUNCTION.search(error.message) is not None
