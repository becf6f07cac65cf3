"""Options with a fixed set of values."""

from enum import Enum


class Form(str, Enum):
    """The format in which rows are written."""

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
    """What happens if the table already exists."""

    ERROR = "error"
    APPEND = "append"
    REPLACE = "replace"


class FileKind(str, Enum):
    """The file types that the server reads."""

    CSV = "csv"
    TSV = "tsv"
    EXCEL = "excel"
    DELIMITED = "delimiter_format"
    PARQUET = "parquet"
    NDJSON = "ndjson"
    AVRO = "avro"
    ARROW = "arrow"


class Permission(str, Enum):
    """What users and groups may do with a document."""

    VIEW = "view"
    RUN = "run"
    EDIT = "edit"
    NONE = "none"
