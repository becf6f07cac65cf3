"""Every secret of the whole tree may come from a file or a script (Contract platform 11)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from tests.cases import each

from queryserver.platform.settings.loading import SettingsReading, read_settings
from queryserver.platform.settings.sections import SECRET_OPTIONS, Section, keys
from queryserver.platform.settings.tree import Settings

# What else an entry of a table must have.
_NEEDED = {"notebook.interpreters": {"interface": "sqlite"}, "desktop.connectors": {"dialect": "x", "interface": "y"}}
# Values that a key takes; any other secret takes any text.
_GOOD = {
    "desktop.secret_key": "Zr8#a-secret-key-of-more-than-32-letters",
    "desktop.secret_key_fallbacks": "Zr8#a-former-key-of-more-than-32-letters",
    "desktop.database.url": "postgresql://u:planted@h/d",
    "desktop.task_server.broker_url": "redis://:planted@h",
    "desktop.task_server.result_file_storage": '{"backend": "local", "properties": {"location": "/r"}}',
}


def secrets(section: type[Section], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The path of each secret; entries of tables are called `one`."""
    for name, key in keys(section).items():
        if key.section:
            yield from secrets(key.section, (*path, name))
        elif key.entries:
            yield from secrets(key.entries, (*path, name, "one"))
        elif key.has_free_names:
            yield from ((*path, name, option) for option in sorted(SECRET_OPTIONS) if name != "extra_url_options")
        elif key.is_secret:
            yield (*path, name)


ALL = [".".join(path) for path in secrets(Settings)]


def found(settings: Settings, path: list[str]) -> Any:
    """The value at a path, in the clear."""
    value: Any = settings
    for name in path:
        value = getattr(value, keys(type(value))[name].attribute) if isinstance(value, Section) else value[name]
    if isinstance(value, tuple):
        [value] = value
    return value.get_secret_value() if isinstance(value, SecretStr) else value


def nested(path: list[str], value: Any) -> dict[str, Any]:
    """A table with one value, and what its entries need."""
    tree: dict[str, Any] = {}
    table = tree
    for place, name in enumerate(path[:-1]):
        table = table.setdefault(name, {})
        table.update(_NEEDED.get(".".join(path[:place]), {}) if place else {})
    table[path[-1]] = value
    return tree


def test_the_tree_has_secrets_at_every_level() -> None:
    assert {"desktop.secret_key", "aws.aws_accounts.one.secret_access_key", "beeswax.auth_password"} <= set(ALL)
    assert "notebook.interpreters.one.options.url" in ALL


@pytest.mark.platform(50)
@each("kind", "file", "script")
@each("source", "toml", "environment")
def test_every_secret_may_come_from_a_file_or_a_script(tmp_path: Path, kind: str, source: str) -> None:
    for name in ALL:
        reading, value = _read(tmp_path, name, kind, source)
        assert [problem for problem in reading.problems if problem.startswith(name)] == []
        read = found(reading.settings, name.split("."))
        assert (read.location if isinstance(read, Section) else read) == value, name


def _read(directory: Path, name: str, kind: str, source: str) -> tuple[SettingsReading, str]:
    """The settings where one secret is given that way, and what it must be."""
    value = _GOOD.get(name, "planted")
    secret = directory / "secret"
    secret.write_text(f"{value}\n")
    where = str(secret) if kind == "file" else f"cat {secret}"
    *tables, last = name.split(".")
    path = [*tables, f"{last}_{kind}"]
    config = directory / "queryserver.toml"
    config.write_text(_toml(nested(path, where if source == "toml" else None)))
    environ = {f"QUERYSERVER__{'__'.join(path)}".upper(): where} if source == "environment" else {}
    return read_settings(config, environ), "/r" if name.endswith("result_file_storage") else value


def _toml(tree: dict[str, Any], prefix: str = "") -> str:
    plain = [f'{name} = "{value}"' for name, value in tree.items() if isinstance(value, str)]
    lines = [f"[{prefix}]", *plain] if prefix and plain else []
    for name, value in tree.items():
        if isinstance(value, dict):
            lines.append(_toml(value, f"{prefix}.{name}" if prefix else name))
    return "\n".join(line for line in lines if line)
