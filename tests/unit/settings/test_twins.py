"""Every secret of the whole tree has its twins, in the file and in the environment (Contract platform 11)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from queryserver.settings import Settings
from queryserver.settings.loading import read_settings
from queryserver.settings.schema import SECRET_OPTIONS, keys, value_of
from queryserver.settings.section import Section

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
        value = value_of(value, keys(type(value))[name]) if isinstance(value, Section) else value[name]
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
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("kind", ["file", "script"])
@pytest.mark.parametrize("source", ["toml", "environment"])
def test_every_secret_has_its_twins(tmp_path: Path, name: str, kind: str, source: str) -> None:
    value = _GOOD.get(name, "planted")
    secret = tmp_path / "secret"
    secret.write_text(f"{value}\n")
    where = str(secret) if kind == "file" else f"cat {secret}"
    path = name.split(".")
    twin = [*path[:-1], f"{path[-1]}_{kind}"]
    config = tmp_path / "queryserver.toml"
    tree = nested(twin, where if source == "toml" else None)
    config.write_text(_toml(tree))
    environ = {f"QUERYSERVER__{'__'.join(twin)}".upper(): where} if source == "environment" else {}
    reading = read_settings(config, environ)
    assert [problem for problem in reading.problems if problem.startswith(name)] == []
    read = found(reading.settings, path)
    assert (read.location if isinstance(read, Section) else read) == ("/r" if isinstance(read, Section) else value)


def _toml(tree: dict[str, Any], prefix: str = "") -> str:
    plain = [f'{name} = "{value}"' for name, value in tree.items() if isinstance(value, str)]
    lines = [f"[{prefix}]", *plain] if prefix and plain else []
    for name, value in tree.items():
        if isinstance(value, dict):
            lines.append(_toml(value, f"{prefix}.{name}" if prefix else name))
    return "\n".join(line for line in lines if line)
