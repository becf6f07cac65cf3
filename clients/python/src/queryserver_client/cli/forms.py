"""The words of options that have a fixed set of them."""

from enum import Enum


class Form(str, Enum):
    """How rows are written."""

    TABLE = "table"
    CSV = "csv"
    TSV = "tsv"
    JSON = "json"
    NDJSON = "ndjson"
    PARQUET = "parquet"
    ARROW = "arrow"
    FEATHER = "feather"
    XLSX = "xlsx"


BINARY = frozenset({Form.PARQUET, Form.ARROW, Form.FEATHER, Form.XLSX})


class IfExists(str, Enum):
    """What happens when the table is there."""

    ERROR = "error"
    APPEND = "append"
    REPLACE = "replace"


class FileKind(str, Enum):
    """The types of files that the server reads."""

    CSV = "csv"
    TSV = "tsv"
    EXCEL = "excel"
    DELIMITED = "delimiter_format"
    PARQUET = "parquet"
    NDJSON = "ndjson"
    AVRO = "avro"
    ARROW = "arrow"
