"""A settings file to begin with: every key explained, every value commented out."""

from collections.abc import Iterator

from pydantic import SecretStr

from queryserver.settings.descriptions import descriptions
from queryserver.settings.report import toml_value
from queryserver.settings.schema import Key, field_name, keys
from queryserver.settings.section import Section
from queryserver.settings.tree import Settings

_ENTRY = "NAME"


def sample_file() -> str:
    """The text of the file; with all of it commented out it changes nothing."""
    head = [
        "# Settings of queryserver. Each value below is the default: uncomment a line to change it.",
        "# The environment goes first: QUERYSERVER__DESKTOP__HTTP_PORT=9000 for http_port of [desktop].",
        "# A secret may stand elsewhere: <key>_file names a file, <key>_script a command that prints it.",
    ]
    return "\n".join([*head, *_section(Settings, "")]) + "\n"


def _section(section: type[Section], prefix: str) -> Iterator[str]:
    texts = descriptions(section)
    plain = [key for key in keys(section).values() if not (key.section or key.entries or key.has_free_names)]
    if plain:
        yield f"\n# [{prefix[:-1]}]"
    for key in plain:
        yield f"# {texts[field_name(section, key)]}"
        yield f"# {_assignment(key)}"
    for key in keys(section).values():
        if key.has_free_names:
            yield f"\n# [{prefix}{key.name}]"
            yield f"# {texts[field_name(section, key)]}"
        elif inner := key.section or key.entries:
            yield from _section(inner, f"{prefix}{key.name}.{f'{_ENTRY}.' if key.entries else ''}")


def _assignment(key: Key) -> str:
    """The key with its default; alone when it has none."""
    if key.field.is_required():
        return f"{key.name} (required)"
    value = key.field.get_default(call_default_factory=True)
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    return f"{key.name} (absent)" if value is None else f"{key.name} = {toml_value(value)}"
