"""Write the generated parts of docs/: settings, options, support tables and the diagram of the packages.

With --check, only compare them with the files. A generated part is enclosed in two comments with its name.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
from scripts.generated_files import PROJECT, refresh
from tests.contract import engine_table, storage_table

from queryserver.connectors import options as models
from queryserver.connectors.forms import option_texts
from queryserver.connectors.urls import UrlOptions
from queryserver.platform.settings.loader import toml_value
from queryserver.platform.settings.sections import Key, descriptions, keys, tables
from queryserver.platform.settings.tree import Settings

INTERFACES: Mapping[str, type[models.Options]] = {
    "hiveserver2": models.Hs2Options,
    "trino": models.TrinoOptions,
    "phoenix": models.PhoenixOptions,
    "sqlalchemy": UrlOptions,
    "duckdb": models.DuckdbOptions,
    "sqlite": models.SqliteOptions,
}


def settings() -> str:
    """Return a table of keys for each settings section, generated from the settings classes."""
    return "\n\n".join(_sections())


def _sections() -> Iterator[str]:
    for name, section in tables(Settings, "<name>"):
        rows = [key for key in keys(section).values() if key.has_free_names or not key.is_table]
        if rows:
            texts = descriptions(section)
            yield f"## `[{name}]`"
            yield (section.__doc__ or "").strip()
            head = "| Key | Type | Default | Meaning |\n|---|---|---|---|"
            yield "\n".join([head, *(_setting(key, texts[key.name]) for key in rows)])


def _setting(key: Key, text: str) -> str:
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


def options() -> str:
    """Return a table of the options of all interfaces, generated from the option models."""
    lines = ["| Interface | Option | Default | Meaning |", "|---|---|---|---|"]
    for interface, model in INTERFACES.items():
        texts = option_texts(model)
        for name, field in model.model_fields.items():
            shown = f"`{field.default}`" if field.default not in {"", None} else ""
            default = "required" if field.is_required() else "" if field.default_factory else shown
            default = default.lower() if isinstance(field.default, bool) else default
            lines.append(
                f"| {interface} | `{field.alias or name}` | {default} | {texts[name].replace('|', '&#124;')} |"
            )
    return "\n".join(lines)


def rooms() -> str:
    """Return the top-level packages ("rooms") of src/queryserver as a Mermaid flowchart, without transitive arrows.

    An arrow means that modules of one package import modules of the other. Raises CycleError.
    """
    graph = grimp.build_graph("queryserver", cache_dir=None)
    arrows: dict[str, set[str]] = {}
    for module in graph.modules - {"queryserver"}:
        imported = graph.find_modules_directly_imported_by(module) - {"queryserver"}
        arrows.setdefault(module.split(".")[1], set()).update(to.split(".")[1] for to in imported)
    arrows = {room: targets - {room} for room, targets in arrows.items()}
    reach: dict[str, set[str]] = {}
    for room in TopologicalSorter(arrows).static_order():
        reach[room] = arrows[room].union(*(reach[below] for below in arrows[room]))
    lines = [
        f"    {room} --> {to}"
        for room, targets in sorted(arrows.items())
        for to in sorted(targets)
        if not any(to in reach[other] for other in targets)
    ]
    return "\n".join(["```mermaid", "flowchart TD", *lines, "```"])


PARTS: Mapping[str, Mapping[str, Callable[[], str]]] = {
    "architecture.md": {"rooms": rooms},
    "configuration.md": {"settings": settings},
    "engines.md": {"support table": engine_table.table, "options": options},
    "storage.md": {"support table": storage_table.table},
}


def document(page: Path, parts: Mapping[str, Callable[[], str]]) -> str:
    """Return the text of a page with its generated parts replaced. Raises SystemExit if a comment is missing."""
    text = page.read_text(encoding="utf-8")
    for name, part in parts.items():
        begin, end = f"<!-- {name}: made by make docs -->", f"<!-- end of the {name} -->"
        before, _, rest = text.partition(begin)
        _, found, after = rest.partition(end)
        if not found:
            message = f"{page.name} lacks its comments {begin} and {end}"
            raise SystemExit(message)
        text = f"{before}{begin}\n\n{part()}\n\n{end}{after}"
    return text


if __name__ == "__main__":
    pages = {PROJECT / "docs" / name: parts for name, parts in PARTS.items()}
    sys.exit(refresh({page: document(page, parts) for page, parts in pages.items()}))
