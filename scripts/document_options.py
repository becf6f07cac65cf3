"""Write the options of the interfaces into docs/engines.md from their models; --check: exit 1 when they are stale."""

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(PROJECT))

from scripts.support_table import Page  # noqa: E402 the project is no installed package

from queryserver.connectors import options as models  # noqa: E402 as above
from queryserver.connectors.urls import UrlOptions  # noqa: E402 as above

BEGIN, END = "<!-- options: made by make docs -->", "<!-- end of the options -->"

INTERFACES: Mapping[str, type[models.Options]] = {
    "hiveserver2": models.Hs2Options,
    "trino": models.TrinoOptions,
    "phoenix": models.PhoenixOptions,
    "sqlalchemy": UrlOptions,
    "duckdb": models.DuckdbOptions,
    "sqlite": models.SqliteOptions,
}


def table() -> str:
    """The part of the page between the two comments."""
    lines = ["| Interface | Option | Default | Meaning |", "|---|---|---|---|"]
    for interface, model in INTERFACES.items():
        texts = meanings(model)
        for name, field in model.model_fields.items():
            shown = f"`{field.default}`" if field.default not in {"", None} else ""
            default = "required" if field.is_required() else "" if field.default_factory else shown
            default = default.lower() if isinstance(field.default, bool) else default
            lines.append(f"| {interface} | `{field.alias or name}` | {default} | {texts[name]} |")
    return "\n".join(lines)


def meanings(model: type[models.Options]) -> Mapping[str, str]:
    """Option to the docstring below it, own or inherited; read from the source, because Python keeps none."""
    return dict(pair for owner in reversed(model.__mro__[: -len(models.Options.__mro__)]) for pair in _meanings(owner))


def _meanings(model: type) -> Iterator[tuple[str, str]]:
    (definition,) = ast.parse(inspect.getsource(model)).body
    for option, text in pairwise(definition.body):
        match option, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(line))):
                yield name, " ".join(line.split()).replace("|", "&#124;")


PAGE = Page(PROJECT / "docs" / "engines.md", BEGIN, END, table)


if __name__ == "__main__":
    sys.exit(PAGE.main())
