"""The size limit of DuckDB's temporary files."""

from pathlib import Path
from typing import NamedTuple

import duckdb

from queryserver.engines.duckdb.temporary_files import TemporaryFilesLimit
from queryserver.platform.machine_limits import DiskFloor

MIB = 1024 * 1024


class Usage(NamedTuple):
    total: int
    free: int


def test_temporary_file_limit_recovers_as_soon_as_disk_space_is_free(tmp_path: Path) -> None:
    free = 100 * MIB
    floor = DiskFloor(min_bytes=100 * MIB, usage=lambda _: Usage(0, free), clock=lambda: 0)
    room = TemporaryFilesLimit(tmp_path, 1024 * MIB, floor)
    with duckdb.connect() as connection:

        def limit() -> object:
            room.apply(connection)
            return connection.execute("SELECT current_setting('max_temp_directory_size')").fetchall()[0][0]

        assert limit() == "0 bytes"
        free = 420 * MIB
        assert limit() == "320.0 MiB"
