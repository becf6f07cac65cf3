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


class Overlap(str, Enum):
    """What happens if a schedule fires while its previous run is still in progress."""

    SKIP = "skip"
    QUEUE = "queue"


class Outcome(str, Enum):
    """The outcome of a run."""

    FINISHED = "finished"
    FAILED = "failed"


class OptionalField(str, Enum):
    """A field that can be removed from a schedule."""

    CONNECTOR = "connector"
    DATABASE = "database"
    PARAMETERS = "parameters"
    INTO = "into"
    TIMEZONE = "timezone"
    EXPIRES_AT = "expires_at"
    NOTIFY = "notify"


class Permission(str, Enum):
    """What users and groups may do with a document."""

    VIEW = "view"
    RUN = "run"
    EDIT = "edit"
    NONE = "none"
