"""Which Pythons of a machine the smoke test takes."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from scripts import smoke


def programs(directory: Path, *printed: str) -> Sequence[str]:
    """Stand-ins for Pythons; an empty text is one that cannot be used."""
    made: list[str] = []
    for number, text in enumerate(printed):
        program = directory / f"python{number}"
        program.write_text(f"#!/bin/sh\n[ -n '{text}' ] && echo '{text}'\n")
        program.chmod(0o755)
        made.append(str(program))
    return made


def test_versions_in_one_place_are_taken_all_and_one_version_by_two_names_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    found = programs(
        tmp_path, "3.11.2 /usr", "3.12.1 /usr", "", "3.11.2 /usr", "3.11.2 /opt", "3.10.9 /usr", "3.15.0 /usr"
    )
    monkeypatch.setattr(smoke, "candidates", lambda: found)
    assert [(one.version, one.prefix, one.program) for one in smoke.pythons()] == [
        ("3.11.2", "/usr", found[0]),
        ("3.12.1", "/usr", found[1]),
        ("3.11.2", "/opt", found[4]),
    ]
