"""Reading the settings: file, environment, command line; all problems at once."""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import SecretStr, ValidationError
from pydantic_core import ErrorDetails

from queryserver.domain.errors import ConfigurationError
from queryserver.settings.contradictions import contradictions
from queryserver.settings.environment import ADMIN_PASSWORD, CONFIG_FILE, from_environment
from queryserver.settings.layers import Layers, Problems
from queryserver.settings.schema import Key, keys
from queryserver.settings.section import Section
from queryserver.settings.tree import Origin, Settings, Sources
from queryserver.settings.twins import Twin

DEFAULT_FILES = (Path("queryserver.toml"), Path("/etc/queryserver/queryserver.toml"))

# Keys that older settings files have under another name: setting one sets both (Contract editor 13).
_SAME = (
    (("editor", "default_limit"), ("notebook", "default_limit")),
    (("editor", "sample_views"), ("metastore", "allow_sample_data_from_views")),
)


@dataclass(frozen=True, slots=True)
class Reading:
    """What was read. With problems, `settings` holds defaults where the given values are no good: only for showing."""

    settings: Settings
    problems: list[str]


def load_settings(
    path: Path | None, environ: Mapping[str, str], *, overrides: Mapping[str, Any] | None = None
) -> Settings:
    """The settings of `path`, or of the first file found, under the environment and `overrides` (`section.key`: value).

    Raises ConfigurationError with every problem.
    """
    reading = read_settings(path, environ, overrides=overrides)
    if reading.problems:
        raise ConfigurationError(reading.problems)
    return reading.settings


def read_settings(
    path: Path | None,
    environ: Mapping[str, str],
    *,
    overrides: Mapping[str, Any] | None = None,
    with_secrets: bool = True,
) -> Reading:
    """Like `load_settings`, with the problems beside whatever is good.

    Without secrets neither their files are read nor their scripts run, and keys are not compared with each other.
    """
    problems = Problems()
    file = path or _found_file(environ)
    layers = Layers(problems)
    layers.put(_file_values(file, problems) if file else {}, Origin.FILE)
    layers.put(from_environment(environ), Origin.ENVIRONMENT)
    layers.put(_nested(overrides or {}), Origin.COMMAND_LINE)
    _join_same(layers)
    if not with_secrets:
        _drop_twins(layers.values)
    _read_twins(layers.values, "", problems)
    settings = _validated(layers.values, problems)
    if with_secrets:
        for key, text in contradictions(settings, layers.origins):
            problems.add(key, text)
    password = environ.get(ADMIN_PASSWORD)
    sources = Sources(file, layers.origins, SecretStr(password) if password else None)
    return Reading(settings.read_from(sources), problems.lines())


def _found_file(environ: Mapping[str, str]) -> Path | None:
    if environ.get(CONFIG_FILE):
        return Path(environ[CONFIG_FILE])
    return next((file for file in DEFAULT_FILES if file.is_file()), None)


def _file_values(file: Path, problems: Problems) -> Mapping[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        problems.add(str(file), f"cannot be read: {error.strerror or type(error).__name__}.")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        problems.add(str(file), f"is no TOML file: {error}.")
    return {}


def _nested(flat: Mapping[str, Any]) -> Mapping[str, Any]:
    nested: dict[str, Any] = {}
    for key, value in flat.items():
        table = nested
        *sections, name = key.split(".")
        for section in sections:
            table = table.setdefault(section, {})
        table[name] = value
    return nested


def _join_same(layers: Layers) -> None:
    for one, other in _SAME:
        for (section, key), (from_section, from_key) in ((one, other), (other, one)):
            source = layers.values.get(from_section)
            target = layers.values.setdefault(section, {})
            if isinstance(source, dict) and isinstance(target, dict) and from_key in source and key not in target:
                target[key] = source[from_key]
                layers.origins[f"{section}.{key}"] = layers.origins[f"{from_section}.{from_key}"]


def _read_twins(values: dict[str, Any], prefix: str, problems: Problems) -> None:
    for name, value in list(values.items()):
        if isinstance(value, dict):
            _read_twins(value, f"{prefix}{name}.", problems)
        elif isinstance(value, Twin):
            try:
                values[name] = value.read()
            except ValueError as error:
                problems.add(f"{prefix}{name}", str(error))
                del values[name]


def _drop_twins(values: dict[str, Any]) -> None:
    for name, value in list(values.items()):
        if isinstance(value, dict):
            _drop_twins(value)
        elif isinstance(value, Twin):
            del values[name]


def _validated(values: dict[str, Any], problems: Problems) -> Settings:
    """The tree. What is wrong is reported and taken out, so that the rest can be checked as a whole too."""
    while True:
        try:
            return Settings.model_validate(values)
        except ValidationError as error:
            for detail in error.errors(include_url=False, include_input=False):
                path = _path(detail["loc"])
                problems.add(".".join(path), _text(detail))
                _take_out(values, path)


def _path(loc: tuple[int | str, ...]) -> list[str]:
    """The place of a problem as a key: without positions in lists and without the types that were tried."""
    return list(_known_part([str(part) for part in loc]))


def _known_part(parts: list[str]) -> Iterator[str]:
    section: type[Section] | None = Settings
    names = iter(parts)
    for name in names:
        key: Key | None = keys(section).get(name) if section else None
        if key is None:
            return
        yield name
        section = key.section
        if key.entries or key.has_free_names:
            section = key.entries
            entry = next(names, None)
            if entry is not None:
                yield entry


def _text(detail: ErrorDetails) -> str:
    text = detail["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    if detail["type"] == "missing":
        text = "must be given"
    elif detail["type"] == "string_too_short":
        text = "must not be empty"
    elif detail["type"] == "string_pattern_mismatch":
        text = f"must look like {detail.get('ctx', {}).get('pattern')}"
    return text if text.endswith((".", "?")) else f"{text}."


def _take_out(values: dict[str, Any], path: list[str]) -> None:
    """Remove the value at `path`; when it is missing there, the nearest table around it."""
    for length in range(len(path), 0, -1):
        table: Any = values
        for name in path[: length - 1]:
            table = table.get(name) if isinstance(table, dict) else None
        if isinstance(table, dict) and path[length - 1] in table:
            del table[path[length - 1]]
            return
