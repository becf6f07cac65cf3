"""The scripts: installation progress, and the Python versions of the smoke test."""

import io
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from scripts.install_locked import Progress, install, not_installed, pip_command
from tests import smoke

OLD_PIP = """\
Looking in links: /wheels
Ignoring colorama: markers 'sys_platform == "win32"' don't match your environment
Requirement already satisfied: idna==3.20 in ./lib (from -r service.lock (line 2)) (3.20)
Collecting et-xmlfile==2.0.0
  Downloading et_xmlfile-2.0.0-py3-none-any.whl (18 kB)
Collecting duckdb==2.0.0
  Using cached duckdb-2.0.0-cp311-cp311-manylinux_2_28_x86_64.whl (24.4 MB)
Installing collected packages: et-xmlfile, duckdb
Successfully installed duckdb-2.0.0 et-xmlfile-2.0.0
"""
# Since version 23.1, pip reads the metadata of all packages before it downloads the first one.
NEW_PIP = """\
Collecting et-xmlfile==2.0.0 (from -r service.lock (line 9))
  Downloading et_xmlfile-2.0.0-py3-none-any.whl.metadata (2.7 kB)
Collecting duckdb==2.0.0 (from -r service.lock (line 4))
  Using cached duckdb-2.0.0-cp311-cp311-manylinux_2_28_x86_64.whl.metadata (15 kB)
Ignoring colorama: markers 'sys_platform == "win32"' don't match your environment
Downloading et_xmlfile-2.0.0-py3-none-any.whl (18 kB)
Downloading duckdb-2.0.0-cp311-cp311-manylinux_2_28_x86_64.whl (24.4 MB)
Installing collected packages: et-xmlfile, duckdb

Successfully installed duckdb-2.0.0 et-xmlfile-2.0.0
"""


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def printed(pip: str, target: io.StringIO, *, expected: int = 3) -> str:
    progress = Progress(target, ".venv", expected)
    for line in pip.splitlines():
        progress.show(line)
    progress.end(success=True)
    return target.getvalue()


@pytest.mark.parametrize("pip", [OLD_PIP, NEW_PIP])
def test_each_package_is_a_line(pip: str):
    first, *packages, unpacking, last = printed(pip, io.StringIO()).splitlines()
    assert first.endswith("packages into .venv: about two minutes the first time.")
    assert [line.partition("/")[2][2:].split(" (")[0] for line in packages] == ["et-xmlfile 2.0.0", "duckdb 2.0.0"]
    assert packages[1].endswith("duckdb 2.0.0 (24.4 MB)")
    assert "unpacking" in unpacking
    assert last.startswith("Installed 2 packages in ")


def test_packages_share_one_line_on_a_terminal():
    shown = printed(OLD_PIP, Terminal())
    assert shown.count("\n") == 2
    assert "\r\x1b[K    2/2 duckdb 2.0.0 (24.4 MB)" in shown


def test_nothing_is_printed_if_everything_is_installed():
    assert printed("Requirement already satisfied: idna==3.20 in ./lib (3.20)\n", io.StringIO()) == ""


def test_only_missing_packages_are_counted(tmp_path: Path):
    lock = tmp_path / "a.lock"
    lock.write_text(
        f"pytest=={pytest.__version__} \\\n    --hash=sha256:00\nno-such-thing==1.0 ; x == 'y' \\\npytest==0\n"
    )
    assert not_installed([str(lock)]) == 2
    lock.write_text(f"pytest=={pytest.__version__} \\\n    --hash=sha256:00\n")
    assert not_installed([str(lock)]) == 0


def test_pip_failure_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("scripts.install_locked.pip_command", lambda _: [sys.executable, "-c", "print('no'); exit(4)"])
    target = io.StringIO()
    assert install([], target) == 4
    assert target.getvalue() == "no\n"


def test_pip_checks_hashes():
    command = pip_command(["requirements/a.lock", "requirements/b.lock"])
    assert "--require-hashes" in command
    assert command[-2:] == ["--requirement=requirements/a.lock", "--requirement=requirements/b.lock"]


def programs(directory: Path, *printed: str) -> Sequence[str]:
    """Create a fake Python program for each output; an empty string makes the program fail."""
    made: list[str] = []
    for number, text in enumerate(printed):
        program = directory / f"python{number}"
        program.write_text(f"#!/bin/sh\n[ -n '{text}' ] && echo '{text}'\n")
        program.chmod(0o755)
        made.append(str(program))
    return made


def test_all_versions_are_found_and_duplicates_skipped(tmp_path, monkeypatch) -> None:
    found = programs(
        tmp_path,
        "3.11.2 /usr",
        "3.12.1 /usr",
        "",
        "3.11.2 /usr",
        "3.11.2 /opt",
        "3.10.9 /usr",
        "3.9.2 /usr",
        "3.15.0 /usr",
    )
    monkeypatch.setattr(smoke, "candidates", lambda: found)
    assert [(one.version, one.prefix, one.program) for one in smoke.pythons()] == [
        ("3.11.2", "/usr", found[0]),
        ("3.12.1", "/usr", found[1]),
        ("3.11.2", "/opt", found[4]),
        ("3.10.9", "/usr", found[5]),
    ]
    assert [one.has_server for one in smoke.pythons()] == [True, True, True, False]
