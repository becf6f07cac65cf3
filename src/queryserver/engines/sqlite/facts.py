"""What the server knows of SQLite without its library."""

from typing import Final

from queryserver.sql.parameters import ParameterSupport, ParameterType

PARAMETERS: Final = ParameterSupport(
    frozenset(ParameterType) - {ParameterType.ARRAY}, not_finite=True, not_finite_decimals=True, decimal_digits=1000
)
"""SQLite makes NULL of NaN."""

REFUSED_FUNCTIONS: Final = frozenset({"load_extension", "fts3_tokenizer"})

TEMPORARY_DIRECTORY = ".sqlite-temporary"
"""In the directory of the databases. SQLite removes the names of its temporary files as soon as they are open."""

HEAP_BYTES = 160 * 1024 * 1024
"""Of SQLite in one process, databases in memory included. A row of 2,000 columns has no other limit."""
