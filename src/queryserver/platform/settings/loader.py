"""Reads the settings from file, environment and command line, reports all problems together, and prints settings.

Contract platform 11. Environment variables look like `QUERYSERVER__DESKTOP__HTTP_PORT=9000`, in any letter case. A
variable for a whole table contains JSON; variables for single keys override it. ADR 50 explains why pydantic-settings
is not used.
"""

import difflib
import json
import re
import shlex
import subprocess
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Any

from pydantic import SecretStr, ValidationError
from pydantic_core import ErrorDetails

from queryserver.errors.base import ConfigurationError
from queryserver.platform.settings.sections import SECRET_OPTIONS, Key, Section, descriptions, keys, leaves, tables
from queryserver.platform.settings.tree import SettingOrigin, Settings, Sources, contradictions
from queryserver.platform.text import parse_boolean

DEFAULT_FILES = (Path("queryserver.toml"), Path("/etc/queryserver/queryserver.toml"))

PREFIX = "queryserver__"
CONFIG_FILE = "QUERYSERVER_CONFIG"
DATA_DIRECTORY = "QUERYSERVER_DATA_DIR"
ADMIN_PASSWORD = "QUERYSERVER_ADMIN_PASSWORD"  # noqa: S105 the name of a variable

# Keys that have another name in older settings files. Setting either name sets both (Contract editor 13).
_ALIASES = (
    (("editor", "default_limit"), ("notebook", "default_limit")),
    (("editor", "sample_views"), ("metastore", "allow_sample_data_from_views")),
)

_SCRIPT_S = 10

MASK = "********"
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_-]+")
_SECRET_NAME = re.compile(r"pass|secret|token|credential|key", re.IGNORECASE)
_SECRETS_IN_ADDRESS = (
    re.compile(r"((?<=://)[^\s/@:]{0,256}:)[^\s/]{1,1024}(?=@)"),
    re.compile(r"([?&][^=&#\s]{0,64}(?:pass|secret|token|credential|key|sig)[^=&#\s]{0,64}=)[^&#\s]+", re.IGNORECASE),
)


@dataclass(frozen=True, slots=True)
class SettingsResult:
    """The settings and their problems.

    Defaults replace invalid values. So if there are problems, use `settings` only for display.
    """

    settings: Settings
    problems: list[str]


def load_settings(
    path: Path | None, environ: Mapping[str, str], *, overrides: Mapping[str, Any] | None = None
) -> Settings:
    """Load `path`, or the first existing default file; `environ` overrides it, and `overrides` overrides both.

    Keys in `overrides` look like `section.key`. Raises ConfigurationError, which lists all problems.
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
) -> SettingsResult:
    """Load settings like `load_settings`, but return the problems together with the settings instead of raising.

    With `with_secrets=False`, no secret files are read, no secret scripts run, and keys are not checked against each
    other.
    """
    configured = Path(environ[CONFIG_FILE]) if environ.get(CONFIG_FILE) else None
    file = path or configured or next((file for file in DEFAULT_FILES if file.is_file()), None)
    layers = _Layers()
    if file:
        layers.put(_file_values(file, layers.problems), SettingOrigin.FILE)
    if environ.get(DATA_DIRECTORY):
        layers.put({"desktop": {"data_dir": environ[DATA_DIRECTORY]}}, SettingOrigin.ENVIRONMENT)
    for name, text in sorted(environ.items(), key=lambda variable: (variable[0].count("__"), variable[0])):
        if name.lower().startswith(PREFIX):
            layers.put(_nested(name.lower()[len(PREFIX) :].split("__"), text), SettingOrigin.ENVIRONMENT)
    for key, value in (overrides or {}).items():
        layers.put(_nested(key.split("."), value), SettingOrigin.COMMAND_LINE)
    _join_aliases(layers)
    _fetch_secrets(layers.values, "", layers.problems, fetch=with_secrets)
    settings = _validated(layers.values, layers.problems)
    if with_secrets:
        for key, text in contradictions(settings, layers.origins):
            layers.problems.setdefault(key, text)
    password = environ.get(ADMIN_PASSWORD)
    sources = Sources(file, layers.origins, SecretStr(password) if password else None)
    return SettingsResult(settings.read_from(sources), [f"{key}: {text}" for key, text in layers.problems.items()])


def _file_values(file: Path, problems: dict[str, str]) -> Mapping[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        problems[str(file)] = f"cannot be read: {error.strerror or type(error).__name__}."
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        problems[str(file)] = f"is not valid TOML: {error}."
    return {}


class _Layers:
    """Merges values from several sources, of which later ones override earlier ones.

    `origins` and `problems` are keyed by the full dotted name. Only the first problem of each key is kept.
    """

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.origins: dict[str, SettingOrigin] = {}
        self.problems: dict[str, str] = {}
        self._spellings: dict[tuple[str, SettingOrigin], str] = {}

    def put(self, given: Mapping[str, Any], origin: SettingOrigin) -> None:
        self._section(Settings, given, self.values, "", origin)

    def _section(
        self, section: type[Section], given: Mapping[str, Any], into: dict[str, Any], prefix: str, origin: SettingOrigin
    ) -> None:
        known = keys(section)
        secrets = {name for name, key in known.items() if key.is_secret}
        for written, value in given.items():
            name, given_value = _without_source(written.lower(), value, secrets)
            full = f"{prefix}{name}"
            if name not in known:
                close = difflib.get_close_matches(name, list(known), n=1)
                hint = f"; did you mean {close[0]}?" if close else "."
                self.problems.setdefault(full, f"is not a known key{hint}")
            elif self._spellings.setdefault((full, origin), written) != written:
                self.problems.setdefault(full, "is set more than once, including its forms _file and _script.")
            else:
                self._key(known[name], given_value, into, full, origin)

    def _key(self, key: Key, value: Any, into: dict[str, Any], full: str, origin: SettingOrigin) -> None:
        if origin is SettingOrigin.ENVIRONMENT and isinstance(value, str):
            value = _from_text(key, value)
        if not key.is_table:
            into[key.name] = value
            self.origins[full] = origin
        elif not isinstance(value, Mapping):
            self.problems.setdefault(full, "must be a table.")
        elif key.section:
            self._section(key.section, value, into.setdefault(key.name, {}), f"{full}.", origin)
        elif key.entries:
            self._entries(key.entries, value, into.setdefault(key.name, {}), full, origin)
        else:
            options = into.setdefault(key.name, {})
            for written, option in value.items():
                base, given = _without_source(written, option, SECRET_OPTIONS)
                name = _matching_name(base, options)
                options[name] = given
                self.origins[f"{full}.{name}"] = origin

    def _entries(
        self, section: type[Section], given: Mapping[str, Any], into: dict[str, Any], full: str, origin: SettingOrigin
    ) -> None:
        for written, value in given.items():
            name = _matching_name(written, into)
            table = _json(value) if origin is SettingOrigin.ENVIRONMENT and isinstance(value, str) else value
            if isinstance(table, Mapping):
                self._section(section, table, into.setdefault(name, {}), f"{full}.{name}.", origin)
            else:
                self.problems.setdefault(f"{full}.{name}", "must be a table.")


def _matching_name(name: str, present: Iterable[str]) -> str:
    """Return the spelling in `present` that matches the name, ignoring case; the name itself if none matches."""
    return next((other for other in present if other.lower() == name.lower()), name)


def _nested(path: list[str], value: Any) -> dict[str, Any]:
    return reduce(lambda inner, name: {name: inner}, reversed(path), value)


def _from_text(key: Key, text: str) -> Any:
    """Convert an environment value to the key's type. Invalid text is returned unchanged; validation reports it."""
    if key.is_table or (key.is_list and text.lstrip().startswith("[")):
        return _json(text)
    if key.kind is bool:
        value = parse_boolean(text.strip())
        return text if value is None else value
    if key.kind is int:
        try:
            return int(text)
        except ValueError:
            return text
    return text


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _join_aliases(layers: _Layers) -> None:
    for one, other in _ALIASES:
        for (section, key), (from_section, from_key) in ((one, other), (other, one)):
            source, target = layers.values.get(from_section, {}), layers.values.setdefault(section, {})
            if from_key in source and key not in target:
                target[key] = source[from_key]
                layers.origins[f"{section}.{key}"] = layers.origins[f"{from_section}.{from_key}"]


@dataclass(frozen=True, slots=True)
class _SecretSource:
    """The value of `<key>_file` or `<key>_script`. It is read or run only if no later source overrides the key."""

    kind: str
    where: Any

    def fetch(self) -> str:
        """Return the content of the file or the output of the command, without trailing line endings.

        Raises ValueError with a message that does not contain the secret.
        """
        if not isinstance(self.where, str) or not self.where.strip():
            raise ValueError(f"its {self.kind} must be a string.")
        if self.kind == "script":
            return _output(self.where).rstrip("\r\n")
        try:
            return Path(self.where).expanduser().read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"its file {self.where} cannot be read: {_reason(error)}.") from None


def _without_source(name: str, value: Any, secrets: Collection[str]) -> tuple[str, Any]:
    """Return the key and the value. For `<secret>_file` and `<secret>_script`, the value becomes a `_SecretSource`."""
    base, _, kind = name.rpartition("_")
    return (base, _SecretSource(kind, value)) if kind in {"file", "script"} and base in secrets else (name, value)


def _fetch_secrets(values: dict[str, Any], prefix: str, problems: dict[str, str], *, fetch: bool) -> None:
    """Replace secret sources with their secrets; if `fetch` is false, remove them."""
    for name, value in list(values.items()):
        if isinstance(value, dict):
            _fetch_secrets(value, f"{prefix}{name}.", problems, fetch=fetch)
        elif isinstance(value, _SecretSource):
            del values[name]
            try:
                if fetch:
                    values[name] = value.fetch()
            except ValueError as error:
                problems.setdefault(f"{prefix}{name}", str(error))


def _output(command: str) -> str:
    try:
        done = subprocess.run(  # noqa: S603 the administrator wrote the command, and no shell interprets it
            shlex.split(command), capture_output=True, timeout=_SCRIPT_S, check=True, stdin=subprocess.DEVNULL
        )
        return done.stdout.decode()
    except subprocess.TimeoutExpired:
        message = f"its script did not finish within {_SCRIPT_S} s."
    except subprocess.CalledProcessError as error:
        message = f"its script exited with code {error.returncode}."
    except (OSError, ValueError) as error:
        message = f"its script cannot be run: {_reason(error)}."
    raise ValueError(message)


def _reason(error: Exception) -> str:
    return error.strerror or type(error).__name__ if isinstance(error, OSError) else "it is not UTF-8 text"


def _validated(values: dict[str, Any], problems: dict[str, str]) -> Settings:
    """Return the validated settings. Invalid values are reported and removed, so that all others are validated too."""
    while True:
        try:
            return Settings.model_validate(values)
        except ValidationError as error:
            details = error.errors(include_url=False, include_input=False)
            paths = [_key_path(values, detail["loc"]) for detail in details]
            for path, detail in zip(paths, details, strict=True):
                problems.setdefault(".".join(path), _problem_text(detail))
                _remove(values, path)


def _key_path(values: Any, loc: tuple[int | str, ...]) -> list[str]:
    """Return the path of the key that a problem concerns, without list indexes and union type names."""
    path = list[str]()
    for name in map(str, loc):
        if not isinstance(values, dict):
            break
        path.append(name)
        values = values.get(name)
    return path


def _problem_text(detail: ErrorDetails) -> str:
    text = detail["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    if detail["type"] == "missing":
        text = "is required"
    elif detail["type"] == "string_too_short":
        text = "must not be empty"
    elif detail["type"] == "string_pattern_mismatch":
        text = f"must look like {detail.get('ctx', {}).get('pattern')}"
    return text if text.endswith((".", "?")) else f"{text}."


def _remove(values: dict[str, Any], path: list[str]) -> None:
    """Remove the value at `path` or, if there is none, the nearest enclosing table that exists."""
    for length in range(len(path), 0, -1):
        table: Any = values
        for name in path[: length - 1]:
            table = table.get(name) if isinstance(table, dict) else None
        if isinstance(table, dict) and path[length - 1] in table:
            del table[path[length - 1]]
            return


def as_toml(settings: Settings) -> str:
    """Format all keys with their values as TOML; a comment states the origin of each value."""
    lines, table = list[str](), None
    for path, key, value in leaves(settings):
        if value is None and key.kind is not Path:
            continue
        if path[:-1] != table:
            table = path[:-1]
            lines.append(f"\n[{'.'.join(map(_name, table))}]")
        shown, origin = toml_value(_shown(path[-1], key, value)), settings.origin(".".join(path))
        lines.append(f"{_name(path[-1])} = {shown}  # {origin}")
    return "\n".join(lines) + "\n"


def masked_value(settings: Settings, name: str) -> str:
    """Return the effective value of a key as text, with secrets masked; empty for tables and unknown keys."""
    for path, key, value in leaves(settings):
        if ".".join(path) == name:
            shown = _shown(path[-1], key, value)
            return _masked_text(shown) if isinstance(shown, str | Path) else toml_value(shown)
    return ""


def sample_file() -> str:
    """Return a sample settings file. All keys are commented out, so it changes nothing."""
    lines = [
        "# Settings of queryserver. Each value below is the default: uncomment a line to change it.",
        "# The environment takes precedence: QUERYSERVER__DESKTOP__HTTP_PORT=9000 sets http_port of [desktop].",
        "# A secret may be stored separately: <key>_file names a file, <key>_script a command that prints it.",
    ]
    for name, section in tables(Settings, "NAME"):
        texts = descriptions(section)
        plain = [key for key in keys(section).values() if not key.is_table]
        lines += [f"\n# [{name}]"] if plain else []
        for key in plain:
            lines += [f"# {texts[key.name]}", f"# {_assignment(key)}"]
        for key in keys(section).values():
            if key.has_free_names:
                lines += [f"\n# [{name}.{key.name}]", f"# {texts[key.name]}"]
    return "\n".join(lines) + "\n"


def _assignment(key: Key) -> str:
    """Format the key with its default. A key that has no default is marked as required or absent."""
    if key.field.is_required():
        return f"{key.name} (required)"
    value = key.field.get_default(call_default_factory=True)
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    return f"{key.name} (absent)" if value is None else f"{key.name} = {toml_value(value)}"


def _shown(name: str, key: Key, value: Any) -> Any:
    if key.has_free_names:
        return MASK if value and (name in SECRET_OPTIONS or _SECRET_NAME.search(name)) else value
    if key.is_secret:
        is_set = value.get_secret_value() if isinstance(value, SecretStr) else value
        return MASK if is_set else ""
    return "" if value is None else value


def _name(text: str) -> str:
    return text if _PLAIN_NAME.fullmatch(text) else json.dumps(text, ensure_ascii=False)


def toml_value(value: Any) -> str:
    match value:
        case bool() | int() | float():
            return json.dumps(value)
        case tuple() | list():
            return f"[{', '.join(toml_value(item) for item in value)}]"
        case Path() | IPv4Network() | IPv6Network():
            return json.dumps(str(value), ensure_ascii=False)
        case Mapping():
            return "{" + ", ".join(f"{_name(name)} = {toml_value(item)}" for name, item in value.items()) + "}"
        case _:
            return json.dumps(_masked_text(value), ensure_ascii=False)


def _masked_text(value: object) -> str:
    """Format the value, masking passwords and tokens in URLs of keys that are not marked as secret."""
    text = str(value)
    for secret in _SECRETS_IN_ADDRESS:
        text = secret.sub(rf"\1{MASK}", text)
    return text
