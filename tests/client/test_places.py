"""The partial files of downloads: where they are stored, and when they are reused or removed."""

import errno
import fcntl
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from queryserver_client import places
from queryserver_client.places import Place

LARGE = os.urandom(2_000_000)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def written(target: Path, source: str, data: bytes, *, end: Callable[[Place], None] = Place.leave) -> int:
    """Write `data` as a download of `source`, and complete or abandon it with `end`. Returns how many bytes of an
    earlier partial file were reused.
    """
    place = Place(target, is_kept=True)
    file, kept = place.open(source)
    with file:
        file.write(data[kept:])
    end(place)
    return kept


def test_partial_download_resumes_even_if_target_is_read_only(tmp_path: Path):
    target = tmp_path / "a"
    target.write_bytes(b"old")
    target.chmod(0o444)
    assert written(target, "x", LARGE[:1_500_000]) == 0
    (part,) = (path for path in tmp_path.iterdir() if path != target)
    assert part.stat().st_mode & 0o777 == 0o600
    assert written(target, "x", LARGE, end=Place.take) == 1_500_000
    assert (target.read_bytes(), target.stat().st_mode & 0o777, names(tmp_path)) == (LARGE, 0o444, ["a"])


def test_small_and_invalid_partial_downloads_are_not_kept(tmp_path: Path):
    written(tmp_path / "a", "x", b"little")
    written(tmp_path / "a", "x", LARGE, end=lambda place: place.leave(is_wrong=True))
    assert names(tmp_path) == []


def test_completed_download_removes_unlocked_other_versions(tmp_path: Path):
    target = tmp_path / "a"
    for version in ("1", "2", "3"):
        written(target, version, LARGE[:1_100_000])
    written(tmp_path / "a.b", "1", LARGE[:1_100_000])
    parts = names(tmp_path)
    busy = Place(target, is_kept=True)
    file, kept = busy.open("2")
    assert kept == 1_100_000
    assert written(target, "3", LARGE, end=Place.take) == 1_100_000
    left = [name for name in names(tmp_path) if name != "a"]
    assert (len(parts), len(left)) == (4, 2)
    with file:
        file.write(LARGE[kept:])
    busy.take()
    assert target.read_bytes() == LARGE
    assert [name.partition(".part")[0][:5] for name in names(tmp_path)] == [".a.b.", "a"]


def test_concurrent_downloads_write_separate_files(tmp_path: Path):
    one, other = Place(tmp_path / "a", is_kept=True), Place(tmp_path / "a", is_kept=True)
    with one.open("x")[0] as file, other.open("x")[0] as second:
        file.write(b"1")
        second.write(b"2")
    other.leave()
    one.take()
    assert ((tmp_path / "a").read_bytes(), names(tmp_path)) == (b"1", ["a"])


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_partial_download_is_not_kept_without_file_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int):
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    written(tmp_path / "a", "x", LARGE)
    assert names(tmp_path) == []
    written(tmp_path / "a", "x", LARGE, end=Place.take)
    assert names(tmp_path) == ["a"]


def test_spool_file_opened_after_abandonment_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    began, go_on, locked = threading.Event(), threading.Event(), places._locked

    def slow(*arguments: object) -> object:
        began.set()
        assert go_on.wait(60)
        return locked(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(places, "_locked", slow)
    place = Place(tmp_path / "a", is_kept=True)
    opening = threading.Thread(target=place.open, args=("x",))
    leaving = threading.Thread(target=place.leave)
    opening.start()
    assert began.wait(60)
    leaving.start()
    go_on.set()
    for thread in (opening, leaving):
        thread.join(60)
    assert names(tmp_path) == []


def test_foreign_file_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    written(tmp_path / "a", "x", LARGE[:1_100_000])
    (part,) = tmp_path.iterdir()
    monkeypatch.setattr(os, "geteuid", lambda: part.stat().st_uid + 1)
    assert written(tmp_path / "a", "x", LARGE, end=Place.take) == 0
    assert part.stat().st_size == 1_100_000
