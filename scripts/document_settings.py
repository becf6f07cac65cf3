"""Write docs/configuration.md from the settings classes; --check: exit 1 when it is not up to date."""

import sys
from collections.abc import Iterator
from pathlib import Path

from queryserver.platform.settings.loading import toml_value
from queryserver.platform.settings.sections import Key, descriptions, keys, tables
from queryserver.platform.settings.tree import Settings

TARGET = Path(__file__).resolve().parent.parent / "docs" / "configuration.md"

HEAD = """\
# Settings

Made by `make docs` from `src/queryserver/settings`; change it there.

One TOML file: `--config FILE`, else `$QUERYSERVER_CONFIG`, `./queryserver.toml`, `/etc/queryserver/queryserver.toml`.
`queryserver config init` writes one with every key in it; `queryserver config check` lists all problems at once, and
with `--values` prints every effective value with its origin.

- The environment goes before the file: `QUERYSERVER__DESKTOP__HTTP_PORT=9000` is `http_port` of `[desktop]`; two
  underscores between levels, in any case. A variable of a whole table holds JSON and is laid over the table.
- `QUERYSERVER_DATA_DIR` is short for `QUERYSERVER__DESKTOP__DATA_DIR`; `QUERYSERVER_ADMIN_PASSWORD` is the password of
  the first administrator of `serve --embedded`.
- A secret `<key>` may stand elsewhere: `<key>_file` names a file, `<key>_script` a command that prints it within 10 s.
  The same goes for the options `url`, `password`, `auth_password`, `credentials_json` and `token` of data sources.
- Lists are arrays or comma lists. Sizes are bytes; `_s` is seconds, `_h` hours, `_days` days.
- Unknown keys, wrong types and contradictions stop the start. Changes need a restart.
"""


def document() -> str:
    """The whole page."""
    return "\n".join([HEAD, *_tables()]).rstrip() + "\n"


def _tables() -> Iterator[str]:
    for name, section in tables(Settings, "<name>"):
        rows = [key for key in keys(section).values() if key.has_free_names or not key.is_table]
        if rows:
            texts = descriptions(section)
            yield f"## `[{name}]`\n"
            yield f"{(section.__doc__ or '').strip()}\n"
            yield "| Key | Type | Default | Meaning |\n|---|---|---|---|"
            yield from (_row(key, texts[key.name]) for key in rows)
            yield ""


def _row(key: Key, text: str) -> str:
    return f"| `{key.name}` | {_kind(key)} | {_default(key)} | {text.replace('|', '&#124;')} |"


def _kind(key: Key) -> str:
    if key.is_secret:
        return "secret"
    if key.choices:
        return ", ".join(f"`{choice}`" if choice else "empty" for choice in key.choices)
    if key.is_list:
        return "list"
    if key.has_free_names:
        return "table"
    return {int: "number", bool: "boolean", str: "text", Path: "path"}[key.kind]


def _default(key: Key) -> str:
    if key.field.is_required():
        return "required"
    value = key.field.get_default(call_default_factory=True)
    if value is None or key.is_secret or not (value or isinstance(value, int)):
        return ""
    return f"`{toml_value(value)}`"


def main() -> int:
    """Exit code."""
    text = document()
    if "--check" in sys.argv:
        if TARGET.is_file() and TARGET.read_text(encoding="utf-8") == text:
            return 0
        print(f"{TARGET.name} is not up to date: run make docs")
        return 1
    TARGET.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
