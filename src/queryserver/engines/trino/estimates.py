"""Reads Trino's estimates from the JSON of EXPLAIN."""

import math
from collections.abc import Iterator, Mapping
from typing import Any, cast

import orjson

from queryserver.engines.estimates import CostEstimate

EXPLAIN = "EXPLAIN (TYPE LOGICAL, FORMAT JSON) "
"""TYPE IO is not used, because it lists a table only once even if the plan reads it several times.
"""
_CONSTANTS = "Values"
_SCANS = ("TableScan", "Scan")  # also `ScanFilter`, `ScanProject` and `ScanFilterProject`


def estimate_from(plan: str) -> CostEstimate | None:
    """Return the total size of the table scans of a logical plan, before their filters.

    A source of unknown size adds nothing, so the total may be too low. Returns None if nothing is known, or if the text
    is not a plan, as for DDL statements.
    """
    try:
        root = orjson.loads(plan)
    except ValueError:
        return None
    sources = [node for node in _nodes(root) if not node.get("children")]
    sizes = [_value(node, "outputSizeInBytes") for node in sources]
    rows = [_value(node, "outputRowCount") for node in sources]
    total = sum(filter(None, sizes))
    if not sources or (total == 0 and None in sizes):
        return None
    return CostEstimate(scanned_bytes=int(total), rows=None if None in rows else int(sum(filter(None, rows))))


def _value(source: Mapping[str, Any], name: str) -> float | None:
    """Return what a leaf of the plan reads; None if it is unknown, which Trino writes as "NaN"."""
    kind, estimates = source.get("name"), source.get("estimates")
    if kind == _CONSTANTS:
        return 0
    # A node that scans, filters and projects has an estimate for each step, in this order.
    if not (isinstance(kind, str) and kind.startswith(_SCANS) and isinstance(estimates, list) and estimates):
        return None
    first = cast("list[Any]", estimates)[0]
    value = cast("dict[str, Any]", first).get(name) if isinstance(first, dict) else None
    return value if isinstance(value, int | float) and math.isfinite(value) and value >= 0 else None


def _nodes(root: Any) -> Iterator[Mapping[str, Any]]:
    """Yield all nodes of the plan. Not recursive, because a plan may be deeper than Python's stack."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            known = cast("dict[str, Any]", node)
            yield known
            children = known.get("children")
            waiting.extend(cast("list[Any]", children) if isinstance(children, list) else ())
