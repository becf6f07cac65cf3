"""Where the embedded default keeps what. Light to import: commands beside a running server look here."""

from dataclasses import dataclass, field
from pathlib import Path

DUCKDB_FILE = "sample.duckdb"
SQLITE_FILE = "sample.sqlite"
STORAGE_DIRECTORY = "files"


@dataclass(frozen=True, slots=True)
class EmbeddedDefaults:
    """Where the embedded default keeps its databases and files. The DSNs hold passwords: never log them."""

    service_dsn: str = field(repr=False)
    """The service's own database (over a socket); empty at the first start, to be migrated by the caller."""
    sample_dsn: str = field(repr=False)
    """The users' PostgreSQL database, on loopback; its role cannot open the service's database."""
    databases_dir: Path
    """Holds the files of the duckdb and sqlite connectors and nothing else."""
    files_dir: Path
    """The local root: the store `file`, with sample files from the first start on."""
    duckdb_path: str = DUCKDB_FILE
    """Relative to `databases_dir`."""
    sqlite_path: str = SQLITE_FILE
    """Relative to `databases_dir`."""
