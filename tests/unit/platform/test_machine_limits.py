"""The disk floor: the space that must remain free on each file system."""

from pathlib import Path
from typing import NamedTuple

import pytest

from queryserver.errors.files import InsufficientStorage
from queryserver.platform.machine_limits import NO_FLOOR, DiskFloor

HERE = Path("/somewhere")


class Usage(NamedTuple):
    total: int
    free: int


@pytest.mark.parametrize(
    ("percent", "min_bytes", "room"), [(5, 0, 150), (5, 30, 150), (5, 120, 80), (0, 30, 170), (100, 0, -3800)]
)
def test_floor_is_the_larger_of_percentage_and_minimum(percent: int, min_bytes: int, room: int):
    floor = DiskFloor(percent=percent, min_bytes=min_bytes, usage=lambda _: Usage(1000 if percent < 100 else 4000, 200))
    assert floor.room(HERE) == room


def test_write_must_leave_disk_above_floor():
    floor = DiskFloor(min_bytes=100, usage=lambda _: Usage(1000, 150))
    floor.require(HERE)
    floor.require(HERE, 50)
    for size in (51, 10**12):
        with pytest.raises(InsufficientStorage):
            floor.require(HERE, size)


def test_disk_is_measured_once_per_second():
    now, measured = [0.0], [0]

    def usage(_directory: Path) -> Usage:
        measured[0] += 1
        return Usage(1000, 1000 - 300 * measured[0])

    floor = DiskFloor(min_bytes=500, usage=usage, clock=lambda: now[0])
    for moment in (0.0, 0.5, 0.9):
        now[0] = moment
        floor.require(HERE)
    now[0] = 1.0
    with pytest.raises(InsufficientStorage):
        floor.require(HERE)
    assert measured == [2]


def test_unmeasurable_disk_and_zero_floor_refuse_no_write(tmp_path: Path):
    DiskFloor(percent=5, min_bytes=2**60).require(tmp_path / "missing")
    with pytest.raises(OSError, match="missing"):
        DiskFloor(percent=5).room(tmp_path / "missing")
    NO_FLOOR.require(tmp_path, 2**62)
