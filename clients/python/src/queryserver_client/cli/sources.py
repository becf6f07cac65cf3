"""`qs connectors` and `qs explain`."""

import json
import sys
from typing import TYPE_CHECKING

from queryserver_client.cli.failures import FAILED, place_of, report, visible
from queryserver_client.cli.forms import Form
from queryserver_client.cli.operations import show
from queryserver_client.errors import StatementError

if TYPE_CHECKING:
    from queryserver_client.metadata import Plan
    from queryserver_client.sync import Connection

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def show_connectors(db: "Connection", form: Form | None) -> None:
    """List the data sources to which the user can send statements. `connector` is the first argument of `qs sql`."""
    names = ["connector", "name", "dialect"]
    show(names, [[one.id, one.name, one.dialect] for one in db.connectors.usable()], form)


def explain(db: "Connection", connector: str, text: str, database: str | None, *, as_json: bool) -> int:
    """Print the plan of the first statement of the text, without running it. Return the exit code."""
    try:
        plan = db.metadata.explain(connector, text, database=database)
    except StatementError as error:
        report(error, place_of(error, text))
        return FAILED
    if as_json:
        print(json.dumps(_facts(plan), ensure_ascii=False, indent=1))
        return 0
    if sys.stdout.isatty():
        _show_plan(plan)
    else:
        print(plan.text.rstrip("\n"))
    return 0


def _show_plan(plan: "Plan") -> None:
    from queryserver_client.cli.pager import paged  # noqa: PLC0415
    from queryserver_client.cli.terminal import output_console  # noqa: PLC0415

    console = output_console()
    with paged(console):
        console.print(visible(plan.text.rstrip("\n"), keep="\n"), overflow="ignore", crop=False, soft_wrap=True)
        if estimate := _estimate(plan):
            console.print(f"({estimate})", style="dim")


def _estimate(plan: "Plan") -> str:
    parts: list[str] = []
    if plan.estimated_bytes is not None:
        parts.append(f"estimated to read {_size(plan.estimated_bytes)}")
    if plan.estimated_cost is not None:
        parts.append(f"estimated cost {plan.estimated_cost:g}")
    return ", ".join(parts)


def _size(count: float) -> str:
    for unit in _UNITS[:-1]:
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} {_UNITS[-1]}"


def _facts(plan: "Plan") -> "dict[str, object]":
    return {name: value for name, value in vars(plan).items() if value is not None}
