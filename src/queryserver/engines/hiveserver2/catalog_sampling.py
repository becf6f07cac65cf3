"""The statements of samples (Contract editor 10.3)."""

from collections.abc import Sequence

from queryserver.domain.catalog import SAMPLE_ROWS, SampleKind
from queryserver.domain.errors.base import NotSupported
from queryserver.engines.hiveserver2.catalog_paths import Place
from queryserver.engines.hiveserver2.catalog_quoting import quoted
from queryserver.engines.hiveserver2.catalog_types import has_map


def some_rows(table: str, names: Sequence[str]) -> str:
    """Any rows. The columns are named: Hive puts the table's name before those of `*`."""
    return f"SELECT {', '.join(quoted(name) for name in names)} FROM {table} LIMIT {SAMPLE_ROWS}"


def values_at(place: Place, kind: SampleKind, *, groups_maps: bool) -> str:
    """Distinct values with NULL last, or the largest or smallest.

    `groups_maps` says that the engine tells equal maps; else their JSON text does. Maps have no order of size.
    """
    name = quoted(place.name)
    maps = has_map(place.type)
    if kind in {SampleKind.MAX, SampleKind.MIN}:
        if maps:
            raise NotSupported(f"The values of {place.name} have no order.")
        return f"SELECT {kind.value}({place.expression}) AS {name} FROM {place.source}"
    if maps and not groups_maps:
        text = f"to_json({place.expression})"
        grouped = f"SELECT {text} AS k, first({place.expression}) AS v FROM {place.source} GROUP BY {text}"
        return f"SELECT q.v AS {name} FROM ({grouped}) q ORDER BY q.k NULLS LAST LIMIT {SAMPLE_ROWS}"
    distinct = f"SELECT DISTINCT {place.expression} AS v FROM {place.source}"
    return f"SELECT v AS {name} FROM ({distinct}) q ORDER BY {name} NULLS LAST LIMIT {SAMPLE_ROWS}"
